"""The journal for other tools: names that stay, types that hold, and blocks that are shared where prompts are."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from pyarrow import parquet

from ramjet.cli import main
from ramjet.core.fingerprint import Chain, Fingerprint
from ramjet.core.record import Record
from ramjet.core.usage import Usage
from ramjet.journal import export
from ramjet.journal.read import Reader, Row
from ramjet.journal.schema import OF_COLD, VERSION
from tests.journal.support import AT, SALT, entry, written
from tests.journal.test_store import damaged_inside, full_record
from tests.test_docs import page, table

DAY = "2026-09-21"
"""That of `AT`."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three requests: one that says all, one without a prompt, one without a report; 100 s apart."""
    entries = [
        replace(entry(0, [1, 2]), record=replace(full_record(), conversation="c")),
        replace(entry(100, None), record=Record(request_id="r-100", endpoint="models", status=200)),
        entry(200, [1, 2, 3]),
    ]
    return written(tmp_path / "journal.db", entries)


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["journal", arguments[0], "--journal", str(path), *arguments[1:]])


def others(path: Path) -> list[str]:
    """What lies beside a journal and is not SQLite's."""
    return sorted(each.name for each in path.parent.iterdir() if not each.name.startswith(path.name))


def exported(path: Path, out: Path, *more: str) -> list[dict[str, Any]]:
    result = run(path, "export", str(out), *more)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_lines_have_what_the_log_has_and_the_rest(path: Path, tmp_path: Path) -> None:
    """
    Each line is the log line, the judgement and what else is kept; unknown is null.
    """
    lines = exported(path, tmp_path / "out.jsonl")

    assert [line["arrived_at"] for line in lines] == [f"{DAY}T14:{m}Z" for m in ("13:20.000", "15:00.000", "16:40.000")]
    assert [list(line) for line in lines] == [list(export.names())] * 3
    record = replace(full_record(), conversation="c")
    assert {name: lines[0][name] for name in record.log_fields()} == record.log_fields()
    own = {*Record.__struct_fields__} - {"usage"}
    assert own - set(lines[0]) == OF_COLD
    assert (lines[0]["size_class"], lines[0]["temperature"]) == (record.size_class, record.temperature)
    assert (lines[1]["cached_tokens"], lines[1]["rendered_bytes"]) == (None, None)


def test_names_are_documented() -> None:
    """
    Every name beside the log line's has its row in the page, or is said to follow from the rest.
    """
    text = page("docs/journal.md")
    log_line = set(Record(request_id="", endpoint="").log_fields())
    told = set(table(text, "Column")) | {"size_class", "temperature"}

    assert set(export.names()) - log_line == told
    assert "`cold`, `cold_cause`, `cold_evidence`, `size_class` and `temperature` are in exports" in text


@pytest.mark.parametrize(
    ("span", "found"),
    [
        (("--since", f"{DAY}T14:15"), ["r-100", "r-200"]),
        (("--until", f"{DAY}T16:15:00+02:00"), ["text"]),
        (("--since", f"{DAY}T14:14", "--until", f"{DAY}T14:16"), ["r-100"]),
        (("--since", "2026-09-22"), []),
    ],
)
def test_a_span_of_time(path: Path, tmp_path: Path, span: tuple[str, ...], found: list[str]) -> None:
    """
    UTC unless it says otherwise, `since` included and `until` not.
    """
    assert [line["request_id"] for line in exported(path, tmp_path / "out.jsonl", *span)] == found


def test_blocks_where_they_are_asked_for(path: Path, tmp_path: Path) -> None:
    lines = exported(path, tmp_path / "out.jsonl", "--blocks")

    shown = [[f"{SALT(each):016x}", 256 * each] for each in (1, 2, 3)]
    assert [line["blocks"] for line in lines] == [shown[:2], None, shown]


def test_standard_output_has_the_lines_and_nothing_else(path: Path) -> None:
    result = run(path, "export", "-")

    assert [json.loads(line)["status"] for line in result.stdout.splitlines()] == [12, 200, None]


def test_parquet_has_the_same(path: Path, tmp_path: Path) -> None:
    """
    The same names and values, typed; what is nested is JSON.
    """
    lines = exported(path, tmp_path / "out.jsonl")
    assert run(path, "export", str(tmp_path / "out.parquet"), "--format", "parquet").exit_code == 0

    found = parquet.read_table(tmp_path / "out.parquet")
    nested = ("costs", "cold_evidence")
    assert [{**row, **{name: json.loads(row[name] or "null") for name in nested}} for row in found.to_pylist()] == lines
    for name, kind in export.types().items():
        known = [line[name] for line in lines if line[name] is not None and name not in nested]
        assert all(isinstance(value, (kind, int) if kind is float else kind) for value in known), name


