"""The journal's readers all go through here: rows in the order of their arrival, a page at a time, in little memory.

Each page is a transaction of its own, so that a slow reader never keeps the writer's log from being folded in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ramjet.core.fingerprint import Chain, Fingerprint
from ramjet.core.hints import Hint
from ramjet.core.record import Record
from ramjet.core.sample import Sample
from ramjet.core.visit import Arrival
from ramjet.journal.blocks import EMPTY, unpack
from ramjet.journal.schema import RECORD, SAMPLE, JournalError, open_to_read, record_of, sample_of

_PAGE_ROWS = 500
_MOST_BLOCKS = 2_000_000
"""Blocks of prompts that are remembered because others build on them, 16 bytes each."""
_OVERHEAD_BLOCKS = 32
"""What a prompt takes beside its blocks, in blocks."""
_SPAN = "arrived_at >= ? AND arrived_at < ?"


@dataclass(frozen=True, slots=True)
class Row:
    """One finished request."""

    id: int
    arrived_at: float
    """Seconds since 1970, UTC."""
    record: Record
    rendered_bytes: int | None
    """The prompt's length as it was hashed; None where no prompt could be read."""
    fingerprint: Fingerprint | None = None
    """The prompt's blocks, their hashes salted; None where no prompt could be read, blocks were not asked for, or a
    prompt that it builds on is no longer there."""
    hint: Hint | None = None
    """What the client said of whose it is, salted."""

    @property
    def arrival(self) -> Arrival:
        """The request as a router would have it again; where its prompt may be cut is not kept."""
        record = self.record
        return Arrival(
            request_id=record.request_id,
            endpoint=record.endpoint,
            body_bytes=record.prompt_bytes,
            stream=record.stream,
            model=record.model,
            fingerprint=self.fingerprint,
            hint=self.hint,
            probe=record.probe,
        )


@dataclass(frozen=True, slots=True)
class Info:
    """A journal at a glance."""

    path: str
    version: int
    rows: int
    first_at: float | None
    """Seconds since 1970, UTC; None without rows."""
    last_at: float | None
    size_bytes: int
    """On disk, what is not folded in yet included."""
    dropped: int
    """Requests that could not be written, ever."""


