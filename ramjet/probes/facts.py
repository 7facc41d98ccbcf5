"""What an engine says about itself, from the texts of its pages. Pure; what is not said is None.

Sources: SGLang 0.5.23, vLLM 0.32.0 and llama-server, as they answered when they were tried.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

EngineName = Literal["sglang", "vllm", "llama.cpp"]

MODELS, METRICS, LOADS, SLOTS, PROPS = "/v1/models", "/metrics", "/v1/loads", "/slots", "/props"
SERVER_INFO, OLD_SERVER_INFO = "/server_info", "/get_server_info"
PAGES = (MODELS, SERVER_INFO, OLD_SERVER_INFO, LOADS, SLOTS, PROPS, METRICS)
"""Asked for once before a probe; most engines have some of them."""
BUSY_PAGES = (LOADS, SLOTS, METRICS)
"""Those that say what runs and waits, the freshest first: gauges may be seconds old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a replica."""

    engine: EngineName | None = None
    models: tuple[str, ...] = ()
    running: int | None = None
    waiting: int | None = None
    token_pool: int | None = None
    """Tokens that its KV cache holds."""
    context_tokens: int | None = None
    """The longest request it takes, prompt and answer."""
    chunk_tokens: int | None = None
    """How much of a prompt it reads at once."""
    snapshot_slots: int | None = None
    states_per_path: int | None = None
    """SGLang's cap on the snapshots along one conversation; -1 is none."""
    slots: int | None = None
    """llama.cpp: how many sequences it holds."""
    host_tier: bool | None = None
    reports_cached: bool | None = None
    """Whether its usage says how much of a prompt was reused."""
    simulated_speed: float | None = None
    """Of a simulated replica: how many of its seconds pass in one of ours."""
    cached_by_source: Mapping[str, int] | None = None
    """Tokens reused since it started, by where they came from (SGLang: device, host, storage)."""

    @property
    def in_flight(self) -> int | None:
        """Requests that run or wait."""
        if self.running is None and self.waiting is None:
            return None
        return (self.running or 0) + (self.waiting or 0)

    def told(self) -> dict[str, Any]:
        """As JSON, without what only the moment knows."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in ("models", "running", "waiting", "cached_by_source")
        }


def read(pages: Mapping[str, str]) -> Facts:
    """Put together what the pages say that were answered."""
    models = [entry for entry in _list(_object(pages.get(MODELS)).get("data")) if isinstance(entry, dict)]
    info = _object(pages.get(SERVER_INFO)) or _object(pages.get(OLD_SERVER_INFO))
    ranks = [rank for rank in _list(info.get("internal_states")) if isinstance(rank, dict)]
    slots = _slots(pages.get(SLOTS))
    props = _object(pages.get(PROPS))
    samples = _samples(pages.get(METRICS))
    loads = _loads(pages.get(LOADS))
    config = _labels(samples, "vllm:cache_config_info")
    running, waiting = _in_flight(loads, slots, samples)
    said = [info, *ranks]
    return Facts(
        engine=_engine(models, info, slots, props, samples),
        models=tuple(entry["id"] for entry in models if isinstance(entry.get("id"), str)),
        running=running,
        waiting=waiting,
        token_pool=_first(
            _number(said, "max_total_num_tokens"),
            _number(loads, "max_total_num_tokens"),
            _number([config], "kv_cache_size_tokens"),
            _product(_number([config], "num_gpu_blocks"), _number([config], "block_size")),
            _sum(_number([slot], "n_ctx") for slot in slots or ()),
        ),
        context_tokens=min(
            (
                tokens
                for tokens in (
                    _number(said, "max_req_input_len"),
                    _number(said, "context_length"),
                    _number(models, "max_model_len"),
                    _number(slots or [], "n_ctx"),
                )
                if tokens
            ),
            default=None,
        ),
        chunk_tokens=_positive(_number(said, "chunked_prefill_size")),
        snapshot_slots=_first(_number(said, "max_mamba_cache_size"), _snapshot_slots(samples)),
        states_per_path=_number(said, "mamba_max_states_per_path"),
        slots=_first(_number([props], "total_slots"), len(slots) if slots else None),
        host_tier=_flag(said, "enable_hierarchical_cache"),
        reports_cached=_flag(said, "enable_cache_report"),
        simulated_speed=next((sample.value for sample in samples if sample.name == "ramjet_sim_speed"), None),
        cached_by_source=_by_source(samples),
    )


def most_tokens(message: str, asked_tokens: int) -> int | None:
    """The longest prompt that an engine takes, from its refusal of one that was too long; None where it did not say.

    SGLang: `longer than the model's context length (65536 tokens)`, `exceeds the maximum allowed length (65530 tokens)`;
    vLLM: `maximum context length is 16384 tokens`; llama.cpp: `exceeds the available context size (8192 tokens)`.
    """
    found = re.findall(
        r"(?:context (?:length|size|window)|maximum|longest|limit|at most|pool|fits|n_ctx)\b[^0-9]{0,40}?([0-9][0-9,]*)",
        message,
        flags=re.IGNORECASE,
    )
    fitting = [number for text in found if 0 < (number := int(text.replace(",", ""))) < asked_tokens]
    return max(fitting, default=None)


def _engine(
    models: list[dict[str, Any]],
    info: dict[str, Any],
    slots: list[dict[str, Any]] | None,
    props: dict[str, Any],
    samples: list[Sample],
) -> EngineName | None:
    owners = {str(entry.get("owned_by")) for entry in models}
    names = {sample.name.partition(":")[0] for sample in samples}
    if "sglang" in owners | names or "chunked_prefill_size" in info or "max_total_num_tokens" in info:
        return "sglang"
    if "vllm" in owners | names:
        return "vllm"
    if "llamacpp" in owners | names or slots or "total_slots" in props:
        return "llama.cpp"
    return None


def _in_flight(
    loads: list[dict[str, Any]], slots: list[dict[str, Any]] | None, samples: list[Sample]
) -> tuple[int | None, int | None]:
    if loads:
        return _sum(_number([rank], "num_running_reqs") for rank in loads), _sum(
            _first(_number([rank], "num_waiting_reqs"), _number([rank], "num_queue_reqs")) for rank in loads
        )
    for running, waiting in (
        ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
        ("vllm:num_requests_running", "vllm:num_requests_waiting"),
        ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    ):
        if (value := _gauge(samples, running)) is not None:
            return value, _gauge(samples, waiting)
    if slots:
        return sum(bool(slot.get("is_processing")) for slot in slots), None
    return None, None


def _loads(text: str | None) -> list[dict[str, Any]]:
    """SGLang's `/v1/loads`: one object for each rank."""
    document = _json(text)
    ranks = document.get("loads") if isinstance(document, dict) else document
    return [rank for rank in _list(ranks) if isinstance(rank, dict)]


