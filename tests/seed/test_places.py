"""The section "The engine only saves snapshots at a few places": a prompt of 19,845 tokens, and where it is resumed."""

from __future__ import annotations

import pytest

from tests.seed.replica import Prompt, Replica, prompt

SESSION = prompt(19_845, "a session")


@pytest.fixture
def replica() -> Replica:
    """One that has just read the session."""
    replica = Replica()
    assert replica.send(SESSION).cached_tokens == 0
    return replica


def branch(words: str) -> Prompt:
    """A prompt that shares the first 14,900 tokens and then goes its own way."""
    return SESSION.first(14_900).plus(4_945, words)


def test_a_snapshot_at_the_end_of_each_chunk_and_one_near_the_end(replica: Replica) -> None:
    """
    "It saves a KDA snapshot at the end of each chunk and one near the end of each request, rounded down to a multiple
    of 256 tokens."
    """
    assert replica.snapshots == [6_144, 12_288, 18_432, 19_712]


def test_resending_the_same_prompt_reuses_19_712_of_19_845_tokens(replica: Replica) -> None:
    """
    "Re-sending the same prompt reused 19,712 of 19,845 tokens, the snapshot at its tail."
    """
    assert replica.send(SESSION).cached_tokens == 19_712


def test_appending_300_tokens_resumes_from_the_same_place(replica: Replica) -> None:
    """
    "Appending 300 tokens to it resumed from the same place."
    """
    assert replica.send(SESSION.plus(300, "new messages")).cached_tokens == 19_712


def test_each_call_of_an_agent_loop_resumes_at_the_end_of_the_one_before(replica: Replica) -> None:
    """
    "Agent loops look like this: each call is the previous one plus new messages at the end."
    """
    call = SESSION
    for number in range(10):
        before, call = call, call.plus(1_000, f"messages {number}")

        assert before.tokens - 256 < replica.send(call).cached_tokens <= before.tokens


def test_a_request_that_shares_14_900_tokens_reuses_only_12_288(replica: Replica) -> None:
    """
    "The attention layers had KV for all 14,900 shared tokens, but the nearest KDA snapshot was at 12,288."
    """
    first = branch("first branch")

    known = replica.cache.find(first.blocks(), first.tokens).known_tokens

    assert known == 14_900 // 64 * 64
    assert replica.send(first).cached_tokens == 12_288


def test_a_second_branch_at_the_same_point_reuses_14_848(replica: Replica) -> None:
    """
    "By then the engine had saved a snapshot where the first branch split off."
    """
    replica.send(branch("first branch"))

    assert replica.send(branch("second branch")).cached_tokens == 14_848
