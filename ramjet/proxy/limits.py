"""How long a request may take for something, where thousands run at once and hardly one ever takes too long.

A timer for each would be set and taken back with every request. Limits of one length run out in the order in which they
were set, so all of them share a timer, and it looks at the first.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self


class Limits:
    """All that run."""

    def __init__(self) -> None:
        self._lines: dict[float, _Line] = {}

    def of(self, seconds: float) -> Limit:
        """A limit, as a context; it begins when that is entered."""
        return Limit(self, seconds)

    @property
    def lengths(self) -> list[float]:
        """Seconds that limits last, those that run or have run lately."""
        return list(self._lines)

    def line(self, seconds: float) -> _Line:
        """Those of one length; for limits only."""
        line = self._lines.get(seconds)
        if line is None:
            line = self._lines[seconds] = _Line(self._lines, seconds)
        return line


class Limit:
    """The task inside is cancelled when the time is over, and TimeoutError raised outside, as by `asyncio.timeout`."""

    __slots__ = ("_before", "_limits", "_line", "_seconds", "_task")

    def __init__(self, limits: Limits, seconds: float) -> None:
        self._limits, self._seconds = limits, seconds

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before = task, task.cancelling()
        self._line: _Line | None = self._limits.line(self._seconds)
        self._line.add(self, time.monotonic())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._line is not None:
            del self._line.ends_at[self]
        elif self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def begin_anew(self, seconds: float, now: float) -> None:
        """From now on, a time of `time.monotonic`, it is so many seconds."""
        line = self._line
        if line is None:
            return
        del line.ends_at[self]
        if line.seconds == seconds:
            line.ends_at[self] = now + seconds
        else:
            self._line = self._limits.line(seconds)
            self._line.add(self, now)

    def run_out(self) -> None:
        """The time is over."""
        self._line = None
        self._task.cancel()


class _Line:
    """Limits of one length, the one that runs out first at its head."""

    def __init__(self, lines: dict[float, _Line], seconds: float) -> None:
        self.seconds = seconds
        self.ends_at: dict[Limit, float] = {}
        self._lines = lines
        self._timer: asyncio.TimerHandle | None = None

    def add(self, limit: Limit, now: float) -> None:
        """It begins now."""
        self.ends_at[limit] = now + self.seconds
        if self._timer is None:
            self._look_in(self.seconds)

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        while (limit := next(iter(self.ends_at), None)) is not None and self.ends_at[limit] <= now:
            del self.ends_at[limit]
            limit.run_out()
        if limit is not None:
            self._look_in(self.ends_at[limit] - now)
        else:
            self._timer = None
            # The next that is so long makes another: lengths come and go with the configuration.
            self._lines.pop(self.seconds, None)
