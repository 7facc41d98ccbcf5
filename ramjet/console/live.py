"""`ramjet top` on a terminal: a frame for each change, until q."""

from __future__ import annotations

import contextlib
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live

from ramjet.console.client import Admin, NoAnswer
from ramjet.console.frame import Parts, frame

_PIPE_COLUMNS = 140
_FIXED_LINES = 24
"""Of a frame, beside replicas and decisions."""


def once(admin: Admin) -> None:
    """Print one frame.

    Raises:
        NoAnswer: it cannot be asked.
    """
    console = Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    console.print(frame(next(admin.watch())))


def show(admin: Admin) -> None:
    """Show frames until somebody presses q.

    Raises:
        NoAnswer: it cannot be asked, or has ended.
    """
    console, latest = Console(), _Latest(admin)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            parts = latest.wait(0.1)
            if parts is not None:
                room = console.size.height - _FIXED_LINES
                replicas = max(4, min(len(parts["replicas"]), room - 4))
                live.update(frame(parts, decisions=max(4, room - replicas), replicas=replicas), refresh=True)
            if pressed() == "q":
                return


class _Latest:
    """Reads the stream in a thread of its own, which is left behind at the end: a key must not wait for the network."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._changed = threading.Condition()
        self._parts: Parts | None = None
        self._failed: NoAnswer | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, timeout_s: float) -> Parts | None:
        """What has come since the last time; None where nothing has."""
        with self._changed:
            if self._parts is None and self._failed is None:
                self._changed.wait(timeout_s)
            if self._failed is not None:
                raise self._failed
            parts, self._parts = self._parts, None
            return parts

    def _read(self) -> None:
        try:
            for parts in self._admin.watch():
                with self._changed:
                    self._parts = dict(parts)
                    self._changed.notify()
        except NoAnswer as error:
            with self._changed:
                self._failed = error
                self._changed.notify()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[], str | None]]:
    """Keys as they are pressed, without Enter; Ctrl-C stays what it is."""
    before = termios.tcgetattr(sys.stdin)

    def pressed() -> str | None:
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        return sys.stdin.read(1).lower() if ready else None

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
