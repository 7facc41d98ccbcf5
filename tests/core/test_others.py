"""What others have at a replica: what its engine says, less what may be ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.admission import Terms
from ramjet.core.others import NOBODY, STALE_S, Load, Others, Share
from ramjet.core.pools import Pools
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Visit
from tests.core.test_router import Talk, arrival, end, router, serve, start, text, user
from tests.core.traces import Player
from tests.test_switches import router as configured


def loaded(
    to: Router, name: str, now: float, *, waiting_tokens: int = 0, used_tokens: int = 0, requests: int = 0
) -> None:
    """An engine has said what it has, twice: of ours, what was there before the first is long gone."""
    for _ in range(2):
        to.loaded(name, Load(requests, waiting_tokens, used_tokens), now)


def come(to: Router, given: Arrival, now: float = 0.0) -> Visit:
    """A request that has arrived, and been placed or held."""
    visit = to.arrive(given, now)
    to.place(visit, now)
    return visit


def test_what_the_engine_says_less_what_is_ours_is_others() -> None:
    """
    Each by itself, and never less than nothing.
    """
    others = Others()
    others.told(Load(5, 10_000, 60_000), Share(2, 0.5, 20_000), 0.5 + 1.2, now=10)
    assert others.at(10) == Share(3, 1.2, 40_000)

    others.told(Load(1, 0, 10_000), Share(2, 0.5, 20_000), 0.0, now=11)
    assert others.at(11) == NOBODY


def test_what_was_said_long_ago_says_nothing() -> None:
    """
    Nor does what a replica said before it was started anew.
    """
    others = Others()
    assert others.at(0) == NOBODY
    others.told(Load(5), NOBODY, 0.0, now=10)

    assert others.at(10 + STALE_S).requests == 5
    assert others.at(10 + STALE_S + 0.1) == NOBODY
    others.forget()
    assert others.at(10) == NOBODY


def test_what_is_not_said_is_nobody() -> None:
    """
    llama.cpp says nothing of tokens.
    """
    others = Others()
    others.told(Load(), NOBODY, 0.0, now=0)

    assert others.at(0) == NOBODY


@given(
    events=st.lists(st.tuples(st.booleans(), st.floats(0.05, 3.0)), min_size=1, max_size=60),
    lag_s=st.floats(0, 1.0),
    theirs=st.integers(0, 5),
)
def test_ours_are_never_taken_for_those_of_others(events: list[tuple[bool, float]], lag_s: float, theirs: int) -> None:
    """
    However ours come and go, an engine whose figures are up to an interval old is never believed to have more of others
    than it has; and once ours stay as they are, it is believed to have just those.
    """
    others, ours, now, polled_at = Others(), 0, 0.0, 0.0
    history = [(0.0, 0)]

    def poll(at: float) -> None:
        then = next(count for since, count in reversed(history) if since <= max(0.0, at - lag_s))
        others.told(Load(then + theirs), Share(ours), 0.0, at)

    def polls(upto: float) -> None:
        nonlocal polled_at
        while polled_at + 1 <= upto:
            polled_at += 1
            poll(polled_at)
            assert others.at(polled_at).requests <= theirs

    for comes, pause_s in events:
        polls(now + pause_s)
        now += pause_s
        ours = ours + 1 if comes else max(0, ours - 1)
        history.append((now, ours))
        if comes:
            others.booked(Share(ours))
    polls(now + 4)

    assert others.at(polled_at).requests == theirs


# -- in the router ------------------------------------------------------------------------------------------------------


def test_a_new_conversation_goes_where_others_are_not() -> None:
    """
    Ten seconds of reading wait at the one, nobody of which came through here.
    """
    for busy, idle in (("a", "b"), ("b", "a")):
        to = router("a", "b")
        loaded(to, busy, 0.0, waiting_tokens=60_000, requests=3)

        assert serve(to, Talk("new", 5_000).arrival()).replica == idle


def test_requests_of_others_weigh_as_much_as_ours() -> None:
    """
    Where no reading waits, fewer requests decide; and one of ours is worth one of theirs.
    """
    to = router("a", "b")
    loaded(to, "a", 0.0, requests=3)
    others = to.fleet["a"].others.at(0.0)
    assert others == Share(3)

    visit = start(to, Talk("new", 5_000).arrival())

    assert visit.lease is not None
    assert visit.lease.replica.name == "b"
    assert visit.decision is not None
    assert {each.candidate.replica: each.candidate.in_flight for each in visit.decision.ranked} == {"a": 3, "b": 0}


def test_what_is_sent_after_a_poll_is_not_counted_twice() -> None:
    """
    Once here, in the ledger; and the engine's next answer has it too, and is not taken for others.
    """
    to = router("a")
    loaded(to, "a", 0.0)
    visit = start(to, Talk("one", 60_000).arrival())
    to.loaded("a", Load(1, 60_000, 60_000), 0.5)
    assert to.fleet["a"].others.at(0.5) == NOBODY

    end(to, visit, 0.9)
    # What the engine answers may be a second old.
    to.loaded("a", Load(1, 60_000, 60_000), 1.0)
    assert to.fleet["a"].others.at(1.0) == NOBODY
    to.loaded("a", Load(1, 0, 60_000), 2.0)
    to.loaded("a", Load(1, 0, 60_000), 3.0)
    assert to.fleet["a"].others.at(3.0).requests == 1


def test_reading_of_others_takes_as_long_as_this_replica_takes() -> None:
    """
    At a pace of a half, half as many seconds.
    """
    to = router("a")
    to.beliefs["a"].pace.factor = 0.5
    loaded(to, "a", 0.0, waiting_tokens=10_000)

    assert to.fleet["a"].others.at(0.0).queue_s == pytest.approx(0.5 * 10_000 * 0.1655e-3)


def test_what_others_keep_shrinks_what_fits_but_shuts_nobody_out() -> None:
    """
    Beside ours there is no room for another, where there would be without them; where nothing of ours runs, one may go.
    """
    for used_tokens, fits in ((60_000, False), (0, True)):
        to = router("a", pool_tokens=100_000, terms=Terms())
        loaded(to, "a", 0.0, used_tokens=used_tokens)
        first = come(to, Talk("first", 30_000).arrival())
        assert first.lease is not None
        to.first_token(first, 0.5)

        second = come(to, Talk("second", 30_000).arrival(), now=1.0)
        assert (second.lease is not None) is fits

        end(to, first, 2.0)
        to.admit(2.5)
        assert second.lease is not None


def test_others_take_places_in_the_snapshot_pool() -> None:
    """
    28 slots bear three requests at a time, whoever sent them; but one of ours may always go.
    """
    to = router("a", terms=Terms())
    to.resize("a", reported=Pools(tokens=499_968, slots=28))
    loaded(to, "a", 0.0, requests=4)
    assert to.beliefs["a"].most_running == 3

    assert come(to, Talk("first", 1_000).arrival()).lease is not None
    assert come(to, Talk("second", 1_000).arrival()).lease is None


def test_pace_is_not_learned_beside_others() -> None:
    """
    What waited for strangers took longer than its reading.
    """
    to = router("a")
    loaded(to, "a", 0.0, requests=2)
    visit = start(to, Talk("one", 30_000).arrival())
    assert visit.lease is not None
    assert not visit.lease.alone


def test_a_restart_forgets_others() -> None:
    """
    Nobody has anything in an engine that has just come back.
    """
    to = router("a")
    loaded(to, "a", 0.0, requests=4)
    to.restarted("a")

    assert to.fleet["a"].others.at(0.0) == NOBODY


@given(requests=st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_with_everything_off_others_count_as_load_too(requests: list[int]) -> None:
    """
    Plain least-loaded is by everybody's requests.
    """
    off: dict[str, Any] = {
        "affinity": {"enabled": False},
        "admission": {"mode": "off"},
        "spread_long": {"enabled": False},
    }
    to = configured(off)
    for name, count in zip("abc", requests, strict=True):
        loaded(to, name, 0.0, requests=count)
    placed = Player(to).play(("say", 0.0, 0, 500, 0))[0]

    assert requests["abc".index(placed)] <= 1.05 * min(requests) + 0.5


# -- what is 0, and what is not known -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "endpoint", "cached"),
    [(True, "chat", 0), (True, "messages", None), (None, "chat", None), (False, "chat", None)],
)
def test_where_an_engine_says_that_it_reports_silence_is_none(
    says: bool | None, endpoint: str, cached: int | None
) -> None:
    """
    From the first request on, on the endpoints that its switch is about.
    """
    to = router("a")
    to.resize("a", reported=Pools(reports_cached=says))
    given = arrival(user(text(5_000)), endpoint=endpoint)
    record = serve(to, given, usage=Usage(prompt_tokens=5_000))

    assert record.usage.cached_tokens == cached
