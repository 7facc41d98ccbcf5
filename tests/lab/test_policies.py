"""The baselines: each does what its source says."""

from __future__ import annotations

from collections import Counter

import pytest

from ramjet.lab.loop import facts_of
from ramjet.lab.policies import (
    BASELINES,
    ConversationHash,
    LeastLoaded,
    Mirror,
    NewTokensTimesBatch,
    OverlapLoad,
    OverlapLoadRelative,
    PrefixHash,
    RoundRobin,
    Seconds,
    SecondsCrowding,
    SglangCacheAware,
    StickyUntilSaturated,
)
from ramjet.lab.workloads import SLOTS
from tests.lab.support import Sender, facts


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_says_what_it_does_and_where_that_is_published(name: str) -> None:
    """
    `ramjet lab list` shows both; and none holds anything.
    """
    policy = BASELINES[name](facts(2), 1)

    assert type(policy).__doc__
    assert policy.source
    assert policy.tick_s is None
    assert policy.tick(1.0) == []
    assert policy.in_flight == [0, 0]


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_gives_back_what_it_booked(name: str) -> None:
    """
    When all has ended, nothing is in flight; and a seed decides everything.
    """

    def placed() -> list[int | None]:
        sender = Sender(BASELINES[name](facts(4), 7))
        requests = [sender.send(("system", 40), (str(each), 10 + each), conversation=each) for each in range(20)]
        for request in requests:
            sender.read(request)
        for request in requests:
            sender.end(request)
        assert not any(sender.policy.in_flight)
        return [request.replica for request in requests]

    assert placed() == placed()


