"""Columns for who counts a lot: the same rows as records, in the same order, without the rest."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from ramjet.core.record import Record
from ramjet.journal import read
from ramjet.journal.read import Reader
from ramjet.journal.schema import MIGRATIONS, clues_of, open_to_write
from tests.journal.support import AT, entry, rows, store, written
from tests.journal.test_store import full_record


def test_columns_are_those_of_the_records(tmp_path: Path) -> None:
    """
    In the order of arrival, whatever was written first; a page of them is a list.
    """
    path = written(tmp_path / "journal.db", [entry(number, None, turn=number) for number in (5, 1, 3, 2, 4)])

    with Reader(path) as reader:
        (page,) = reader.columns(("turn", "outcome"))
        assert page == [(AT + n, place, n, "ok") for n, place in ((1, 2), (2, 4), (3, 3), (4, 5), (5, 1))]
        assert [row[2] for row in next(reader.columns(("turn",), AT + 2, AT + 4))] == [2, 3]
        assert (reader.span(), reader.span(AT + 2, AT + 4), reader.span(AT + 9)) == (
            (AT + 1, AT + 5),
            (AT + 2, AT + 3),
            None,
        )


def test_pages_leave_nothing_out(tmp_path: Path) -> None:
    """
    Also where many arrived at one moment.
    """
    entries = [replace(entry(number, None), arrived_at=AT + number // 7) for number in range(100)]
    path = written(tmp_path / "journal.db", entries)
    before, read._PAGE_COLUMNS = read._PAGE_COLUMNS, 9
    try:
        with Reader(path) as reader:
            pages = list(reader.columns(("request_id",)))
    finally:
        read._PAGE_COLUMNS = before

    assert [len(page) for page in pages] == [9] * 11 + [1]
    assert [row[2] for page in pages for row in page] == [row.record.request_id for row in rows(path)]


def test_probes_and_other_conversations_can_be_left_out(tmp_path: Path) -> None:
    entries = [
        entry(number, None, turn=number, probe=number == 2, conversation="ab"[number % 2]) for number in range(1, 6)
    ]
    path = written(tmp_path / "journal.db", entries)

    with Reader(path) as reader:
        assert [row[2] for row in next(reader.columns(("turn",), probes=False))] == [1, 3, 4, 5]
        assert [row[2] for row in next(reader.columns(("turn",), conversation="b"))] == [1, 3, 5]
        assert list(reader.columns(("turn",), conversation="nobody")) == []
        assert (reader.probes(), reader.probes(AT + 3)) == (1, 0)


def test_clues_are_read_as_the_record_reads_them(tmp_path: Path) -> None:
    record: Record = full_record()
    path = written(tmp_path / "journal.db", [replace(entry(), record=record)])

    with Reader(path) as reader:
        ((*_, clues),) = next(reader.columns(("clues",)))
    assert clues_of(clues) == record.clues


def test_what_an_older_version_has_no_column_for_is_none(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    open_to_write(path, MIGRATIONS[:1]).close()
    with Reader(path) as reader:
        assert list(reader.columns(("turn", "best_matched_tokens"))) == []
    one = store(tmp_path / "new.db")
    one.write([entry(1, None, best_matched_tokens=7)])
    one.close()
    with Reader(tmp_path / "new.db") as reader:
        assert next(reader.columns(("best_matched_tokens",)))[0][2] == 7
