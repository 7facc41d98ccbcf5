"""SGLang's pages: `/server_info`, `/v1/loads` and `/metrics`, in the names of 0.4.6 to 0.5.23.

Two traps. What is cached and could be evicted counts as free in its usage gauges, so that a full pool of snapshots that
thrashes reads as nearly empty; how many slots there are is the sum of those available, evictable and used, which it calls
tokens. And `max_mamba_cache_size` is null where SGLang has derived the number itself: then that sum alone knows it.
"""

from __future__ import annotations

from ramjet.engines.facts import Engine, Facts, Loads, Pages
from ramjet.engines.reading import (
    Object,
    Said,
    Told,
    count,
    document,
    exports,
    facts_of,
    flag,
    least,
    least_of,
    loads_of,
    mapping,
    mappings,
    models,
    owners,
    samples,
    size,
    total,
)

INFO, OLD_INFO, MODELS, LOADS, METRICS = "/server_info", "/get_server_info", "/v1/models", "/v1/loads", "/metrics"

_PUBLISHED = (
    "version", "model", "pool_tokens", "page_tokens", "chunk_tokens", "has_snapshots", "host_tier", "max_running",
    "max_prompt_tokens", "reports_cached",
)  # fmt: skip
_PUBLISHED_OF_HYBRIDS = (*_PUBLISHED, "snapshot_slots", "slots_per_request")

_SLOTS = tuple(f"sglang:mamba_{part}_tokens" for part in ("available", "evictable", "used"))
_PAGE = "sglang:page_size"
_POOL = "sglang:max_total_num_tokens"
_LOADS = {
    "num_running_reqs": "running",
    "num_waiting_reqs": "waiting",
    "num_waiting_uncached_tokens": "waiting_tokens",
    "num_used_tokens": "used_tokens",
    "total_prefill_uncached_tokens": "counted",
}
_GAUGES = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:num_used_tokens": "used_tokens",
    "sglang:kv_evictable_tokens": "evictable_tokens",
    "sglang:mamba_used_tokens": "used_slots",
    "sglang:mamba_evictable_tokens": "evictable_slots",
    "sglang:prompt_tokens_total": "counted",
}


_SLOTS_PER_REQUEST = {"no_buffer": 1, "extra_buffer": 3, "extra_buffer_lazy": 2}
"""The live state, and what it is copied to at the next grid point: two in turn while one batch overlaps the next."""
_GRIDS = {"no_buffer": 1}


def _speaks(pages: Pages) -> bool:
    fields = _info(pages).fields
    return (
        "sglang" in owners(pages.get(MODELS))
        or any(name in fields for name in ("max_total_num_tokens", "chunked_prefill_size"))
        or exports(pages.get(METRICS), "sglang:")
    )


def _facts(pages: Pages) -> Facts:
    info, metrics = _info(pages), pages.get(METRICS)
    states, loads = mappings(info.fields.get("internal_states")), _loads_of(pages)
    listed = [Told(MODELS, each) for each in models(pages.get(MODELS))]
    ranks = size(info.fields.get("dp_size")) or len(states) or len(loads) or None
    # With data-parallel attention the ranks share what was given; else each is an engine with as much.
    sharers = ranks or 1 if flag(info.fields.get("enable_dp_attention")) else 1
    slots = [
        least_of(f"{info.page} internal_states", states, "max_mamba_cache_size"),
        info.size("max_mamba_cache_size", sharers=sharers),
        Said(_slots(metrics), f"{METRICS} {' + '.join(_SLOTS)}"),
    ]
    hybrid = info.flag("uses_mamba_radix_cache")
    if hybrid.value is None and slots[-1].value is not None:
        hybrid = Said(value=True, source=slots[-1].source)
    longest = [
        info.size("max_req_input_len"),
        info.size("context_length"),
        *(each.size("max_model_len") for each in listed),
    ]
    chunk = info.size("chunked_prefill_size")
    if info.fields.get("chunked_prefill_size") == -1:
        # Off: a forward reads a whole prompt.
        chunk = chunk._replace(value=next((each.value for each in longest if each.value), None))
    found = {
        "version": [info.word("version"), Told(LOADS, mapping(document(pages.get(LOADS)))).word("version")],
        "model": [info.word("served_model_name"), info.word("model_path"), *(each.word("id") for each in listed)],
        "pool_tokens": [
            info.size("max_total_num_tokens"),
            least_of(LOADS, loads, "max_total_num_tokens"),
            Said(least(size(each) for each in _of_ranks(metrics, _POOL).values()), f"{METRICS} {_POOL}"),
        ],
        "page_tokens": [info.size("page_size"), Said(_page(metrics), f"{METRICS} {_PAGE}")],
        "chunk_tokens": [chunk],
        "has_snapshots": [hybrid],
        "host_tier": [info.flag("enable_hierarchical_cache")],
        "max_running": [
            least_of(f"{info.page} internal_states", states, "effective_max_running_requests_per_dp"),
            least_of(LOADS, loads, "max_running_requests"),
            info.size("max_running_requests", sharers=sharers),
        ],
        "max_prompt_tokens": longest,
        "reports_cached": [info.flag("enable_cache_report")],
        "caches": [info.flag("disable_radix_cache", inverted=True)],
    }  # fmt: skip
    if not hybrid.value:
        return facts_of("sglang", _PUBLISHED, found, ranks=ranks)
    strategy = _strategy(info)
    overlaps = not flag(info.fields.get("disable_overlap_schedule"))
    found |= {
        "snapshot_slots": slots,
        "snapshots_per_path": [info.size("mamba_max_states_per_path")],
        "slots_per_request": [strategy._replace(value=_slots_per_request(strategy.value, overlaps=overlaps))],
        # Without a buffer of their own, snapshots lie wherever a forward or an answer ends.
        "grid_tokens": [info.size("mamba_cache_chunk_size"), strategy._replace(value=_GRIDS.get(strategy.value))],
    }
    return facts_of("sglang", _PUBLISHED_OF_HYBRIDS, found, ranks=ranks)


