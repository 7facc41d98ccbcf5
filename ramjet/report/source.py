"""A report of the journal in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ramjet.journal.read import Reader
from ramjet.journal.schema import clues_of
from ramjet.report.gather import About, Gathered, Question, gather


def from_journal(
    path: Path, question: Question, *, on_rows: Callable[[int, int], object] = lambda _rows, _total: None
) -> Gathered:
    """Count all that is asked for.

    Args:
        path: the file.
        question: what of it.
        on_rows: told how many rows have been read, page by page, and how many there are.

    Raises:
        JournalError: it cannot be read.
        NothingThere: there is nothing to report on.
    """
    with Reader(path) as reader:
        info = reader.info()
        total = reader.count(question.since, question.until)
        about = About(path=info.path, version=info.version, dropped=info.dropped, clues=clues_of)
        return gather(reader, about, question, on_rows=lambda rows: on_rows(rows, total))
