"""The journal's file: its tables, how an older one becomes a newer one, and from a record to a row and back.

A new field of `Record` wants a step in `MIGRATIONS` that makes its column, and a place in `NESTED` where it is no number,
text or flag; one of `Sample` wants its column. Tests see to it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from ramjet.core.causes import Clues
from ramjet.core.record import Record
from ramjet.core.sample import Sample
from ramjet.core.usage import Usage

APPLICATION_ID = 0x524A4D54
"""Tells a journal from any other SQLite file."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE requests (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            arrived_at REAL NOT NULL,
            request_id TEXT NOT NULL,
            conversation TEXT, turn INTEGER,
            endpoint TEXT NOT NULL, model TEXT, stream INTEGER NOT NULL,
            replica TEXT, reason TEXT, costs TEXT NOT NULL,
            prompt_bytes INTEGER NOT NULL, estimated_tokens INTEGER NOT NULL,
            matched_tokens INTEGER, reusable_tokens INTEGER,
            prompt_tokens INTEGER, cached_tokens INTEGER, completion_tokens INTEGER,
            slices INTEGER NOT NULL, moved INTEGER NOT NULL, confined_tokens INTEGER NOT NULL,
            clues TEXT,
            held_s REAL NOT NULL, would_hold INTEGER NOT NULL, ttft_s REAL, duration_s REAL NOT NULL,
            attempts INTEGER NOT NULL, outcome TEXT NOT NULL, status INTEGER, probe INTEGER NOT NULL,
            hint TEXT, rendered_bytes INTEGER, base INTEGER, blocks BLOB
        )
        """,
        "CREATE INDEX requests_arrived_at ON requests (arrived_at)",
        "CREATE TABLE counts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO counts VALUES ('dropped', 0)",
    ),
    (
        "ALTER TABLE requests ADD COLUMN best_matched_tokens INTEGER",
        """
        CREATE TABLE replicas (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            at REAL NOT NULL,
            replica TEXT NOT NULL, state TEXT NOT NULL,
            pool_tokens INTEGER, usable_tokens INTEGER, pool_slots INTEGER, per_path INTEGER,
            private_slots INTEGER NOT NULL, chunk_tokens INTEGER, grid_tokens INTEGER NOT NULL, host INTEGER,
            resident_tokens INTEGER NOT NULL, resident_slots INTEGER,
            living INTEGER NOT NULL, in_flight INTEGER NOT NULL, held INTEGER NOT NULL,
            queue_s REAL NOT NULL, pace REAL NOT NULL
        )
        """,
        "CREATE INDEX replicas_at ON replicas (at)",
    ),
)
"""What makes each version from the one before; released ones never change."""
VERSION = len(MIGRATIONS)

USAGE = Usage.__struct_fields__
NESTED = ("costs", "clues")
"""Fields of a record that are kept as JSON, whatever they are made of."""
OF_COLD = frozenset({"clues"})
"""Those that are kept of cold turns alone: of the others they say nothing, and most turns are warm."""
LEFT_OUT: frozenset[str] = frozenset()
"""Fields of a record that are not kept."""
RECORD = tuple(
    name
    for field in Record.__struct_fields__
    if field not in LEFT_OUT
    for name in (USAGE if field == "usage" else (field,))
)
"""The columns that a record fills."""
PROMPT = ("hint", "rendered_bytes", "base", "blocks")
"""The columns that its prompt fills."""
COLUMNS = ("id", "arrived_at", *RECORD, *PROMPT)
"""The columns of a request."""
SAMPLE = tuple(field.name for field in fields(Sample))
"""The columns of a replica at a moment, `at`."""

_MOST_NUMBER = (1 << 63) - 1
_KINDS = get_type_hints(Record)
_FLAGS = frozenset(name for name, kind in _KINDS.items() if kind is bool)
# All values of a record by one call; and where among them are which that need more than that.
_ALL_OF = attrgetter(*(f"usage.{name}" if name in USAGE else name for name in RECORD))
_TEXTS_AT = [at for at, name in enumerate(RECORD) if _KINDS.get(name) in {str, str | None}]
_NUMBERS_AT = [at for at, name in enumerate(RECORD) if _KINDS.get(name) in {int, int | None}]
_NESTED_AT = [(RECORD.index(name), name in OF_COLD) for name in NESTED]
_DECODERS = {name: msgspec.json.Decoder(_KINDS[name]) for name in NESTED}


class JournalError(Exception):
    """A file cannot be used as a journal; the message names it and says why."""


def values_of(record: Record) -> tuple[Any, ...]:
    """What a record puts into `RECORD`, in that order."""
    values: list[Any] = list(_ALL_OF(record))
    # What clients choose may be a number or a text that no database takes; the row is kept all the same.
    for at in _TEXTS_AT:
        text = values[at]
        if text is not None and not text.isascii():
            values[at] = text.encode(errors="replace").decode()
    for at in _NUMBERS_AT:
        number = values[at]
        if number is not None and number > _MOST_NUMBER:
            values[at] = _MOST_NUMBER
    is_cold = record.cold
    for at, of_cold in _NESTED_AT:
        values[at] = _text(values[at]) if is_cold or not of_cold else None
    return tuple(values)


def record_of(names: Sequence[str], values: Sequence[Any]) -> Record:
    """The record of a row; what the file's version has no column for is as a record leaves it out."""
    given = dict(zip(names, values, strict=True))
    usage = Usage(**{name: given.pop(name) for name in USAGE if name in given})
    for name, decoder in _DECODERS.items():
        if given.get(name) is not None:
            given[name] = decoder.decode(given[name])
    for name in _FLAGS:
        if name in given:
            given[name] = bool(given[name])
    return Record(usage=usage, **given)


