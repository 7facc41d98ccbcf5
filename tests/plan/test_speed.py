"""How fast replicas were, told from a journal."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

import pytest

from ramjet.core.cache import Blocks
from ramjet.core.record import Record
from ramjet.core.usage import Usage
from ramjet.plan.span import Asked, Span
from ramjet.plan.speed import fit
from ramjet.sim.profile import Timing

TRUE = Timing(overhead_s=0.3, read_token_s=0.05e-3, read_squared_s=2e-10, step_s=0.02, step_request_s=0.004)


def request(at: float, read: tuple[int, int], wait_s: float, answer: int, took_s: float, **more: Any) -> Asked:
    """One that was placed at once."""
    start, end = read
    usage = Usage(prompt_tokens=end, cached_tokens=start, completion_tokens=answer)
    told = {
        "replica": "glm-1",
        "stream": True,
        "attempts": 1,
        "ttft_s": wait_s,
        "duration_s": wait_s + took_s,
        "usage": usage,
    }
    record = Record(**{"request_id": "", "endpoint": "chat", **told, **more})
    return Asked(
        name="", at_s=at, prompt_tokens=end, answer_tokens=answer, blocks=Blocks(array("Q"), array("I")), seen=record
    )


def alone(count: int, *, timing: Timing = TRUE, longest: int = 200_000, began: float = 0.0, **more: Any) -> list[Asked]:
    """Requests one after the other, of all sizes."""
    chance, found, at = Random(count), list[Asked](), began
    for _ in range(count):
        end = chance.randint(1_000, longest)
        start = chance.choice((0, 0, end - 300, end // 2))
        wait_s = timing.overhead_s + timing.read_s(start, end)
        took_s = 99 * timing.steps_s(1)
        found.append(request(at, (start, end), wait_s, 100, took_s, **more))
        at += wait_s + took_s + 1.0
    return found


def test_speeds_are_found_where_nobody_was_before() -> None:
    """
    Overhead, both numbers of reading, and the time of a step.
    """
    speed = fit(Span(name="", requests=alone(40)))

    timing = speed.timing
    assert timing.overhead_s == pytest.approx(TRUE.overhead_s, rel=0.05)
    assert timing.read_token_s == pytest.approx(TRUE.read_token_s, rel=0.05)
    assert timing.read_squared_s == pytest.approx(TRUE.read_squared_s, rel=0.05)
    assert timing.steps_s(1) == pytest.approx(TRUE.steps_s(1), rel=0.02)
    assert (speed.readings, speed.decodings) == (40, 40)
    assert speed.off_ratio is not None
    assert speed.off_ratio < 0.02


def test_who_waited_behind_somebody_tells_how_long_it_was_read_then() -> None:
    """
    Prompts that come every second and take three: each is read from the first token of the one before.
    """
    read_s = TRUE.read_s(0, 50_000)
    first_s = [TRUE.overhead_s + (number + 1) * read_s for number in range(3)]
    queued = [
        request(1_000.0 * row + number, (0, 50_000), first_s[number] - number, 2, 0.02)
        for row in range(20)
        for number in range(3)
    ]

    timing = fit(Span(name="", requests=[*alone(10, longest=4_000, began=50_000.0), *queued])).timing

    assert timing.read_s(0, 50_000) == pytest.approx(read_s, rel=0.03)
    assert timing.overhead_s == pytest.approx(TRUE.overhead_s, rel=0.15)


def test_what_answers_take_of_the_time_is_not_taken_for_reading() -> None:
    """
    Half of the prompts are read while somebody is answered, who gets four tenths of the time.
    """
    read_s = TRUE.read_s(0, 60_000)
    pairs = [
        each
        for number in range(20)
        for each in (
            request(40_000.0 + 1_000 * number, (999, 1_000), 0.3, 2_000, 100.0),
            request(40_010.0 + 1_000 * number, (0, 60_000), TRUE.overhead_s + read_s / 0.6, 10, 0.2),
        )
    ]

    timing = fit(Span(name="", requests=[*alone(40), *pairs])).timing

    assert timing.decode_share == pytest.approx(0.4, rel=0.1)
    assert timing.read_s(0, 60_000) == pytest.approx(read_s, rel=0.03)


def test_what_says_nothing_of_reading_is_left_out() -> None:
    """
    What was sent twice, or in slices; a few of which nobody knew why they waited change little.
    """
    odd = [
        *(request(20_000.0 + 500 * n, (0, 50_000), 400.0, 10, 1.0, attempts=2) for n in range(20)),
        *(request(40_000.0 + 500 * n, (0, 50_000), 400.0, 10, 1.0, slices=3) for n in range(20)),
        *(request(60_000.0 + 500 * n, (0, 50_000), 300.0, 10, 1.0) for n in range(4)),
    ]

    speed = fit(Span(name="", requests=[*alone(40), *odd]))

    assert speed.readings == 44
    assert speed.timing.read_s(0, 50_000) == pytest.approx(TRUE.read_s(0, 50_000), rel=0.1)


def test_steps_are_slower_the_more_are_answered() -> None:
    """
    Four at a time, whose answers begin and end together.
    """
    together = [
        request(20_000.0 + 100 * number, (999, 1_000), 0.3, 1_001, 1_000 * TRUE.steps_s(4))
        for number in range(20)
        for _ in range(4)
    ]

    timing = fit(Span(name="", requests=[*alone(40), *together])).timing

    assert timing.steps_s(1) == pytest.approx(TRUE.steps_s(1), rel=0.05)
    assert timing.steps_s(4) == pytest.approx(TRUE.steps_s(4), rel=0.05)


def test_each_replica_has_its_pace() -> None:
    """
    One that is known by too few readings is taken for the others' kind.
    """
    slow = Timing(overhead_s=0.3, read_token_s=0.1e-3, read_squared_s=4e-10, step_s=0.02, step_request_s=0.004)
    requests = [*alone(40), *alone(20, timing=slow, replica="glm-2"), *alone(2, timing=slow, replica="glm-3")]

    speed = fit(Span(name="", requests=requests))

    assert set(speed.paces) == {"glm-1", "glm-2"}
    assert speed.of("glm-2").read_token_s / speed.of("glm-1").read_token_s == pytest.approx(2.0, rel=0.05)
    assert speed.of("glm-3").read_token_s == speed.timing.read_token_s


def test_of_long_prompts_nobody_saw_something_is_said_all_the_same() -> None:
    """
    Prompts of 8,000 tokens at half the speed that was assumed: one of 300,000 takes about twice as long, too.
    """
    half = Timing(overhead_s=0.3, read_token_s=2 * Timing().read_token_s, read_squared_s=2 * Timing().read_squared_s)

    timing = fit(Span(name="", requests=alone(40, timing=half, longest=8_000))).timing

    assert timing.read_s(0, 8_000) == pytest.approx(half.read_s(0, 8_000), rel=0.1)
    assert timing.read_s(0, 300_000) == pytest.approx(half.read_s(0, 300_000), rel=0.3)


def test_where_nothing_was_seen_what_is_assumed_stays() -> None:
    """
    A trace has no times, and an empty journal none either.
    """
    plain = Asked(name="", at_s=0.0, prompt_tokens=9, answer_tokens=1, blocks=Blocks(array("Q"), array("I")))

    speed = fit(Span(name="", requests=[plain]), TRUE)

    assert (speed.timing, speed.readings, speed.off_ratio, dict(speed.paces)) == (TRUE, 0, None, {})
