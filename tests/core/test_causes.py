"""What made a turn cold: the order in which it is asked, the arithmetic of the pools, and who is remembered for what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.beliefs import Belief
from ramjet.core.causes import CAUSES, Clues, Evictions, Loss, Pressure
from ramjet.core.conversations import Conversation
from ramjet.core.pools import Pools
from tests.core.caches import blocks

LOST_TO_TOKENS = Loss("token_pool", 7, of_state=False, number=1)
LOST_TO_SLOTS = Loss("snapshot_pool", 7, of_state=True, number=1)
CAPPED = Loss("per_path", 7, of_state=True, number=1)
CROWDED = Pressure(has_snapshots=True, tokens_ratio=0.95, slots_ratio=1.0)
HYBRID = Pressure(has_snapshots=True, tokens_ratio=0.4, slots_ratio=1.0)


def clues(**changes: Any) -> Clues:
    """A turn that its home was believed to hold in full."""
    full = Clues(expected_tokens=20_000, reusable_tokens=20_000, diverged_at_tokens=20_000, known_tokens=20_000)
    return full._replace(**changes)


GONE = clues(expected_tokens=0, known_tokens=0)
BARE = clues(expected_tokens=0)


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        (GONE._replace(head_changed=True, restarted=True, home_tokens=20_000), "prefix_changed"),
        (GONE._replace(restarted=True, home_tokens=20_000, loss=LOST_TO_SLOTS), "restart"),
        (GONE._replace(home_tokens=10_000, loss=LOST_TO_SLOTS), "moved"),
        (GONE._replace(home_tokens=9_999, loss=LOST_TO_SLOTS), "snapshot_pool"),
        (GONE._replace(home_tokens=0), "moved"),
        (GONE._replace(loss=LOST_TO_TOKENS), "token_pool"),
        (GONE._replace(loss=LOST_TO_SLOTS, left_inside=True), "snapshot_pool"),
        (BARE._replace(loss=CAPPED, left_inside=True), "branch"),
        (BARE._replace(left_inside=True), "branch"),
        (BARE._replace(left_inside=False, pressure=HYBRID), "snapshot_pool"),
        (GONE, "unknown"),
    ],
)
def test_what_ramjet_did_comes_first_and_then_what_the_belief_had_let_go(known: Clues, cause: str) -> None:
    """
    Each row is decided by the first thing that explains it.
    """
    assert known.cause(0) == cause


@pytest.mark.parametrize(
    ("pressure", "cause"),
    [
        (Pressure(has_snapshots=False, tokens_ratio=0.95), "token_pool"),
        (Pressure(has_snapshots=False, tokens_ratio=0.72), "unknown"),
        (Pressure(has_snapshots=False), "unknown"),
        (Pressure(tokens_ratio=0.95), "unknown"),
        (Pressure(has_snapshots=True, tokens_ratio=0.72, slots_ratio=1.0), "snapshot_pool"),
        (Pressure(has_snapshots=True, tokens_ratio=0.72), "snapshot_pool"),
        (Pressure(has_snapshots=True, tokens_ratio=0.72, slots_ratio=0.3), "unknown"),
        (Pressure(has_snapshots=True, tokens_ratio=0.95, slots_ratio=0.5), "token_pool"),
        (Pressure(has_snapshots=True, tokens_ratio=0.95), "unknown"),
        (Pressure(has_snapshots=True, slots_ratio=1.0), "snapshot_pool"),
        (Pressure(has_snapshots=True), "unknown"),
        (CROWDED._replace(newer_tokens_ratio=0.9, newer_slots_ratio=0.3), "token_pool"),
        (CROWDED._replace(newer_tokens_ratio=0.3, newer_slots_ratio=0.9), "snapshot_pool"),
    ],
)
def test_where_the_belief_was_wrong_the_pool_that_was_short_is_the_cause(pressure: Pressure, cause: str) -> None:
    """
    The seed's case is the fifth: 72 % of the token pool used, and no snapshot left.
    """
    assert clues(pressure=pressure).cause(0) == cause


def test_a_part_from_the_host_is_more_than_the_device_and_others_have() -> None:
    """
    What other conversations keep on the device would have been there in any case.
    """
    known = GONE._replace(loss=LOST_TO_TOKENS, shared_tokens=5_000, pressure=Pressure(has_host=True))

    assert known.cause(9_000) == "host_tier"
    assert known.cause(5_000) == "token_pool"
    assert known._replace(pressure=Pressure()).cause(9_000) == "token_pool"
    assert known.pushed_out_by("host_tier") == known.pushed_out_by("token_pool") == 7
    assert known.pushed_out_by("moved") is None


pressures = st.builds(
    Pressure,
    tokens_ratio=st.none() | st.floats(0, 2),
    slots_ratio=st.none() | st.floats(0, 2),
    newer_tokens_ratio=st.floats(0, 1),
    newer_slots_ratio=st.floats(0, 1),
    has_snapshots=st.none() | st.booleans(),
    has_host=st.booleans(),
)
anything = st.builds(
    Clues,
    expected_tokens=st.integers(0, 40_000),
    reusable_tokens=st.integers(1, 40_000),
    diverged_at_tokens=st.integers(0, 40_000),
    head_changed=st.booleans(),
    left_inside=st.booleans(),
    home_tokens=st.none() | st.integers(0, 40_000),
    restarted=st.booleans(),
    known_tokens=st.integers(0, 40_000),
    shared_tokens=st.integers(0, 40_000),
    loss=st.sampled_from([None, LOST_TO_TOKENS, LOST_TO_SLOTS, CAPPED]),
    pressure=pressures,
)


@given(known=anything, cached=st.integers(0, 20_000))
def test_whatever_is_known_there_is_one_cause_and_no_snapshot_pool_without_snapshots(known: Clues, cached: int) -> None:
    """
    A pool that a replica is not known to have is blamed only where the belief, which has it, let something go.
    """
    cause = known.cause(cached)

    assert cause in CAUSES
    if not known.pressure.has_snapshots and known.loss is None:
        assert cause != "snapshot_pool"
    if not known.pressure.has_host:
        assert cause != "host_tier"


def test_the_latest_loss_that_mattered_counts() -> None:
    """
    Snapshots that would not have been enough do not, nor runs that are there again, nor what another replica lost.
    """
    evictions, hashes = Evictions(), [1, 2, 3, 4]
    evictions.note("a", 4, "token_pool", 40, of_state=True)
    evictions.note("a", 3, "snapshot_pool", 30, of_state=True)
    evictions.note("a", 1, "per_path", 10, of_state=True)
    evictions.note("a", 2, "token_pool", 20, of_state=False)
    evictions.note("b", 4, "token_pool", 50, of_state=True)

    def by(replica: str, *, known: int, enough: int) -> int | None:
        loss = evictions.latest(replica, hashes, known=known, enough=enough)
        return None if loss is None else loss.by

    assert by("a", known=4, enough=2) == 30
    assert by("a", known=1, enough=2) == 20
    assert by("a", known=4, enough=4) == 40
    assert by("a", known=4, enough=1) == 10
    assert by("b", known=4, enough=2) == 50
    assert by("c", known=0, enough=1) is None


@given(noted=st.lists(st.integers(0, 30), max_size=60))
def test_the_memory_of_losses_is_bounded(noted: list[int]) -> None:
    """
    The ones noted last stay.
    """
    evictions = Evictions(most=8)
    for block in noted:
        evictions.note("a", block, "token_pool", None, of_state=False)

    last = list(dict.fromkeys(reversed(noted)))
    kept = [block for block in last if evictions.latest("a", [block], known=0, enough=1) is not None]
    assert kept == last[:8]
    assert len(evictions) == len(kept)


def test_a_belief_remembers_for_whom_it_let_something_go() -> None:
    """
    The second conversation does not fit beside the first, which is pushed out for it.
    """
    evictions = Evictions()
    belief = Belief(Pools(tokens=100), evictions, "a")
    first, second = Conversation(id=1, head=1), Conversation(id=2, head=2)
    one, two = blocks([f"one {n}" for n in range(20)]), blocks([f"two {n}" for n in range(20)])

    for conversation, prompt, now in ((first, one, 1.0), (second, two, 2.0)):
        belief.cache.leave(belief.book(prompt, 80, conversation, now), now)

    loss = belief.loss(one, belief.outlook(one, 80), 80)
    assert loss is not None
    assert (loss.pool, loss.by, loss.of_state) == ("token_pool", 2, False)
    assert belief.loss(two, belief.outlook(two, 80), 80) is None


def test_counts_on_the_grid_show_snapshots_and_one_beside_it_shows_that_there_are_none() -> None:
    """
    Nothing is concluded from a count of 0, and all of it is forgotten with a restart, which may bring another model.
    """
    belief = Belief(Pools())
    prompt = blocks([str(n) for n in range(4)])
    nothing = belief.sought(belief.outlook(prompt, 16))

    def report(cached_tokens: int) -> bool | None:
        belief.report(prompt, 16, sought=nothing, cached_tokens=cached_tokens, owner=None, now=1.0)
        return belief.has_snapshots

    assert [report(cached) for cached in (256, 0, 6_144, 512, 0, 256, 256)] == [None] * 6 + [True]
    assert report(320) is False
    assert report(512) is False
    belief.restarted()
    assert belief.has_snapshots is None
    assert Belief(Pools(slots=28)).has_snapshots is True
