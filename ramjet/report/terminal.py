"""The report for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ramjet.report.figures import Finding, Report
from ramjet.report.tables import Grid, grids, notes, title

_STYLES = {"bad": "bold red", "warn": "yellow", "info": "cyan", "good": "green"}


def show(report: Report, console: Console) -> None:
    """Print tables, and at the end what they mean."""
    console.print(Text(title(report), "bold"))
    for note in notes(report):
        console.print(Text(note, "dim"))
    for grid in grids(report):
        console.print()
        console.print(Text(grid.title, "bold"))
        console.print(Text(grid.about, "dim"))
        console.print(_table(grid))
    console.print()
    console.print(Text("Findings", "bold"))
    for finding in report.findings:
        console.print(_words(finding))


def _table(grid: Grid) -> Table:
    table = Table(header_style="", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(grid.head):
        named = number == 0 or name in {"when", "pool", "cause", "replica", "most of them"}
        table.add_column(name, justify="left" if named else "right", no_wrap=True, overflow="fold")
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


def _words(finding: Finding) -> Padding:
    said = Text.assemble((f"{finding.severity}: ", _STYLES[finding.severity]), finding.text)
    if finding.remedy is not None:
        said.append(f"\n  {finding.remedy.text}", "italic")
    return Padding(said, (0, 0, 0, 2))
