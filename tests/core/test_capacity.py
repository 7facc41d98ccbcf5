"""What reports teach of a replica's pools, for all reports, and against caches whose sizes are known."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.beliefs import Belief
from ramjet.core.cache import CacheSpec, EngineCache, Snapshots
from ramjet.core.capacity import Capacities, Capacity
from ramjet.core.pools import Pools
from tests.core.test_beliefs import prompt

DISTANCES = st.integers(10, 1_000_000)
EVENTS = st.lists(st.tuples(st.sampled_from(["lost", "found", "kept", "outlived"]), DISTANCES), max_size=200)


def teach(capacity: Capacity, events: list[tuple[str, int]]) -> None:
    for what, distance in events:
        if what in {"lost", "found"}:
            getattr(capacity, what)(distance)
        else:
            getattr(capacity, what)()


@given(st.integers(1, 1_000_000), EVENTS)
def test_what_was_said_is_never_left_far_behind(told: int, events: list[tuple[str, int]]) -> None:
    """
    Whatever is reported: between 0.3 and 1.3 times what was said, and by no more than 5 % less or 10 % more at a time.
    """
    capacity = Capacity(told)
    before = float(told)
    for event in events:
        teach(capacity, [event])
        size = capacity.least
        assert 0.3 * told <= size + 1e-6 or size == 1.0
        assert size <= 1.3 * told + 1e-6
        assert 0.95 * before <= size + 1e-6 <= 1.1 * before + 1e-5 or size == 1.0
        before = size


@given(EVENTS)
def test_what_nobody_told_is_unknown_until_enough_was_lost(events: list[tuple[str, int]]) -> None:
    """
    And it is at least one from then on.
    """
    capacity = Capacity(None)
    sizes = []
    for events_now in ([event for event in events if event[0] != "lost"], events):
        teach(capacity, events_now)
        sizes.append(capacity.size)

    assert sizes[0] is None
    assert sizes[1] is None or sizes[1] >= 1


@given(st.lists(DISTANCES, min_size=1), st.randoms(use_true_random=False), st.lists(DISTANCES, min_size=3, max_size=3))
def test_in_which_order_things_were_found_does_not_matter(found: list[int], rng: Random, lost: list[int]) -> None:
    """
    The middle one of three losses beyond all of them says the size; losses nearer than one of them do not.
    """
    sizes = []
    for _ in range(2):
        capacity = Capacity(None)
        rng.shuffle(found)
        rng.shuffle(lost)
        teach(capacity, [("found", distance) for distance in found])
        for distance in lost:
            assert capacity.least >= 0
            capacity.lost(distance + max(found))
        sizes.append(capacity.size)

    assert sizes[0] == sizes[1] == sorted(lost)[1] + max(found)
    nearer = Capacity(None)
    teach(nearer, [("found", max(found)), *(("lost", max(1, max(found) // 2)) for _ in range(20))])
    assert nearer.size is None


@given(EVENTS, st.integers(1, 1_000_000), st.integers(1, 1_000_000))
def test_another_size_keeps_what_was_learned_of_the_part(events: list[tuple[str, int]], told: int, new: int) -> None:
    """
    A pool of which conversations were seen to get nine tenths is not all theirs when it has grown.
    """
    capacity = Capacity(told)
    teach(capacity, events)
    part = capacity.least / told

    capacity.resize(new)
    assert capacity.least == pytest.approx(max(1.0, min(1.3, max(0.3, part)) * new))


@given(st.lists(st.tuples(DISTANCES, st.integers(1, 60)), max_size=100))
def test_a_loss_teaches_of_one_pool_only(losses: list[tuple[int, int]]) -> None:
    """
    Of the one that was nearer to being used up, or of none where neither was; the other stays as it was.
    """
    both = Capacities(Pools(tokens=500_000, slots=28))
    for tokens, slots in losses:
        before = both.tokens.least, both.slots.least
        pool = both.lost(tokens, slots)
        assert pool != "token_pool" or (tokens >= 0.7 * int(before[0]) and tokens / int(before[0]) >= slots / before[1])
        assert both.tokens.least == before[0] or pool == "token_pool"
        assert both.slots.least == before[1] or pool == "snapshot_pool"


# -- against caches whose sizes are known --------------------------------------------------------------------------------


def learned(spec: CacheSpec, told: Pools, seed: int, *, conversations: int, turns: int = 300) -> Belief:
    """Conversations of 2,048 to 12,288 tokens come back in any order, one at a time, and end at some length."""
    rng, truth, belief = Random(seed), EngineCache(spec), Belief(told)
    alive = [[number, rng.randrange(8, 48)] for number in range(conversations)]
    for now in range(turns):
        at = rng.randrange(conversations)
        alive[at][1] += rng.randrange(3)
        if alive[at][1] > 48:
            alive[at] = [conversations + now, rng.randrange(8, 48)]
        number, length = alive[at]
        tokens = 256 * length
        blocks = prompt(f"{number:05}", tokens)
        sought = belief.sought(belief.outlook(blocks, tokens))
        belief.cache.leave(belief.book(blocks, tokens, number, float(now)), float(now))
        hit = truth.serve(blocks, tokens, float(now))
        assert hit is not None
        belief.report(blocks, tokens, sought=sought, cached_tokens=hit.tokens, owner=number, now=float(now))
    return belief


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([0.8, 0.9, 1.0, 1.1, 1.2, None]), st.integers(0, 1_000))
def test_the_size_of_a_token_pool_is_found(factor: float | None, seed: int) -> None:
    """
    Within a seventh, whatever was said of it, or nothing.
    """
    true = 200_000
    spec = CacheSpec(pool_tokens=true, page_tokens=1, reads_last=False)
    told = Pools(tokens=None if factor is None else int(factor * true))

    belief = learned(spec, told, seed, conversations=50)
    assert belief.pool_tokens == pytest.approx(true, rel=0.15)


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([0.8, 1.0, 1.2, None]), st.integers(0, 1_000))
def test_the_size_of_a_snapshot_pool_is_found(factor: float | None, seed: int) -> None:
    """
    Within four slots, whatever was said of it, or nothing; and the token pool, which is large, is left alone.
    """
    snapshots = Snapshots(slots=28, per_path=1)
    spec = CacheSpec(pool_tokens=600_000, page_tokens=1, reads_last=False, snapshots=snapshots)
    told = Pools(tokens=600_000, slots=None if factor is None else round(28 * factor), per_path=1)

    belief = learned(spec, told, seed, conversations=50)
    assert belief.pools.slots == pytest.approx(28, abs=4)
    assert belief.pool_tokens == pytest.approx(600_000, rel=0.1)


def test_losses_that_the_token_pool_does_not_explain_show_snapshots_when_they_come_in_a_row() -> None:
    """
    Of a model without snapshots something is lost early now and then, for answers that run take room: that is no other pool.
    """
    capacities = Capacities(Pools(tokens=100_000, private=0))
    for _ in range(8):
        capacities.reported(4_096)
        for near in (20_000, 20_000, 90_000):
            capacities.lost(near, 5)
    assert not capacities.has_states

    for _ in range(3):
        capacities.lost(20_000, 5)
    assert capacities.has_states


def test_slots_that_were_learned_of_a_replica_said_to_have_none_let_some_run() -> None:
    """
    A replica whose running requests are said to take no slots has learned some all the same.
    """
    assert Pools(slots=5, private=0).most_running == 2