def test_without_pyarrow_it_is_told_what_to_do(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run(path, "export", str(tmp_path / "out.parquet"), "--format", "parquet")

    assert result.exit_code == 1
    assert "pip install 'ramjet-lb[parquet]'" in result.stderr
    assert others(path) == []


# -- Mooncake -----------------------------------------------------------------------------------------------------------


def traced(prompts: Sequence[tuple[Sequence[int], int | None]], bytes_per_token: float = 4.0) -> list[dict[str, Any]]:
    """Requests as a trace: blocks of 4,096 bytes by their hashes, and the tokens that the engine counted."""
    rows = []
    for number, (hashes, tokens) in enumerate(prompts):
        ends = array("Q", [4_096 * (each + 1) for each in range(len(hashes))])
        size = 4_096 * len(hashes)
        chain = Chain(array("Q", hashes), ends, 1, size)
        usage = Usage(prompt_tokens=tokens, completion_tokens=number)
        record = Record(request_id="", endpoint="chat", model="m", usage=usage, estimated_tokens=size // 4)
        rows.append(Row(number, AT + number / 2, record, size, Fingerprint(chain, chain)))
    out = io.BytesIO()
    export.mooncake(rows, out, {"m": bytes_per_token})
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_trace_as_mooncakes() -> None:
    """
    A block of 4,096 bytes is two of 512 tokens; what is the same before is the same in ids, and what follows is not.
    """
    first, second, third = traced([([1, 2], None), ([1, 2, 3], 3_100), ([9], 100)])

    ids = first["hash_ids"]
    assert first == {"timestamp": 0, "input_length": 2_048, "output_length": 0, "hash_ids": ids}
    assert len({*ids}) == 4
    assert (second["timestamp"], second["input_length"], second["output_length"]) == (500, 3_100, 1)
    # 3,100 tokens are seven blocks begun: the last belongs to none of ours.
    assert second["hash_ids"][:4] == ids
    assert len({*second["hash_ids"], *third["hash_ids"]}) == 8
    assert max(second["hash_ids"]) < 1 << 53


def test_what_is_shared_is_shared_whatever_was_counted() -> None:
    """
    An engine's count differs from turn to turn; a prefix is worth the same ids all the same.
    """
    shared = list(range(50))
    turns = traced([([*shared, 100 + tokens], tokens) for tokens in (50_000, 52_000, 55_000)], bytes_per_token=4.1)
    ids = [turn["hash_ids"] for turn in turns]

    common = [sum(a == b for a, b in zip(ids[0], each, strict=False)) for each in ids]
    assert common[1:] == [int(50 * 4_096 / 4.1) // 512] * 2
    assert [len(each) for each in ids] == [-(-turn["input_length"] // 512) for turn in turns]


def test_trace_of_a_journal(path: Path, tmp_path: Path) -> None:
    """
    Requests without blocks are no part of it.
    """
    lines = exported(path, tmp_path / "trace.jsonl", "--format", "mooncake")

    assert [line["timestamp"] for line in lines] == [0, 200_000]
    assert [list(line) for line in lines] == [["timestamp", "input_length", "output_length", "hash_ids"]] * 2


# -- the command --------------------------------------------------------------------------------------------------------


def test_info_says_what_is_there(path: Path) -> None:
    """
    For people, and as one object.
    """
    shown = json.loads(run(path, "info", "--json").stdout)

    assert shown | {"size_bytes": 0} == {
        "path": str(path), "version": VERSION, "rows": 3, "first_at": f"{DAY}T14:13:20.000Z",
        "last_at": f"{DAY}T14:16:40.000Z", "size_bytes": 0, "dropped": 0,
    }  # fmt: skip
    assert shown["size_bytes"] == path.stat().st_size
    assert f"first_at    {DAY}T14:13:20.000Z" in run(path, "info").stdout


def test_an_empty_journal_is_no_error(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.db", [])

    assert json.loads(run(path, "info", "--json").stdout)["first_at"] is None
    assert exported(path, tmp_path / "out.jsonl") == []


def test_json_is_one_object(path: Path, tmp_path: Path) -> None:
    result = run(path, "export", str(tmp_path / "out.jsonl"), "--json")

    size = (tmp_path / "out.jsonl").stat().st_size
    assert json.loads(result.stdout) == {
        "path": str(tmp_path / "out.jsonl"), "format": "jsonl", "rows": 3, "size_bytes": size,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("export", "OUT", "--since", "yesterday"), "write it as 2026-11-30"),
        (("export", "OUT", "--blocks", "--format", "mooncake"), "--blocks goes with --format jsonl"),
        (("export", "-", "--format", "parquet"), "want a file for OUT"),
        (("export", "nowhere/OUT"), "No such file or directory"),
        (("info", "--journal", "nothing.db"), "nothing.db: no journal there"),
    ],
)
def test_what_is_wrong_is_said(path: Path, arguments: tuple[str, ...], says: str) -> None:
    result = run(path, *arguments)

    assert result.exit_code
    assert says in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", [("info",), ("export", "-")])
def test_a_file_that_is_damaged_inside_is_said_so(tmp_path: Path, command: tuple[str, ...]) -> None:
    damaged_inside(tmp_path / "journal.db")
    result = run(tmp_path / "journal.db", *command)

    assert result.exit_code == 1
    assert f"{tmp_path / 'journal.db'}: database disk image is malformed" in result.stderr


def test_blocks_that_are_damaged_are_said_so(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("UPDATE requests SET blocks = substr(blocks, 1, 9)")
    db.commit()
    db.close()

    assert (
        "the blocks of row 1 cannot be read: ends in the middle of a hash"
        in run(path, "export", "-", "--blocks").stderr
    )


def test_a_broken_export_leaves_nothing(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    And what was there before stays.
    """
    (tmp_path / "out.jsonl").write_text("before")

    def rows(*_: object, **__: object) -> None:
        raise OSError("it broke")

    monkeypatch.setattr(export, "jsonl", rows)
    result = run(path, "export", str(tmp_path / "out.jsonl"))

    assert "it broke" in result.stderr
    assert others(path) == ["out.jsonl"]
    assert (tmp_path / "out.jsonl").read_text() == "before"


def test_reading_while_it_is_written_ends(path: Path) -> None:
    """
    Rows come page by page, and those that came in meanwhile are not among them.
    """
    with Reader(path) as reader:
        some = reader.rows()
        next(some)
        written(path, [entry(number) for number in range(300, 1_500)])
        assert sum(1 for _ in some) == 2
        assert reader.count() == 1_203


def test_help_has_examples() -> None:
    group = main.get_command(click.Context(main), "journal")
    assert isinstance(group, click.Group)
    for command in (group, *group.commands.values()):
        assert "Examples:" in (command.help or "")
