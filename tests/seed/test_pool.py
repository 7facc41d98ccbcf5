"""The section "A 500,000-token cache with room for 28 snapshots": who takes them, and what then happens to the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.seed.replica import Replica, prompt, sessions

LONG = prompt(313_000, "a different agent")
OTHER = prompt(49_300, "the first prompt")


def test_with_four_requests_in_flight_12_slots_are_left() -> None:
    """
    "Each running request held about four of them. With four requests in flight, 12 slots were left for cached prompts."

    Three are its own, and one is the snapshot that it started from.
    """
    replica = Replica()
    four = sessions(4)
    replica.send_all(four)

    for each in four:
        replica.start(each, answer_tokens=10_000)

    assert replica.engine.running == 4
    assert replica.free_slots == 28 - 4 * 4 == 12


def test_a_313_000_token_prompt_is_51_chunks_and_produces_51_snapshots() -> None:
    """
    "A 313,000-token prompt is 51 chunks, so it produces 51 snapshots while it is being read."
    """
    replica = Replica(slots=1_000)

    replica.send(LONG)

    assert len(replica.snapshots) == 51


@pytest.mark.parametrize("tail_with_kv", [True, False])
def test_a_prompt_that_reused_49_152_tokens_reuses_nothing_after_the_long_one(*, tail_with_kv: bool) -> None:
    """
    "At 12:35:04 the first prompt came back and reused nothing."
    """
    replica = Replica(tail_with_kv=tail_with_kv)
    replica.send(OTHER)
    assert replica.send(OTHER).cached_tokens == 49_152

    replica.send(LONG)

    assert replica.send(OTHER).cached_tokens == 0


@pytest.mark.parametrize(
    ("habits", "full", "still_there"),
    [({}, 0.626, 0), ({"tail_with_kv": False}, 0.724, 49_152), ({"chain_with_kv": False}, 0.712, 43_008)],
)
def test_that_happens_in_a_pool_with_room_for_both(habits: dict[str, Any], full: float, still_there: int) -> None:
    """
    "Both prompts together filled only 72% of the replica's 500,000-token cache."

    That is the sum of the prompts. What the pool holds then depends on what goes with a last snapshot: the whole chain
    before it (0.5.20's documentation), nothing, or its own run alone, which is what 0.5.23 does and what agrees best
    with a pool that full and with "still sitting in the half-empty token cache".
    """
    replica = Replica(**habits)
    replica.send(OTHER)

    replica.send(LONG)

    assert (OTHER.tokens + LONG.tokens) / 499_968 == pytest.approx(0.725, abs=0.001)
    assert replica.occupancy == pytest.approx(full, abs=0.001)
    found = replica.cache.find(OTHER.blocks(), OTHER.tokens)
    assert (found.tokens, found.known_tokens) == (0, still_there)


def test_the_long_prompt_leaves_nobody_elses_snapshot() -> None:
    """
    "By the end of that one prompt, every other conversation's snapshots were gone."
    """
    replica = Replica()
    replica.send_all(sessions(6))

    replica.send(LONG)

    assert len(replica.snapshots) == 28 - 3
    assert replica.snapshots[-1] == LONG.tokens // 256 * 256
    assert all(replica.cache.find(each.blocks(), each.tokens).tokens == 0 for each in sessions(6))


def test_six_sessions_all_come_back_cold_after_one_long_prompt() -> None:
    """
    "With the stock settings, all six came back cold and took 3.35 seconds each."
    """
    replica = Replica()
    replica.send_all(sessions(6))

    replica.send(prompt(308_000, "one long prompt"))

    for back in replica.send_all(sessions(6)):
        assert back.cached_tokens == 0
        assert back.waited_s == pytest.approx(3.35, rel=0.01)
