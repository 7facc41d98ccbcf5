"""One loop for each URL of the fleet, so that a hung one delays nobody else's."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence

from ramjet.core.fleet import Replica
from ramjet.core.router import Router


class Loops(ABC):
    """Runs exactly one loop for each URL, whatever ranks are there; `sync` after the fleet has changed, or what loops are about."""

    name = ""
    """What its tasks are called, before the replica's name."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._tasks: dict[tuple[frozenset[Replica], Hashable], asyncio.Task[None]] = {}
        """By those that share a loop: when a replica has other ranks than before, it begins anew."""
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
                wanted = {
                    (frozenset(there), about): there
                    for there in self._places()
                    if (about := self._about(there)) is not None
                }
                for gone in self._tasks.keys() - wanted.keys():
                    self._tasks.pop(gone).cancel()
                for come in wanted.keys() - self._tasks.keys():
                    there = wanted[come]
                    who = there[0].name if len(there) == 1 else there[0].whole
                    self._tasks[come] = group.create_task(self._watch(there), name=f"{self.name} {who}")
                await self._changed.wait()

    def _places(self) -> Iterable[Sequence[Replica]]:
        """Those that share a loop: a replica, or all of its ranks."""
        return map(self._router.fleet.at, self._router.fleet.urls)

    def _about(self, there: Sequence[Replica]) -> Hashable:  # noqa: ARG002 - what is asked is the same for all
        """What a loop is about; when that changes it begins anew. None: there is none."""
        return self.name

    @abstractmethod
    async def _watch(self, there: Sequence[Replica]) -> None:
        """Watch a replica, or its ranks, until cancelled."""
