"""The product's own router in the laboratory."""

from __future__ import annotations

from ramjet.lab.loop import simulate
from ramjet.lab.production import POLICIES
from ramjet.lab.runs import Case, run
from ramjet.lab.turns import Conversation
from ramjet.lab.workloads import TOKENS
from tests.lab.support import growing, workload


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


def test_slices_let_short_turns_in_between() -> None:
    """
    An agent beside a prompt of 100,000 tokens waits for a slice of it at a time, and not once for all of it; the long one
    pays with some overhead.
    """
    made = workload(
        Conversation(turns=growing(1_000, turns=8, start_blocks=10)),
        Conversation(start_s=2.0, turns=growing(0, turns=1, start_blocks=400)),
    )

    def waits(policy: str) -> tuple[float, float]:
        waited: dict[int, float] = {}
        for each in simulate(made, POLICIES[policy], 1, replicas=1, profile=TOKENS):
            assert each.first_at is not None
            waited[each.conversation] = max(waited.get(each.conversation, 0.0), each.first_at - each.arrived_at)
            assert each.cached_tokens == each.reusable_tokens
        return waited[0], waited[1]

    (agent, long), (sliced_agent, sliced_long) = waits("ramjet"), waits("ramjet-slices")

    assert agent > 10
    assert sliced_agent < 5
    assert long < sliced_long < 1.5 * long
