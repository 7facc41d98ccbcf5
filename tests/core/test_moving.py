"""A conversation moves when the seconds say so, once, and comes home only if that is cheaper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.admission import Terms
from ramjet.core.fleet import State
from ramjet.core.policies import LeaveCost, Policy, Reading
from ramjet.core.route import TIE_RATIO
from ramjet.lab.production import SHIPPED
from tests.core.traces import Player, router

LEAVE_S = LeaveCost().leave_s
MINE, OTHERS = 0, 3
"""Talks without a system prompt: the one that is watched, and who is in its way."""


class Pair:
    """Two replicas and a conversation between them, whose answers take no longer than their reading."""

    def __init__(self, pools: int = 0, policy: Policy = SHIPPED) -> None:
        self.player = Player(router([pools, pools], policy))
        self.tokens = {MINE: 500, OTHERS: 500 + 900 * OTHERS}

    def turn(self, tokens: int, ahead_s: Mapping[str, float] | None = None, talk: int = MINE) -> str:
        """A talk's next turn, while so many seconds of reading are ahead of it at the replicas: where it goes."""
        fleet, ahead = self.player.router.fleet, []
        for name, seconds in (ahead_s or {}).items():
            ahead.append((fleet[name], object()))
            fleet[name].line_up(ahead[-1][1], seconds, self.player.now + 20.0)
        self.tokens[talk] += tokens
        (placed, *_), _ = self.player.play(("serve", 20.0, talk, tokens))
        for replica, who in ahead:
            replica.read(who, self.player.now)
        return str(placed)

    def home(self) -> tuple[str, str]:
        """Where the conversation is after a few turns, and the other replica."""
        home = [self.turn(2_000) for _ in range(3)][-1]
        return home, "r1" if home == "r0" else "r0"

    @property
    def price_s(self) -> float:
        """What moving costs at least: to read all that is at home, as fast as replicas are seen to read, and to leave it."""
        pace = min(belief.pace.factor for belief in self.player.router.beliefs.values())
        return pace * Reading().seconds(0, self.tokens[MINE]) + LEAVE_S


GROWTH = st.sampled_from((100, 1_000, 6_000))
PART = st.floats(-0.9, 0.9)
"""Of the price of a move: what more is ahead at home than elsewhere."""


def ahead(home: str, other: str, more_s: float, both_s: float = 0.0) -> dict[str, float]:
    """So much more at home, or elsewhere where it is less than nothing, and some seconds at both."""
    return {home: both_s + max(0.0, more_s), other: both_s + max(0.0, -more_s)}


@given(turns=st.lists(st.tuples(GROWTH, PART), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_what_moving_costs_more_than_it_saves_moves_nobody(turns: list[tuple[int, float]]) -> None:
    """
    However the load goes up and down, as long as it differs by less than the price of a move.
    """
    pair = Pair()
    home, other = pair.home()

    for tokens, part in turns:
        assert pair.turn(tokens, ahead(home, other, part * pair.price_s)) == home


@given(before=st.lists(PART, max_size=5), after=st.lists(PART, min_size=1, max_size=20), tokens=GROWTH)
@settings(max_examples=60, deadline=None)
def test_who_has_moved_does_not_flap(before: list[float], after: list[float], tokens: int) -> None:
    """
    One wait that is longer than the price of a move, and the conversation moves, and then never again for less.
    """
    pair = Pair()
    home, other = pair.home()
    homes = [pair.turn(tokens, ahead(home, other, part * pair.price_s)) for part in before]

    # Five per cent of the cost, and a tenth on top, for what costs as good as the same is no reason to move.
    longer_s = (1.1 + TIE_RATIO) * (pair.price_s + Reading().seconds(pair.tokens[MINE], pair.tokens[MINE] + tokens))
    homes.append(pair.turn(tokens, ahead(home, other, longer_s)))
    homes += [pair.turn(tokens, ahead(other, home, part * LEAVE_S)) for part in after]

    assert homes == [home] * len(before) + [other] * (1 + len(after))


@given(turns=st.lists(st.tuples(GROWTH, st.floats(-30, 30), st.floats(0, 5)), min_size=1, max_size=25))
@settings(max_examples=60, deadline=None)
def test_every_move_is_bought_with_seconds(turns: list[tuple[int, float, float]]) -> None:
    """
    Under any load: whoever leaves a home has at least the two seconds less ahead of them that leaving costs.
    """
    pair = Pair()
    home, _ = pair.home()
    homes, more_at_home = [home], []
    for tokens, more_at_r0_s, both_s in turns:
        more_at_home.append(more_at_r0_s if homes[-1] == "r0" else -more_at_r0_s)
        homes.append(pair.turn(tokens, ahead("r0", "r1", more_at_r0_s, both_s)))

    for (before, after), more_s in zip(pairwise(homes), more_at_home, strict=True):
        assert before == after or more_s > LEAVE_S


def test_a_crowded_home_is_left_once() -> None:
    """
    Beside 30,000 tokens of another conversation in a pool of 40,000 there is no room for 15,000: they would have to be
    read again, five seconds, while reading one's own anew takes two and leaving another two. The other stays.
    """
    pair = Pair(2, replace(SHIPPED, rules=(), terms=Terms(mode="off")))
    home = pair.turn(3_000)
    # Whoever is in its way came there because the other replica was busy.
    other = "r1" if home == "r0" else "r0"
    assert pair.turn(27_000, {other: 30.0}, talk=OTHERS) == home

    homes = [pair.turn(tokens) for tokens in (11_000, 500, 500, 500, 500)]

    assert homes == [other] * 5
    assert pair.turn(500, talk=OTHERS) == home


@pytest.mark.parametrize("lost", [True, False], ids=["restarted", "refused one request"])
@pytest.mark.parametrize("waits", [0.5, 2.0], ids=["little to wait for", "long to wait for"])
def test_who_was_driven_out_by_a_failure_comes_home_only_if_that_is_cheaper(lost: bool, waits: float) -> None:
    """
    The replica is up again. Where it has lost everything all has to be read; where it only refused once, what came since.
    """
    pair = Pair()
    home, other = pair.home()
    fleet, before = pair.player.router.fleet, pair.tokens[MINE]
    if lost:
        pair.player.router.probed(fleet[home].url, pair.player.now, error="nobody listens", refused=True)
    else:
        fleet[home].state = State.DOWN
    assert pair.turn(3_000) == other
    fleet[home].state = State.UP
    start = 0 if lost else before
    price_s = LEAVE_S + Reading().seconds(start, pair.tokens[MINE])

    there = pair.turn(100, {other: waits * price_s})

    assert there == (home if waits > 1 else other)
    # And there it stays when nobody waits anywhere any more.
    assert [pair.turn(100) for _ in range(3)] == [there] * 3
