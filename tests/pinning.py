"""Fifty agents with one system prompt between them, through the official openai SDK."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import openai

from tests.rig import Front

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": "Reads a file of the repository and returns its lines. " * 6,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for number in range(20)
]


def system_prompt(tokens: int) -> str:
    """About so many tokens of ordinary text, the same on every call."""
    words = random.Random(7)
    return " ".join(words.choice(("read", "the", "files", "before", "you", "change", "them")) for _ in range(tokens))[
        : tokens * 4
    ]


@dataclass(slots=True)
class Outcome:
    """Where every turn went, and what was reported of it."""

    placements: dict[int, list[str]] = field(default_factory=dict)
    cached: dict[str, int | None] = field(default_factory=dict)
    """Cached tokens as the client saw them, by request id."""

    def returned_share(self) -> float:
        """Of the later turns, how many went to the replica of the turn before."""
        pairs = [pair for row in self.placements.values() for pair in pairwise(row)]
        return sum(before == after for before, after in pairs) / len(pairs)

    def first_turn_excess(self, replicas: int) -> float:
        """The largest replica's first turns, as a multiple of its share."""
        firsts = Counter(row[0] for row in self.placements.values())
        return max(firsts.values()) * replicas / len(self.placements)


async def converse(
    front: Front, *, conversations: int, turns: int, shared_tokens: int, think_s: float = 0.0, stream: bool = False
) -> Outcome:
    """Run all conversations at once; each sends its whole history on every turn."""
    outcome, system = Outcome(), system_prompt(shared_tokens)
    async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client:

        async def talk(number: int) -> None:
            chance = random.Random(number)
            messages: list[Any] = [{"role": "system", "content": system}]
            row = outcome.placements.setdefault(number, [])
            for turn in range(turns):
                text = f"Agent {number}, step {turn}: " + " ".join(str(chance.random()) for _ in range(20))
                messages.append({"role": "user", "content": text})
                create = client.chat.completions.with_raw_response.create
                answer = await create(model="m", messages=messages, tools=TOOLS, max_tokens=8)
                parsed = answer.parse()
                usage = parsed.usage
                details = usage.prompt_tokens_details if usage else None
                outcome.cached[answer.headers["x-request-id"]] = details.cached_tokens if details else None
                row.append(answer.headers["x-ramjet-replica"])
                messages.append({"role": "assistant", "content": parsed.choices[0].message.content or ""})
                await asyncio.sleep(think_s * chance.random())

        await asyncio.gather(*(talk(number) for number in range(conversations)))
    await front.settled()
    return outcome