def _slots(text: str | None) -> list[dict[str, Any]] | None:
    document = _json(text)
    if not isinstance(document, list) or not all(isinstance(slot, dict) for slot in document):
        return None
    return document


def _samples(text: str | None) -> list[Sample]:
    if not text:
        return []
    families: Iterable[Metric] = text_string_to_metric_families(text)
    try:
        samples = [sample for family in families for sample in family.samples]
    except (ValueError, IndexError, KeyError):
        return []
    # Every tensor-parallel rank of SGLang repeats the gauges of the first.
    return [sample for sample in samples if sample.labels.get("tp_rank", "0") == "0"]


def _gauge(samples: list[Sample], name: str) -> int | None:
    return _sum(int(sample.value) for sample in samples if sample.name == name)


def _labels(samples: list[Sample], name: str) -> dict[str, Any]:
    return next((dict(sample.labels) for sample in samples if sample.name in (name, f"{name}_info")), {})


def _snapshot_slots(samples: list[Sample]) -> int | None:
    """SGLang's pool of snapshots; its gauges are in slots, whatever their names say."""
    parts = [_gauge(samples, f"sglang:mamba_{part}_tokens") for part in ("available", "evictable", "used")]
    total = _sum(parts) if None not in parts else None
    return total or None


def _by_source(samples: list[Sample]) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for sample in samples:
        if sample.name == "sglang:cached_tokens_total" and "cache_source" in sample.labels:
            source = sample.labels["cache_source"]
            found[source] = found.get(source, 0) + int(sample.value)
    return found or None


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _object(text: str | None) -> dict[str, Any]:
    document = _json(text)
    return document if isinstance(document, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(objects: Iterable[Mapping[str, Any]], name: str) -> int | None:
    """The first whole number of this name; labels of metrics are texts."""
    for each in objects:
        value = each.get(name)
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}", value):
            return int(value)
        if type(value) is int:
            return value
    return None


def _flag(objects: Iterable[Mapping[str, Any]], name: str) -> bool | None:
    return next((value for each in objects if isinstance(value := each.get(name), bool)), None)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _product(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


def _positive(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None
