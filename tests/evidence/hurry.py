"""Ramjet in a hurry: the same program, and everything in it that is a time passes several times as fast.

Its clock and its event loop are replaced, and not a line of Ramjet: a second's tick comes after a fraction of one, and
whatever was measured in seconds is so many seconds. Only what takes a processor takes as long as ever, and so counts for
more. The journal's wall clock passes as fast, and whoever watches the page does so in real time.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

_monotonic = time.monotonic


class _Selector(selectors.SelectSelector):
    """Waits for less than it is told to. `epoll` would round to milliseconds, which are long here."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / self._speed)


def hurry(main: Coroutine[Any, Any, Any], speed: float) -> Any:
    """Run something to its end while the process's clock, and the loop's, run so many times as fast."""
    began = _monotonic()
    time.monotonic = lambda: began + speed * (_monotonic() - began)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Selector(speed))) as runner:
        return runner.run(main)


def wall(speed: float) -> SimpleNamespace:
    """What stands for `datetime` in the journal, from now on."""
    began, at = _monotonic(), datetime.now(UTC).timestamp()
    return SimpleNamespace(now=lambda zone: datetime.fromtimestamp(at + speed * (_monotonic() - began), zone))


if __name__ == "__main__":
    from ramjet import cli
    from ramjet.admin import events
    from ramjet.journal import writer

    factor = float(sys.argv.pop(1))
    vars(writer)["datetime"] = wall(factor)
    events.EVERY_S *= factor
    events.STALLED_S *= factor
    vars(cli)["uvloop"] = SimpleNamespace(run=lambda main: hurry(main, factor))
    cli.main()
