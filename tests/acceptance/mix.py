"""Traffic as real as two cores allow, and how well Ramjet knew what would be reused of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.acceptance.front import Answer, Front, Talk, words

_SYSTEM_TOKENS = 700
"""Of a system prompt that half of the conversations share."""
_LONGEST_BYTES = 24_000
"""A conversation ends when it is longer: some 6,000 tokens."""
BILLING = "x-anthropic-billing-header: cc_version=2.1.7; cch="
"""The first line of some agents' system prompts; what follows is another one every time. vLLM takes it out of the prompt."""
CLOCK = "The current time is 12:07:31, trace "
"""Others tell the time, which no engine takes out."""


@dataclass(slots=True)
class Seen:
    """What became of the mix."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Log lines, in the order in which they were sent."""
    altered: list[dict[str, Any]] = field(default_factory=list)
    """Of those, the later turns whose head the client had changed."""

    def near(self, tokens: int) -> float:
        """The share of turns of which so much was reused as was believed, give or take so many tokens."""
        near = [row for row in self.rows if abs(row["matched_tokens"] - row["cached_tokens"]) <= tokens]
        return len(near) / len(self.rows)

    def reused(self) -> float:
        """The part of all prompts that was reused."""
        return float(sum(row["cached_tokens"] for row in self.rows) / sum(row["prompt_tokens"] for row in self.rows))

    def odd(self, tokens: int) -> list[tuple[Any, ...]]:
        """Those that are farther apart, for whoever has to find out why."""
        what = ("request_id", "turn", "prompt_tokens", "matched_tokens", "cached_tokens", "cold_cause", "replica")
        far = (row for row in self.rows if abs(row["matched_tokens"] - row["cached_tokens"]) > tokens)
        return [tuple(row[name] for name in what) for row in far]


async def play(
    front: Front, chance: random.Random, *, turns: int, living: int, long_tokens: int, nonce: str = BILLING
) -> Seen:
    """Conversations that grow, branch, end and begin, some with a head that never stays the same; one request at a time.

    Args:
        front: to whom.
        chance: what happens next.
        turns: how many.
        living: conversations at once.
        long_tokens: length of the prompts that come now and then and are never seen again.
        nonce: how the heads begin that never stay the same.
    """
    shared = words(_SYSTEM_TOKENS, chance)
    talks: list[Talk] = []
    answers: list[Answer] = []
    altered: set[str] = set()
    while len(answers) < turns:
        kind = chance.random()
        if kind < 0.03:
            answers.append(await Talk(words(long_tokens, chance)).turn(front))
            continue
        if len(talks) < living or kind < 0.1:
            has_nonce = chance.random() < 0.2
            own = _with_nonce(nonce, shared, chance) if has_nonce else shared if chance.random() < 0.6 else None
            talks.append(Talk(words(chance.randrange(300, 2_500), chance), system=own))
            answers.append(await talks[-1].turn(front))
            del talks[: max(0, len(talks) - living)]
            continue
        talk = chance.choice(talks)
        if kind < 0.2 and len(talk.messages) > 3:
            # Somebody goes back to an earlier turn and asks something else.
            talk = talk.branch()
            del talk.messages[-2:]
            talks[chance.randrange(len(talks))] = talk
        has_nonce = talk.messages[0]["content"].startswith(nonce)
        if has_nonce:
            talk.messages[0] = {"role": "system", "content": _with_nonce(nonce, shared, chance)}
        answers.append(await talk.turn(front, words(chance.randrange(40, 600), chance), stream=chance.random() < 0.5))
        if has_nonce:
            altered.add(answers[-1].request_id)
        if sum(len(each["content"]) for each in talk.messages) > _LONGEST_BYTES:
            talks.remove(talk)
    rows = await front.records(answers)
    return Seen(rows, [row for row in rows if row["request_id"] in altered])


def _with_nonce(nonce: str, system: str, chance: random.Random) -> str:
    """A system prompt as some agents send it: its first line is another one every time."""
    return f"{nonce}{chance.randbytes(3).hex()};\n{system}"
