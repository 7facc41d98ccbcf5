"""`ramjet report` on the command line: the one place of the report that knows where the journal is."""

from __future__ import annotations

import os
import sqlite3
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ramjet.journal.options import JOURNAL, SINCE, UNTIL, Moment, told
from ramjet.journal.schema import JournalError
from ramjet.report import page, source
from ramjet.report.figures import Report
from ramjet.report.gather import Gathered, NothingThere, Question
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
@click.option(
    "--replay",
    is_flag=True,
    help="Replay the traffic under what each remedy changes, and say what it would have done; takes minutes.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="With --replay: the configuration that held then.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report(*, path: Path, html: Path | None, as_json: bool, replay: bool, config: Path | None, **asked: Any) -> None:
    """Say what the traffic in the journal was like: cold turns and long waits by size, what made turns cold, what could
    have been reused and was, what was in the replicas' pools; and what that means, in words.

    \b
    Examples:
      ramjet report
      ramjet report --since 2026-11-29 --until 2026-11-30 --html yesterday.html
      ramjet report --split 2026-09-25T15:13 --exclude-probes
      ramjet report --conversation 4554686604bd
      ramjet report --replay --config ramjet.yaml
      ramjet report --json | jq .findings
    """
    question = Question(**asked)
    if config is not None and not replay:
        raise click.UsageError("--config says what held then, for --replay; give both")
    try:
        if html is not None:
            page.need_plots()
        found = _gather(path, question)
        if replay:
            found = replace(found, report=_replayed(found.report, path, question, config))
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


def _gather(path: Path, question: Question) -> Gathered:
    console = Console(stderr=True)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)
        return source.from_journal(
            path, question, on_rows=lambda rows, total: progress.update(bar, advance=rows, total=total)
        )


def _replayed(found: Report, path: Path, question: Question, config: Path | None) -> Report:
    """The same report, with what the remedies would have done."""
    from ramjet.plan.cli import LIMIT  # noqa: PLC0415 - a report without replays needs no simulator
    from ramjet.plan.progress import playing  # noqa: PLC0415
    from ramjet.plan.run import plan  # noqa: PLC0415
    from ramjet.plan.setup import Maker, SettingsError  # noqa: PLC0415
    from ramjet.plan.source import NoSpan, from_journal  # noqa: PLC0415
    from ramjet.plan.speed import fit  # noqa: PLC0415
    from ramjet.report import replayed  # noqa: PLC0415

    if not replayed.changes_of(found.findings, 1):
        return found
    faults: dict[str, str] = {}
    try:
        span = from_journal(path, since=question.since, until=question.until, limit=LIMIT)
        maker = Maker(names=span.replicas, known=span.known, config=config, speed=fit(span))
        tried = replayed.changes_of(found.findings, len(maker.make("").replicas))
        for name, changes in list(tried.items()):
            try:
                maker.make(name, changes)
            except SettingsError as error:
                faults[name] = str(error)
                del tried[name]
        if not tried:
            return replace(found, findings=replayed.not_replayed(found.findings, faults))
        with playing() as on_play:
            processes, configured = os.cpu_count() or 1, config is not None
            came = plan(span, maker, tried, processes=processes, configured=configured, on_play=on_play)
    except (NoSpan, SettingsError) as error:
        reasons = dict.fromkeys(replayed.changes_of(found.findings, 1), str(error))
        return replace(found, findings=replayed.not_replayed(found.findings, reasons))
    found = replace(found, findings=replayed.with_replays(found.findings, span, came, configured=configured))
    return replace(found, findings=replayed.not_replayed(found.findings, faults))
