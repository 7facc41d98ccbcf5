"""What holds whatever happens to a router: for any row of requests, ends, failures and changes to the fleet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.admission import Mode, Terms
from ramjet.core.beliefs import KNOWN_S, Belief, Outlook
from ramjet.core.cache import Blocks
from ramjet.core.choice import Choice, Found
from ramjet.core.fleet import Fleet, Replica, State
from ramjet.core.losses import Prices
from ramjet.core.policies import CrowdingCost, LeaveCost, LongPromptRule, Policy, PrefillCost
from ramjet.core.route import Decision
from ramjet.core.router import Router
from ramjet.core.visit import Visit
from ramjet.lab.production import SHIPPED
from tests.core.eager import harm_s
from tests.core.traces import POOLS, TALKS, Event, Player, digest, router
from tests.effort import examples


class EagerBelief(Belief):
    """A belief that remembers nothing of what it was asked."""

    def outlook(self, blocks: Blocks, prompt_tokens: int) -> Outlook:
        found, hit = self.cache.look(blocks, prompt_tokens)
        path = list(found.node.path()) if found.node is not None else []
        return Outlook(hit, path, sum(node.snapshot for node in path), found)

    def harm_s(
        self, outlook: Outlook, prompt_tokens: int, owner: object, prices: Prices, now: float, *, most_s: float
    ) -> float:
        del now
        return harm_s(self, outlook, prompt_tokens, owner, prices, most_s)


class EagerChoice(Choice):
    def stay(self, visit: Visit, now: float) -> Decision | None:
        return None

    def look_around(self, visit: Visit, now: float, *, asks_to_enter: bool) -> Found | None:
        decision = self.rank(visit, now)
        if decision is None:
            return None
        return Found(decision, self._admission.choose(decision.ranked, self.home(visit)) if asks_to_enter else None)


class EagerRouter(Router):
    """The definition: every replica is looked at for every request, and nothing is known from before."""

    def __init__(self, fleet: Fleet, policy: Policy) -> None:
        super().__init__(fleet, policy)
        self.choice = EagerChoice(self.offers, self.admission)
        self.beliefs.update((replica.name, EagerBelief(replica.pools)) for replica in fleet)

    def add(self, replica: Replica) -> None:
        super().add(replica)
        self.beliefs[replica.name] = EagerBelief(replica.pools)


MODES: tuple[Mode, ...] = ("enforce", "enforce", "observe", "off")
PRESSED = replace(SHIPPED, terms=Terms(free_s=0.05, found_weight=0.1, first_allowance_s=1.0, most_allowance_s=2.0))
"""Little is free of charge, and little is saved up for those who pay."""
POLICIES: list[Policy] = [
    PRESSED,
    *(replace(SHIPPED, terms=Terms(mode=mode)) for mode in MODES),
    # Little is free, and little is remembered; then each rule and cost left out, for what is left has to agree too.
    replace(SHIPPED, terms=Terms(free_s=0.05, found_weight=0.1), memory_bytes=60_000, horizon_s=200.0),
    replace(SHIPPED, rules=(LongPromptRule(30_000, frozenset({"r0", "r1"})), *SHIPPED.rules)),
    replace(SHIPPED, rules=(), affinity=False),
    replace(SHIPPED, costs=(PrefillCost(), CrowdingCost(), LeaveCost(request_s=5.0))),
    *(replace(SHIPPED, costs=tuple(each for each in SHIPPED.costs if each is not cost)) for cost in SHIPPED.costs),
]
WHICH = st.integers(0, 7)
FLEETS = st.lists(st.integers(0, len(POOLS) - 1), min_size=1, max_size=4)


def events(seconds: st.SearchStrategy[float], *, fleet_changes: bool = True) -> st.SearchStrategy[list[Event]]:
    """Rows of events that are so far apart; most are requests and their ends."""

    def event(kind: str, *rest: st.SearchStrategy[Any]) -> st.SearchStrategy[Event]:
        return st.tuples(st.just(kind), seconds, *rest)

    say = event("say", st.integers(0, TALKS - 1), st.sampled_from((200, 2_000, 9_000)), st.sampled_from((0, 1)))
    serve = event("serve", st.integers(0, TALKS - 1), st.sampled_from((200, 2_000, 9_000, 30_000)))
    traffic = [
        serve,
        say,
        say,
        event("first", WHICH),
        event("finish", WHICH, st.sampled_from(("ok", "client_disconnect")), st.sampled_from((None, 0.0, 0.5, 0.95))),
        event("finish", WHICH, st.just("ok"), st.just(0.95)),
        event("fail", WHICH),
        event("leave", WHICH),
        event("tick"),
        event("busy", WHICH, st.sampled_from((1.5, 20.0, 20.5, 21.0, 22.0))),
    ]
    changes = [
        event("health", WHICH, st.booleans()),
        event("drain", WHICH, st.booleans()),
        event("restart", WHICH),
        event("resize", WHICH, st.integers(0, len(POOLS) - 1)),
        event("add", st.integers(0, len(POOLS) - 1)),
        event("remove", WHICH),
    ]
    fill = st.lists(serve, min_size=8, max_size=16)
    rest = st.lists(st.one_of(traffic + changes * fleet_changes), min_size=8, max_size=40)
    return st.tuples(fill, rest).map(lambda rows: [*rows[0], *rows[1]])


ANY_TIME = st.sampled_from((0.0, 0.01, 1.0, 8.0, 31.0, 400.0))


@given(pools=FLEETS, policy=st.sampled_from(POLICIES), trace=events(st.sampled_from((KNOWN_S, 7.0, 31.0, 400.0))))
@settings(max_examples=examples(60), deadline=None)
def test_decisions_are_those_of_a_router_that_looks_at_everything(
    pools: list[int], policy: Policy, trace: list[Event]
) -> None:
    """
    Nobody is looked at more closely than it takes, what was worked out is used again, and it makes no difference.
    """
    # The chances of a return may be so old that none of these are.
    quick = Player(router(pools, policy), apart_s=KNOWN_S)
    eager = Player(router(pools, policy, kind=EagerRouter), apart_s=KNOWN_S)

    for event in trace:
        assert quick.play(event) == eager.play(event)


@given(
    fleet=FLEETS.flatmap(lambda pools: st.tuples(st.just(pools), st.permutations(range(len(pools))))),
    policy=st.sampled_from(POLICIES),
    trace=events(ANY_TIME),
)
@settings(max_examples=examples(40), deadline=None)
def test_the_order_of_the_configuration_never_matters(
    fleet: tuple[list[int], list[int]], policy: Policy, trace: list[Event]
) -> None:
    """
    The same replicas named in another order get the same requests, for the same reasons and at the same price.
    """
    pools, order = fleet
    one, other = Player(router(pools, policy)), Player(router(pools, policy, order=order))

    for event in trace:
        assert one.play(event) == other.play(event)


class WatchedChoice(Choice):
    """Looks at every decision as it is made."""

    def rank(self, visit: Visit, now: float, *, everywhere: bool = False) -> Decision | None:
        decision = super().rank(visit, now, everywhere=everywhere)
        self._check(visit, decision, now)
        return decision

    def look_around(self, visit: Visit, now: float, *, asks_to_enter: bool) -> Found | None:
        found = super().look_around(visit, now, asks_to_enter=asks_to_enter)
        if found is None or found.decision is not None:
            self._check(visit, None if found is None else found.decision, now)
        return found

    def _check(self, visit: Visit, decision: Decision | None, now: float) -> None:
        able = {replica.name for replica in self._offers.able(visit)}
        assert (decision is None) is (not able)
        if decision is not None:
            ranked = [scored.candidate.replica for scored in decision.ranked]
            assert sorted([*ranked, *decision.refused]) == sorted(able)
            assert all(decision.refused.values())
            assert decision.elsewhere_s is None
            seen = self._offers.candidates(visit, self._offers.able(visit), {}, now)
            assert decision.best_matched_tokens == max(each.matched_tokens for each in seen)

    def stay(self, visit: Visit, now: float) -> Decision | None:
        decision = super().stay(visit, now)
        if decision is not None:
            (home,) = decision.ranked
            assert decision.elsewhere_s is not None
            assert decision.elsewhere_s > home.total_s
            assert decision.best_matched_tokens == home.candidate.matched_tokens
        return decision


class Watched(Router):
    """Looks at every decision as it is made."""

    def __init__(self, fleet: Fleet, policy: Policy) -> None:
        super().__init__(fleet, policy)
        self.choice = WatchedChoice(self.offers, self.admission)


@given(
    pools=FLEETS,
    policy=st.one_of(st.just(PRESSED), st.just(PRESSED), st.sampled_from(POLICIES)),
    trace=events(ANY_TIME),
)
@settings(max_examples=examples(50), deadline=None)
def test_nobody_is_forgotten_and_nothing_is_spent_twice(pools: list[int], policy: Policy, trace: list[Event]) -> None:
    """
    Whoever is held enters, or leaves, or is still held; replicas are ranked, or refused with a reason, or were not even
    looked at, as an ideal one would have cost more; an allowance ends below zero only by what one swap costs more than
    what must be saved up for it.
    """
    player = Player(router(pools, policy, kind=Watched))
    to, terms, dearest_s = player.router, policy.terms, defaultdict[str, float](float)

    for event in trace:
        player.play(event)
        for visit in player.running:
            assert visit.lease is not None
            name = visit.lease.replica.name
            dearest_s[name] = max(dearest_s[name], visit.lease.scored.candidate.harm_s)
        assert list(to.admission) == player.held
        assert player.arrived == len(player.running) + len(player.held) + player.ended
        assert sum(replica.in_flight for replica in to.fleet) <= len(player.running)
        for replica in to.fleet:
            allowance_s = to.admission.allowance_s(replica.name)
            assert allowance_s <= terms.most_allowance_s
            assert allowance_s >= min(0.0, min(terms.enough_s, terms.most_allowance_s) - dearest_s[replica.name])

    rest = _let_all_end(player)
    assert not rest


def _let_all_end(player: Player) -> list[Visit]:
    """Every answer ends and time passes, in a fleet where somebody can serve: who is still held then."""
    for replica in player.router.fleet:
        replica.state, replica.draining = State.UP, False
    for _ in range(200):
        while player.running:
            player.play(("finish", 1.0, 0, "ok", None))
        if not player.held:
            break
        player.play(("tick", 31.0))
    return player.held


@pytest.mark.parametrize("hash_seed", ["0", "1", "4294967295"])
def test_the_same_trace_gives_the_same_decisions(hash_seed: str) -> None:
    """
    Also in another process, whose sets and dictionaries hash differently.
    """
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.core.traces", "12"]

    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == digest(12)
