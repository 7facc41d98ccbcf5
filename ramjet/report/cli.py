"""`ramjet report` on the command line: the one place of the report that knows where the journal is."""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ramjet.journal.options import JOURNAL, SINCE, UNTIL, Moment, told
from ramjet.journal.read import Reader
from ramjet.journal.schema import JournalError, clues_of
from ramjet.report import page
from ramjet.report.gather import About, Gathered, NothingThere, Question, gather
from ramjet.report.terminal import show

_WIDTH = 120
"""Columns where no terminal says how many it has."""


@click.command(short_help="What the journal says of the traffic: tables, pictures, findings in words.")
@JOURNAL
@SINCE
@UNTIL
@click.option("--split", "split_at", type=Moment(), help="Compare what arrived before with what arrived from then on.")
@click.option("--exclude-probes", is_flag=True, help="Leave out requests that were marked with x-ramjet-probe.")
@click.option("--conversation", metavar="ID", help="Show this one.  [the one that waited longest for cold turns]")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with pictures, in one file."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report(*, path: Path, html: Path | None, as_json: bool, **asked: Any) -> None:
    """Say what the traffic in the journal was like: cold turns and long waits by size, what made turns cold, what could
    have been reused and was, what was in the replicas' pools; and what that means, in words.

    \b
    Examples:
      ramjet report
      ramjet report --since 2026-11-29 --until 2026-11-30 --html yesterday.html
      ramjet report --split 2026-09-25T15:13 --exclude-probes
      ramjet report --conversation 4554686604bd
      ramjet report --json | jq .findings
    """
    question = Question(**asked)
    try:
        if html is not None:
            page.need_plots()
        with Reader(path) as reader:
            found = _gather(reader, question)
        if html is not None:
            html.write_text(page.page(found), encoding="utf-8")
    except (OSError, page.NoPlots, NothingThere, JournalError, sqlite3.Error) as error:
        raise told(path, error) from None
    if html is not None:
        click.echo(f"written to {html}, {html.stat().st_size:,} bytes", err=True)
    if as_json:
        click.echo(msgspec.json.encode(asdict(found.report)))
    else:
        show(found.report, Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False))


def _gather(reader: Reader, question: Question) -> Gathered:
    info = reader.info()
    about = About(path=info.path, version=info.version, dropped=info.dropped, clues=clues_of)
    console = Console(stderr=True)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=reader.count(question.since, question.until))
        return gather(reader, about, question, on_rows=lambda rows: progress.advance(bar, rows))
