"""vLLM 0.32.0 on the CPU behind Ramjet: counts in whole blocks, misses that are the engine's own, and one that dies."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import mix
from tests.acceptance.conftest import notes
from tests.acceptance.engines import HYBRID, LLAMA, MAMBA, VLLM, WORDS, Engines, Start
from tests.acceptance.front import WORD, Answer, Front, Talk, in_front, user, words

pytestmark = pytest.mark.acceptance

BLOCK = 128
POOL = 160 * BLOCK
PLAIN = Start(VLLM, LLAMA + WORDS, ("--max-model-len", "16384", "--num-gpu-blocks-override", "160"))
STATES = Start(
    VLLM,
    HYBRID + WORDS,
    ("--max-model-len", "16384", "--max-num-batched-tokens", "1536", "--num-gpu-blocks-override", "100"),
)
"""States are kept at ends of chunks that fall on a block."""
DIES = Start(VLLM, MAMBA, ("--max-model-len", "4096"))
"""Its first request kills it: vLLM has no kernel for Mamba2 on the CPU."""

AT_ONCE: dict[str, Any] = {"admission": {"mode": "off"}}

note = notes(
    "acceptance_vllm",
    "Ramjet in front of vLLM",
    "vLLM 0.32.0 (the CPU build) with tiny random models behind a real `ramjet serve`: a plain one with a cache of 160 blocks of "
    "128 tokens, a hybrid one with 100 blocks of 384, and one that dies of its first request. "
    "`make acceptance ARGS='-k vllm'` runs it again.",
)


async def grow(front: Front, chance: random.Random, sizes: list[int], turns: int) -> list[dict[str, Any]]:
    """Conversations that take turns; their lines."""
    talks = [Talk(words(size, chance)) for size in sizes]
    for turn in range(turns):
        for talk in talks:
            await talk.turn(front, words(chance.randrange(30, 250), chance) if turn else None, stream=turn % 2 == 1)
    return await front.records(answer for talk in talks for answer in talk.answers)


async def test_whole_blocks_are_no_evictions(engines: Engines, tmp_path: Path) -> None:
    """
    What vLLM counts is rounded down to blocks, and 0 for prompts below one: no turn is put down to the token pool for
    it, what is believed of the pool stays as it was, and the belief is right within a block.
    """
    replicas = engines.take(PLAIN)

    async with in_front(replicas, tmp_path) as front:
        # Less than the pool holds, all together: nothing can have been evicted.
        rows = await grow(front, random.Random(1), [40, 90, 150, 400, 700, 1_300, 2_100], 7)
        pools = await front.pool_tokens()

    far = [row for row in rows if abs(row["matched_tokens"] - row["cached_tokens"]) > BLOCK]
    causes = sorted({str(row["cold_cause"]) for row in rows if row["cold"]})
    note(
        f"{len(rows)} turns of 7 conversations, all of which fit (plain)",
        "no turn is put down to the token pool, the pool is not believed smaller, matched within a block",
        f"causes of {sum(row['cold'] is True for row in rows)} cold turns: {', '.join(causes) or 'none'}; "
        f"pool {pools['a']:,.0f} of {POOL:,}; {len(far)} farther than {BLOCK}",
    )
    assert all(row["cached_tokens"] % BLOCK == 0 for row in rows)
    assert "token_pool" not in causes
    assert pools == {"a": POOL}
    assert not far


async def test_belief_is_near_the_truth(engines: Engines, tmp_path: Path) -> None:
    """
    Over all kinds of turns and more of them than the pools hold, the belief is right within a block in 19 of 20.
    """
    replicas = engines.take(PLAIN)

    async with in_front(replicas, tmp_path, routing=AT_ONCE) as front:
        seen = await mix.play(front, random.Random(12), turns=210, living=8, long_tokens=4_000, nonce=mix.CLOCK)

    near, odd = seen.near(BLOCK), seen.odd(BLOCK)
    note(
        f"{len(seen.rows)} turns, growing, branching and too many (plain)",
        f"within {BLOCK} in 95 %; 0 where the head was changed",
        f"{near:.1%}; {len(seen.altered)} with changed heads, matched at most "
        f"{max(row['matched_tokens'] for row in seen.altered)}; {seen.reused():.0%} of all tokens reused, "
        f"{sum(row['cold'] is True for row in seen.rows)} cold turns",
    )
    assert len(seen.altered) >= 5
    assert [row["matched_tokens"] for row in seen.altered] == [0] * len(seen.altered)
    assert near >= 0.95, odd


async def test_engine_that_dies_of_a_request_takes_no_other_with_it(engines: Engines, tmp_path: Path) -> None:
    """
    One of two replicas dies of the first request that it gets. Its own error goes to that client, and the request to
    nobody else, for it might kill them too; as soon as it is gone, all are answered by the other replica.
    """
    dies, lives = engines.take(DIES, PLAIN)

    async with in_front([dies, lives], tmp_path) as front:
        chance = random.Random(9)
        answers: list[Answer] = []
        while dies.alive and len(answers) < 100:
            answers.append(await front.ask([user(words(300, chance))]))
        later = [await front.ask([user(words(300, chance))]) for _ in range(6)]
        rows = await front.records(answers)

    failed = [(answer, row) for answer, row in zip(answers, rows, strict=True) if not answer.complete]
    note(
        "an engine dies of its first request, another one serves",
        "while it dies, clients have its error or an answer of the other; then all have an answer",
        f"{len(failed)} of {len(answers)} had its error while it was dying, {sum(each.complete for each in later)} of "
        f"{len(later)} an answer afterwards; "
        + "; ".join(
            sorted({f"{answer.status}, outcome {row['outcome']}: {answer.text[:90]}" for answer, row in failed})
        ),
    )
    assert failed
    assert all(answer.status == 500 and answer.replica == "a" and "error" in answer.text for answer, _ in failed)
    assert all(row["attempts"] == 1 for _, row in failed)
    assert all(answer.complete and answer.replica == "b" for answer in later)
    assert lives.alive


async def test_engine_that_dies_alone_is_named(engines: Engines, tmp_path: Path) -> None:
    """
    Where it is the only one, its error goes to the client, and those who come later are told that no replica is up.
    """
    replicas = engines.take(DIES)

    async with in_front(replicas, tmp_path) as front:
        answers = [await front.ask([user(words(300, random.Random(20)))])]
        replicas[0].wait_until_gone()
        answers += [await front.ask([user(words(300, random.Random(at)))]) for at in (21, 22)]
        rows = await front.records(answers)

    note(
        "an engine dies of its first request, and is the only one",
        "the engine's error, then Ramjet's own",
        "; ".join(
            f"{answer.status}, outcome {row['outcome']}: {answer.text[:160]}"
            for answer, row in zip(answers, rows, strict=True)
        ),
    )
    assert answers[0].status == 500
    assert all(answer.status in {502, 503} and "a" in answer.text for answer in answers[1:])
    assert all(row["outcome"] != "ok" for row in rows)


async def test_misses_of_a_hybrid_model_are_no_evictions(engines: Engines, tmp_path: Path) -> None:
    """
    vLLM reuses nothing of many a hybrid model's prompt that it has just read: that is no turn that the token pool has
    cost, and no reason to believe that the pool is smaller.
    """
    replicas = engines.take(STATES)

    async with in_front(replicas, tmp_path) as front:
        before = await front.pool_tokens()
        rows = await grow(front, random.Random(3), [300, 900, 2_000], 4)
        text = words(2_000, random.Random(4))
        asked = [
            text,
            text,
            text + words(300, random.Random(5)),
            *(text[: 1_500 * WORD] + words(500, random.Random(at)) for at in (6, 7, 8)),
        ]
        rows += await front.records([await front.ask([user(each)]) for each in asked])
        pools = await front.pool_tokens()

    causes = sorted({str(row["cold_cause"]) for row in rows if row["cold"]})
    said = [(row["matched_tokens"], row["cached_tokens"]) for row in rows[-len(asked) :]]
    note(
        f"{len(rows)} turns, all of which fit (hybrid)",
        "no turn is put down to the token pool, the pool is not believed smaller",
        f"causes of {sum(row['cold'] is True for row in rows)} cold turns: {', '.join(causes) or 'none'}; "
        f"pool {pools['a']:,.0f} of {before['a']:,.0f}; again, longer, branches (matched, cached): {said}",
    )
    assert "token_pool" not in causes
    assert pools == before
