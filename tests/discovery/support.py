"""What tests of the sources share: somebody who listens, and waiting for what is about to be said."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ramjet.core.membership import Found
from ramjet.discovery.watch import DiscoveryWatch, Source


@dataclass(slots=True)
class Ear:
    """What sources said."""

    words: list[list[Found]] = field(default_factory=list)
    failures: list[tuple[str, bool]] = field(default_factory=list)
    refuses: str | None = None
    """Why what is said next cannot be."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def found(self, source: str, found: Sequence[Found]) -> None:
        self._news.set()
        if self.refuses is not None:
            raise ValueError(self.refuses)
        self.words.append(list(found))

    def failed(self, source: str, error: str, *, empty: bool) -> None:
        self._news.set()
        self.failures.append((error, empty))

    def passed(self) -> None:
        pass

    @property
    def ready(self) -> dict[str, str]:
        """Who may get requests by the last word, URLs by name."""
        return {each.name: each.url for each in (self.words[-1] if self.words else []) if each.ready}

    async def says(self, ready: dict[str, str], within_s: float = 15.0) -> None:
        """Wait until the last word is this."""
        try:
            async with asyncio.timeout(within_s):
                while self.ready != ready or not self.words:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(
                f"{self.ready} is said, not {ready}; the last failures are {self.failures[-3:]}"
            ) from None

    async def fails(self, words: str, within_s: float = 15.0) -> bool:
        """Wait for a failure from now on with these words; whether it was an empty answer."""
        begin = len(self.failures)
        async with asyncio.timeout(within_s):
            while not any(words in error for error, _ in self.failures[begin:]):
                self._news.clear()
                await self._news.wait()
        return next(empty for error, empty in self.failures[begin:] if words in error)


def free_port(hosts: Iterable[str]) -> int:
    """A port that is free at all of them, for TCP and UDP, and below those that connections are given."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for host in hosts:
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    stack.enter_context(socket.socket(socket.AF_INET, kind)).bind((host, port))
            return port


async def until(holds: Callable[[], bool], within_s: float = 15.0) -> None:
    """Wait until something holds; generously, for a busy machine."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def heard(source: Source) -> AsyncIterator[Ear]:
    """A source that is asked inside the context."""
    ear = Ear()
    watch = DiscoveryWatch([source], ear)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch.run())
        yield ear
        task.cancel()
