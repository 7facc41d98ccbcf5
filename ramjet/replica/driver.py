"""Moves an engine in the loop's time: whoever asks is woken when its tokens are there.

One owner of the engine, with synchronous methods. There is one timer, for the next thing that will happen, and no polling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ramjet.replica.clock import Clock
from ramjet.sim.engine import Engine, Event, Job

# Nothing is told more often than this: at 400 times its speed a replica makes 30 tokens in a millisecond, and to wake
# the loop for each of them would cost more than to simulate it. uvloop's own timers are no finer.
_TICK_S = 0.001

_BUDGET_S = 0.02
"""How long the engine may be moved in one go. What takes longer makes its time run slower, and not its server deaf."""


class Run:
    """A request inside the engine, for the one that waits for its answer."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._wanted = 0
        self._told: asyncio.Future[None] | None = None

    async def until(self, tokens: int) -> int:
        """Wait for so many tokens of the answer; returns how many there are."""
        if self.job.written < tokens:
            self._wanted, self._told = tokens, asyncio.get_running_loop().create_future()
            await self._told
        return self.job.written

    def look(self) -> None:
        """Something has happened to it."""
        if self._told is not None and not self._told.done() and self.job.written >= self._wanted:
            self._told.set_result(None)


class Driver:
    """Runs one engine in the running loop's time, until it is stopped."""

    def __init__(self, engine: Engine, rate: float) -> None:
        """
        Args:
            engine: nobody else may move it.
            rate: virtual seconds in a real one.
        """
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._clock = Clock(rate, self._loop.time())
        self._runs: dict[Job, Run] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @contextmanager
    def running(self, job: Job) -> Iterator[Run]:
        """Let a request in; leaving the block before its end aborts it.

        Raises:
            ValueError: it can never fit.
        """
        self.engine.submit(job, self._catch_up())
        run = self._runs[job] = Run(job)
        self._move()
        try:
            yield run
        finally:
            del self._runs[job]
            if job.ended_at is None:
                self.engine.abort(job, self._catch_up())
                self._move()

    def run_at(self, rate: float) -> None:
        """Go on at another rate; 0 stands still."""
        self._catch_up()
        self._clock.run_at(rate, self._loop.time())
        self._move()

    def flush(self) -> bool:
        """Forget what is cached; False while requests are inside."""
        self._catch_up()
        return self.engine.flush()

    def stop(self) -> None:
        """Never move again; who waits will wait for ever."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _catch_up(self) -> float:
        """Bring the engine to the present, step by step; returns what time it is there."""
        if self._stopped:
            return self.engine.now
        began = self._loop.time()
        present = self._clock.at(began)
        while (due := self.engine.next_at) is not None and due <= present:
            self._tell(self.engine.advance(due))
            if (now := self._loop.time()) > began + _BUDGET_S:
                self._clock.set_back(due, now)
                present = due
        self._tell(self.engine.advance(present))
        return present

    def _move(self) -> None:
        """Catch up, and come back when the next thing happens."""
        if self._stopped:
            return
        self._catch_up()
        if self._timer is not None:
            self._timer.cancel()
        due = self.engine.next_at
        at = None if due is None else self._clock.when(due)
        self._timer = None if at is None else self._loop.call_later(max(_TICK_S, at - self._loop.time()), self._move)

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            if (run := self._runs.get(event.job)) is not None:
                run.look()
