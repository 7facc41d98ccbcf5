"""What a cold and a warm turn cost, in seconds to the first token."""

from __future__ import annotations

import pytest

from tests.seed.replica import Replica, prompt, sessions


def cold(tokens: int) -> float:
    return Replica().send(prompt(tokens, "a cold prompt")).waited_s


def test_20_000_tokens_cold_take_3_35_seconds() -> None:
    """
    "All six came back cold and took 3.35 seconds each."
    """
    assert cold(20_050) == pytest.approx(3.35, rel=0.01)


def test_100_000_tokens_cold_take_about_18_seconds() -> None:
    """
    "The engine re-read everything: about 18 seconds at 100,000 tokens."

    Ours takes 16.7 where it is alone, on the curve through the post's two probes. The 18 were not a probe but turns of
    a session in production, where others are being answered, and an answer beside it takes its share of the time. So
    the post's figure must lie between the two, and it does.
    """
    alone = cold(100_000)
    replica = Replica()
    replica.start(sessions(1)[0], answer_tokens=100_000)
    beside_an_answer = replica.send(prompt(100_000, "a cold prompt")).waited_s

    assert alone == pytest.approx(16.7, abs=0.1)
    assert alone < 18 < beside_an_answer < 25


def test_313_000_tokens_cold_take_57_seconds() -> None:
    """
    "The idea was to keep 57-second prompt reads, and whatever they evict, away from the first replica."
    """
    assert cold(313_000) == pytest.approx(57, rel=0.01)


def test_past_250_000_tokens_a_cold_turn_takes_close_to_a_minute() -> None:
    """
    "Close to a minute past 250,000", in a session that grew to 318,000.
    """
    assert 44 < cold(250_000) < cold(318_000) < 60


def test_a_warm_turn_takes_0_15_to_0_30_seconds() -> None:
    """
    "Each came back in 0.15 to 0.30 seconds."
    """
    replica, session = Replica(), sessions(1)[0]
    replica.send(session)

    assert 0.15 <= replica.send(session).waited_s <= 0.30
    assert 0.15 <= replica.send(session.plus(800, "new messages")).waited_s <= 0.30


def test_a_hit_saves_about_three_seconds_at_20_000_tokens_and_more_on_longer_prompts() -> None:
    """
    "Each hit it produces saves about three seconds of recomputation on a 20,000-token prompt, and more on longer ones."
    """
    saved = {}
    for tokens in (20_050, 100_000):
        replica, session = Replica(), prompt(tokens, "a session")
        saved[tokens] = replica.send(session).waited_s - replica.send(session).waited_s

    assert saved[20_050] == pytest.approx(3.2, abs=0.3)
    assert saved[100_000] > 15
