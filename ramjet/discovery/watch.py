"""Asks every source of replicas, one loop each, and tells on what they say. One that fails is asked again, less and less often."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Sequence
from typing import Protocol

from ramjet.core.membership import Found

_LEAST_PAUSE_S, _MOST_PAUSE_S = 1.0, 30.0
"""Between two attempts at a source that fails."""
_SETTLE_EVERY_S = 1.0


class Listener(Protocol):
    """Who is told."""

    def found(self, source: str, found: Sequence[Found]) -> None:
        """All that a source knows now.

        Raises:
            ValueError: that cannot be, and changes nothing.
        """

    def failed(self, source: str, error: str, *, empty: bool) -> None:
        """A source has said nothing that can be believed."""

    def passed(self) -> None:
        """Some time has passed: who is gone may be let go."""


class Source(Hashable, Protocol):
    """A place where replicas are found. One that is equal to another is the same."""

    @property
    def name(self) -> str:
        """What it is called."""

    async def watch(self, teller: Teller) -> None:
        """Ask, and tell, until cancelled; what it raises is told as a failure, and it is called again."""


class Teller:
    """Tells what one source says, and how long to wait where it says nothing."""

    def __init__(self, source: str, listener: Listener) -> None:
        self._source = source
        self._listener = listener
        self._failures = 0
        self._failed_at = -math.inf

    def found(self, found: Sequence[Found]) -> None:
        """All that the source knows now.

        Raises:
            ValueError: that cannot be, and changes nothing.
        """
        self._listener.found(self._source, found)

    def failed(self, error: str, *, empty: bool = False) -> float:
        """It says nothing that can be believed; returns seconds to wait before it is asked again."""
        self._listener.failed(self._source, error, empty=empty)
        now = asyncio.get_running_loop().time()
        # A good word in between is no recovery yet: who may list and not watch has one for each failure.
        self._failures = 1 if now - self._failed_at > 2 * _MOST_PAUSE_S else self._failures + 1
        self._failed_at = now
        return min(_MOST_PAUSE_S, _LEAST_PAUSE_S * 2.0 ** min(self._failures - 1, 10))


class DiscoveryWatch:
    """Runs a loop for each source."""

    def __init__(self, sources: Sequence[Source], listener: Listener) -> None:
        self._sources = sources
        self._dropped: set[Source] = set()
        """Those that were not wanted in between: whoever is wanted again is asked anew."""
        self._listener = listener
        self._changed = asyncio.Event()

    def change(self, sources: Sequence[Source]) -> None:
        """Ask these from now on; who is asked already goes on."""
        self._dropped |= set(self._sources) - set(sources)
        self._sources = sources
        self._changed.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        tasks: dict[Source, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                for gone in tasks.keys() & self._dropped:
                    tasks.pop(gone).cancel()
                self._dropped.clear()
                for source in self._sources:
                    if source not in tasks:
                        tasks[source] = group.create_task(self._follow(source), name=f"discovery {source.name}")
                try:
                    async with asyncio.timeout(_SETTLE_EVERY_S if tasks else None):
                        await self._changed.wait()
                except TimeoutError:
                    self._listener.passed()

    async def _follow(self, source: Source) -> None:
        teller = Teller(source.name, self._listener)
        while True:
            try:
                await source.watch(teller)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a source, what is known serves on
                told = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                await asyncio.sleep(teller.failed(told))