def test_round_robin_goes_round() -> None:
    """
    Whatever the prompt and whatever the load.
    """
    sender = Sender(RoundRobin(facts(3), 0))

    assert [sender.send(("same", 50)).replica for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_least_loaded_looks_at_requests_alone() -> None:
    """
    The replica with fewer of them gets the next; how long they are does not matter.
    """
    sender = Sender(LeastLoaded(facts(2), 0))
    long = sender.send(("long", 1_000))
    short = [sender.send(("short", 1)) for _ in range(3)]

    assert Counter(each.replica for each in (long, *short)) == {0: 2, 1: 2}
    for each in short:
        if each.replica == long.replica:
            sender.end(each)
    assert sender.send(("short", 1)).replica == long.replica


def test_prefix_hash_sees_the_first_4_kb() -> None:
    """
    1,024 tokens are four blocks: what follows changes nothing, however loaded that replica is.
    """
    sender = Sender(PrefixHash(facts(8), 0))
    home = sender.send(("system", 4)).replica

    assert {sender.send(("system", 4), (str(each), 50)).replica for each in range(50)} == {home}
    assert len({sender.send((str(each), 4)).replica for each in range(50)}) > 4


def test_conversation_hash_sees_the_session() -> None:
    """
    A conversation stays where it is, whatever it says; many are spread.
    """
    sender = Sender(ConversationHash(facts(8), 0))

    homes = {each: sender.send((str(each), 4), conversation=each).replica for each in range(50)}

    assert all(sender.send(("other", 9), conversation=each).replica == home for each, home in homes.items())
    assert len(set(homes.values())) > 4


def test_sglang_follows_a_match_of_more_than_three_tenths() -> None:
    """
    Below that, the replica with the fewest requests gets it.
    """
    sender = Sender(SglangCacheAware(facts(2), 0))
    home = sender.send(("system", 40)).replica
    assert home is not None

    assert sender.send(("system", 40), ("short", 80)).replica == home
    assert sender.send(("system", 40), ("long", 100)).replica == 1 - home


def test_sglang_drops_affinity_for_all_when_loads_are_apart() -> None:
    """
    With 65 requests more on one replica, a warm prompt leaves it.
    """
    sender = Sender(SglangCacheAware(facts(2), 0))
    requests = [sender.send(("system", 40)) for _ in range(65)]
    home = requests[0].replica
    assert home is not None

    assert {each.replica for each in requests} == {home}
    assert sender.send(("system", 40)).replica == 1 - home


def test_the_original_learns_from_answers_alone() -> None:
    """
    A prompt that is still on its way draws nobody; one that was answered does.
    """
    sender = Sender(OverlapLoad(facts(2), 0))
    first = sender.send(("system", 40))
    twin = sender.send(("system", 40))

    assert first.replica != twin.replica
    for each in (first, twin):
        sender.end(each)
    home = sender.serve(("mine", 40))
    assert all(sender.serve(("mine", 40), ("more", 10)) == home for _ in range(5))


def test_the_original_weighs_a_long_prompt_in_flight_as_its_whole_cap() -> None:
    """
    Eight units at four each are 32 blocks: with one more request there, a deep match is left.
    """
    sender = Sender(OverlapLoad(facts(2), 0))
    home = sender.serve(("mine", 400))
    while sender.send(("long", 900)).replica != home:
        pass
    assert sender.send(("mine", 400)).replica == home  # a tie: the deeper overlap decides

    sender = Sender(OverlapLoad(facts(1), 0))
    sender.send(("long", 900))
    sender.send(("short", 1))
    assert sender.policy._load == [9]  # type: ignore[attr-defined]


def test_relative_overlap_sees_behind_a_long_shared_prompt() -> None:
    """
    Both replicas hold a system prompt longer than the cap: absolute overlap is 32 blocks on both, and load decides.
    """
    placed = {}
    for kind in (OverlapLoad, OverlapLoadRelative):
        sender = Sender(kind(facts(2), 0))
        home = sender.serve(("system", 100), ("mine", 60))
        sender.policy._indexes[1 - home].insert(sender.send(("system", 100)).blocks, 0.0)  # type: ignore[attr-defined]
        sender.policy._load = [0, 0]  # type: ignore[attr-defined]
        sender.policy._load[home] = 1  # type: ignore[attr-defined]
        placed[kind] = sender.send(("system", 100), ("mine", 60)).replica == home

    assert placed == {OverlapLoad: False, OverlapLoadRelative: True}


def test_sticky_stays_until_18_seconds_are_lost() -> None:
    """
    286,704 tokens that are still to be read keep a warm prompt; some more do not.
    """
    sender = Sender(StickyUntilSaturated(facts(2), 0))
    policy = sender.policy
    assert isinstance(policy, StickyUntilSaturated)
    home = sender.serve(("mine", 100))

    policy._unread_tokens[home] = 286_000
    assert sender.serve(("mine", 100), ("more", 10)) == home
    policy._unread_tokens[home] = 287_000
    assert sender.serve(("mine", 100), ("more", 10)) == 1 - home


def test_sticky_goes_where_fewer_tokens_are_unread_if_nobody_holds_four_fifths() -> None:
    """
    Its own unread part counts in; what has been read does not.
    """
    sender = Sender(StickyUntilSaturated(facts(2), 0))
    first = sender.send(("one", 100))
    assert first.replica is not None

    assert sender.send(("two", 200)).replica == 1 - first.replica
    sender.read(first)
    assert sender.send(("three", 100)).replica == first.replica


def test_new_tokens_times_batch_multiplies() -> None:
    """
    A warm replica keeps a prompt until its batch makes up for what another would have to read.
    """
    sender = Sender(NewTokensTimesBatch(facts(2), 0))
    home = sender.serve(("mine", 40))
    policy = sender.policy

    # 10 of 50 blocks unread there, 50 elsewhere: a batch of five is as many as it takes.
    policy.in_flight[home] = 3
    assert sender.serve(("mine", 40), ("a", 10)) == home
    policy.in_flight[home] = 6
    assert sender.serve(("mine", 40), ("b", 10)) == 1 - home


def test_seconds_weighs_reading_against_the_queue() -> None:
    """
    A prompt leaves its home when the queue there takes longer than reading it anew, and stays when it has been read.
    """
    sender = Sender(Seconds(facts(2), 0))
    home = sender.serve(("mine", 100))

    blocking = sender.send(("mine", 50), ("long", 400))
    assert blocking.replica == home
    assert sender.serve(("mine", 100), ("a", 10)) == 1 - home
    sender.read(blocking)
    assert sender.serve(("mine", 50), ("long", 400), ("b", 1)) == home


def test_crowding_spares_who_comes_back() -> None:
    """
    Two replicas, one full of somebody's prompt: a newcomer goes to the empty one, also when it is a little busier.
    """
    outcome = {}
    for kind in (Seconds, SecondsCrowding):
        sender = Sender(kind(facts(2), 0))
        home = sender.serve(("mine", 1_800))
        busy = sender.send(("short", 60))
        while busy.replica == home:
            sender.read(busy)
            busy = sender.send((f"short {sender.sent}", 60))
        outcome[kind] = sender.send(("new", 400), now=10.0).replica == home

    assert outcome == {Seconds: True, SecondsCrowding: False}


def test_what_is_pushed_out_is_priced_by_the_chance_that_it_is_missed() -> None:
    """
    Who has been away for long costs less than who was just here, and an empty replica costs nothing.
    """
    sender = Sender(SecondsCrowding(facts(1), 0))
    policy = sender.policy
    assert isinstance(policy, SecondsCrowding)
    newcomer = Sender(RoundRobin(facts(1), 0)).send(("new", 400))

    assert policy._crowding_s(newcomer, 0, 0.0) == 0
    sender.serve(("mine", 1_800), now=0.0)
    soon, late = policy._crowding_s(newcomer, 0, 10.0), policy._crowding_s(newcomer, 0, 1_000.0)
    assert soon > 10 * late / 9 > 0
    # 1,800 + 400 blocks and a token in a pool of 1,953: 248 have to be read again, from the deep end.
    assert soon == pytest.approx(policy.READING.seconds(1_552 * 256, 1_800 * 256), rel=0.02)


def test_a_mirror_counts_snapshots_as_its_replica_does() -> None:
    """
    28 slots, two a path, three for each that runs: with eight conversations resident and four running, some must go.
    """
    mirror = Mirror(facts_of(SLOTS))
    sender = Sender(RoundRobin(facts(1), 0))
    for each in range(8):
        request = sender.send((str(each), 40), now=float(each))
        mirror.sent(request, float(each))
        mirror.ended(request, float(each))
    assert mirror.used_slots == 16
    assert mirror.find(request.blocks, request.prompt_tokens).tokens == 40 * 256

    newcomer = sender.send(("new", 40), now=10.0)
    assert mirror.harm_s(newcomer, 10.0, Seconds.READING) == 0
    for each in range(4):
        mirror.sent(sender.send((f"running {each}", 40), now=10.0), 10.0)
    assert mirror.used_slots <= 28
    assert mirror.harm_s(newcomer, 10.0, Seconds.READING) > 0


def test_a_mirror_takes_who_was_answered_though_it_saw_no_room() -> None:
    """
    The replica had room, so the prompt is there now.
    """
    mirror = Mirror(facts(1)[0])
    sender = Sender(RoundRobin(facts(1), 0))
    first, second = sender.send(("first", 1_500)), sender.send(("second", 1_500))
    mirror.sent(first, 0.0)
    mirror.sent(second, 0.0)
    assert mirror.running == 1

    mirror.ended(first, 1.0)
    assert mirror.running == 1
    assert mirror.find(second.blocks, second.prompt_tokens).tokens == 1_500 * 256
    third = sender.send(("third", 1_500))
    mirror.sent(third, 2.0)
    mirror.ended(third, 3.0)
    mirror.ended(second, 4.0)
    assert mirror.running == 0
