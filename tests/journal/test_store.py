"""The file: what goes in comes out, it stays within its bounds, and what is no journal is left alone."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from random import Random
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import replace

from ramjet.core.hints import Hint
from ramjet.core.record import Record
from ramjet.core.sample import Sample
from ramjet.core.usage import Usage
from ramjet.journal import store as stores
from ramjet.journal.read import Reader, Row
from ramjet.journal.schema import (
    COLUMNS,
    LEFT_OUT,
    MIGRATIONS,
    PROMPT,
    RECORD,
    SAMPLE,
    VERSION,
    JournalError,
    open_to_write,
)
from tests.journal.support import AT, entry, rows, salted, store, written


def made(kind: Any) -> Any:
    """A value of a field's type, and not the one it has where nothing is known."""
    plain: dict[Any, Any] = {bool: True, int: 12, float: 1.5, str: "text"}
    if kind in plain:
        return plain[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{field.name: made(hints[field.name]) for field in fields(kind)})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind)
        return kind(**{name: made(hints[name]) for name in kind.__struct_fields__})
    if hasattr(kind, "_fields"):
        return kind(**{name: made(each) for name, each in get_type_hints(kind).items()})
    origin, kinds = get_origin(kind), [each for each in get_args(kind) if each not in {type(None), Ellipsis}]
    if origin is Literal:
        return kinds[0]
    if origin in {Union, UnionType}:
        return made(kinds[0])
    if origin is tuple:
        return tuple(map(made, kinds))
    assert origin is Mapping, f"of what is a {kind}?"
    return {made(kinds[0]): made(kinds[1])}


def full_record() -> Record:
    """A record none of whose fields is as it is left out; of a conversation that goes on, and a cold turn of it."""
    record: Record = replace(made(Record), reusable_tokens=1_200)
    return record


def test_every_field_of_a_record_is_kept(tmp_path: Path) -> None:
    """
    All that a record says comes back as it was, known or not; what is left out is so on purpose.
    """
    full, empty = full_record(), Record(request_id="r", endpoint="chat")
    one = replace(entry(), record=full)
    path = written(tmp_path / "journal.db", [one, replace(entry(1, None), record=empty)])

    assert [row.record for row in rows(path)] == [full, empty]
    assert {*Record.__struct_fields__} == ({*RECORD} - {*Usage.__struct_fields__}) | {"usage"} | LEFT_OUT


def test_what_was_known_of_a_turn_that_was_not_cold_is_not_kept(tmp_path: Path) -> None:
    """
    Most turns are warm, and it says nothing of them.
    """
    warm = replace(full_record(), reusable_tokens=12)
    path = written(tmp_path / "journal.db", [replace(entry(), record=warm)])

    assert [row.record for row in rows(path)] == [replace(warm, clues=None)]


def test_columns_are_those_of_the_table(tmp_path: Path) -> None:
    """
    Every column is written, and every one of them has a reader: as the record's, or as the prompt's.
    """
    db = sqlite3.connect(written(tmp_path / "journal.db", []))
    there = [row[1] for row in db.execute("PRAGMA table_info(requests)")]
    db.close()

    assert sorted(there) == sorted(COLUMNS)
    assert {"id", "arrived_at", *RECORD, *PROMPT} == set(COLUMNS)
    # What a Row shows beside the record: its own columns, where `fingerprint` is what base and blocks say.
    shown = {field.name for field in fields(Row)} - {"record", "fingerprint"} | {"base", "blocks"}
    assert shown == set(COLUMNS) - set(RECORD)


def test_every_field_of_a_sample_is_kept(tmp_path: Path) -> None:
    """
    What a replica was comes back as it was, known or not, with its time; and every column is one of its fields.
    """
    full, empty = made(Sample), Sample(replica="b", state="down")
    one = store(tmp_path / "journal.db")
    one.write_samples(AT + 60, [full, empty])
    one.write_samples(AT, [empty])
    one.close()

    with Reader(tmp_path / "journal.db") as reader:
        assert list(reader.samples()) == [(AT, empty), (AT + 60, full), (AT + 60, empty)]
        assert list(reader.samples(AT + 1, AT + 60)) == []
        assert len(list(reader.samples(AT + 1, AT + 61))) == 2
    db = sqlite3.connect(tmp_path / "journal.db")
    assert [row[1] for row in db.execute("PRAGMA table_info(replicas)")] == ["id", "at", *SAMPLE]
    db.close()


def test_samples_are_read_a_page_at_a_time(tmp_path: Path) -> None:
    """
    Many at one moment too: none is read twice, and none is left out.
    """
    one = store(tmp_path / "journal.db")
    for number in range(4):
        one.write_samples(AT + number, [Sample(replica=f"{number}-{each}", state="up") for each in range(400)])
    one.close()

    with Reader(tmp_path / "journal.db") as reader:
        names = [each.replica for _, each in reader.samples()]
    assert names == [f"{number}-{each}" for number in range(4) for each in range(400)]


