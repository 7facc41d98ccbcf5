"""The product's own router in the laboratory."""

from __future__ import annotations

from ramjet.lab.runs import Case, run


def test_the_same_conversations_get_the_same_decisions() -> None:
    """
    Nothing but what clients do decides: two runs agree in every figure.
    """
    case = Case(workload="W5", policy="ramjet", seed=2)

    assert run(case) == run(case)


def test_two_long_conversations_are_kept_apart_and_nobody_is_held_for_long() -> None:
    """
    The seed's pair among six agents: as much is cached as with each on a replica of its own.
    """
    figures = run(Case(workload="W5", policy="ramjet", seed=3))

    assert figures.cached_share > 0.92
    assert figures.max_held_s < 90


def test_under_pressure_holding_back_beats_placing_at_once() -> None:
    """
    Snapshot pools pressed: less than half the wait, at more turns a minute.
    """
    held = run(Case(workload="W3", policy="ramjet", seed=3))
    placed = run(Case(workload="W3", policy="ramjet-no-admission", seed=3))

    assert held.mean_wait_s < 0.5 * placed.mean_wait_s
    assert held.turns_per_min > placed.turns_per_min