def _loads(pages: Pages) -> tuple[Loads, ...]:
    found: dict[int, dict[str, float]] = {}
    # What never falls is counted otherwise on either page, so that only one of them may be asked for it.
    told = _loads_of(pages)
    for name, field in _GAUGES.items():
        for rank, value in _of_ranks(pages.get(METRICS), name).items():
            if field != "counted" or not told:
                found.setdefault(rank, {})[field] = value
    for place, each in enumerate(told):
        # Gauges are as old as the last batch; these are of now.
        told_rank = count(each.get("dp_rank"))
        counts = {field: count(each.get(name)) for name, field in _LOADS.items()}
        known = {field: value for field, value in counts.items() if value is not None}
        found.setdefault(place if told_rank is None else told_rank, {}).update(known)
    return loads_of(found)


def _info(pages: Pages) -> Told:
    """The server's own page, under its new name or its old one."""
    page = INFO if mapping(document(pages.get(INFO))) else OLD_INFO
    fields = mapping(document(pages.get(page)))
    return Told(page if fields else INFO, fields)


def _loads_of(pages: Pages) -> list[Object]:
    """One object for each data-parallel rank."""
    return mappings(mapping(document(pages.get(LOADS))).get("loads"))


def _strategy(info: Told) -> Said:
    """How snapshots are saved; `auto` says that it has not been decided when the page was made."""
    name = "mamba_radix_cache_strategy" if "mamba_radix_cache_strategy" in info.fields else "mamba_scheduler_strategy"
    said = info.word(name)
    return said if said.value in _SLOTS_PER_REQUEST else said._replace(value=None)


def _slots_per_request(strategy: str | None, *, overlaps: bool) -> int | None:
    slots = _SLOTS_PER_REQUEST.get(strategy or "")
    return slots if slots is None or overlaps else min(slots, 2)


def _of_ranks(metrics: str | None, name: str) -> dict[int, float]:
    """A metric by data-parallel rank. Every tensor-parallel rank repeats what the first one says."""
    found: dict[int, float] = {}
    for each in samples(metrics, name):
        if each.labels.get("tp_rank", "0") == "0" and each.labels.get("pp_rank", "0") == "0":
            rank = count(each.labels.get("dp_rank")) or 0
            found[rank] = found.get(rank, 0.0) + each.value
    return found


def _page(metrics: str | None) -> int | None:
    return next((size(each) for each in _of_ranks(metrics, _PAGE).values()), None)


def _slots(metrics: str | None) -> int | None:
    """Snapshot slots of a rank: the sum of those available, evictable and used."""
    parts = [_of_ranks(metrics, name) for name in _SLOTS]
    return least(total(count(part.get(rank)) for part in parts) for rank in parts[0]) or None


SGLANG = Engine(
    name="sglang",
    fact_paths=(INFO, MODELS, LOADS, METRICS),
    load_paths=(LOADS, METRICS),
    old_paths={INFO: OLD_INFO},
    speaks=_speaks,
    facts=_facts,
    loads=_loads,
    # What health probes cost is in this one alone: SGLang leaves them out of what it counts of requests.
    work="sglang:realtime_tokens_total",
)