def test_a_conversation_comes_back_block_by_block(tmp_path: Path) -> None:
    """
    Grown, cut, grown again and over many turns; with what tells it apart where that is another chain.
    """
    random, prompts, prompt = Random(3), [], [1]
    for _ in range(3 * stores.MOST_LINKS):
        prompt = [*prompt[: random.randrange(len(prompt) // 2, len(prompt) + 1)], *random.choices(range(1 << 60), k=3)]
        prompts.append(prompt)
    entries = [entry(number, each, identity=[*each, 5] if number % 3 else None) for number, each in enumerate(prompts)]
    path = tmp_path / "journal.db"
    one = store(path)
    for start in range(0, len(entries), 10):
        one.write(entries[start : start + 10])
    one.close()

    found = rows(path)
    assert [row.fingerprint and list(row.fingerprint.usable.hashes) for row in found] == [salted(p) for p in prompts]
    told = [row.fingerprint.identity for row in found if row.fingerprint is not None]
    assert [list(each.hashes) for each in told] == [salted([*p, 5] if n % 3 else p) for n, p in enumerate(prompts)]
    assert {row.hint.kind for row in found if row.hint is not None} == {"x-session"}
    assert found[0].hint != Hint("x-session", 7)
    # Read from anywhere, it is the same.
    assert [row.fingerprint and len(row.fingerprint.usable) for row in rows(path, AT + 70)] == [
        len(each) for each in prompts[70:]
    ]


def test_no_prompt_is_far_to_be_read_from(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.db", [entry(number, range(number + 1)) for number in range(100)])
    db = sqlite3.connect(path)
    bases = dict(db.execute("SELECT id, base FROM requests").fetchall())
    db.close()

    def links(row: int) -> int:
        return 0 if bases[row] is None else 1 + links(bases[row])

    assert max(map(links, bases)) == stores.MOST_LINKS


def test_blocks_whose_base_is_gone_are_unknown(tmp_path: Path) -> None:
    """
    And not an error: all else of the row is there.
    """
    path = written(tmp_path / "journal.db", [entry(number, range(number + 1)) for number in range(40)])
    db = sqlite3.connect(path)
    db.execute("DELETE FROM requests WHERE id <= 3")
    db.commit()
    db.close()

    found = rows(path)
    assert [row.fingerprint is not None for row in found] == [False] * 30 + [True] * 7
    assert all(row.rendered_bytes for row in found)


def test_after_a_failed_batch_prompts_are_whole(tmp_path: Path) -> None:
    """
    Nothing of the batch is there, and nothing builds on it.
    """
    path = tmp_path / "journal.db"
    one = store(path)
    one.write([entry(0, [1])])
    with pytest.raises(sqlite3.IntegrityError):
        one.write([entry(1, [1, 2]), replace(entry(2), record=replace(entry(2).record, outcome=None))])
    one.write([entry(3, [1, 2, 3])])
    one.close()

    found = rows(path)
    assert [row.record.request_id for row in found] == ["r-0", "r-3"]
    assert found[1].fingerprint is not None
    assert list(found[1].fingerprint.usable.hashes) == salted([1, 2, 3])


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    """
    Two Ramjets of one deployment: each builds on its own prompts, and no row is lost or taken for another's.
    """
    path, prompts = tmp_path / "journal.db", [[*range(number + 1)] for number in range(8)]
    both = store(path), store(path)
    for number, prompt in enumerate(prompts):
        both[number % 2].write([entry(number, prompt)])
    for one in both:
        one.close()

    assert [row.fingerprint and [*row.fingerprint.usable.hashes] for row in rows(path)] == [*map(salted, prompts)]


def test_whatever_clients_choose_can_be_kept(tmp_path: Path) -> None:
    record = Record(request_id="r", endpoint="chat", model="gl\ud800m", prompt_bytes=10**30)
    path = written(tmp_path / "journal.db", [replace(entry(0, None), record=record)])

    assert [(row.record.model, row.record.prompt_bytes) for row in rows(path)] == [("gl?m", (1 << 63) - 1)]


# -- bounds -------------------------------------------------------------------------------------------------------------


def test_old_rows_go(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    one = store(path, days=1)
    one.write([entry(0), entry(1), entry(100)])

    assert one.tidy(AT + 86_402)
    assert not one.tidy(AT + 86_402)
    one.close()
    assert [row.record.request_id for row in rows(path)] == ["r-100"]


def test_old_samples_go_with_the_requests_of_their_time(tmp_path: Path) -> None:
    """
    By age; and where the file is too large, all from before its oldest request.
    """
    path = tmp_path / "journal.db"
    for megabytes, left in ((100, [100, 200]), (0.0, [200])):
        one = store(path, days=1, megabytes=megabytes)
        one.write([entry(150)])
        for number in (0, 100, 200):
            one.write_samples(AT + number, [Sample(replica="a", state="up")])
        one.tidy(AT + 86_400 + 50)
        one.close()
        with Reader(path) as reader:
            assert sorted({at - AT for at, _ in reader.samples()}) == left


def test_the_file_stays_within_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Ten times what it may hold goes in; on disk it never is much larger, and it is the newest that stay.
    """
    monkeypatch.setattr(stores, "_STEP_ROWS", 200)
    path, random = tmp_path / "journal.db", Random(1)
    one, sizes = store(path, megabytes=0.5), []
    for number in range(0, 20_000, 100):
        one.write(
            [entry(each, [random.getrandbits(60)], conversation=str(each)) for each in range(number, number + 100)]
        )
        while one.tidy(AT):
            pass
        sizes.append(path.stat().st_size)
    one.close()

    assert path.stat().st_size <= 1 << 19
    assert max(sizes) <= 1 << 20
    assert one.path == path
    ids = [int(row.record.request_id.removeprefix("r-")) for row in rows(path)]
    assert ids == list(range(ids[0], 20_000))
    assert len(ids) > 500


def test_a_smaller_bound_shrinks_what_is_there(tmp_path: Path) -> None:
    path, random = tmp_path / "journal.db", Random(1)
    written(path, [entry(each, [random.getrandbits(60)], conversation=str(each)) for each in range(9_000)])
    before = path.stat().st_size

    one = store(path, megabytes=0.5)
    steps = 0
    while one.tidy(AT):
        steps += 1
    one.close()
    assert steps > 1
    assert path.stat().st_size <= 1 << 19 < before


# -- files that are not as they should be ---------------------------------------------------------------------------------


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "deep" / "journal.db", [])

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def newer(path: Path) -> None:
    written(path, [entry()])
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()


def foreign(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE requests (id INTEGER)")
    db.commit()
    db.close()


def damaged(path: Path) -> None:
    written(path, [entry()])
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])


def damaged_inside(path: Path) -> None:
    written(path, [entry(number) for number in range(500)])
    raw = path.read_bytes()
    path.write_bytes(raw[:4096] + b"\xff" * (len(raw) - 4096))


def text(path: Path) -> None:
    path.write_text("notes of mine\n" * 1_000)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (newer, f"has version {VERSION + 1}, made by a newer Ramjet; this one knows up to {VERSION}"),
        (foreign, "is a database, but no journal of Ramjet's"),
        (damaged, "file is not a database"),
        (damaged_inside, "malformed"),
        (text, "file is not a database"),
    ],
)
def test_what_cannot_be_used_is_left_as_it_is(tmp_path: Path, make: Any, says: str) -> None:
    """
    Told by name and why, and not a byte of it is changed.
    """
    path = tmp_path / "journal.db"
    make(path)
    before = path.read_bytes()

    with pytest.raises(JournalError, match=says) as refused:
        store(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(JournalError, match="cannot be opened"):
        store(tmp_path / "file" / "journal.db")


@pytest.mark.parametrize("make", [newer, foreign, damaged, text, Path.touch, lambda path: None])
def test_readers_refuse_the_same(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "journal.db"
    make(path)

    with pytest.raises(JournalError, match=str(path)):
        Reader(path)


# -- versions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_file_of_every_version_is_brought_to_the_newest(tmp_path: Path, version: int) -> None:
    """
    What is in it stays, and it takes rows of today; a reader reads it before that too.
    """
    path = tmp_path / "journal.db"
    db = open_to_write(path, MIGRATIONS[:version])
    needed = [row[1] for row in db.execute("PRAGMA table_info(requests)") if row[3]]
    given = {"arrived_at": AT, "request_id": "old", "endpoint": "chat", "outcome": "ok", "costs": "{}"}
    values = [given.get(name, 0) for name in needed]
    db.execute(f"INSERT INTO requests ({', '.join(needed)}) VALUES ({', '.join('?' * len(needed))})", values)
    db.close()
    before = [row.record for row in rows(path)]
    with Reader(path) as reader:
        assert list(reader.samples()) == []

    written(path, [entry(1)])

    after = rows(path)
    assert [row.record.request_id for row in after] == ["old", "r-1"]
    assert [after[0].record] == before
    with Reader(path) as reader:
        assert reader.info().version == VERSION


def test_a_step_is_taken_once_and_all_or_none(tmp_path: Path) -> None:
    """
    A later version's step runs on a file of today; where it fails, the file is of today still.
    """
    path = written(tmp_path / "journal.db", [entry()])
    broken = (*MIGRATIONS, ("ALTER TABLE requests ADD COLUMN more TEXT", "NO SQL"))
    with pytest.raises(JournalError, match="syntax error"):
        store(path, migrations=broken)
    assert len(rows(path)) == 1

    later = (*MIGRATIONS, ("ALTER TABLE requests ADD COLUMN more TEXT",))
    for number in (1, 2):
        one = store(path, migrations=later)
        one.write([entry(number)])
        one.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(more), count(*) FROM requests").fetchone() == (0, 3)
    assert db.execute("PRAGMA user_version").fetchone() == (VERSION + 1,)
    db.close()
