"""What engines say of themselves, read as they say it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.probes.facts import METRICS, MODELS, PROPS, SERVER_INFO, SLOTS, Facts, most_tokens, read

SGLANG_METRICS = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="glm",tp_rank="0"} 2.0
sglang:num_running_reqs{model_name="glm",tp_rank="1"} 2.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="glm",tp_rank="0"} 1.0
# TYPE sglang:mamba_available_tokens gauge
sglang:mamba_available_tokens{tp_rank="0"} 3.0
# TYPE sglang:mamba_evictable_tokens gauge
sglang:mamba_evictable_tokens{tp_rank="0"} 21.0
# TYPE sglang:mamba_used_tokens gauge
sglang:mamba_used_tokens{tp_rank="0"} 4.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device",tp_rank="0"} 1000.0
sglang:cached_tokens_total{cache_source="host",tp_rank="0"} 250.0
"""
SGLANG_INFO = {
    "chunked_prefill_size": 6_144,
    "max_mamba_cache_size": None,
    "mamba_max_states_per_path": -1,
    "enable_hierarchical_cache": True,
    "enable_cache_report": False,
    "max_req_input_len": 499_962,
    "context_length": 1_048_576,
    "internal_states": [{"max_total_num_tokens": 499_968}],
}
VLLM_METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="528",num_gpu_blocks="947",engine="0"} 1.0
"""


def test_sglang() -> None:
    """
    Its pools, cap, tier and load; each tensor-parallel rank repeats the gauges, and only one is counted.
    """
    facts = read(
        {
            MODELS: json.dumps({"data": [{"id": "glm", "owned_by": "sglang", "max_model_len": 1_048_576}]}),
            SERVER_INFO: json.dumps(SGLANG_INFO),
            METRICS: SGLANG_METRICS,
        }
    )

    assert facts == Facts(
        engine="sglang",
        models=("glm",),
        running=2,
        waiting=1,
        token_pool=499_968,
        context_tokens=499_962,
        chunk_tokens=6_144,
        snapshot_slots=28,
        states_per_path=-1,
        host_tier=True,
        reports_cached=False,
        cached_by_source={"device": 1_000, "host": 250},
    )
    assert facts.in_flight == 3


def test_loads_are_fresher_than_gauges() -> None:
    """
    Where both are there, `/v1/loads` says what runs, over all ranks.
    """
    loads = {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0, "max_total_num_tokens": 131_072}] * 2}
    facts = read({"/v1/loads": json.dumps(loads), METRICS: SGLANG_METRICS})

    assert facts.in_flight == 0
    assert facts.token_pool == 131_072


def test_vllm() -> None:
    """
    The size of its pool is in the labels of a metric.
    """
    facts = read(
        {
            MODELS: json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 131_072}]}),
            METRICS: VLLM_METRICS,
        }
    )

    assert (facts.engine, facts.token_pool, facts.in_flight, facts.context_tokens) == ("vllm", 947 * 528, 3, 131_072)


def test_llama_cpp() -> None:
    """
    Its slots are what it has, and those that work are what runs.
    """
    slots = [{"id": number, "n_ctx": 8_192, "is_processing": number == 1} for number in range(4)]
    facts = read({SLOTS: json.dumps(slots), PROPS: json.dumps({"total_slots": 4})})

    assert (facts.engine, facts.slots, facts.in_flight, facts.token_pool) == ("llama.cpp", 4, 1, 32_768)


def test_a_server_that_says_nothing_is_unknown_and_not_idle() -> None:
    """
    None is unknown, 0 is none.
    """
    facts = read({MODELS: json.dumps({"data": [{"id": "m"}]})})

    assert facts == Facts(models=("m",))
    assert facts.in_flight is None


@settings(max_examples=30)
@given(texts=st.dictionaries(st.sampled_from([MODELS, SERVER_INFO, METRICS, SLOTS, PROPS, "/v1/loads"]), st.text()))
def test_any_text_is_read(texts: dict[str, str]) -> None:
    """
    Whatever a server answers there, nothing is raised.
    """
    read(texts)


@settings(max_examples=30)
@given(
    documents=st.dictionaries(
        st.sampled_from([MODELS, SERVER_INFO, SLOTS, PROPS, "/v1/loads"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: (
                st.lists(inner)
                | st.dictionaries(
                    st.sampled_from(["data", "id", "loads", "internal_states", "n_ctx", "max_total_num_tokens"]), inner
                )
            ),
        ),
    )
)
def test_any_json_is_read(documents: dict[str, object]) -> None:
    """
    Of whatever shape.
    """
    read({path: json.dumps(document) for path, document in documents.items()})


@pytest.mark.parametrize(
    ("message", "most"),
    [
        ("The input (400019 tokens) is longer than the model's context length (65536 tokens).", 65_536),
        ("Input length (400019 tokens) exceeds the maximum allowed length (65530 tokens). Use a shorter input", 65_530),
        (
            "This model's maximum context length is 16384 tokens. However, you requested 400027 tokens (400019 in the "
            "messages, 8 in the completion).",
            16_384,
        ),
        ("request (400019 tokens) exceeds the available context size (8192 tokens), try increasing it", 8_192),
        ('{"error":{"type":"exceed_context_size_error","n_prompt_tokens":400019,"n_ctx":8192}}', 8_192),
        ("prompt of 400,019 tokens exceeds the token pool of 131,072", 131_072),
        (
            "The input (400019 tokens) and its answer (8) are longer than the longest request that fits (131072 tokens)",
            131_072,
        ),
        ("body exceeds the limit", None),
        ("too long", None),
    ],
)
def test_what_an_engine_takes_is_read_from_its_refusal(message: str, most: int | None) -> None:
    """
    The longest prompt, never the length of the one that was refused.
    """
    assert most_tokens(message, 400_000) == most
