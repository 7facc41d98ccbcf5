"""The journal's thread: nobody waits for it, what is dropped is counted, and what it has committed outlives a crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import LogCapture

from ramjet.core.record import Record
from ramjet.core.sample import Sample
from ramjet.journal import writer
from ramjet.journal.read import Reader
from ramjet.journal.store import Entry, Store
from ramjet.journal.writer import Journal
from tests.journal.support import AT, SECRET, entry, rows, store


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[MutableMapping[str, Any]]:
    """What the journal logs."""
    capture = LogCapture()
    log = structlog.wrap_logger(None, processors=[capture], wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(writer, "log", log)
    return capture.entries


class Stuck(Store):
    """A disk that takes nothing until it is let go, and then fails as often as it was told to."""

    def __init__(self, path: Path, *failures: sqlite3.Error) -> None:
        super().__init__(path, SECRET, days=1, megabytes=10)
        self.free = threading.Event()
        self.taken = threading.Semaphore(0)
        self.failures = list(failures)

    def write(self, entries: Iterable[Entry], dropped: int = 0) -> None:
        if rows := list(entries):
            self.taken.release()
            assert self.free.wait(20)
            if self.failures:
                raise self.failures.pop(0)
        super().write(rows, dropped)


@contextlib.contextmanager
def journal(one: Store, *, most_waiting: int = 100) -> Iterator[tuple[Journal, list[int], list[int]]]:
    """A journal, what it has told of written and of dropped rows; closed at the end."""
    wrote: list[int] = []
    lost: list[int] = []
    kept = Journal(one, on_written=wrote.append, on_dropped=lost.append, most_waiting=most_waiting, clock=lambda: AT)
    try:
        yield kept, wrote, lost
    finally:
        kept.close()


def put(kept: Journal, *numbers: int) -> None:
    for number in numbers:
        each = entry(number, [number], conversation=str(number))
        kept.put(each.record, each.arrival)


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    """
    Rows, in their order, with the wall's time at which they arrived.
    """
    path = tmp_path / "journal.db"
    with journal(store(path), most_waiting=5_000) as (kept, wrote, lost):
        kept.put(replace(entry().record, duration_s=2.5), None)
        put(kept, *range(1, 2_500))

    found = rows(path)
    assert [row.record.request_id for row in found] == [f"r-{number}" for number in range(2_500)]
    assert (found[0].arrived_at, found[1].arrived_at) == (AT - 2.5, AT)
    assert (sum(wrote), lost, kept.dropped) == (2_500, [], 0)


def test_samples_are_written_with_the_wall_clocks_time(tmp_path: Path) -> None:
    """
    Those that wait when it closes too; and none that come later.
    """
    path, sample = tmp_path / "journal.db", Sample(replica="a", state="up")
    with journal(store(path)) as (kept, wrote, lost):
        kept.put_samples([sample, sample])
    kept.put_samples([sample])

    with Reader(path) as reader:
        assert list(reader.samples()) == [(AT, sample)] * 2
    assert (wrote, lost) == ([], [])


def test_a_full_queue_drops_and_counts(tmp_path: Path) -> None:
    """
    Handing in goes on at once while the disk hangs; the file says later how many it missed.
    """
    path = tmp_path / "journal.db"
    one = Stuck(path)
    with journal(one, most_waiting=10) as (kept, wrote, lost):
        put(kept, 0)
        one.taken.acquire()
        put(kept, *range(1, 31))  # ten wait, and twenty are too many
        assert kept.dropped == sum(lost) == 20
        one.free.set()

    assert sum(wrote) == 11
    assert [row.record.request_id for row in rows(path)] == [f"r-{number}" for number in range(11)]
    with Reader(path) as reader:
        assert reader.info().dropped == 20
    put(kept, 40)
    assert kept.dropped == 21


def test_a_disk_that_is_full_for_a_while_costs_what_came_then(
    tmp_path: Path, said: list[MutableMapping[str, Any]]
) -> None:
    """
    Said once; then it goes on.
    """
    path = tmp_path / "journal.db"
    one = Stuck(path, sqlite3.OperationalError("database or disk is full"), sqlite3.OperationalError("still full"))
    one.free.set()
    with journal(one) as (kept, _, lost):
        for number in range(3):
            put(kept, number)
            one.taken.acquire()

    assert [row.record.request_id for row in rows(path)] == ["r-2"]
    assert sum(lost) == kept.dropped == 2
    assert [(each["event"], each["gave_up"]) for each in said] == [("journal_failed", False)]
    with Reader(path) as reader:
        assert reader.info().dropped == 2


def test_a_file_that_turns_out_damaged_is_left_alone(tmp_path: Path, said: list[MutableMapping[str, Any]]) -> None:
    one = Stuck(tmp_path / "journal.db", sqlite3.DatabaseError("database disk image is malformed"))
    one.free.set()
    with journal(one) as (kept, wrote, _):
        put(kept, 0)
        one.taken.acquire()
        put(kept, 1, 2)

    assert (wrote, kept.dropped) == ([], 3)
    assert [(each["event"], each["gave_up"]) for each in said] == [("journal_failed", True)]


def test_a_row_that_cannot_be_written_stops_nothing(tmp_path: Path, said: list[MutableMapping[str, Any]]) -> None:
    path = tmp_path / "journal.db"
    with journal(store(path)) as (kept, _, _):
        kept.put(Record(request_id="r", endpoint="chat", costs={"x": object()}), None)  # type: ignore[dict-item]
        while not kept.dropped:
            time.sleep(0.01)
        put(kept, 1)

    assert [row.record.request_id for row in rows(path)] == ["r-1"]
    assert kept.dropped == 1
    assert [each["event"] for each in said] == ["journal_failed"]


WRITE = """
import sys
from pathlib import Path
from ramjet.journal.writer import Journal
from tests.journal.support import entry, store

def told(rows):
    print(rows, flush=True)

kept = Journal(store(Path(sys.argv[1])), on_written=told, most_waiting=5_000)
number = 0
while True:
    if kept._queue.qsize() < 2_000:
        each = entry(number, range(number % 300), conversation=str(number % 7))
        kept.put(each.record, each.arrival)
        number += 1
"""


def test_what_was_committed_outlives_a_kill(tmp_path: Path) -> None:
    """
    SIGKILL after a batch: every row that was said to be in the file is there with its prompt, and it takes more.
    """
    path = tmp_path / "journal.db"
    command = [sys.executable, "-c", WRITE, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        promised = sum(int(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGKILL)

    found = rows(path)
    assert len(found) >= promised > 0
    assert all(row.fingerprint is not None for row in found)
    with journal(store(path)) as (kept, _, _):
        put(kept, 9)
    assert len(rows(path)) == len(found) + 1


def test_no_moment_is_the_wrong_one_for_a_kill(tmp_path: Path) -> None:
    """
    Writers killed at random moments, most of them within a batch: nothing that was committed is lost, nothing is half there.
    """
    command = [sys.executable, "-m", "tests.journal.kills", str(tmp_path / "journal.db"), "6"]
    rounds = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    assert len(rounds) == 6
    assert any(each["writing"] for each in rounds)
    for each in rounds:
        assert each["found"] >= each["promised"]
        assert each["in_order"]
        assert each["sound"]
    assert sum(each["promised"] for each in rounds) > 0
