"""What the tests of the demo share: prompts of a known length, and waiting for what is about to happen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

from ramjet.demo.engine import Profile

FAST = Profile(speed=1_000)
"""Reads 100,000 tokens in 17 ms."""


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
