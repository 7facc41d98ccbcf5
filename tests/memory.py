"""Run as a program: route many conversations through one router and print, as JSON, what they took in memory."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import psutil

from ramjet.build import fleet_of, policy_of
from ramjet.core.fingerprint import fingerprint
from ramjet.core.hints import hashed
from ramjet.core.prompt import read
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival
from tests.rig import settings_for

TURN_BYTES = 50_000


def body(number: int, turns: int = 1) -> bytes:
    """Conversation `number`, after so many turns, the first of 50 KB."""
    chance = random.Random(number)
    messages = [{"role": "user", "content": chance.randbytes(TURN_BYTES // 2).hex()}]
    for turn in range(1, turns):
        messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": f"and {turn}" * 100}]
    return json.dumps({"model": "m", "messages": messages}).encode()


def turn(router: Router, number: int, now: float, turns: int = 1) -> tuple[str, int]:
    """Serve one turn; the replica it went to, and how many tokens were believed to match there."""
    raw = body(number, turns)
    prompt = read(raw, "chat")
    arrival = Arrival(
        request_id=str(number),
        endpoint="chat",
        body_bytes=len(raw),
        model="m",
        fingerprint=fingerprint(prompt, 1),
        hint=hashed(("session_id", str(number)), 1),
    )
    visit = router.arrive(arrival, now)
    lease = router.place(visit, now)
    assert lease is not None
    router.first_token(visit, now)
    router.finish(visit, now, outcome="ok", status=200, usage=Usage(prompt_tokens=prompt.size_bytes // 4))
    return lease.replica.name, lease.scored.candidate.matched_tokens


def measure(conversations: int, memory_mb: int) -> dict[str, Any]:
    """Route so many distinct conversations, then the next turn of the newest."""
    urls = {"a": "http://127.0.0.1:9001", "b": "http://127.0.0.1:9002"}
    settings = settings_for(urls, beliefs={"memory_mb": memory_mb})
    router = Router(fleet_of(settings), policy_of(settings))
    turn(router, -1, 0.0)
    process = psutil.Process()
    before, started_at = process.memory_info().rss, time.perf_counter()
    samples, home = [], ""
    for number in range(conversations):
        home, _ = turn(router, number, number / 500)
        if number % (conversations // 10) == 0:
            samples.append(round((process.memory_info().rss - before) / 2**20, 1))
    again, matched = turn(router, conversations - 1, conversations / 500, turns=2)
    return {
        "conversations": conversations,
        "bound, MiB": memory_mb,
        "estimated, MiB": round(router.memory_bytes / 2**20, 1),
        "process grew by, MiB": round((process.memory_info().rss - before) / 2**20, 1),
        "process in all, MiB": round(process.memory_info().rss / 2**20, 1),
        "remembered": router.conversations.history.nodes,
        "newest still pinned": again == home and matched > TURN_BYTES // 4 * 0.9,
        "growth at each tenth, MiB": samples,
        "ms a turn": round((time.perf_counter() - started_at) * 1e3 / conversations, 3),
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))  # noqa: T201
