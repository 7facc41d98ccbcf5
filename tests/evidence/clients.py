"""A workload's clients over HTTP, in a closed loop and in compressed time: a turn comes when the one before is answered."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable

import aiohttp

from ramjet.lab.loop import _Clients
from ramjet.lab.turns import Workload


class Body(aiohttp.BytesPayload):
    """A request's body; aiohttp warns of bytes above 1 MiB unless they are told to be meant."""

    def __init__(self, value: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            super().__init__(value)


class Clients(ABC):
    """All of a workload's; times are seconds of the workload, which pass `speed` times as fast."""

    timeout_s: float | None = None
    """How long a turn may take, in real seconds."""

    def __init__(self, workload: Workload, url: str, speed: float, until_s: float = math.inf) -> None:
        """
        Args:
            workload: what they say.
            url: to whom.
            speed: how much faster time passes.
            until_s: no turn is sent after that.
        """
        self.clients = _Clients(workload)
        self.url = f"{url}/v1/chat/completions"
        self._speed = speed
        self._until_s = until_s
        self._began = time.monotonic()

    def now(self) -> float:
        """Since it began."""
        return (time.monotonic() - self._began) * self._speed

    async def play(self) -> None:
        """Let all turns happen."""
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        # Ramjet closes idle connections sooner, as fast as time passes: a turn must not be sent on one that is about to go.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1.0)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=1 << 20) as session,
            asyncio.TaskGroup() as tasks,
        ):

            def go(coming: Iterable[tuple[int, float]]) -> None:
                for conversation, at_s in coming:
                    if at_s < self._until_s:
                        tasks.create_task(turn(conversation, at_s))

            async def turn(conversation: int, at_s: float) -> None:
                await asyncio.sleep((at_s - self.now()) / self._speed)
                await self.turn(session, conversation, self.now() - at_s)
                go(self.clients.answered(conversation, self.now()))

            go(self.clients.first())

    @abstractmethod
    async def turn(self, session: aiohttp.ClientSession, conversation: int, late_s: float) -> None:
        """Send a conversation's next turn and read its answer; it is sent so much later than it should be."""


def noise(name: str, characters: int) -> str:
    """Text without meaning; equal names are equal text."""
    return hashlib.shake_128(name.encode()).hexdigest(characters // 2 + 1)[:characters]