class Reader:
    """A journal to read, also while it is written; use it as a context manager.

    Raises:
        JournalError: there is none, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = open_to_read(path)
        have = {row[1] for row in self._db.execute("PRAGMA table_info(requests)")}
        # A file of an older version has fewer columns, and records leave out what those would have said.
        self._names = [name for name in RECORD if name in have]
        self._has_samples = bool(self._db.execute("PRAGMA table_info(replicas)").fetchall())
        self._prompts: dict[int, Fingerprint] = {}
        self._blocks = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._db.close()

    def info(self) -> Info:
        """What is in it."""
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        rows, first, last = self._db.execute(
            "SELECT count(*), min(arrived_at), max(arrived_at) FROM requests"
        ).fetchone()
        dropped = self._db.execute("SELECT value FROM counts WHERE name = 'dropped'").fetchone()
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        size = sum(each.stat().st_size for each in files if each.exists())
        return Info(str(self.path), version, rows, first, last, size, dropped[0] if dropped else 0)

    def count(self, since: float | None = None, until: float | None = None) -> int:
        """How many requests arrived in a span of time, seconds since 1970, `until` not included."""
        count: int = self._db.execute(
            f"SELECT count(*) FROM requests WHERE {_SPAN}",  # noqa: S608 - a constant
            _span(since, until),
        ).fetchone()[0]
        return count

    def bytes_per_token(self) -> dict[str | None, float]:
        """By model, over everything that is there: bytes of rendered prompts for each token that engines counted."""
        sums = (
            "SELECT model, sum(rendered_bytes) * 1.0 / sum(prompt_tokens) FROM requests"
            " WHERE rendered_bytes > 0 AND prompt_tokens > 0 GROUP BY model"
        )
        return dict(self._db.execute(sums).fetchall())

    def rows(self, since: float | None = None, until: float | None = None, *, blocks: bool = True) -> Iterator[Row]:
        """Requests that arrived in a span of time, seconds since 1970, `until` not included.

        What is written after the first was read is not among them.

        Args:
            since: None for the first there is.
            until: None for the last there is.
            blocks: whether to read the prompts' blocks too.
        """
        columns = ", ".join(("id", "arrived_at", "rendered_bytes", "hint", "base", "blocks", *self._names))
        page = (
            f"SELECT {columns} FROM requests WHERE (arrived_at, id) > (?, ?) AND arrived_at < ?"  # noqa: S608 - ours
            " AND id <= ? ORDER BY arrived_at, id LIMIT ?"
        )
        start, end = _span(since, until)
        last = self._db.execute("SELECT max(id) FROM requests").fetchone()[0]
        at: tuple[float, int] = start, -1
        while found := self._db.execute(page, (*at, end, last, _PAGE_ROWS)).fetchall():
            for number, arrived_at, rendered_bytes, hint, base, packed, *values in found:
                yield Row(
                    number,
                    arrived_at,
                    record_of(self._names, values),
                    rendered_bytes,
                    self._fingerprint(number, base, packed) if blocks else None,
                    _hint(hint),
                )
            at = found[-1][1], found[-1][0]

    def samples(self, since: float | None = None, until: float | None = None) -> Iterator[tuple[float, Sample]]:
        """What the replicas were, about once a minute, and when: seconds since 1970, `until` not included.

        A file of version 1 has none.
        """
        columns = ", ".join(SAMPLE)
        page = f"SELECT id, at, {columns} FROM replicas WHERE (at, id) > (?, ?) AND at < ? ORDER BY at, id LIMIT ?"  # noqa: S608 - ours
        at, end = _span(since, until)
        number = -1
        while self._has_samples and (found := self._db.execute(page, (at, number, end, _PAGE_ROWS)).fetchall()):
            for number, at, *values in found:  # noqa: B007 - the last of a page is where the next begins
                yield at, sample_of(SAMPLE, values)

    def _fingerprint(self, number: int, base: int | None, packed: bytes | None) -> Fingerprint | None:
        """A row's prompt, after those that it builds on; the way back to one that is whole is short."""
        if packed is None:
            return None
        path, known = [packed], None
        # Nothing else builds on what this one builds on, so that need not be remembered any longer.
        while base is not None and (known := self._forget(base)) is None:
            row = self._db.execute("SELECT base, blocks FROM requests WHERE id = ?", (base,)).fetchone()
            if row is None:
                return None
            base = row[0]
            path.append(row[1])
        try:
            for part in reversed(path):
                known = _unpacked(part, known)
        except ValueError as error:
            raise JournalError(f"{self.path}: the blocks of row {number} cannot be read: {error}") from error
        assert known is not None
        self._forget(number)
        self._prompts[number] = known
        self._blocks += _size(known)
        while self._blocks > _MOST_BLOCKS:
            self._forget(next(iter(self._prompts)))
        return known

    def _forget(self, number: int) -> Fingerprint | None:
        known = self._prompts.pop(number, None)
        self._blocks -= 0 if known is None else _size(known)
        return known


def _unpacked(packed: bytes, base: Fingerprint | None) -> Fingerprint:
    usable, rest = unpack(packed, base.usable if base is not None else EMPTY)
    if not rest:
        return Fingerprint(usable, usable)
    identity, _ = unpack(rest, base.identity if base is not None else EMPTY)
    return Fingerprint(usable, identity)


def _size(known: Fingerprint) -> int:
    both: tuple[Chain, ...] = (known.usable,) if known.usable is known.identity else (known.usable, known.identity)
    return _OVERHEAD_BLOCKS + sum(map(len, both))


def _hint(text: str | None) -> Hint | None:
    if text is None:
        return None
    kind, _, value = text.rpartition(":")
    return Hint(kind, int(value, 16))


def _span(since: float | None, until: float | None) -> tuple[float, float]:
    return -math.inf if since is None else since, math.inf if until is None else until
