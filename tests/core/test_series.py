"""Figures by fifteen seconds: what they count, how exact they are, and that they are bounded."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.causes import Clues
from ramjet.core.record import Record
from ramjet.core.series import BUCKET_S, BUCKETS, Series, Times
from ramjet.core.usage import Usage


def record(**more: Any) -> Record:
    usage = Usage(prompt_tokens=more.pop("prompt", 20_000), cached_tokens=more.pop("cached", 15_000))
    base: dict[str, Any] = {"request_id": "r", "endpoint": "chat", "turn": 2, "replica": "a", "reusable_tokens": 18_000}
    return Record(**{**base, "ttft_s": 1.0, "usage": usage, **more})


@given(st.lists(st.floats(0.02, 500), min_size=1, max_size=200))
def test_a_median_from_bins_is_near_the_real_one(seconds: list[float]) -> None:
    """
    Off by a bin's width at most, which is a tenth; the lower of two in the middle counts.
    """
    times = Times()
    for each in seconds:
        times.add(each)

    found = times.quantile(0.5)
    real = sorted(seconds)[(len(seconds) - 1) // 2]

    assert found is not None
    assert real / 1.1 <= found <= real * 1.1
    assert Times().quantile(0.5) is None
    assert median(seconds) > 0


def test_buckets_are_counted_by_class_and_cause() -> None:
    series = Series()
    series.add(record(), 1_000.0)
    series.add(record(cached=0, clues=Clues(18_000, 18_000, 18_000, restarted=True)), 1_001.0)
    series.add(record(prompt=300_000, cached=300_000, reusable_tokens=300_000, ttft_s=40.0), 1_000.0 + BUCKET_S)
    series.add(record(probe=True), 1_000.0 + BUCKET_S)
    series.add(record(outcome="http_5xx"), 1_000.0 + BUCKET_S)

    rows = series.rows(1_000.0 + BUCKET_S)

    assert rows["requests"][-2:] == [2, 2]
    assert rows["classes"]["8k-150k"]["turns"][-2:] == [2, 0]
    assert rows["classes"]["8k-150k"]["cached"][-2:] == [0.375, None]
    assert rows["classes"][">=150k"]["p50"][-1] == pytest.approx(40.0, rel=0.06)
    assert rows["cold"] == {"restart": [0] * (BUCKETS - 2) + [1, 0]}
    assert (rows["lately"]["later_turns"], rows["lately"]["cold"]) == (3, {"restart": 1})
    assert rows["lately"]["cached"] == pytest.approx(315_000 / 340_000, abs=1e-4)


def test_what_is_old_is_gone_and_nothing_grows() -> None:
    """
    A day of traffic leaves as many buckets as half an hour has, and an hour of silence none that are shown.
    """
    series = Series()
    for at in range(0, 86_400, 7):
        series.add(record(), float(at))

    assert len(series._buckets) == BUCKETS
    assert sum(series.rows(86_400.0)["requests"]) == pytest.approx(BUCKETS * BUCKET_S / 7, rel=0.05)
    assert sum(series.rows(90_000.0)["requests"]) == 0
    assert series.rows(90_000.0)["lately"]["cached"] is None
