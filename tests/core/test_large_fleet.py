"""Of a large fleet a few replicas are looked at, and they are those that matter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ramjet.core.choice import LOOKED_AT, SMALL
from ramjet.core.fleet import Fleet, Replica
from ramjet.core.policies import LongPromptRule, Policy
from ramjet.core.pools import Pools
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Visit
from ramjet.lab.production import SHIPPED
from tests.core.traces import Player

LARGE = 3 * SMALL


def fleet(replicas: int = LARGE, policy: Policy = SHIPPED, *, backwards: bool = False) -> Router:
    """So many replicas with pools of known size."""
    order = range(replicas)[::-1] if backwards else range(replicas)
    made = Fleet()
    for at in order:
        made.add(Replica(f"r{at}", f"http://r{at}:30000", configured=Pools(tokens=500_000)))
    return Router(made, policy)


def says(player: Player, talk: int, tokens: int = 20_000) -> Visit:
    """A talk's next turn, which is placed."""
    player.play(("say", 1.0, talk, tokens, 0))
    return player.running[-1]


def ends(player: Player, visit: Visit) -> None:
    """Its answer."""
    player.running.remove(visit)
    usage = Usage(prompt_tokens=visit.prompt_tokens)
    player.router.first_token(visit, player.now)
    player.router.finish(visit, player.now, outcome="ok", status=200, usage=usage)


def ranked(visit: Visit) -> list[str]:
    """The replicas that were looked at."""
    assert visit.decision is not None
    return [each.candidate.replica for each in visit.decision.ranked]


def test_a_small_fleet_is_looked_at_as_a_whole() -> None:
    visit = says(Player(fleet(SMALL)), 0)
    assert visit.decision is not None
    assert len(ranked(visit)) == SMALL
    assert visit.decision.not_looked_at == 0


def test_of_a_large_one_a_few_are_and_it_is_said_how_many_are_not() -> None:
    visit = says(Player(fleet()), 0)
    assert visit.decision is not None
    assert len(ranked(visit)) == LOOKED_AT
    assert visit.decision.not_looked_at == LARGE - LOOKED_AT


def test_who_is_carried_to_one_that_was_not_looked_at_is_booked_there() -> None:
    """
    Envoy is told of another to try, and that is one of all.
    """
    to = fleet()
    visit = says(Player(to), 0)
    other = next(each.name for each in to.fleet if each.name not in ranked(visit))

    lease = to.carried(visit, other, 1.0)

    assert lease is not None
    assert lease.replica.name == other


def test_those_with_the_least_before_them_are_looked_at() -> None:
    """
    Though there are only as many of them as are looked at.
    """
    to = fleet()
    idle = {f"r{at}" for at in range(0, LARGE, LARGE // LOOKED_AT)}
    for each in to.fleet:
        if each.name not in idle:
            each.line_up(object(), 5.0, 0.0)

    assert set(ranked(says(Player(to), 0))) <= idle


def test_who_holds_its_beginning_is_looked_at_however_busy() -> None:
    """
    Two talks have a system prompt in common; the second sees where the first is.
    """
    player = Player(fleet())
    first = says(player, 1)
    assert first.lease is not None
    first.lease.replica.line_up(object(), 60.0, 0.0)

    second = says(player, 4)

    assert first.lease.replica.name in ranked(second)


def test_the_home_is_looked_at_however_busy() -> None:
    player = Player(fleet())
    first = says(player, 0, 2_000)
    assert first.lease is not None
    home = first.lease.replica
    ends(player, first)
    home.line_up(object(), 60.0, player.now)

    looked_at = ranked(says(player, 0, 2_000))
    assert home.name in looked_at
    assert len(looked_at) == LOOKED_AT


def test_where_a_rule_keeps_a_prompt_to_is_looked_at() -> None:
    """
    Or the rule would seem to refuse everybody, and give way.
    """
    rule = LongPromptRule(30_000, frozenset({"r7"}))
    to = fleet(policy=replace(SHIPPED, rules=(rule, *SHIPPED.rules)))
    to.fleet["r7"].line_up(object(), 60.0, 0.0)

    visit = says(Player(to), 0)

    assert ranked(visit) == ["r7"]
    assert visit.lease is not None
    assert visit.lease.reason == "long_prompt"


def test_no_room_beside_other_long_ones_comes_last() -> None:
    """
    The few without long neighbours are looked at first, so that the rule that spreads them finds one.
    """
    player = Player(fleet())
    to = player.router
    free = {f"r{at}" for at in range(LOOKED_AT)}
    for each in to.fleet:
        if each.name not in free:
            each.draining = True
    for name in free:
        to.fleet[name].line_up(object(), 1.0, 0.0)
    crowded = [says(player, talk, 300_000) for talk in range(3)]
    for each in to.fleet:
        each.draining = False
    assert all(each.lease is not None for each in crowded)
    beside = {each.lease.replica.name for each in crowded if each.lease is not None}

    visit = says(player, 5, 300_000)

    assert visit.lease is not None
    assert visit.lease.replica.name not in beside


@pytest.mark.parametrize("talk", range(4))
def test_two_routers_agree(talk: int) -> None:
    """
    Whatever order their configurations name the replicas in: among equals rendezvous decides who is looked at.
    """
    one, other = says(Player(fleet()), talk), says(Player(fleet(backwards=True)), talk)
    assert ranked(one) == ranked(other)


def test_those_that_wait_are_ranked_among_all() -> None:
    """
    Who is held enters wherever there is room, be it at a replica that would not have been looked at.
    """
    player = Player(fleet())
    visit = says(player, 0)
    decision = player.router.choice.rank(visit, player.now, everywhere=True)
    assert decision is not None
    assert len(decision.ranked) == LARGE - len(visit.tried)