def clues_of(text: str) -> Clues | None:
    """What was known of a cold turn, from its column."""
    clues: Clues | None = _DECODERS["clues"].decode(text)
    return clues


def sample_of(names: Sequence[str], values: Sequence[Any]) -> Sample:
    """The sample of a row."""
    given = dict(zip(names, values, strict=True))
    if given.get("host") is not None:
        given["host"] = bool(given["host"])
    return Sample(**given)


def _text(value: Any) -> str | None:
    if isinstance(value, Mapping):  # costs, of which a tenth of a millisecond is enough
        value = {name: round(each, 4) if isinstance(each, float) else each for name, each in value.items()}
    return None if value is None else msgspec.json.encode(value).decode()


def open_to_write(path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> sqlite3.Connection:
    """A journal to write to, made or brought to the newest version where it has to be.

    The connection commits each statement by itself outside a transaction, and may be handed to another thread.

    Raises:
        JournalError: the file cannot be written, is no journal, is damaged, or was made by a newer Ramjet; it is as it
            was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)  # it says who works on what and when: nobody else's business
        db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise JournalError(f"{path}: cannot be opened: {error}") from error
    try:
        version = check(db, path, len(migrations))
        if version is not None:
            _look(db)  # before anything is changed
        else:
            # Before there is a table, or it would need a full copy: room that was freed goes back step by step.
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        # What was committed outlives the process; losing power may cost the last moments, and never the file.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA journal_size_limit = {16 << 20}")
        if version != len(migrations):
            _migrate(db, migrations)
    except sqlite3.Error as error:
        db.close()
        raise JournalError(f"{path}: cannot be used as a journal: {error}") from error
    except JournalError:
        db.close()
        raise
    return db


def open_to_read(path: Path) -> sqlite3.Connection:
    """A journal to read, also while it is written.

    Raises:
        JournalError: there is none, it is damaged, or it was made by a newer Ramjet.
    """
    if not path.exists() or not path.stat().st_size:
        raise JournalError(f"{path}: no journal there; name another with --journal")
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=5.0, isolation_level=None, uri=True)
    except sqlite3.Error as error:
        raise JournalError(f"{path}: cannot be opened: {error}") from error
    try:
        version = check(db, path, VERSION)
    except sqlite3.Error as error:
        db.close()
        raise JournalError(f"{path}: cannot be read as a journal: {error}") from error
    except JournalError:
        db.close()
        raise
    if version is None:
        db.close()
        raise JournalError(f"{path}: has no journal in it yet")
    return db


def check(db: sqlite3.Connection, path: Path, newest: int) -> int | None:
    """The file's version; None for a file with nothing in it. Changes nothing.

    Raises:
        JournalError: it is something else, or newer.
        sqlite3.Error: it is damaged, or no database.
    """
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return None
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise JournalError(f"{path}: is a database, but no journal of Ramjet's")
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if version > newest:
        raise JournalError(
            f"{path}: has version {version}, made by a newer Ramjet; this one knows up to {newest}: "
            "update Ramjet, or choose another path"
        )
    return version


def _look(db: sqlite3.Connection) -> None:
    """Read the newest row and the oldest; the rest of a large file would take too long to check.

    Raises:
        sqlite3.Error: they cannot be read.
    """
    for order in ("id DESC", "arrived_at"):
        db.execute(f"SELECT * FROM requests ORDER BY {order} LIMIT 1").fetchall()  # noqa: S608 - names of ours


def _migrate(db: sqlite3.Connection, migrations: Sequence[Sequence[str]]) -> None:
    """All steps that the file has not seen, in one transaction: a crash leaves the old version or the new one."""
    db.execute("BEGIN IMMEDIATE")
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]  # another process may have been quicker
        for step in migrations[version:]:
            for statement in step:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(migrations)}")
    except sqlite3.Error:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
