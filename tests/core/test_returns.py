"""How likely a quiet conversation is to come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.pace import Pace
from ramjet.core.returns import Returns

TIMES = st.floats(0, 5_000)


@given(idle_s=TIMES, within_s=TIMES, longer_s=TIMES, seen=st.lists(st.tuples(TIMES, st.booleans()), max_size=30))
def test_a_chance_is_a_chance_and_grows_with_the_time_that_is_given(
    idle_s: float, within_s: float, longer_s: float, seen: list[tuple[float, bool]]
) -> None:
    """
    Between 0 and 1, and never less for a longer time, whatever was seen.
    """
    returns = Returns()
    for time_s, came in seen:
        if came:
            returns.came_back(time_s, given_up=time_s > 300)
        else:
            returns.gave_up()

    chance = returns.probability(idle_s, within_s)

    assert 0.0 <= chance <= 1.0
    assert returns.probability(idle_s, within_s + longer_s) >= chance - 1e-9


def test_before_anything_was_seen_agents_are_expected_soon_and_people_less_and_less() -> None:
    """
    A conversation that has just been answered almost surely comes back within five minutes, one quiet for ten hardly.
    """
    returns = Returns()

    assert returns.probability(1, 300) > 0.95
    assert 0.5 > returns.probability(600, 300) > 0.1


def test_pauses_teach() -> None:
    """
    Where everybody comes back after twenty seconds or never, one quiet for a minute is less likely to come than before.
    """
    returns = Returns()
    before = returns.probability(60, 300)

    for _ in range(200):
        returns.came_back(20)
        returns.gave_up()

    assert returns.probability(60, 300) < 0.6 * before
    assert returns.probability(10, 15) > 0.4


@pytest.mark.parametrize("given_up", [False, True])
def test_a_return_counts_whether_or_not_anybody_asked_before(given_up: bool) -> None:
    """
    What was worked out for an earlier question is not the answer to a later one.
    """
    asked, unasked = Returns(), Returns()
    asked.probability(400, 300)
    for returns in (asked, unasked):
        returns.came_back(420, given_up=given_up)

    assert asked.probability(400, 300) == unasked.probability(400, 300)


def test_who_comes_back_after_all_does_not_make_long_pauses_look_certain() -> None:
    """
    One in ten of those that were given up returned ten minutes later: so likely is it, and not more.
    """
    returns = Returns()
    for number in range(1_000):
        returns.gave_up()
        if number % 10 == 0:
            returns.came_back(600, given_up=True)

    assert returns.probability(310, 600) == pytest.approx(0.12, abs=0.03)


def test_the_pace_is_the_middle_of_what_was_seen() -> None:
    """
    A replica twice as slow as the formula is learned from a few first tokens, and one outlier among them is not.
    """
    pace = Pace()
    for took_s in (6.0, 6.2, 90.0, 5.8, 6.1):
        pace.learn(3.0, took_s)

    assert pace.factor == pytest.approx(1.9, abs=0.1)


@given(
    pace=st.floats(0.3, 3.0),
    beside_s=st.floats(0.0, 0.2),
    short_s=st.lists(st.floats(0.01, 0.99)),
    long_s=st.lists(st.floats(1.0, 60.0), min_size=3),
)
def test_what_a_first_token_waits_for_beside_its_reading_is_not_taken_for_it(
    pace: float, beside_s: float, short_s: list[float], long_s: list[float]
) -> None:
    """
    Whatever the lengths of the prompts: off by no more than what HTTP and scheduling add to half a second of it, or what
    is allowed for them and was not needed.
    """
    learned = Pace()
    for expected_s in (*short_s, *long_s, *short_s):
        learned.learn(expected_s, beside_s + pace * expected_s)

    assert 0.71 * pace <= learned.factor <= pace + 0.29


def test_short_readings_teach_no_pace() -> None:
    """
    Of a first token after 0.15 s, reading was hardly any.
    """
    pace = Pace()
    pace.learn(0.02, 0.15)

    assert pace.factor == 1.0
