"""Run as a program: kill a journal's writer again and again, each time at a random moment, and look at what is left.

    python -m tests.journal.kills JOURNAL ROUNDS

Each writer is a process of its own that goes on with the file as the one before has left it. Prints a JSON list with what
each round has found.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from ramjet.journal.store import Entry, Store
from ramjet.journal.writer import Journal
from tests.journal.support import SECRET, entry

_WRITES, _COMMITTED = b"b", b"c"
_MOST_S = 0.06
"""Longer than a batch takes to be written, so that a kill may come anywhere in it, and behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a killed writer has left."""

    promised: int
    """Rows that it had said to be in the file."""
    found: int
    """Rows of it that are there..."""
    in_order: bool
    """...and whether they are the first that it was given, with none left out."""
    writing: bool
    """Whether it was killed between a batch's beginning and its commit."""
    sound: bool
    """Whether SQLite finds the file in order."""


class _Telling(Store):
    """Says when a batch begins."""

    def __init__(self, path: Path, pipe: int) -> None:
        super().__init__(path, SECRET, days=100_000, megabytes=10_000)
        self._pipe = pipe

    def write(self, entries: Iterable[Entry], dropped: int = 0) -> None:
        os.write(self._pipe, _WRITES)
        super().write(entries, dropped)


def _write(path: Path, number: int, pipe: int) -> NoReturn:
    """Hand rows in without end."""
    kept = Journal(_Telling(path, pipe), on_written=lambda rows: os.write(pipe, _COMMITTED * rows), most_waiting=10_000)
    at = 0
    while True:
        if kept._queue.qsize() < 2_000:
            each = entry(at, range(at % 300), conversation=f"{number}-{at % 7}")
            kept.put(each.record, each.arrival)
            at += 1
        else:
            time.sleep(0.001)


def kill(path: Path, number: int, chance: random.Random) -> Round:
    """Start a writer, kill it, and look."""
    before = _last(path)
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            _write(path, number, writes)
        finally:
            os._exit(1)
    os.close(writes)
    said, wanted = b"", chance.randint(1, 3)
    try:
        while said.count(_WRITES) < wanted:
            said += os.read(reads, 1 << 16)
        # Whatever it says meanwhile is read only afterwards: its pipe has room for it.
        select.select([], [], [], chance.uniform(0, _MOST_S))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    while more := os.read(reads, 1 << 16):
        said += more
    os.close(reads)
    with contextlib.closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT request_id FROM requests WHERE id > ? ORDER BY id", (before,))]
        sound = db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return Round(
        promised=said.count(_COMMITTED),
        found=len(names),
        in_order=names == [f"r-{at}" for at in range(len(names))],
        writing=said.endswith(_WRITES),
        sound=sound,
    )


def _last(path: Path) -> int:
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(path)) as db:
        last: int = db.execute("SELECT coalesce(max(id), 0) FROM requests").fetchone()[0]
        return last


if __name__ == "__main__":
    randomly = random.Random(5)
    rounds = [kill(Path(sys.argv[1]), number, randomly) for number in range(int(sys.argv[2]))]
    print(json.dumps([asdict(each) for each in rounds]))  # noqa: T201
