"""Rows to write: requests of conversations, with prompts whose blocks are only numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ramjet.core.fingerprint import Chain, Fingerprint
from ramjet.core.hints import Hint
from ramjet.core.record import Record
from ramjet.core.visit import Arrival
from ramjet.journal.blocks import salter
from ramjet.journal.read import Reader, Row
from ramjet.journal.store import Entry, Store

SECRET = "a test's secret"
SALT = salter(SECRET)
AT = 1_790_000_000.0


def chain(hashes: Sequence[int], block_bytes: int = 256, **more: Any) -> Chain:
    """A prompt of such blocks, all of one length, and 10 bytes behind the last."""
    ends = [block_bytes * (number + 1) for number in range(len(hashes))]
    size = (ends[-1] if ends else 0) + 10
    return Chain(array("Q", hashes), array("Q", ends), **{"head": min(1, len(hashes)), "size_bytes": size, **more})


def entry(
    number: int = 0, hashes: Sequence[int] | None = (1, 2, 3), identity: Sequence[int] | None = None, **more: Any
) -> Entry:
    """A request that arrived `number` seconds after `AT`; `more` goes into its record."""
    record = Record(**{"request_id": f"r-{number}", "endpoint": "chat", "conversation": "c", **more})
    if hashes is None:
        return Entry(AT + number, record, None)
    usable = chain(hashes)
    prompt = Fingerprint(usable, usable if identity is None else chain(identity))
    hint = Hint("x-session", 7)
    return Entry(AT + number, record, Arrival(request_id="", endpoint="", body_bytes=1, fingerprint=prompt, hint=hint))


def store(path: Path, *, days: float = 36_500, megabytes: float = 1_000, **more: Any) -> Store:
    return Store(path, SECRET, days=days, megabytes=megabytes, **more)


def written(path: Path, entries: Iterable[Entry]) -> Path:
    """A journal with these rows, closed."""
    one = store(path)
    one.write(list(entries))
    one.close()
    return path


def rows(path: Path, *span: float | None, blocks: bool = True) -> list[Row]:
    with Reader(path) as reader:
        return list(reader.rows(*span, blocks=blocks))


def salted(hashes: Iterable[int]) -> list[int]:
    return [SALT(each) for each in hashes]
