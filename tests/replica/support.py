"""What tests with simulated replicas share: prompts of a known length, and waiting for what is about to happen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import httpx
import openai

from ramjet.core.cache import CacheSpec
from ramjet.replica.faults import Faults
from ramjet.replica.server import Replica, running_replica
from ramjet.sim.profile import ATTENTION, Profile

FAST = 1_000
"""Times its speed: it reads 100,000 tokens in 17 ms."""


def quick(
    profile: Profile = ATTENTION, *, speed: float = FAST, faults: Faults | None = None
) -> AbstractAsyncContextManager[Replica]:
    """A replica without snapshots, at a speed at which tests need not wait."""
    return running_replica(profile, speed=speed, faults=faults)


def attention(*, pool_tokens: int = 499_968, **more: Any) -> Profile:
    """The profile with another pool, or what else there is to change."""
    cache = ATTENTION.cache
    assert isinstance(cache, CacheSpec)
    return replace(ATTENTION, cache=replace(cache, pool_tokens=pool_tokens), **more)


def prompt(tokens: int, name: str = "") -> str:
    """Text of exactly so many tokens; different names give prompts without a common block."""
    return (f"{name:>8}" + "word " * tokens)[: 4 * tokens]


def ask(text: str, **more: Any) -> dict[str, Any]:
    """A chat request with one message."""
    return {"model": "demo", "messages": [{"role": "user", "content": text}]} | more


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=30)


def frames(text: str) -> list[dict[str, Any]]:
    """The payloads of a stream of events, without `[DONE]`."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(payload) for payload in data if payload != "[DONE]"]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen within five seconds")


def openai_client(replica: Replica, *, strict: bool = True) -> openai.AsyncOpenAI:
    """Unlike a user's, it refuses what does not have the documented shape, instead of passing it on."""
    return openai.AsyncOpenAI(
        base_url=f"{replica.url}/v1", api_key="none", max_retries=0, _strict_response_validation=strict
    )
