"""The journal's one thread: it takes finished requests from a bounded queue and writes them in batches.

Whoever hands one in never waits: where the queue is full the request is dropped and counted.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from queue import Empty, SimpleQueue

import structlog

from ramjet.core.record import Record
from ramjet.core.sample import Sample
from ramjet.core.visit import Arrival
from ramjet.journal.store import Entry, Store

log = structlog.get_logger()

MOST_WAITING = 4_096
"""Two seconds at 2,000 requests a second; a prompt's hashes take 16 bytes a block while they wait."""
_BATCH = 1_000
_FLUSH_S = 0.25
"""How long a batch is gathered: what a crash can cost."""
_BREATH_ROWS, _BREATH_S = 16, 0.0005
_TIDY_EVERY_S = 60.0
_CLOSE_S = 10.0
_MOST_SAMPLES = 100
"""Moments whose samples may wait."""


def wall_clock() -> float:
    """Seconds since 1970, UTC."""
    return datetime.now(UTC).timestamp()


class Journal:
    """A store with a thread of its own, from now until `close`.

    Args:
        store: where rows go; it is closed with the journal.
        on_written: told how many rows have been committed, in the thread.
        on_dropped: told how many were dropped.
        most_waiting: rows that may wait to be written.
        clock: seconds since 1970, UTC.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_written: Callable[[int], object] = lambda _: None,
        on_dropped: Callable[[int], object] = lambda _: None,
        most_waiting: int = MOST_WAITING,
        clock: Callable[[], float] = wall_clock,
    ) -> None:
        self._store = store
        self._on_written = on_written
        self._on_dropped = on_dropped
        self._most_waiting = most_waiting
        self._clock = clock
        self._queue: SimpleQueue[Entry | None] = SimpleQueue()
        self._samples: SimpleQueue[tuple[float, Sequence[Sample]]] = SimpleQueue()
        self._refused = 0
        """Dropped by whoever hands in."""
        self._lost = 0
        """Dropped by the thread."""
        self._told = 0
        """Of both, how many are in the file."""
        self._failing = False
        self._broken = False
        """Whether the file turned out to be damaged: nothing more is written to it."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Requests that were not written and never will be."""
        return self._refused + self._lost

    def put(self, record: Record, arrival: Arrival | None) -> None:
        """Take in a request that has just finished; never waits."""
        if self._closing.is_set() or self._queue.qsize() >= self._most_waiting:
            self._refused += 1
            self._on_dropped(1)
            return
        self._queue.put(Entry(self._clock() - record.duration_s, record, arrival))

    def put_samples(self, samples: Sequence[Sample]) -> None:
        """Take in what the replicas are now; never waits. They are written with the next requests, or in a minute."""
        if not self._closing.is_set() and self._samples.qsize() < _MOST_SAMPLES:
            self._samples.put((self._clock(), samples))

    def close(self) -> None:
        """Write what waits, and close the file; gives up on a disk that does not take it."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        more = True  # the bounds may have changed since the file was written last
        while not self._closing.is_set() or self._queue.qsize():
            batch = self._batch(0 if more else _TIDY_EVERY_S)
            more = self._write(batch)
        if (self.dropped > self._told or self._samples.qsize()) and not self._broken:
            self._write([])
        self._store.close()

    def _batch(self, wait_s: float) -> list[Entry]:
        try:
            first = self._queue.get(timeout=wait_s)
        except Empty:
            return []
        if self._queue.qsize() < _BATCH:
            self._closing.wait(_FLUSH_S)
        batch = [first]
        while len(batch) < _BATCH:
            try:
                batch.append(self._queue.get_nowait())
            except Empty:
                break
        return [each for each in batch if each is not None]

    def _write(self, batch: list[Entry]) -> bool:
        """Write a batch and tidy a little; True if there is more to tidy."""
        if self._broken:
            self._lose(len(batch))
            return False
        dropped, more = self.dropped, False
        written = 0
        try:
            self._store.write(self._gently(batch), dropped - self._told)
            self._told, written = dropped, len(batch)
            self._write_samples()
            more = self._store.tidy(self._clock())
        except Exception as error:  # noqa: BLE001 - whatever a row has in it, the rows after it are kept
            self._failed(error, len(batch) - written)
        else:
            self._failing = False
        if written:
            self._on_written(written)
        return more

    def _write_samples(self) -> None:
        while self._samples.qsize():
            self._store.write_samples(*self._samples.get_nowait())

    def _gently(self, batch: list[Entry]) -> Iterator[Entry]:
        """A batch with pauses: whoever takes a breath holds up the event loop for less time, on a busy machine most."""
        for number, entry in enumerate(batch):
            if number % _BREATH_ROWS == _BREATH_ROWS - 1 and not self._closing.is_set():
                time.sleep(_BREATH_S)
            yield entry

    def _failed(self, error: Exception, rows: int) -> None:
        # A full disk or a lock may pass, and so does a row; a damaged file does not.
        self._broken = type(error) is sqlite3.DatabaseError
        if self._broken or not self._failing:
            # An error of SQLite's says nothing of what is in the row; another's message might.
            said = str(error) if isinstance(error, sqlite3.Error) else type(error).__name__
            log.warning("journal_failed", path=str(self._store.path), error=said, gave_up=self._broken)
        self._failing = True
        self._lose(rows)

    def _lose(self, rows: int) -> None:
        if rows:
            self._lost += rows
            self._on_dropped(rows)
