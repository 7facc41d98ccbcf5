"""What tests of the page share: its stream, read as any client would."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

CHAT = "/v1/chat/completions"


class Watcher:
    """One who watches, and what they know by now."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.parts: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any]:
        """The next message."""
        async for line in self._lines:
            if line.startswith("data: "):
                message: dict[str, Any] = json.loads(line[len("data: ") :])
                self.messages.append(message)
                for name, part in message.items():
                    if part is None:
                        del self.parts[name]
                    else:
                        self.parts[name] = part
                return message
        raise EOFError

    async def until(self, holds: Callable[[dict[str, Any]], object]) -> None:
        """Read on until something holds of all that is known."""
        async with asyncio.timeout(20):
            while not (self.parts and holds(self.parts)):
                await self.next()

    def decisions(self) -> list[dict[str, Any]]:
        """The decisions, the last first."""
        rows = [part for name, part in self.parts.items() if name.startswith("decision/")]
        return sorted(rows, key=lambda row: -row["number"])


@contextlib.asynccontextmanager
async def watching(admin: str, **headers: str) -> AsyncIterator[Watcher]:
    """Somebody who watches, until the block ends."""
    async with httpx.AsyncClient(timeout=20) as client:
        async with client.stream("GET", f"{admin}/api/events", headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield Watcher(answer.aiter_lines())


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}
