"""The file as its one writer sees it: rows in, old ones out. Nothing here knows of threads or waits for anybody."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ramjet.core.fingerprint import Fingerprint
from ramjet.core.record import Record
from ramjet.core.sample import Sample
from ramjet.core.visit import Arrival
from ramjet.journal.blocks import EMPTY, pack, salter
from ramjet.journal.schema import COLUMNS, MIGRATIONS, SAMPLE, open_to_write, values_of

MOST_LINKS = 32
"""After so many prompts that build on one another one is written whole, so that none is far to be read from."""
_MOST_BLOCKS = 2_000_000
"""Blocks of last prompts that are remembered to build on, 16 bytes each."""
_OVERHEAD_BLOCKS = 32
"""What an entry takes beside its blocks, in blocks."""
_STEP_ROWS = 2_000
_STEP_PAGES = 4_000
_INSERT = f"INSERT INTO requests ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 - names of ours
_INSERT_SAMPLE = f"INSERT INTO replicas (at, {', '.join(SAMPLE)}) VALUES (?, {', '.join('?' * len(SAMPLE))})"  # noqa: S608 - the same
_DAY_S = 86_400.0


class Entry(Struct, frozen=True):
    """One finished request on its way into the journal."""

    arrived_at: float
    """Seconds since 1970, UTC."""
    record: Record
    arrival: Arrival | None
    """None for one that was refused before its prompt was read."""


class _Latest(Struct, frozen=True):
    """A conversation's last prompt in the file."""

    id: int
    links: int
    """Prompts that it builds on."""
    fingerprint: Fingerprint

    @property
    def blocks(self) -> int:
        return _OVERHEAD_BLOCKS + len(self.fingerprint.usable) + len(self.fingerprint.identity)


class Store:
    """A journal to write to.

    Args:
        path: the file; it is made where there is none.
        secret: the deployment's, with which hashes are salted.
        days: rows older than that go.
        megabytes: the oldest rows go while the file is larger than that.

    Raises:
        JournalError: the file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        secret: str,
        *,
        days: float,
        megabytes: float,
        migrations: Sequence[Sequence[str]] = MIGRATIONS,
    ) -> None:
        self.path = path
        self._salt = salter(secret)
        self._days_s = days * _DAY_S
        self._most_bytes = int(megabytes * (1 << 20))
        self._latest: OrderedDict[str, _Latest] = OrderedDict()
        self._blocks = 0
        self._first_id = 0
        """No older row is there any more."""
        self._db = open_to_write(path, migrations)

    @property
    def used_bytes(self) -> int:
        """The file's size without the room in it that is free."""
        pages, free, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        used: int = (pages - free) * size
        return used

    def write(self, entries: Iterable[Entry], dropped: int = 0) -> None:
        """Add rows and count what was dropped before them, all or nothing.

        Raises:
            sqlite3.Error: nothing was written.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            last = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'requests'").fetchone()
            self._db.executemany(_INSERT, self._rows(entries, 1 + (last[0] if last else 0)))
            if dropped:
                self._db.execute("UPDATE counts SET value = value + ? WHERE name = 'dropped'", (dropped,))
            self._db.execute("COMMIT")
        except BaseException:
            # Those that others would build on may not be there.
            self._latest.clear()
            self._blocks = 0
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def write_samples(self, at: float, samples: Iterable[Sample]) -> None:
        """Add what the replicas were at a moment, seconds since 1970, all or nothing.

        Raises:
            sqlite3.Error: nothing was written.
        """
        rows = [(at, *(getattr(each, name) for name in SAMPLE)) for each in samples]
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(_INSERT_SAMPLE, rows)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def tidy(self, now: float) -> bool:
        """Take one small step towards the bounds on age and size; True if there is more to do.

        Raises:
            sqlite3.Error: nothing was deleted.
        """
        oldest = self._db.execute("SELECT min(arrived_at) FROM requests").fetchone()[0]
        self._tidy_samples(now, oldest)
        if oldest is None:
            return False
        if oldest < now - self._days_s:
            old = "SELECT id FROM requests WHERE arrived_at < ? ORDER BY arrived_at LIMIT ?"
            given: tuple[Any, ...] = (now - self._days_s, _STEP_ROWS)
        elif self.used_bytes > self._most_bytes:
            old, given = "SELECT id FROM requests ORDER BY id LIMIT ?", (_STEP_ROWS,)
        else:
            return False
        self._db.execute(f"DELETE FROM requests WHERE id IN ({old})", given)  # noqa: S608 - one of the two above
        # As many pages as such a step can free, and more, so that the file shrinks after a smaller bound was set.
        # A script, for that runs a statement to its end: `execute` would free a single page.
        self._db.executescript(f"PRAGMA incremental_vacuum({_STEP_PAGES})")
        self._first_id = self._db.execute("SELECT coalesce(min(id), 0) FROM requests").fetchone()[0]
        return True

    def _tidy_samples(self, now: float, oldest: float | None) -> None:
        """Samples go with the requests of their time; they are few, so all that have to go at once."""
        size_bound = oldest if oldest is not None and self.used_bytes > self._most_bytes else 0.0
        before = max(now - self._days_s, size_bound)
        first = self._db.execute("SELECT min(at) FROM replicas").fetchone()[0]
        if first is not None and first < before:
            old = "DELETE FROM replicas WHERE id IN (SELECT id FROM replicas WHERE at < ? ORDER BY at LIMIT ?)"
            self._db.execute(old, (before, _STEP_ROWS))

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _rows(self, entries: Iterable[Entry], next_id: int) -> Iterator[tuple[Any, ...]]:
        for number, entry in enumerate(entries, next_id):
            yield (number, entry.arrived_at, *values_of(entry.record), *self._prompt(number, entry))

    def _prompt(self, number: int, entry: Entry) -> tuple[Any, ...]:
        """The row's hint, rendered bytes, base and blocks."""
        arrival, conversation = entry.arrival, entry.record.conversation
        if arrival is None or arrival.fingerprint is None or conversation is None:
            return None, None, None, None
        prompt, latest = arrival.fingerprint, self._latest.get(conversation)
        is_near = latest is not None and latest.links < MOST_LINKS and latest.id >= self._first_id
        base = latest if is_near else None
        usable, identity = (EMPTY, EMPTY) if base is None else (base.fingerprint.usable, base.fingerprint.identity)
        packed = pack(prompt.usable, usable, self._salt)
        if prompt.identity is not prompt.usable:
            packed += pack(prompt.identity, identity, self._salt)
        self._remember(conversation, _Latest(number, 0 if base is None else base.links + 1, prompt))
        hint = None if arrival.hint is None else f"{arrival.hint.kind}:{self._salt(arrival.hint.value):016x}"
        return hint, prompt.usable.size_bytes, None if base is None else base.id, packed

    def _remember(self, conversation: str, latest: _Latest) -> None:
        before = self._latest.pop(conversation, None)
        self._latest[conversation] = latest
        self._blocks += latest.blocks - (before.blocks if before is not None else 0)
        while self._blocks > _MOST_BLOCKS:
            _, oldest = self._latest.popitem(last=False)
            self._blocks -= oldest.blocks
