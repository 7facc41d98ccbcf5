"""Ranks are replicas to all that decides, and one engine to all that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.fleet import Fleet, Replica, State, Thresholds, rank_name, whole_name
from ramjet.core.policies import LongPromptRule, Policy, SpreadLongRule
from ramjet.core.pools import Pools
from ramjet.core.route import Ask, Candidate
from ramjet.core.router import Router
from tests.core.test_traces import ANY_TIME, FLEETS, POLICIES, events
from tests.core.traces import POOLS, Event, Player
from tests.effort import examples

NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


def rank(number: int, whole: str = "a", pools: Pools = Pools()) -> Replica:
    return Replica(rank_name(whole, number), f"http://{whole}:30000", number, configured=pools)


def fleet_of(*replicas: Replica) -> Fleet:
    fleet = Fleet()
    for each in replicas:
        fleet.add(each)
    return fleet


# -- names ------------------------------------------------------------------------------------------------------------


@given(name=NAMES, number=st.integers(0, 300))
def test_a_rank_belongs_to_its_replica_whatever_that_is_called(name: str, number: int) -> None:
    """
    An address as a name is one too, and a replica that is no rank belongs to itself.
    """
    assert whole_name(rank_name(name, number)) == name
    assert Replica(rank_name(name, number), "http://h", number).whole == name
    assert Replica(name, "http://h").whole == name


def test_a_name_means_a_replica_with_all_of_its_ranks() -> None:
    """
    Or one rank alone; and a name that only looks like a rank's is a replica's.
    """
    fleet = fleet_of(rank(0), rank(1), Replica("10.0.0.7", "http://b"))

    assert [each.name for each in fleet.named("a")] == ["a.0", "a.1"]
    assert [each.name for each in fleet.named("a.1")] == ["a.1"]
    assert [each.name for each in fleet.named("10.0.0.7")] == ["10.0.0.7"]
    assert fleet.named("10.0.0") == fleet.named("a.2") == []
    assert fleet.urls == ["http://a:30000", "http://b"]


# -- where a request goes ---------------------------------------------------------------------------------------------


@given(
    pools=FLEETS,
    policy=st.sampled_from(POLICIES),
    trace=events(ANY_TIME, fleet_changes=False).map(lambda row: [each for each in row if each[0] != "fail"]),
)
@settings(max_examples=examples(40), deadline=None)
def test_ranks_are_routed_to_as_replicas_are(pools: list[int], policy: Policy, trace: list[Event]) -> None:
    """
    As long as nobody fails it makes no difference that they are behind one URL: to no rule, no cost and no tie.
    """
    configured = [Pools(**POOLS[each]) for each in pools]
    ranks = fleet_of(*(rank(number, pools=each) for number, each in enumerate(configured)))
    alone = fleet_of(
        *(Replica(f"a.{number}", f"http://a:30000#{number}", configured=each) for number, each in enumerate(configured))
    )
    one, other = Player(Router(ranks, policy)), Player(Router(alone, policy))

    for event in trace:
        assert one.play(event) == other.play(event)


def test_a_rule_that_names_a_replica_names_its_ranks() -> None:
    """
    Or one of them alone.
    """
    candidates = [Candidate(name, name) for name in ("a.0", "a.1", "b", "10.0.0.7")]
    ask = Ask(body_bytes=1_000, prompt_tokens=250)

    assert set(LongPromptRule(1_000, frozenset({"a"})).refuses(ask, candidates)) == {"b", "10.0.0.7"}
    assert set(LongPromptRule(1_000, frozenset({"a.1", "b"})).refuses(ask, candidates)) == {"a.0", "10.0.0.7"}


def test_two_long_conversations_go_to_different_ranks() -> None:
    """
    One cache cannot hold both, and the other rank's can.
    """
    player = Player(
        Router(
            fleet_of(rank(0, pools=Pools(tokens=100_000)), rank(1, pools=Pools(tokens=100_000))),
            Policy(rules=(SpreadLongRule(60_000),)),
        )
    )

    first, second = (player.play(("serve", 1.0, talk, 70_000))[0][0] for talk in (0, 3))

    assert {first, second} == {"a.0", "a.1"}


# -- what fails -------------------------------------------------------------------------------------------------------


@given(trace=events(ANY_TIME, fleet_changes=False), shape=st.lists(st.integers(1, 3), min_size=1, max_size=3))
@settings(max_examples=examples(40), deadline=None)
def test_no_request_goes_twice_to_a_url_that_failed_it(trace: list[Event], shape: list[int]) -> None:
    """
    The one retry is for another URL, and where there is none there is no retry.
    """
    fleet = fleet_of(*(rank(number, f"r{at}") for at, ranks in enumerate(shape) for number in range(ranks)))
    player = Player(Router(fleet, Policy()))

    for event in trace:
        player.play(event)
        for visit in player.running:
            wholes = [whole_name(name) for name in visit.tried]
            assert len(set(wholes)) == len(wholes) <= len(shape)


def test_a_rank_that_is_full_may_be_replaced_by_another() -> None:
    """
    Its 429 says nothing of the others, which have queues of their own.
    """
    player = Player(Router(fleet_of(rank(0), rank(1)), Policy()))
    player.play(("say", 0.0, 1, 500, 0))
    (visit,) = player.running

    player.router.failed(visit, 1.0, all_ranks=False)

    assert player.router.place(visit, 1.0) is not None
    assert set(visit.tried) == {"a.0", "a.1"}


@pytest.mark.parametrize("by", ["probed", "restarted"])
def test_an_engine_that_restarts_has_lost_the_caches_of_all_ranks(by: str) -> None:
    """
    And of nobody else, whichever rank it was found out by.
    """
    router = Router(fleet_of(rank(0), rank(1), Replica("b", "http://b")), Policy())
    player = Player(router)
    for talk in range(6):
        player.play(("serve", 1.0, talk, 2_000))
    held = {each.name: router.resident_tokens(each.name) for each in router.fleet}
    assert all(held.values())

    changed: Sequence[Any] = ()
    if by == "probed":
        changed = router.probed("http://a:30000", 10.0, error="connection refused", refused=True)
    else:
        router.restarted("a.1")

    assert [each.name for each in changed] == (["a.0", "a.1"] if by == "probed" else [])
    assert {each.name: router.resident_tokens(each.name) for each in router.fleet} == {**held, "a.0": 0, "a.1": 0}


def test_a_rank_that_is_let_go_takes_nothing_from_the_others() -> None:
    """
    The engine goes on: its other ranks hold what they held.
    """
    router = Router(fleet_of(rank(0), rank(1)), Policy())
    player = Player(router)
    for talk in range(6):
        player.play(("serve", 1.0, talk, 2_000))
    held = router.resident_tokens("a.0")

    router.remove("a.1")

    assert router.resident_tokens("a.0") == held > 0


HAPPENS = st.lists(
    st.tuples(
        st.sampled_from(("good", "bad", "bad", "refused", "delivered")),
        st.integers(0, 2),
        st.sampled_from((0.1, 3.0, 12.0)),
    ),
    max_size=30,
)


@given(row=HAPPENS)
def test_ranks_are_down_when_a_replica_that_did_all_they_did_would_be(row: list[tuple[str, int, float]]) -> None:
    """
    What is probed is the same for all, so bytes of any rank outvote bad probes of every one.
    """
    thresholds = Thresholds()
    one = Replica("one", "http://one", thresholds=thresholds)
    fleet = fleet_of(*(rank(number) for number in range(3)))
    now = 0.0
    for what, which, seconds in row:
        now += seconds
        if what == "delivered":
            one.delivered(now)
            fleet[f"a.{which}"].delivered(now)
        else:
            error = None if what == "good" else what
            one.probed(now, error=error, refused=what == "refused")
            before = {each.name: each.state for each in fleet}
            changed = fleet.probed("http://a:30000", now, error=error, refused=what == "refused")
            assert {each.name for each in changed} == {each.name for each in fleet if each.state != before[each.name]}
        assert {each.state is State.DOWN for each in fleet} == {one.state is State.DOWN}


def test_a_rank_that_swallows_requests_is_taken_out_alone() -> None:
    """
    The page that is probed belongs to all, and says yes; only what it was sent shows that one of them is dead.
    """
    fleet = fleet_of(rank(0), rank(1))
    for each in fleet:
        each.sent(0.0)
    fleet["a.0"].delivered(900.0)

    (changed,) = fleet.probed("http://a:30000", 901.0, error=None)

    assert (changed.name, changed.state) == ("a.1", State.DOWN)
    assert fleet["a.0"].serving


def test_a_rank_that_comes_in_is_as_healthy_as_what_was_there() -> None:
    """
    A replica that is drained, or on trial, is so when it turns out to have ranks.
    """
    whole = Replica("a", "http://a:30000", state=State.TRIAL, draining=True, models=frozenset({"m"}))
    ranks = [rank(0), rank(1)]
    for each in ranks:
        each.take_over(whole)

    assert all((each.state, each.draining, each.models) == (State.TRIAL, True, frozenset({"m"})) for each in ranks)
    assert [each.rank for each in ranks] == [0, 1]
