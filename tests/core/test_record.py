"""What a record says of a request: its size class, its temperature, what made it cold, and its log line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.causes import CAUSES, Clues, Loss, Pressure
from ramjet.core.record import OUTCOMES, SIZE_CLASSES, TEMPERATURES, Record, size_class
from ramjet.core.usage import Usage

LOG_FIELDS = (
    "request_id", "conversation", "turn", "endpoint", "model", "stream", "replica", "reason", "costs", "prompt_bytes",
    "prompt_tokens", "matched_tokens", "best_matched_tokens", "cached_tokens", "cold", "cold_cause", "cold_evidence", "slices", "held_s", "ttft_s",
    "duration_s", "completion_tokens", "attempts", "outcome", "status", "probe",
)  # fmt: skip

MOVED = Clues(expected_tokens=0, reusable_tokens=20_000, diverged_at_tokens=20_000, home_tokens=19_712)


def record(
    *,
    turn: int | None = 2,
    cached_tokens: int | None = None,
    reusable_tokens: int | None = 20_000,
    prompt_tokens: int | None = None,
    estimated_tokens: int = 0,
    clues: Clues | None = None,
) -> Record:
    return Record(
        request_id="r",
        endpoint="chat",
        turn=turn,
        reusable_tokens=reusable_tokens,
        estimated_tokens=estimated_tokens,
        usage=Usage(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens),
        clues=clues,
    )


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (0, "<8k"),
        (7_999, "<8k"),
        (8_000, "8k-150k"),
        (19_845, "8k-150k"),
        (149_999, "8k-150k"),
        (150_000, ">=150k"),
        (313_000, ">=150k"),
    ],
)
def test_sizes_fall_into_the_seeds_classes(tokens: int, name: str) -> None:
    """
    Ordinary prompts begin at 8,000 tokens, long ones at 150,000.
    """
    assert size_class(tokens) == name


def test_the_engines_count_decides_the_size_class() -> None:
    """
    The estimate is used only where the engine has said nothing.
    """
    assert record(prompt_tokens=150_000, estimated_tokens=1).size_class == ">=150k"
    assert record(prompt_tokens=0, estimated_tokens=150_000).size_class == "<8k"
    assert record(prompt_tokens=None, estimated_tokens=150_000).size_class == ">=150k"


@pytest.mark.parametrize(
    ("cached", "temperature", "cold"),
    [
        (20_000, "warm", False),
        (19_712, "warm", False),
        (18_000, "warm", False),
        (17_999, "partial", False),
        (12_288, "partial", False),
        (10_000, "partial", False),
        (9_999, "cold", True),
        (256, "cold", True),
        (0, "cold", True),
        (None, "unknown", None),
    ],
)
def test_a_turn_is_cold_below_half_and_warm_from_nine_tenths(
    cached: int | None, temperature: str, cold: bool | None
) -> None:
    """
    Of the 20,000 tokens that it shares with an earlier turn, how many were reused.
    """
    seen = record(cached_tokens=cached)

    assert (seen.temperature, seen.cold) == (temperature, cold)


@pytest.mark.parametrize("cached", [0, 20_000, None])
def test_a_first_turn_is_never_cold(cached: int | None) -> None:
    """
    There was nothing of it to reuse, whatever the engine says.
    """
    seen = record(turn=1, cached_tokens=cached)

    assert (seen.temperature, seen.cold, seen.cold_cause, seen.cold_evidence) == ("first", False, None, None)


@pytest.mark.parametrize(
    "seen",
    [
        record(cached_tokens=None),
        record(turn=None, cached_tokens=0),
        record(reusable_tokens=None, cached_tokens=0),
        record(reusable_tokens=0, cached_tokens=0),
    ],
    ids=["not reported", "no prompt", "no history", "nothing to reuse"],
)
def test_what_is_not_known_is_not_called_cold(seen: Record) -> None:
    """
    None is unknown: neither cold nor warm, and without a cause.
    """
    assert (seen.temperature, seen.cold, seen.cold_cause) == ("unknown", None, None)


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (record(cached_tokens=0), "unknown"),
        (record(cached_tokens=0, clues=MOVED), "moved"),
        (record(cached_tokens=20_000, clues=MOVED), None),
        (record(cached_tokens=12_288, clues=MOVED), None),
        (record(turn=1, cached_tokens=0, clues=MOVED), None),
    ],
)
def test_only_a_cold_turn_has_a_cause(seen: Record, cause: str | None) -> None:
    """
    Moving is no fault where the prompt was there; and where nothing was known, so is the cause.
    """
    assert seen.cold_cause == cause


@given(
    turn=st.none() | st.integers(1, 400),
    cached=st.none() | st.integers(0, 600_000),
    reusable=st.none() | st.integers(0, 600_000),
    prompt=st.none() | st.integers(0, 600_000),
)
def test_every_record_has_one_temperature_and_one_size(
    turn: int | None, cached: int | None, reusable: int | None, prompt: int | None
) -> None:
    """
    Both are labels of metrics, with fixed values; cold is told from not cold exactly where the temperature is known.
    """
    seen = record(turn=turn, cached_tokens=cached, reusable_tokens=reusable, prompt_tokens=prompt)

    assert seen.temperature in TEMPERATURES
    assert seen.size_class in SIZE_CLASSES
    assert (seen.cold is None) is (seen.temperature == "unknown")
    assert (seen.cold_cause is not None) is (seen.temperature == "cold")


def test_the_names_of_the_log_line_are_a_contract() -> None:
    """
    Exactly these, in this order; `event` is the logger's to add.
    """
    assert tuple(record().log_fields()) == LOG_FIELDS


def test_a_log_line_says_what_happened() -> None:
    """
    Each value under its name, times rounded to tenths of a millisecond.
    """
    seen = Record(
        request_id="r-1", endpoint="chat", conversation="0123456789ab", turn=322, model="glm", stream=True, replica="b",
        reason="affinity", costs={"prefill": 1.23456, "queue": 0.0}, prompt_bytes=1_200_000, estimated_tokens=300_000,
        matched_tokens=312_000, best_matched_tokens=312_500, reusable_tokens=313_000, usage=Usage(prompt_tokens=313_000, cached_tokens=12_288,
        completion_tokens=7), slices=19, held_s=0.00004, ttft_s=57.123456, duration_s=60.98765, attempts=2, status=200,
        clues=Clues(expected_tokens=312_000, reusable_tokens=313_000, diverged_at_tokens=313_000, known_tokens=313_000,
        loss=Loss("snapshot_pool", 0xFEDC_BA98_7654_3210, True, 7), pressure=Pressure(tokens_ratio=0.72, slots_ratio=1.0,
        has_snapshots=True)),
    )  # fmt: skip

    assert seen.log_fields() == {
        "request_id": "r-1", "conversation": "0123456789ab", "turn": 322, "endpoint": "chat", "model": "glm",
        "stream": True, "replica": "b", "reason": "affinity", "costs": {"prefill": 1.235, "queue": 0.0},
        "prompt_bytes": 1_200_000, "prompt_tokens": 313_000, "matched_tokens": 312_000,
        "best_matched_tokens": 312_500, "cached_tokens": 12_288,
        "cold": True, "cold_cause": "snapshot_pool", "cold_evidence": {"expected_tokens": 312_000,
        "reported_tokens": 12_288, "diverged_at_tokens": 313_000, "pushed_out_by": "fedcba987654"}, "slices": 19, "held_s": 0.0, "ttft_s": 57.1235, "duration_s": 60.9877,
        "completion_tokens": 7, "attempts": 2, "outcome": "ok", "status": 200, "probe": False,
    }  # fmt: skip


def test_a_log_line_keeps_unknown_and_none_apart() -> None:
    """
    Null for what nobody said, 0 for nothing; an estimate is never logged as the engine's count.
    """
    unknown = record(estimated_tokens=20_000).log_fields()
    nothing = record(cached_tokens=0, prompt_tokens=0).log_fields()

    assert [unknown[name] for name in ("prompt_tokens", "cached_tokens", "ttft_s", "status", "cold")] == [None] * 5
    assert [nothing[name] for name in ("prompt_tokens", "cached_tokens", "cold")] == [0, 0, True]
    assert json.loads(json.dumps(unknown)) == unknown


def test_names_are_unique() -> None:
    """
    A label's values may not be given twice.
    """
    for names in (SIZE_CLASSES, TEMPERATURES, OUTCOMES, CAUSES):
        assert len(set(names)) == len(names)
