"""What every way in is, whatever carries its requests: who is inside, who waits there, and when it is time to go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from ramjet.core.fleet import Replica
from ramjet.core.record import Record
from ramjet.core.router import Router
from ramjet.core.visit import Arrival
from ramjet.front.door import Door
from ramjet.front.reading import Reader
from ramjet.front.room import WaitingRoom

log = structlog.get_logger()

OnRecord = Callable[[Record, Arrival | None], None]
"""Told of every finished request, with what arrived; None where that was not read."""


class Front:
    """A way in.

    Args:
        router: decides, and is told what happened.
        door: lets requests in.
        on_record: told of every finished request.
    """

    def __init__(self, router: Router, door: Door, on_record: OnRecord) -> None:
        self.door = door
        self.room = WaitingRoom(router)
        self.reader = Reader(router, door)
        self.idle = asyncio.Event()
        """Set while no request is under way."""
        self.idle.set()
        self.draining = False
        """No more requests are wanted; those that run go on."""
        self.stopping = False
        """The time for that is over: answers are being cut."""
        self._router = router
        self._on_record = on_record

    def entered(self) -> None:
        """A request has come."""
        self.door.inside += 1
        self.idle.clear()

    def left(self, record: Record, arrival: Arrival | None, held_bytes: int) -> None:
        """A request has ended.

        Args:
            record: what became of it.
            arrival: as it arrived; None where it was not read.
            held_bytes: of its body, which is not held any longer.
        """
        self._on_record(record, arrival)
        self.room.admit_soon()
        self.door.held_bytes -= held_bytes
        self.door.inside -= 1
        if not self.door.inside:
            self.idle.set()

    @property
    def retry_after_s(self) -> int:
        """When it is worth coming back: when the replica that is done first has read what waits for it."""
        queues = [replica.queue_s for replica in self._router.fleet.serving]
        return min(60, 1 + int(min(queues, default=5.0)))


def heard(replica: Replica, status: int, now: float) -> None:
    """Bytes of an answer have come from a replica: of a good one, or of an error."""
    if status >= 400:
        replica.answered(now)
    elif replica.delivered(now):
        log.warning("replica_up", replica=replica.name, error=None)


def by_status(status: int) -> str:
    """How a request ended whose answer came whole."""
    return "ok" if status < 400 else "http_4xx" if status < 500 else "http_5xx"
