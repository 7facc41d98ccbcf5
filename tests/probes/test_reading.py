"""What only probes read of an engine's words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.probes.reading import host_tokens, most_tokens, simulated_speed

METRICS = """\
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device",tp_rank="0"} 1000.0
sglang:cached_tokens_total{cache_source="host",tp_rank="0"} 250.0
sglang:cached_tokens_total{cache_source="host",tp_rank="1"} 250.0
# TYPE ramjet_sim_speed gauge
ramjet_sim_speed 20.0
"""


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (METRICS, 250),
        (METRICS.replace('"host"', '"device"'), 0),
        ("sglang:cached_tokens_total 1000.0\n", None),
        ("", None),
        (None, None),
    ],
)
def test_tokens_from_the_host(text: str | None, tokens: int | None) -> None:
    """
    Each tensor-parallel rank repeats them, and only one is counted; 0 where others are told apart, else unknown.
    """
    assert host_tokens(text) == tokens


def test_a_simulated_replica_says_so() -> None:
    """
    And how fast it is; a real one does not.
    """
    assert simulated_speed(METRICS) == 20.0
    assert simulated_speed("sglang:num_running_reqs 1.0\n") is None


@given(text=st.text())
def test_any_text_is_read(text: str) -> None:
    """
    Whatever a server answers there, nothing is raised.
    """
    host_tokens(text)
    simulated_speed(text)
    most_tokens(text, 1_000)


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
