"""Several routers in the laboratory: what one does the others hear, and what they do together is what one would."""

from __future__ import annotations

import pytest

from ramjet.lab.loop import simulate
from ramjet.lab.measure import Figures, figures
from ramjet.lab.production import POLICIES, Production
from ramjet.lab.routers import Routers
from ramjet.lab.runs import Case, run
from ramjet.lab.turns import Conversation
from ramjet.lab.workloads import TOKENS
from tests.lab.support import growing, workload

TALKS = workload(
    *(
        Conversation(start_s=3.0 * number, turns=growing(10_000 * number, turns=8, start_blocks=60))
        for number in range(12)
    )
)


def played(routers: int, delay_s: float | None) -> tuple[Figures, Routers]:
    made: list[Routers] = []

    def make(facts: list, seed: int) -> Routers:  # type: ignore[type-arg]
        members = [Production(facts, seed) for _ in range(routers)]
        for each in members:
            each.heads = members[0].heads
        made.append(Routers(members, delay_s))
        return made[0]

    requests = simulate(TALKS, make, 1, replicas=4, profile=TOKENS)
    return figures(requests, workload="talks", policy="ramjet", seed=1, replicas=4, profile="x"), made[0]


@pytest.mark.parametrize("routers", [2, 8])
def test_with_a_store_turns_find_their_prompts_whichever_router_they_come_to(routers: int) -> None:
    """
    As much is cached as with one router, and nobody waits longer to speak of; without one, most is read anew.
    """
    one = played(1, 0.5)[0]
    shared, together = played(routers, 0.5)
    alone, _ = played(routers, None)

    assert shared.cached_share > one.cached_share - 0.02
    assert shared.mean_wait_s < 1.1 * one.mean_wait_s
    assert alone.cached_share < shared.cached_share - 0.05
    for member in together._members:
        together._deliver(1e9)
        busy = [(each.in_flight, each.peers_in_flight, each.queue) for each in member.router.fleet]
        assert busy == [(0, 0, {})] * 4


def test_runs_of_several_are_repeatable() -> None:
    """
    As all runs of the laboratory; and their figures are told apart from those of one.
    """
    case = Case(workload="W5", policy="ramjet", seed=2, routers=3)

    first = run(case)

    assert first == run(case)
    assert first.policy == "ramjet, 3 routers"
    assert (
        run(Case(workload="W5", policy="ramjet", seed=2, routers=3, delay_s=None)).policy == "ramjet, 3 routers apart"
    )


def test_other_routers_rules_are_played_by_one() -> None:
    """
    They have nothing to tell one another.
    """
    with pytest.raises(ValueError, match="policy seconds is played by one router alone"):
        run(Case(workload="W5", policy="seconds", seed=1, routers=2))


def test_a_fleet_of_a_thousand_is_played() -> None:
    """
    As many replicas as anybody has.
    """
    few = workload(
        *(Conversation(start_s=number, turns=growing(1_000 * number, turns=2, start_blocks=10)) for number in range(4))
    )

    requests = simulate(few, POLICIES["ramjet"], 1, replicas=1_000, profile=TOKENS)

    assert all(each.cached_tokens == each.reusable_tokens for each in requests if each.turn > 1)
