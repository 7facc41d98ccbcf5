"""Journals and traces, and what is said of those that cannot be played."""

from __future__ import annotations

import gzip
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from ramjet.journal.read import Reader
from ramjet.journal.schema import JournalError
from ramjet.plan.replay import replay
from ramjet.plan.setup import Maker
from ramjet.plan.source import NoSpan, from_journal, from_trace
from tests.journal.support import AT, entry, written
from tests.recorded import AT as BEGAN

DATA = resources.files("ramjet.lab") / "data"


def lines(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def mooncake(count: int) -> list[dict[str, object]]:
    """Requests that share their first block, every two seconds."""
    return [
        {"timestamp": 2_000 * n, "input_length": 1_100, "output_length": 20, "hash_ids": [0, 2 * n + 1, 2 * n + 2]}
        for n in range(count)
    ]


def test_a_journal_is_cut_by_time_and_number(journal: Path) -> None:
    """
    What came in the half hour before is played and not counted; of a limit's, only the latest are there.
    """
    whole, late = from_journal(journal), from_journal(journal, since=BEGAN + 60)
    latest, early = from_journal(journal, limit=30), from_journal(journal, until=BEGAN + 120)

    assert len(late.requests) == len(whole.requests)
    assert [each.counts for each in late.requests] == [each.at_s >= 60 for each in whole.requests]
    assert [each.name for each in latest.requests] == [each.name for each in whole.requests[-30:]]
    assert [each.name for each in early.requests] == [each.name for each in whole.requests if each.at_s < 120]


def test_what_ramjet_knew_comes_from_the_journal(journal: Path) -> None:
    """
    The story's Ramjet was told of tokens alone.
    """
    assert from_journal(journal).known == {"glm-1": {"tokens": 62_464}}


def test_a_journal_that_cannot_be_played_says_why(tmp_path: Path) -> None:
    """
    No file, nothing in that time, no blocks, too few, no answers' lengths.
    """
    with pytest.raises(JournalError, match="no journal there"):
        from_journal(tmp_path / "none.db")
    served: dict[str, Any] = {"replica": "a", "ttft_s": 1.0, "duration_s": 2.0}
    few = written(tmp_path / "few.db", [entry(number, **served) for number in range(5)])
    with pytest.raises(NoSpan, match="no requests in this span of time"):
        from_journal(few, since=AT + 100_000)
    with pytest.raises(NoSpan, match="5 of 5 requests can be played and counted, and fewer than 20"):
        from_journal(few)
    blind = written(tmp_path / "blind.db", [entry(number, None, **served) for number in range(30)])
    with pytest.raises(NoSpan, match="none of 30 requests has the blocks"):
        from_journal(blind)
    silent = written(tmp_path / "silent.db", [entry(number, **served) for number in range(30)])
    with pytest.raises(NoSpan, match="no request has completion_tokens"):
        from_journal(silent)


def test_a_mooncake_trace_is_played_at_its_times(tmp_path: Path) -> None:
    """
    Nobody waits for anybody, and what prompts share is found.
    """
    span = from_trace(lines(tmp_path / "trace.jsonl", *mooncake(30)))

    found = replay(span, Maker(names=[]).make("one replica"))

    assert [each.at_s for each in span.requests] == [2.0 * number for number in range(30)]
    assert {each.after for each in span.requests} == {None}
    assert [each.cached_tokens for each in found.outcomes] == [0, *[512] * 29]


def test_a_journal_exported_as_a_trace_is_one(journal: Path, tmp_path: Path) -> None:
    """
    `ramjet journal export --format mooncake` writes what is read here.
    """
    from ramjet.journal import export  # noqa: PLC0415

    with Reader(journal) as reader, (tmp_path / "trace.jsonl").open("wb") as out:
        export.mooncake(reader.rows(), out, reader.bytes_per_token())

    span = from_trace(tmp_path / "trace.jsonl")

    whole = from_journal(journal)
    assert [each.prompt_tokens for each in span.requests] == [each.prompt_tokens for each in whole.requests]


def test_the_laboratorys_traces_are_read() -> None:
    """
    Recorded sessions, whose turns wait for the answers before them, and packed ones of Mooncake's.
    """
    with resources.as_file(DATA / "claude-code-agentic.jsonl.gz") as path:
        sessions = from_trace(path, limit=200)
    with resources.as_file(DATA / "mooncake-conversation.jsonl.gz") as path:
        chats = from_trace(path, limit=200)

    assert len(sessions.requests) == len(chats.requests) == 200
    assert sum(each.after is None for each in sessions.requests) < 20
    assert not sessions.observed
    for place, each in enumerate(sessions.requests):
        assert each.after is None or each.after < place
    assert {each.after for each in chats.requests} == {None}


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    """
    With the file's name.
    """
    for name, rows in (("other", [{"a": 1}]), ("list", [[1]]), ("short", mooncake(3))):
        path = lines(tmp_path / f"{name}.jsonl", *rows)
        with pytest.raises(NoSpan, match=f"{name}.jsonl"):
            from_trace(path)
    text = tmp_path / "text.jsonl"
    text.write_text("no JSON\n")
    with pytest.raises(NoSpan, match=r"text.jsonl: is no trace"):
        from_trace(text)
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"hash_ids": [1]}\n' * 30))
    with pytest.raises(NoSpan, match="is no trace that is known: 'input_length'"):
        from_trace(packed)
