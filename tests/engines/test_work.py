"""What a model has worked through, by its engine's own counter."""

from __future__ import annotations

import pytest

from ramjet.engines.known import ENGINES
from ramjet.engines.reading import counted

METRICS = """\
# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 31.0
sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 7.0
sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="1"} 31.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 5.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 6.0
llamacpp:prompt_tokens_total 39080
"""


@pytest.mark.parametrize(("engine", "tokens"), [("sglang", 38.0), ("vllm", 11.0), ("llamacpp", 39_080.0)])
def test_work_is_counted(engine: str, tokens: float) -> None:
    """
    All modes and data-parallel ranks together, a tensor-parallel one once.
    """
    assert counted(METRICS, ENGINES[engine].work or "") == tokens


def test_work_that_is_not_counted_is_unknown() -> None:
    """
    Where there is no such counter, or no page; 0 is what a counter says.
    """
    assert counted(METRICS, "sglang:prompt_tokens_total") is None
    assert counted(None, "sglang:realtime_tokens_total") is None
    assert counted("sglang:realtime_tokens_total 0.0\n", "sglang:realtime_tokens_total") == 0.0
    assert ENGINES["openai"].work is None
