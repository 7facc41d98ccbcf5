"""What follows for beliefs, decisions and records when an engine itself says what it has let go."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.beliefs import Belief
from ramjet.core.cache import Blocks
from ramjet.core.chains import Cleared, Event, Removed, Stored
from ramjet.core.feed import Feed
from ramjet.core.pools import Pools
from ramjet.core.record import Record
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from tests.core.test_beliefs import BLOCK, hold, prompt
from tests.core.test_router import Talk, end, router, start

PAGE = 16


def believed(belief: Belief, name: str, tokens: int) -> int:
    return belief.outlook(prompt(name, tokens), tokens).hit.tokens


# -- beliefs ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(0, 60 * BLOCK), st.integers(0, 20))
@settings(deadline=None)
def test_of_a_prompt_no_more_is_believed_than_was_left(length: int, left_tokens: int, shared: int) -> None:
    """
    Nor of any that begins like it; what began otherwise stays, and what is said to have gone is counted once.
    """
    belief = Belief(Pools())
    shared = min(shared, length)
    mine = prompt("mine", length * BLOCK, shared_tokens=shared * BLOCK)
    child = Blocks(
        mine.hashes + array("Q", [7, 8]), mine.ends + array("I", [(length + 1) * BLOCK, (length + 2) * BLOCK])
    )
    for held in (mine, child):
        belief.cache.leave(belief.book(held, held.ends[-1], None, 1.0), 1.0)
    hold(belief, "other", 5 * BLOCK)

    lost = belief.evicted(mine, left_tokens, is_first=True)

    there = [belief.outlook(each, each.ends[-1]).hit.tokens for each in (mine, child)]
    assert lost == length * BLOCK - there[0]
    assert there[0] == min(length, left_tokens // BLOCK) * BLOCK
    assert there[1] == there[0] or left_tokens >= length * BLOCK
    assert believed(belief, "other", 5 * BLOCK) == 5 * BLOCK
    assert belief.evicted(mine, left_tokens, is_first=False) == 0


def test_what_runs_there_is_held_by_the_engine() -> None:
    """
    A message that is late may tell of blocks that have been read again since.
    """
    belief = Belief(Pools())
    seat = belief.book(prompt("mine", 20_480), 20_480, None, 0.0)

    assert belief.evicted(prompt("mine", 20_480), 0, is_first=True) == 0
    belief.cache.leave(seat, 1.0)
    assert believed(belief, "mine", 20_480) == 20_480


def test_a_hybrid_model_is_left_to_reports() -> None:
    """
    Where reuse ends at snapshots, an engine's blocks say too little.
    """
    belief = Belief(Pools(tokens=499_968, slots=28))
    hold(belief, "mine", 20_480)

    assert belief.evicted(prompt("mine", 20_480), 0, is_first=True) == 0
    assert believed(belief, "mine", 20_480) == 20_480


def test_the_first_eviction_of_a_prompt_teaches_how_large_the_pool_is() -> None:
    """
    What was used since and itself were too much together: three of them say the size that nobody told, about 100,000.
    """
    belief = Belief(Pools())
    for number in range(12):
        if number >= 9:
            assert belief.evicted(prompt(f"{number - 9}", 10_240), 5_120, is_first=True) == 5_120
            belief.evicted(prompt(f"{number - 9}", 10_240), 0, is_first=False)
        hold(belief, f"{number}", 10_240, float(number))

    assert belief.pool_tokens == pytest.approx(92_160, rel=0.05)


@pytest.mark.parametrize(("used", "taught"), [(7, True), (4, False)])
def test_an_eviction_by_others_teaches_nothing_of_a_pool_that_was_told(used: int, taught: bool) -> None:
    """
    Of 100,000 tokens 80,000 were used since, itself included: others use some. Of 50,000, it was others' doing alone.
    """
    belief = Belief(Pools(tokens=100_000))
    hold(belief, "mine", 10_240)
    for number in range(used):
        hold(belief, f"{number}", 10_240, 1.0 + number)

    belief.evicted(prompt("mine", 10_240), 5_120, is_first=True)

    assert belief.pool_tokens is not None
    assert (belief.pool_tokens < 100_000) is taught
    assert believed(belief, "mine", 10_240) == 5_120


# -- the router -------------------------------------------------------------------------------------------------------


class Told:
    """A router that hears of its replicas' blocks, and the engine of the one that served last, which tells."""

    def __init__(self, to: Router) -> None:
        self.router = to
        self.replica = "a"
        for each in to.fleet:
            to.feeds[each.name] = Feed()
            to.feeds[each.name].connected()
        self.number = 0
        self.now = 0.0

    def tell(self, *events: Event) -> None:
        self.router.heard(self.replica, self.number, list(events), self.now)
        self.number += 1

    def serve(self, talk: Talk, *, cached_tokens: int | None = 0, tells: bool = True) -> tuple[Record, list[int]]:
        """A turn, read whole behind what was cached; its record and its blocks."""
        self.now += 1.0
        visit = start(self.router, talk.arrival(), self.now)
        assert visit.lease is not None
        self.replica = visit.lease.replica.name
        total, cached = visit.prompt_tokens, cached_tokens or 0
        names = [hash((talk.name, at)) for at in range(total // PAGE)]
        if tells:
            first = cached // PAGE
            parent = names[first - 1] if first else None
            self.now += 1.0
            self.tell(Stored(hashes=list(names[first:]), parent=parent, block_tokens=PAGE))
        return end(self.router, visit, self.now, Usage(prompt_tokens=total, cached_tokens=cached_tokens)), names


def next_turn(told: Told, talk: Talk, cached_tokens: int = 0) -> Record:
    talk.grow()
    told.now += 5.0
    return told.serve(talk, cached_tokens=cached_tokens, tells=False)[0]


def gone(names: list[int], left_tokens: int = 0) -> Removed:
    return Removed(hashes=list(reversed(names[left_tokens // PAGE :])))


@pytest.mark.parametrize("tells", [True, False])
def test_the_next_turn_knows_what_others_have_pushed_out(tells: bool) -> None:
    """
    With the feed it is not believed to be there, and what made it cold is known, though nobody ever told a size; without,
    the turn finds out at its own cost.
    """
    told, talk = Told(router("a")), Talk("one", 20_000)
    _, names = told.serve(talk, tells=tells)

    if tells:
        told.tell(gone(names))
    record = next_turn(told, talk)

    assert record.matched_tokens is not None
    assert (record.matched_tokens == 0) is tells
    assert record.temperature == "cold"
    assert record.cold_cause == ("token_pool" if tells else "unknown")
    feed = told.router.feeds["a"]
    assert feed.cut_tokens > 19_000 or not tells


def test_where_nothing_was_cached_and_that_was_not_said_its_blocks_show_it() -> None:
    """
    SGLang leaves the count out where it is 0.
    """
    told, talk = Told(router("a")), Talk("one", 20_000)
    _, names = told.serve(talk, cached_tokens=None)
    told.tell(gone(names))

    assert told.router.feeds["a"].linked == 1
    assert next_turn(told, talk).matched_tokens == 0


def test_a_conversation_whose_home_has_lost_it_may_go_where_nobody_is() -> None:
    """
    At once: to stay would save nothing any more, and others are in flight at home.
    """
    went = []
    for tells in (True, False):
        told, talk = Told(router("a", "b")), Talk("one", 20_000)
        _, names = told.serve(talk)
        home = told.replica
        if tells:
            told.tell(gone(names))
        for _ in range(30):
            told.router.fleet[home].sent(told.now)
        talk.grow()
        visit = start(told.router, talk.arrival(), told.now + 5.0)
        assert visit.lease is not None
        went.append(visit.lease.replica.name != home)

    assert went == [True, False]


def test_a_host_tier_that_is_not_told_of_is_left_to_reports() -> None:
    """
    A block that has left the device may come back, and nobody says whether; where the engine does say, it counts.
    """
    for copies in ([], [Stored(hashes=[1], parent=None, block_tokens=PAGE, medium="CPU")]):
        told, talk = Told(router("a")), Talk("one", 20_000)
        told.router.resize("a", reported=Pools(host=True))
        _, names = told.serve(talk)
        told.tell(*copies, gone(names))

        matched = next_turn(told, talk).matched_tokens or 0

        assert (matched == 0) is bool(copies)


def test_a_clear_is_a_cache_that_was_lost() -> None:
    """
    Nothing is believed of the replica any more, and what was cold after it was so for that.
    """
    told, talk = Told(router("a")), Talk("one", 20_000)
    told.serve(talk)
    told.tell(Cleared())

    assert told.router.resident_tokens("a") == 0
    assert next_turn(told, talk).cold_cause == "restart"


def test_another_process_is_a_restart() -> None:
    """
    Its messages are counted from 0 again.
    """
    told, talk = Told(router("a")), Talk("one", 20_000)
    told.serve(talk)
    told.number = 0
    told.tell()

    assert told.router.resident_tokens("a") == 0


def test_a_replica_that_is_removed_is_heard_no_more() -> None:
    """
    A message that was under way changes nothing.
    """
    told, talk = Told(router("a", "b")), Talk("one", 20_000)
    _, names = told.serve(talk)
    told.router.remove(told.replica)

    told.tell(gone(names), Cleared())
