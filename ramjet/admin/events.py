"""The page's stream: once a second what has changed, to whoever watches. Nobody watches: nothing is worked out.

All watchers are shown the same parts. A watcher is sent those that differ from what it has been sent; one that reads
slowly is sent nothing until it has taken the last, and then what is true by then, so it costs one message and no more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Protocol

import msgspec
from aiohttp import web

EVERY_S = 1.0
MOST_WATCHERS = 32
STALLED_S = 60.0
"""Who has not taken a message for so long is gone."""

_HEAD = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
}


class Watched(Protocol):
    """What there is to see."""

    def parts(self) -> Iterator[tuple[str, bytes]]:
        """Every part by name, as JSON; between two of them the loop may go on."""


class Events:
    """The parts as they were last worked out, and the watchers' streams."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._parts: dict[str, bytes] = {}
        self._looked_at = -EVERY_S
        self._looking = asyncio.Lock()
        self.watchers = 0

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Tell one watcher, until it leaves."""
        if self.watchers >= MOST_WATCHERS:
            error = {"error": f"{MOST_WATCHERS} watch already; close one of them"}
            return web.Response(status=503, body=msgspec.json.encode(error), content_type="application/json")
        response = web.StreamResponse(headers=_HEAD)
        await response.prepare(request)
        self.watchers += 1
        sent: dict[str, bytes] = {}
        try:
            while True:
                parts = await self._latest()
                message = _message(sent, parts)
                sent = parts
                async with asyncio.timeout(STALLED_S):
                    await response.write(message)
                await asyncio.sleep(EVERY_S)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            self.watchers -= 1

    async def _latest(self) -> dict[str, bytes]:
        """All parts, no older than a second. Running answers go on between two of them."""
        async with self._looking:
            if time.monotonic() - self._looked_at >= 0.9 * EVERY_S:
                parts: dict[str, bytes] = {}
                for number, (name, part) in enumerate(self._watched.parts()):
                    before = self._parts.get(name)
                    parts[name] = before if before == part else part  # the same object: comparing is then free
                    if name.startswith("residents/") or number % 16 == 0:
                        await asyncio.sleep(0)
                self._parts, self._looked_at = parts, time.monotonic()
            return self._parts


def _message(sent: dict[str, bytes], parts: dict[str, bytes]) -> bytes:
    """An event with the parts that differ; what is there no more is null."""
    changed = [(name, part) for name, part in parts.items() if sent.get(name) is not part]
    changed += [(name, b"null") for name in sent.keys() - parts.keys()]
    members = b",".join(msgspec.json.encode(name) + b":" + part for name, part in changed)
    return b"data: {" + members + b"}\n\n"
