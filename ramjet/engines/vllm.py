"""vLLM's pages: `/metrics`, `/version` and `/v1/models`, in the names of 0.8 to 0.32.

It has no page of its settings; the sizes of its cache are labels of `vllm:cache_config_info`. A hybrid model's states lie
in blocks of the same pool as everything else, so it has no slots, and reuse is a multiple of a block that is much longer.
"""

from __future__ import annotations

from ramjet.engines.facts import Engine, Facts, Loads, Pages
from ramjet.engines.reading import (
    Said,
    Told,
    count,
    document,
    exports,
    facts_of,
    least,
    least_of,
    loads_of,
    mapping,
    models,
    owners,
    samples,
    size,
)

VERSION, MODELS, METRICS = "/version", "/v1/models", "/metrics"
_CONFIG = "vllm:cache_config_info"
_STARTED = "process_start_time_seconds"
_PUBLISHED = (
    "version", "model", "started_at", "pool_tokens", "page_tokens", "has_snapshots", "max_prompt_tokens",
)  # fmt: skip
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:prompt_tokens_total": "counted",
}
_USAGES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""A ratio, whatever it is called, of what running requests hold: what is merely cached is not in it."""


def _speaks(pages: Pages) -> bool:
    return "vllm" in owners(pages.get(MODELS)) or exports(pages.get(METRICS), "vllm:")


def _facts(pages: Pages) -> Facts:
    metrics = pages.get(METRICS)
    configs = list(_configs(metrics).values())
    config = Told(f"{METRICS} {_CONFIG}", configs[0] if configs else {})
    listed = [Told(MODELS, each) for each in models(pages.get(MODELS))]
    mode = config.word("mamba_cache_mode")
    # Without a mode of its own for states, the model has none; what it keeps of them lies in blocks like all the rest.
    hybrid = mode.value not in {None, "none", "None"}
    started = next(iter(samples(metrics, _STARTED)), None)
    found = {
        "version": [Told(VERSION, mapping(document(pages.get(VERSION)))).word("version")],
        "model": [said for each in listed for said in (each.word("id"), each.word("root"))],
        "started_at": [Said(started.value if started is not None and started.value else None, f"{METRICS} {_STARTED}")],
        "pool_tokens": [
            least_of(config.page, configs, "kv_cache_size_tokens"),
            Said(least(_blocks(each) for each in configs), f"{config.page} num_gpu_blocks * block_size"),
        ],
        # Not `mamba_block_size`, which says 16 where reuse is by blocks of 384.
        "page_tokens": [config.size("effective_attention_block_size"), config.size("block_size")],
        "has_snapshots": [mode._replace(value=False if configs else None)],
        "states_in_pool": [mode._replace(value=hybrid if configs else None)],
        "max_prompt_tokens": [each.size("max_model_len") for each in listed],
        "caches": [config.flag("enable_prefix_caching")],
    }
    return facts_of("vllm", _PUBLISHED, found, ranks=max(len(configs), len(_loads(pages))) or None)


def _loads(pages: Pages) -> tuple[Loads, ...]:
    metrics = pages.get(METRICS)
    found: dict[int, dict[str, float]] = {}
    for name, field in _GAUGES.items():
        for rank, value in _of_ranks(metrics, name).items():
            found.setdefault(rank, {})[field] = value
    usages = next((usage for name in _USAGES if (usage := _of_ranks(metrics, name))), {})
    for rank, config in _configs(metrics).items():
        pool = size(config.get("kv_cache_size_tokens")) or _blocks(config)
        if pool is not None and rank in usages:
            found.setdefault(rank, {})["used_tokens"] = min(1.0, usages[rank]) * pool
    return loads_of(found)


def _configs(metrics: str | None) -> dict[int, dict[str, str]]:
    """The labels that say how its cache is made, by data-parallel rank."""
    return {count(each.labels.get("engine")) or 0: dict(each.labels) for each in samples(metrics, _CONFIG)}


def _blocks(config: dict[str, str]) -> int | None:
    blocks, block = size(config.get("num_gpu_blocks")), size(config.get("block_size"))
    return None if blocks is None or block is None else blocks * block


def _of_ranks(metrics: str | None, name: str) -> dict[int, float]:
    """A metric by data-parallel rank, which it calls an engine; adapters have values of their own."""
    found: dict[int, float] = {}
    for each in samples(metrics, name):
        rank = count(each.labels.get("engine")) or 0
        found[rank] = found.get(rank, 0.0) + each.value
    return found


VLLM = Engine(
    name="vllm",
    fact_paths=(MODELS, VERSION, METRICS),
    load_paths=(METRICS,),
    speaks=_speaks,
    facts=_facts,
    loads=_loads,
    work="vllm:prompt_tokens_total",
)
