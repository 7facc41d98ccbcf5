"""Where the load balancer put two long conversations, and what that did to them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from ramjet.engines.facts import Facts
from ramjet.probes import pair
from ramjet.probes.steps import Ask, Finding, Step
from tests.probes.replica import play, taught

SMALL = {"long_tokens": 29_000, "ordinary_tokens": 4_000, "growth_tokens": 400}
ONE, OTHER = "glm-1", "glm-2"


def measured(
    place: dict[int, list[str]], cached: dict[int, float], facts: Facts | None = None, *, turns: int = 3
) -> tuple[Finding, list[Step]]:
    """What the probe finds where conversations go to these places, turn by turn, and have so much of them cached."""

    def answer(ask: Ask) -> dict[str, Any]:
        assert ask.session is not None
        assert ask.trial is not None
        places = place.get(ask.session, [OTHER])
        ratio = 0.0 if ask.trial == 1 else cached.get(ask.session, 0.986)
        return {"cached_tokens": int(ratio * ask.tokens), "replica": places[min(ask.trial, len(places)) - 1]}

    steps = play(pair.plan(taught(), turns=turns, **SMALL), answer)
    return pair.judge(steps, facts or Facts(engine="openai")), steps


def test_apart_as_the_seed_had_it() -> None:
    """
    One on each replica, and 98.6 % of every later turn is cached: nothing to do.
    """
    finding, steps = measured({1: [ONE], 2: [OTHER]}, {})

    assert finding.limit == "none"
    assert finding.measured["apart"] is True
    assert finding.measured["moved"] == 0
    assert finding.measured["long_cached_ratio"] == pytest.approx(0.986, abs=0.001)
    assert "were apart, on glm-1 and on glm-2; no conversation moved" in finding.verdict
    assert len(steps) == 3 * 8


@pytest.mark.parametrize(("pool", "limit"), [(50_000, "tokens"), (None, "unknown"), (500_000, "unknown")])
def test_together_they_evict_each_other(pool: int | None, limit: str) -> None:
    """
    Confined to one replica they re-read half of themselves; it is the token pool only if it is known to be too small.
    """
    finding, _ = measured({1: [ONE], 2: [ONE]}, {1: 0.5, 2: 0.5}, Facts(engine="openai", pool_tokens=pool))

    assert finding.limit == limit
    assert finding.measured["apart"] is False
    assert "were together on glm-1; no conversation moved" in finding.verdict
    assert "RAMJET_ROUTING__SPREAD_LONG__ENABLED=true" in finding.flags


def test_who_moves_is_told() -> None:
    """
    A conversation that changes its replica reads everything anew there.
    """
    finding, _ = measured({1: [ONE, OTHER, ONE], 2: [OTHER]}, {1: 0.0})

    assert finding.measured["moved"] == 1
    assert "1 conversation moved" in finding.verdict
    assert finding.measured["conversations"][0]["replicas"] == [ONE, OTHER, ONE]


def test_not_every_load_balancer_says_where() -> None:
    """
    Without its header apart and moved are unknown, and not false.
    """
    steps = play(pair.plan(taught(), turns=2, **SMALL), lambda ask: {"cached_tokens": ask.tokens})
    finding = pair.judge(steps, Facts(engine="openai"))

    assert finding.measured["apart"] is None
    assert finding.measured["moved"] is None
    assert "x-ramjet-replica" in finding.verdict


def test_every_turn_is_the_turn_before_with_more_behind_it() -> None:
    """
    As agents send them: the conversation so far, the answer, and something new of the wanted length.
    """
    asks: list[Ask] = []

    def answer(ask: Ask) -> dict[str, Any]:
        asks.append(ask)
        return {"cached_tokens": 0, "answer": f"answer {len(asks)}"}

    play(pair.plan(taught(), turns=3, **SMALL), answer)

    long = [ask for ask in asks if ask.session == 1]
    assert [ask.tokens for ask in long] == [29_000, 29_400, 29_800]
    for before, after in pairwise(long):
        assert list(after.messages[: len(before.messages)]) == list(before.messages)
        assert [message["role"] for message in after.messages[len(before.messages) :]] == ["assistant", "user"]
    assert long[1].messages[1]["content"] == "answer 1"
    # A long one, half of the ordinary ones, the other long one, the rest.
    assert [ask.session for ask in asks[:8]] == [1, 3, 4, 5, 2, 6, 7, 8]


def test_one_turn_concludes_nothing() -> None:
    """
    What is cached shows from the second turn on.
    """
    finding, steps = measured({1: [ONE], 2: [OTHER]}, {})

    assert pair.judge(steps[:9], Facts(engine="openai")).verdict == "The experiment is not finished."
    assert finding.limit == "none"
