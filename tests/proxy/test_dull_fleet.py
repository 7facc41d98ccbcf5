"""A dull fleet: engines that answer in a millisecond and say nothing of themselves, behind a Ramjet without a file."""

from __future__ import annotations

from collections import Counter

import httpx
import pytest

from tests.pinning import converse
from tests.rig import quick_engine, ramjet


@pytest.mark.parametrize("counts", [True, False], ids=["with usage", "without usage"])
async def test_conversations_stay_and_new_ones_split(counts: bool) -> None:
    """
    A hundred at once: every later turn goes where the one before went, and neither replica gets less than 40 of them.
    """
    async with quick_engine(counts=counts) as one, quick_engine(counts=counts) as two:
        async with ramjet({"a": one.url, "b": two.url}) as front:
            seen = await converse(front, conversations=100, turns=3, shared_tokens=200)
            assert front.router.policy.terms.mode == "enforce"

    firsts = Counter(row[0] for row in seen.placements.values())
    assert seen.returned_share() == 1.0
    assert min(firsts["a"], firsts["b"]) >= 40


async def test_new_ones_that_come_one_after_the_other_split_too() -> None:
    """
    Nothing is ever in flight or left to read then: who lives where is all that there is to go by.
    """
    async with quick_engine(counts=False) as one, quick_engine(counts=False) as two:
        async with ramjet({"a": one.url, "b": two.url}) as front, httpx.AsyncClient(timeout=20) as client:
            placed = Counter[str]()
            for number in range(100):
                body = {"model": "m", "messages": [{"role": "user", "content": f"Agent {number}. " * 50}]}
                answer = await client.post(f"{front.url}/v1/chat/completions", json=body)
                placed[answer.headers["x-ramjet-replica"]] += 1

    assert min(placed["a"], placed["b"]) >= 40


@pytest.mark.parametrize("replicas", [2, 4])
async def test_first_turns_that_share_a_long_system_prompt_are_spread(replicas: int) -> None:
    """
    17,000 tokens that all have are no reason for all to go where they were read first: 1.3 times the share at most.
    """
    async with quick_engine(counts=False) as a, quick_engine(counts=False) as b:
        async with quick_engine(counts=False) as c, quick_engine(counts=False) as d:
            urls = dict(zip("abcd"[:replicas], (each.url for each in (a, b, c, d)), strict=False))
            async with ramjet(urls) as front:
                seen = await converse(front, conversations=40, turns=2, shared_tokens=17_000)

    assert seen.returned_share() == 1.0
    assert seen.first_turn_excess(replicas) <= 1.3
