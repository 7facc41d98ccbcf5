"""One loop for each replica of the fleet, so that a hung one delays nobody else's."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Hashable

from ramjet.core.fleet import Replica
from ramjet.core.router import Router


class Loops(ABC):
    """Runs exactly one loop for each replica; `sync` after the fleet has changed, or what loops are about."""

    name = ""
    """What its tasks are called, before the replica's name."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._tasks: dict[tuple[Replica, Hashable], asyncio.Task[None]] = {}
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
                wanted = {(each, about) for each in self._router.fleet if (about := self._about(each)) is not None}
                for gone in self._tasks.keys() - wanted:
                    self._tasks.pop(gone).cancel()
                for come in wanted - self._tasks.keys():
                    replica, _ = come
                    self._tasks[come] = group.create_task(self._watch(replica), name=f"{self.name} {replica.name}")
                await self._changed.wait()

    def _about(self, replica: Replica) -> Hashable:
        """What a replica's loop is about; when that changes it begins anew. None: the replica has no loop."""
        return replica

    @abstractmethod
    async def _watch(self, replica: Replica) -> None:
        """Watch one replica until cancelled."""
