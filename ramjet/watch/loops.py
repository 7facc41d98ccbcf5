"""One loop for each replica of the fleet, so that a hung one delays nobody else's."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from ramjet.core.fleet import Replica
from ramjet.core.router import Router


class Loops(ABC):
    """Runs exactly one loop for each replica; `sync` after the fleet has changed."""

    name = ""
    """What its tasks are called, before the replica's name."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._tasks)

    def sync(self) -> None:
        """Look at the fleet again."""
        self._changed.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                fleet = set(self._router.fleet)
                for gone in self._tasks.keys() - fleet:
                    self._tasks.pop(gone).cancel()
                for come in fleet - self._tasks.keys():
                    self._tasks[come] = group.create_task(self._watch(come), name=f"{self.name} {come.name}")
                await self._changed.wait()

    @abstractmethod
    async def _watch(self, replica: Replica) -> None:
        """Watch one replica until cancelled."""
