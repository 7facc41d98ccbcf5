"""`ramjet journal`: what is in the journal, and the journal for other tools."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ramjet.journal import export
from ramjet.journal.options import JOURNAL, SINCE, UNTIL, told
from ramjet.journal.read import Info, Reader, Row
from ramjet.journal.schema import JournalError

Format = Literal["jsonl", "parquet", "mooncake"]


@click.group(short_help="What is in the journal; the journal for other tools.")
def journal() -> None:
    """Look at the journal that `ramjet serve` keeps, or write it out for other tools.

    \b
    Examples:
      ramjet journal info
      ramjet journal export yesterday.jsonl --since 2026-11-29 --until 2026-11-30
    """


@journal.command()
@JOURNAL
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(path: Path, *, as_json: bool) -> None:
    """Say what is in the journal.

    \b
    Examples:
      ramjet journal info
      ramjet journal info --journal /var/lib/ramjet/journal.db --json
    """
    try:
        with Reader(path) as reader:
            known = reader.info()
    except (JournalError, sqlite3.Error) as error:
        raise told(path, error) from None
    if as_json:
        click.echo(json.dumps(_shown(known)))
        return
    width = max(map(len, asdict(known)))
    for name, value in _shown(known).items():
        text = "-" if value is None else f"{value:,}" if isinstance(value, int) else value
        click.echo(f"{name:{width}}  {text}")


@journal.command(name="export")
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@JOURNAL
@SINCE
@UNTIL
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "parquet", "mooncake"]),
    default="jsonl",
    show_default=True,
    help="JSON lines, Parquet (with pyarrow), or a trace as Mooncake's.",
)
@click.option("--blocks", is_flag=True, help="JSON lines: each prompt's blocks too, which makes them long.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object that says what was written.")
def export_command(
    out: Path,
    path: Path,
    since: float | None,
    until: float | None,
    kind: Format,
    *,
    blocks: bool,
    as_json: bool,
) -> None:
    """Write requests to OUT, in the order of their arrival; - is standard output.

    \b
    Examples:
      ramjet journal export requests.jsonl
      ramjet journal export yesterday.parquet --format parquet --since 2026-11-29 --until 2026-11-30
      ramjet journal export trace.jsonl --format mooncake
      ramjet journal export - --since 2026-11-30T18:45 | grep cold_cause
    """
    to_stdout = str(out) == "-"
    if blocks and kind != "jsonl":
        raise click.UsageError("--blocks goes with --format jsonl")
    if to_stdout and (as_json or kind == "parquet"):
        raise click.UsageError("--json and --format parquet want a file for OUT, not -")
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with Reader(path) as reader:
            rows = _Counted(reader.rows(since, until, blocks=blocks or kind == "mooncake"), reader.count(since, until))
            if to_stdout:
                _write(rows, reader, kind, None, blocks=blocks)
            else:
                # Beside it and renamed, so that a broken export is none.
                _write(rows, reader, kind, draft, blocks=blocks)
                draft.replace(out)
    except (OSError, export.NoParquet, JournalError, sqlite3.Error) as error:
        raise told(path, error) from None
    finally:
        if not to_stdout:
            draft.unlink(missing_ok=True)
    if as_json:
        click.echo(json.dumps({"path": str(out), "format": kind, "rows": rows.count, "size_bytes": out.stat().st_size}))
    elif not to_stdout:
        click.echo(f"{rows.count:,} requests written to {out}, {out.stat().st_size:,} bytes", err=True)


def _write(rows: Iterable[Row], reader: Reader, kind: Format, path: Path | None, *, blocks: bool) -> None:
    if kind == "parquet":
        assert path is not None
        export.parquet(rows, path)
        return
    with click.open_file("-", "wb") if path is None else path.open("wb") as out:
        if kind == "mooncake":
            export.mooncake(rows, out, reader.bytes_per_token())
        else:
            export.jsonl(rows, out, blocks=blocks)


class _Counted(Iterable[Row]):
    """Rows on their way, with a bar for who watches."""

    def __init__(self, rows: Iterable[Row], total: int) -> None:
        self._rows = rows
        self._total = total
        self.count = 0

    def __iter__(self) -> Iterator[Row]:
        console = Console(stderr=True)
        columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("", total=self._total)
            for row in self._rows:
                yield row
                self.count += 1
                if not self.count % 500:
                    progress.update(bar, completed=self.count)


def _shown(known: Info) -> dict[str, Any]:
    times = {
        name: None if at is None else export.stamp(at)
        for name, at in (("first_at", known.first_at), ("last_at", known.last_at))
    }
    return asdict(known) | times
