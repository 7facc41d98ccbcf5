"""Where requests wait that the router holds, and who asks it to let them in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ramjet.core.router import Router
from ramjet.core.visit import Lease, Visit

_ADMIT_S = 0.005
_ADMIT_EVERY_S = 1.0


class WaitingRoom:
    """Those who wait."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._waiting: dict[Visit, asyncio.Future[None]] = {}
        self._admitting: asyncio.TimerHandle | None = None

    async def wait(self, visit: Visit, comment: Callable[[], None], every_s: float | None) -> Lease | None:
        """Wait until the router lets a held request in; None for one that it does not hold, or held for too long.

        Args:
            visit: the request.
            comment: to be called meanwhile...
            every_s: ...so often; None for never.
        """
        if visit.held_since is None:
            # It may have been let in since it was held.
            return visit.lease if visit.lease is not None and visit.lease.open else None
        waiting = self._waiting[visit] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._router.policy.terms.max_hold_s):
                while not (await asyncio.wait([waiting], timeout=every_s))[0]:
                    comment()
        except TimeoutError:
            visit.gave_up = self._router.give_up(visit, time.monotonic())
            return visit.lease  # it may have been let in at the last moment
        finally:
            self._waiting.pop(visit, None)
        return visit.lease

    def keep_admitting(self) -> Callable[[], None]:
        """Let in who may enter once a second, for allowances grow with time; returns what ends it."""
        loop = asyncio.get_running_loop()
        due: asyncio.TimerHandle

        def admit() -> None:
            nonlocal due
            due = loop.call_later(_ADMIT_EVERY_S, admit)
            self.admit()

        def end() -> None:
            due.cancel()

        due = loop.call_later(_ADMIT_EVERY_S, admit)
        return end

    def admit_soon(self) -> None:
        """Something has changed that may let in who is held; a burst of changes is looked at once."""
        if self._waiting and self._admitting is None:
            self._admitting = asyncio.get_running_loop().call_later(_ADMIT_S, self._admit_quickly)

    def _admit_quickly(self) -> None:
        self._admitting = None
        self.admit(quick=True)

    def admit(self, *, quick: bool = False) -> None:
        """Let in who may enter now."""
        for visit in self._router.admit(time.monotonic(), quick=quick):
            waiting = self._waiting.get(visit)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
