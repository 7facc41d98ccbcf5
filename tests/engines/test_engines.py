"""What engines say of themselves, from the pages that they have answered."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ramjet.engines.facts import Facts, Loads
from ramjet.engines.known import ENGINES, PATHS, detect
from ramjet.engines.reading import Sample, samples
from tests.engines.answers import EVERY, answers

UNTOLD = Facts(engine="")
FACTS: dict[str, dict[str, Any]] = {
    "sglang-0.5.20-glm": {
        "engine": "sglang", "ranks": 1, "version": "0.5.20", "model": "glm-5.3-flash", "pool_tokens": 499_968, "page_tokens": 64,
        "chunk_tokens": 6_144, "has_snapshots": True, "snapshot_slots": 28, "snapshots_per_path": 2,
        "slots_per_request": 3, "host_tier": True, "max_running": 5, "max_prompt_tokens": 499_962, "reports_cached": True,
    },
    "sglang-0.4.6": {
        "engine": "sglang", "version": "0.4.6.post5", "model": "deepseek-v3", "pool_tokens": 600_000, "page_tokens": 1,
        "chunk_tokens": 163_834, "host_tier": False, "max_running": 64, "max_prompt_tokens": 163_834,
        "reports_cached": False, "ranks": 2, "missing": ("has_snapshots",),
    },
    "vllm-0.8.5": {
        "engine": "vllm", "ranks": 1, "model": "llama", "pool_tokens": 16_000, "page_tokens": 16, "has_snapshots": False,
        "states_in_pool": False, "max_prompt_tokens": 8_192, "missing": ("version", "started_at"),
        "caches": True,
    },
    "sglang-0.5.23-llama": {
        "engine": "sglang", "ranks": 1, "version": "0.5.23", "model": "tiny", "pool_tokens": 131_072, "page_tokens": 1,
        "chunk_tokens": 4_096, "has_snapshots": False, "host_tier": False, "max_running": 8, "max_prompt_tokens": 65_530,
        "reports_cached": True,
        "caches": True,
    },
    "sglang-0.5.23-qwen3_next": {
        "engine": "sglang", "ranks": 1, "version": "0.5.23", "model": "tiny", "pool_tokens": 131_072, "page_tokens": 1,
        "chunk_tokens": 256, "has_snapshots": True, "snapshot_slots": 28, "slots_per_request": 1, "grid_tokens": 1,
        "host_tier": False, "max_running": 4, "max_prompt_tokens": 65_530, "reports_cached": True,
        "caches": True,
    },
    "sglang-0.5.23-qwen3_next-extra_buffer": {
        "engine": "sglang", "ranks": 1, "version": "0.5.23", "model": "tiny", "pool_tokens": 131_072, "page_tokens": 1,
        "chunk_tokens": 512, "has_snapshots": True, "snapshot_slots": 40, "slots_per_request": 2, "host_tier": False,
        "max_running": 8, "max_prompt_tokens": 65_530, "reports_cached": True,
        "caches": True,
    },
    "vllm-0.32.0-llama": {
        "engine": "vllm", "ranks": 1, "version": "0.32.0", "model": "tiny", "started_at": 1_796_115_860.91, "pool_tokens": 4_194_304,
        "page_tokens": 128, "has_snapshots": False, "states_in_pool": False, "max_prompt_tokens": 65_536,
        "caches": True,
    },
    "vllm-0.32.0-qwen3_next": {
        "engine": "vllm", "ranks": 1, "version": "0.32.0", "model": "tiny", "started_at": 1_796_116_043.81, "pool_tokens": 8_088_327,
        "page_tokens": 384, "has_snapshots": False, "states_in_pool": True, "max_prompt_tokens": 65_536,
        "caches": True,
    },
    "llamacpp": {
        "engine": "llamacpp", "version": "b7600-0a1b2c3d4", "model": "lfm2", "has_snapshots": False, "max_running": 4,
        "max_prompt_tokens": 8_192,
    },
    "openai": {"engine": "openai", "model": "some-model"},
}  # fmt: skip
LOADS: dict[str, tuple[Loads, ...]] = {
    "sglang-0.5.20-glm": (
        Loads(
            running=3, waiting=2, waiting_tokens=41_200, used_tokens=120_448, evictable_tokens=310_016, used_slots=12,
            evictable_slots=16,
        ),
    ),
    "sglang-0.4.6": (Loads(running=4, waiting=1, used_tokens=70_000), Loads(rank=1, running=0, waiting=0, used_tokens=0)),
    "vllm-0.8.5": (Loads(running=1, waiting=0, used_tokens=8_000),),
    "sglang-0.5.23-llama": (
        Loads(
            running=7, waiting=2, waiting_tokens=6_900, used_tokens=48_109, evictable_tokens=18_030, used_slots=0,
            evictable_slots=0, counted=64_827,
        ),
    ),
    # The one that is being read is neither running nor waiting.
    "sglang-0.5.23-qwen3_next": (
        Loads(
            running=0, waiting=9, waiting_tokens=20_630, used_tokens=2_304, evictable_tokens=17_920, used_slots=2,
            evictable_slots=26, counted=22_635,
        ),
    ),
    "sglang-0.5.23-qwen3_next-extra_buffer": (
        Loads(
            running=0, waiting=9, waiting_tokens=16_506, used_tokens=1_536, evictable_tokens=16_967, used_slots=3,
            evictable_slots=37, counted=19_845,
        ),
    ),
    "vllm-0.32.0-llama": (Loads(running=8, waiting=2, used_tokens=50_177, counted=109_529.0),),
    "vllm-0.32.0-qwen3_next": (Loads(running=2, waiting=4, used_tokens=9_627, counted=67_396.0),),
    "llamacpp": (Loads(running=2, waiting=1, counted=39_080.0),),
    "openai": (),
}  # fmt: skip


def told(facts: Facts) -> dict[str, Any]:
    """What is known, without where it stands."""
    return {
        each.name: value
        for each in fields(facts)
        if each.name != "sources" and (value := getattr(facts, each.name)) != getattr(UNTOLD, each.name)
    }


@pytest.mark.parametrize("name", EVERY)
def test_facts_are_as_the_engine_says(name: str) -> None:
    """
    Which engine it is, how large its pools are, and what it does not say.
    """
    pages = answers(name)

    assert told(detect(pages).facts(pages)) == FACTS[name]


@pytest.mark.parametrize("name", EVERY)
def test_every_fact_says_where_it_was_read(name: str) -> None:
    """
    By a page that was answered, and nothing is both known and missing.
    """
    pages = answers(name)
    facts = detect(pages).facts(pages)
    known = told(facts).keys() - {"engine", "ranks", "missing"}

    assert facts.sources.keys() == known
    assert all(source.split()[0] in pages for source in facts.sources.values())
    assert not known & set(facts.missing)


@pytest.mark.parametrize("name", EVERY)
def test_loads_are_as_the_engine_says(name: str) -> None:
    """
    By data-parallel rank; what every tensor-parallel rank repeats is counted once.
    """
    pages = answers(name)

    assert detect(pages).loads(pages) == LOADS[name]


@pytest.mark.parametrize("name", [name for name in EVERY if LOADS.get(name)])
def test_any_page_of_loads_will_do_alone(name: str) -> None:
    """
    Each says at least what runs there, and the same as the others.
    """
    pages = answers(name)
    engine = detect(pages)
    told_by = [engine.loads({path: pages[path]}) for path in engine.load_paths if path in pages]

    assert told_by
    assert all([each.running for each in loads] == [each.running for each in LOADS[name]] for loads in told_by)


def test_a_full_pool_of_snapshots_is_not_taken_for_an_empty_one() -> None:
    """
    12 of 28 slots are used and none is free: how many there are is the sum, and no gauge of usage says so.
    """
    pages = answers("sglang-0.5.20-glm")
    facts, (loads,) = ENGINES["sglang"].facts(pages), ENGINES["sglang"].loads(pages)

    assert facts.snapshot_slots == (loads.used_slots or 0) + (loads.evictable_slots or 0) == 28
    assert "mamba_available_tokens" in facts.sources["snapshot_slots"]


@pytest.mark.parametrize(
    ("strategy", "no_overlap", "slots", "grid"),
    [
        ("extra_buffer", False, 3, None),
        ("extra_buffer", True, 2, None),
        ("extra_buffer_lazy", False, 2, None),
        ("no_buffer", True, 1, 1),
        ("auto", False, None, None),
        (None, False, None, None),
    ],
)
def test_what_a_running_request_takes_follows_from_the_strategy(
    strategy: str | None, no_overlap: bool, slots: int | None, grid: int | None
) -> None:
    """
    The live state, and what it is copied to; where the strategy is not known, neither is that.
    """
    info = {
        "uses_mamba_radix_cache": True,
        "mamba_radix_cache_strategy": strategy,
        "disable_overlap_schedule": no_overlap,
    }
    facts = ENGINES["sglang"].facts({"/server_info": json.dumps(info)})

    assert (facts.slots_per_request, facts.grid_tokens) == (slots, grid)
    assert ("slots_per_request" in facts.missing) is (slots is None)


@pytest.mark.parametrize(("attention", "slots"), [(True, 20), (False, 40)])
def test_ranks_share_the_slots_with_data_parallel_attention_alone(attention: bool, slots: int) -> None:
    """
    Else each rank is an engine with as many.
    """
    info = {
        "uses_mamba_radix_cache": True,
        "max_mamba_cache_size": 40,
        "dp_size": 2,
        "enable_dp_attention": attention,
    }

    assert ENGINES["sglang"].facts({"/server_info": json.dumps(info)}).snapshot_slots == slots


def test_what_ranks_say_of_themselves_goes_before_what_was_given() -> None:
    """
    What SGLang has derived is null at the top, and known to its schedulers.
    """
    info = {
        "uses_mamba_radix_cache": True,
        "max_mamba_cache_size": None,
        "dp_size": 2,
        "internal_states": [{"max_mamba_cache_size": 28}, {"max_mamba_cache_size": 28}],
    }

    assert ENGINES["sglang"].facts({"/server_info": json.dumps(info)}).snapshot_slots == 28


@pytest.mark.parametrize("pages", [{}, {"/v1/models": "{}"}, {"/metrics": "# nothing\n"}])
def test_who_says_nothing_is_some_engine(pages: dict[str, str]) -> None:
    """
    Nothing is known of it then.
    """
    assert told(detect(pages).facts(pages)) == {"engine": "openai", "missing": ("model",)}


# -- whatever they say ----------------------------------------------------------------------------------------------

JSON_NAMES = (
    "max_total_num_tokens", "max_mamba_cache_size", "mamba_max_states_per_path", "mamba_radix_cache_strategy",
    "chunked_prefill_size", "page_size", "uses_mamba_radix_cache", "dp_size", "internal_states", "loads", "dp_rank",
    "num_running_reqs", "num_waiting_uncached_tokens", "data", "id", "owned_by", "max_model_len", "version", "total_slots",
    "default_generation_settings", "n_ctx", "is_processing", "context_length", "model_path", "enable_cache_report",
)  # fmt: skip
METRIC_NAMES = (
    "sglang:num_running_reqs", "sglang:mamba_used_tokens", "sglang:mamba_available_tokens", "sglang:mamba_evictable_tokens",
    "sglang:max_total_num_tokens", "sglang:prompt_tokens_total", "vllm:cache_config_info", "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running", "llamacpp:requests_processing", "process_start_time_seconds",
)  # fmt: skip
LABEL_NAMES = (
    "engine",
    "dp_rank",
    "tp_rank",
    "kv_cache_size_tokens",
    "block_size",
    "num_gpu_blocks",
    "mamba_cache_mode",
)

WORDS = st.text(max_size=5) | st.sampled_from(["sglang", "vllm", "extra_buffer", "-1", "1e400", "9" * 30, "nan"])
NUMBERS = st.integers() | st.floats() | st.integers(0, 1 << 90)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(JSON_NAMES), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def metric_lines(draw: st.DrawFn) -> str:
    """A page of metrics that may have anything for a label or a value."""
    lines = []
    for _ in range(draw(st.integers(0, 8))):
        labels = draw(st.dictionaries(st.sampled_from(LABEL_NAMES), WORDS | NUMBERS.map(str), max_size=3))
        written = ",".join(f'{name}="{value}"' for name, value in labels.items())
        lines.append(f"{draw(st.sampled_from(METRIC_NAMES))}{{{written}}} {draw(NUMBERS.map(str) | WORDS)}")
    return "\n".join(lines)


PAGES = st.dictionaries(
    st.sampled_from([*PATHS, "/get_server_info"]), st.text() | JSON.map(json.dumps) | metric_lines(), max_size=6
)


@given(pages=PAGES)
def test_whatever_a_page_says_numbers_are_numbers(pages: dict[str, str]) -> None:
    """
    Nothing is raised, whichever engine it is taken for; what is known is finite and not negative, and sizes are not 0.
    """
    detect(pages)
    for engine in ENGINES.values():
        facts, loads = asdict(engine.facts(pages)), engine.loads(pages)
        numbers = {name: value for name, value in facts.items() if isinstance(value, int | float)}
        assert all(math.isfinite(value) and (value > 0 or value is False) for value in numbers.values())
        for each in loads:
            counts = [value for value in asdict(each).values() if value is not None]
            assert all(math.isfinite(value) and value >= 0 for value in counts)
        assert [each.rank for each in loads] == sorted({each.rank for each in loads})


@given(name=st.sampled_from(EVERY), data=st.data())
def test_a_page_that_is_cut_or_garbled_is_read_as_far_as_it_goes(name: str, data: st.DataObject) -> None:
    """
    At any place, by anything.
    """
    pages = dict(answers(name))
    path = data.draw(st.sampled_from(sorted(pages)))
    text = pages[path]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    pages[path] = text[:start] + data.draw(st.text(max_size=5)) + text[end:]

    for engine in ENGINES.values():
        assert isinstance(engine.facts(pages), Facts)
        assert isinstance(engine.loads(pages), tuple)


def test_a_metric_is_found_by_its_whole_name() -> None:
    """
    At the page's beginning and end, with labels or without, among longer names and in comments.
    """
    comment, longer = "# HELP running How many run.\n", "running_offline 2\n"
    page = f'running 1\n{longer}running{{a="}}"}} 3\nrunning NaN\nrunning -1\nnow\nrunning 4'

    for text in (page, comment + longer + page, f"{longer}{page}\n{comment}{longer}"):
        assert [each.value for each in samples(text, "running")] == [1, 3, 4]


@pytest.mark.parametrize("name", [name for name in EVERY if "/metrics" in answers(name)])
def test_metrics_are_read_as_prometheus_reads_them(name: str) -> None:
    """
    Every sample of a real page, with all its labels.
    """
    page = answers(name)["/metrics"]
    theirs: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(page):
        for each in family.samples:
            if math.isfinite(each.value) and each.value >= 0:
                theirs.setdefault(each.name, []).append((dict(each.labels), each.value))

    assert theirs
    for metric, values in theirs.items():
        assert [(dict(each.labels), each.value) for each in samples(page, metric)] == values


LABELS = st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), st.text(max_size=6), max_size=3)


@given(labels=LABELS, value=st.floats(0, 1e12))
def test_labels_may_hold_anything(labels: dict[str, str], value: float) -> None:
    """
    Quotes, braces, backslashes and line ends, as they are escaped.
    """
    escaped = {
        name: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, text in labels.items()
    }
    line = "metric{" + ",".join(f'{name}="{text}"' for name, text in escaped.items()) + f"}} {value} 1780000000000"

    assert list(samples(f"other 1\n{line}\nmetric_more 3", "metric")) == [Sample(labels, value)]
