"""The figures, on requests made by hand."""

from __future__ import annotations

import pytest

from ramjet.lab.measure import Figures, figures, quantile
from ramjet.lab.policies import Request
from tests.lab.support import prompt


def served(
    number: int,
    *,
    conversation: int = 0,
    turn: int = 1,
    arrived_at: float = 0.0,
    held_s: float = 0.0,
    wait_s: float = 1.0,
    cached_tokens: int = 0,
    reusable_tokens: int = 0,
) -> Request:
    return Request(
        number=number,
        conversation=conversation,
        turn=turn,
        blocks=prompt(("any", 4)),
        prompt_tokens=1_000,
        arrived_at=arrived_at,
        reusable_tokens=reusable_tokens,
        placed_at=arrived_at + held_s,
        replica=0,
        first_at=arrived_at + wait_s,
        ended_at=arrived_at + wait_s + 5,
        cached_tokens=cached_tokens,
    )


def of(*requests: Request) -> Figures:
    return figures(requests, workload="W0", policy="seconds", seed=1, replicas=2, profile="attention")


def test_a_wait_is_from_arrival_to_first_token() -> None:
    """
    Whoever was held has waited meanwhile.
    """
    result = of(served(0, wait_s=1), served(1, arrived_at=100, held_s=30, wait_s=33))

    assert result.mean_wait_s == 17
    assert result.max_wait_s == 33
    assert result.max_held_s == 30
    assert result.turns == 2


def test_quantiles_are_waits_that_somebody_had() -> None:
    """
    Nearest rank: of a hundred, the 99th and not the last.
    """
    waits = [float(wait) for wait in range(100, 0, -1)]

    assert (quantile(waits, 0.5), quantile(waits, 0.95), quantile(waits, 0.99)) == (50, 95, 99)
    assert quantile([3.0], 0.99) == 3


def test_a_conversation_waits_for_all_its_turns() -> None:
    """
    What its user sees is the sum.
    """
    result = of(
        served(0, conversation=0, wait_s=2),
        served(1, conversation=0, turn=2, wait_s=3),
        served(2, conversation=1, wait_s=1),
    )

    assert result.conversations == 2
    assert (result.conversation_wait_p50_s, result.conversation_wait_p95_s) == (1, 5)


def test_what_is_cached_is_weighed_by_tokens() -> None:
    """
    Of 2,000 prompt tokens 900 were reused.
    """
    assert of(served(0), served(1, cached_tokens=900)).cached_share == 0.45


def test_cold_is_what_the_record_calls_cold() -> None:
    """
    Less than half of what could have been reused; first turns, and turns that share nothing, are not counted.
    """
    result = of(
        served(0, cached_tokens=0, reusable_tokens=0),
        served(1, conversation=1, cached_tokens=0, reusable_tokens=800),
        served(2, turn=2, cached_tokens=399, reusable_tokens=800),
        served(3, turn=3, cached_tokens=400, reusable_tokens=800),
        served(4, turn=4, cached_tokens=800, reusable_tokens=800),
        served(5, turn=5, cached_tokens=0, reusable_tokens=0),
    )

    assert result.cold_share == pytest.approx(1 / 3, abs=1e-4)


def test_the_pace_is_that_of_the_first_three_quarters() -> None:
    """
    The stragglers at the end say nothing about the policy.
    """
    requests = [served(number, arrived_at=10.0 * number, wait_s=5) for number in range(3)]

    result = of(*requests, served(3, arrived_at=10_000))

    assert result.turns_per_min == 6  # three in the first 30 s
