"""A feed is believed while nothing is missing of it, and forgotten whenever something is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.chains import Cleared, Cut, Ran, Removed, Stored
from ramjet.core.feed import NOT_CONNECTED, SILENT, SILENT_AFTER, UNREADABLE, WAITS_S, Effect, Feed
from tests.core.test_chains import SIZE, blocks, name
from tests.effort import examples

PROMPT = tuple(range(100))


def stored(start: int = 0, end: int = 100) -> Stored:
    hashes = [name(PROMPT[: at + 1]) for at in range(start, end)]
    return Stored(hashes=list(hashes), parent=name(PROMPT[:start]) if start else None, block_tokens=SIZE)


def removed(left: int) -> Removed:
    return Removed(hashes=[name(PROMPT[: at + 1]) for at in range(99, left - 1, -1)])


def ran(since: float = 0.5, cached: int = 0) -> Ran:
    return Ran(blocks(PROMPT), SIZE * len(PROMPT), SIZE * cached, since)


def connected() -> Feed:
    feed = Feed()
    feed.connected()
    return feed


def linked() -> Feed:
    """A feed with a prompt of ours, after one message."""
    feed = connected()
    feed.take(0, [stored()], 1.0)
    feed.ran(ran(), 1.1)
    assert feed.linked == 1
    return feed


def left(effects: list[Effect]) -> list[int]:
    return [each.left_tokens for each in effects if isinstance(each, Cut)]


def test_an_eviction_follows_from_the_message_that_tells_of_it() -> None:
    """
    At once, and not with the next report.
    """
    feed = linked()

    assert left(feed.take(1, [removed(30)], 2.0)) == [30 * SIZE]
    assert feed.events == {"stored": 1, "removed": 1, "cleared": 0}


def test_a_report_may_come_before_the_blocks() -> None:
    """
    They are waited for, and no longer than a few seconds.
    """
    feed = connected()
    feed.ran(ran(), 1.0)
    assert (feed.linked, feed.unlinked) == (0, 0)
    feed.take(0, [stored()], 1.0 + WAITS_S / 2)
    assert (feed.linked, feed.unlinked) == (1, 0)

    feed.ran(ran(since=5.0), 10.0)
    feed.look(10.0 + WAITS_S + 0.1)
    assert (feed.linked, feed.unlinked) == (1, 1)


def test_a_prompt_of_which_nothing_was_stored_is_not_looked_for() -> None:
    """
    Its blocks were all there, and are known or not since then.
    """
    feed = linked()
    feed.ran(ran(cached=100), 2.0)
    feed.look(100.0)

    assert (feed.linked, feed.unlinked) == (1, 0)


def test_a_gap_that_is_filled_is_none() -> None:
    """
    What is missing is named; what the replay and the feed both bring is taken once.
    """
    feed = linked()
    assert feed.missing(1) is None
    assert feed.missing(4) == 1

    effects = [feed.take(1, [removed(60)], 2.0, source="gap"), feed.take(2, [removed(50)], 2.0, source="gap")]
    effects += [feed.take(number, [removed(40)], 2.0, source="gap") for number in (3, 4, 5)]
    assert [left(each) for each in effects] == [[60 * SIZE], [50 * SIZE], [40 * SIZE], [], []]
    assert feed.missing(4) is None
    assert feed.take(4, [Cleared()], 2.1) == []
    assert feed.take(5, [Cleared()], 2.1) == []
    assert left(feed.take(6, [removed(10)], 2.2)) == [10 * SIZE]
    assert feed.lost_gaps == 0


def test_a_gap_that_is_not_filled_makes_everything_unknown() -> None:
    """
    What was linked is no longer: of an eviction nothing follows, and what is stored from now on counts again.
    """
    feed = linked()

    assert feed.take(5, [], 2.0) == []
    assert feed.lost_gaps == 1
    assert feed.take(6, [removed(10)], 2.1) == []
    feed.take(7, [stored()], 3.0)
    feed.ran(ran(since=2.5), 3.1)
    assert left(feed.take(8, [removed(10)], 4.0)) == [10 * SIZE]


def test_a_clear_and_a_restart_leave_nothing() -> None:
    """
    All is gone, whatever was stored before; who counts from 0 again is another process.
    """
    feed = linked()
    assert feed.take(1, [removed(50), Cleared(), stored()], 2.0) == ["cleared"]
    assert feed.take(2, [removed(10)], 2.1) == []

    feed = linked()
    assert feed.take(0, [stored()], 2.0) == ["restarted"]
    assert feed.take(1, [removed(10)], 2.1) == []


def test_the_past_has_no_effect_and_is_nobodys() -> None:
    """
    What the replay tells of the time before: blocks are known to be there, and a clear was long ago.
    """
    feed = connected()
    assert feed.take(7, [Cleared(), stored(0, 50)], 1.0, source="past") == []
    assert feed.take(8, [stored(50, 60)], 1.0, source="past") == []
    assert feed.missing(9) is None

    feed.take(9, [stored(60)], 2.0)
    feed.ran(ran(since=0.5, cached=60), 2.1)
    assert left(feed.take(10, [removed(20)], 3.0)) == [20 * SIZE]

    again = connected()
    again.take(0, [stored()], 1.0, source="past")
    again.ran(ran(since=0.5), 1.1)
    again.look(100.0)
    assert (again.linked, again.unlinked) == (0, 1)


@pytest.mark.parametrize("number", [1, None])
def test_a_message_that_cannot_be_read_is_a_gap(number: int | None) -> None:
    """
    It may have said that something is gone; the next that can be read ends the doubt.
    """
    feed = linked()
    feed.take(number, None, 2.0)
    doubts = [feed.doubt]

    assert feed.lost_gaps == 1
    assert feed.take(2, [removed(10)], 2.1) == []
    assert [*doubts, feed.doubt] == [UNREADABLE, None]


def test_a_connection_that_is_lost_takes_all_that_was_known_along() -> None:
    """
    And what still comes of it is not taken for anything.
    """
    feed = linked()
    feed.disconnected()

    assert feed.take(1, [removed(10)], 2.0) == []
    doubts = [feed.doubt]
    feed.ran(ran(), 2.0)
    feed.look(100.0)
    assert (feed.linked, feed.unlinked) == (1, 0)
    feed.connected()
    assert [*doubts, feed.doubt] == [NOT_CONNECTED, None]
    assert feed.take(0, [removed(10)], 3.0) == []


def test_silence_while_prompts_are_read_is_doubted() -> None:
    """
    Three prompts that must have been stored, and no message: nobody publishes there. The first one ends it.
    """
    feed = linked()
    for number in range(SILENT_AFTER):
        assert feed.doubt is None
        feed.ran(ran(since=10.0 + number), 10.5 + number)
        feed.look(20.0 + number)

    assert feed.doubt == SILENT
    feed.take(1, [], 30.0)
    assert feed.doubt is None


def test_short_prompts_prove_no_silence() -> None:
    """
    They may not have filled a block.
    """
    feed = connected()
    for number in range(20):
        feed.ran(Ran(blocks(PROMPT[:10]), SIZE * 10, 0, number), number + 0.5)
        feed.look(number + 10.0)

    assert feed.doubt is None


def test_what_is_unfit_stays_so_until_another_process_is_there() -> None:
    """
    A hybrid model's blocks: nothing is kept, and nothing follows, until the next connection.
    """
    feed = linked()
    effects = feed.take(1, [Cleared(), Stored(hashes=[5], parent=None, block_tokens=SIZE, special="is a hybrid")], 2.0)

    assert effects == ["cleared"]
    assert feed.doubt == "is a hybrid"
    assert feed.take(2, [stored()], 3.0) == []
    feed.ran(ran(), 3.1)
    assert (feed.doubt, len(feed.chains)) == ("is a hybrid", 0)
    feed.disconnected()
    feed.connected()
    assert feed.doubt is None


EVENTS = st.lists(
    st.builds(lambda start, more: stored(start, start + more), st.integers(0, 60), st.integers(0, 40))
    | st.builds(removed, st.integers(0, 100))
    | st.just(Cleared())
    | st.builds(Stored, hashes=st.lists(st.integers(0, 9)), parent=st.none() | st.integers(0, 9), block_tokens=st.integers(0, 17))
    | st.builds(Removed, hashes=st.lists(st.integers(0, 9)), medium=st.sampled_from(["GPU", "CPU"])),
    max_size=4,
)  # fmt: skip
CALLS = st.lists(
    st.tuples(st.just("take"), st.none() | st.integers(0, 12), st.none() | EVENTS, st.sampled_from(["live", "gap", "past"]))
    | st.tuples(st.just("ran"), st.integers(1, 1700), st.integers(0, 1700))
    | st.tuples(st.sampled_from(["connected", "disconnected", "look"])),
    max_size=30,
)  # fmt: skip


@given(CALLS)
@settings(max_examples=examples(200), deadline=None)
def test_nothing_that_comes_over_a_feed_breaks_it(calls: list[tuple[Any, ...]]) -> None:
    """
    In any order: no error, and what is left of a prompt is never more than all of it.
    """
    feed, now = connected(), 0.0
    for what, *given_ in calls:
        now += 1.0
        if what == "take":
            number, events, source = given_
            effects: list[Effect] = feed.take(number, events, now, source=source)
            assert all(0 <= tokens < blocks(PROMPT).ends[-1] for tokens in left(effects))
            assert source != "past" or not effects
        elif what == "ran":
            prompt_tokens, cached_tokens = given_
            feed.ran(Ran(blocks(PROMPT), prompt_tokens, min(cached_tokens, prompt_tokens), now - 3.0), now)
        elif what == "look":
            feed.look(now)
        else:
            getattr(feed, what)()
