"""What tests of held requests share: prompts that take long to read, and looking at who waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from tests.rig import Front

CHAT = "/v1/chat/completions"
COLD_TOKENS = 20_000
"""3.3 s of reading by the formula: a cold read."""


def prompt(name: str, tokens: int = COLD_TOKENS) -> str:
    """A text that shares nothing with any other name's, four characters a token."""
    return random.Random(name).randbytes(2 * tokens).hex()


def body(name: str, tokens: int = COLD_TOKENS, **more: Any) -> dict[str, Any]:
    """A chat with one long message."""
    return {"model": "m", "messages": [{"role": "user", "content": prompt(name, tokens)}], **more}


async def until(condition: Callable[[], object]) -> None:
    """Wait until something has become true; it must within ten seconds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def held(front: Front) -> int:
    """How many requests Ramjet holds."""
    return len(front.router.admission)
