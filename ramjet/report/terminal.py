"""The report for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ramjet.report.figures import Finding, Report, Timeline
from ramjet.report.tables import Grid, grids, notes, seconds, title, whole

_STYLES = {"bad": "bold red", "warn": "yellow", "info": "cyan", "good": "green"}
_HEAD_COLUMNS = 8
"""A head that is longer, and longer than what is under it, is broken between words."""
_BARS = "▁▂▃▄▅▆▇█"
_COLD = "x"
_CHART_COLUMNS = 60
_NAMED = frozenset(("when", "pool", "cause", "replica", "most of them"))
"""Columns of names, beside the first."""


def show(report: Report, console: Console) -> None:
    """Print tables, and at the end what they mean."""
    console.print(Text(title(report), "bold"))
    for note in notes(report):
        console.print(Text(note, "dim"))
    for grid in grids(report):
        console.print()
        console.print(Text(grid.title, "bold"))
        console.print(Text(grid.about, "dim"))
        for line in lines(grid):
            # A terminal that is too narrow breaks a line; rich would leave out what does not fit, digits too.
            console.print(Text(line), soft_wrap=True)
    if report.timeline is not None:
        for line in chart(report.timeline):
            console.print(Text(line), soft_wrap=True)
    console.print()
    console.print(Text("Findings", "bold"))
    for finding in report.findings:
        console.print(_words(finding))


def lines(grid: Grid) -> Iterator[str]:
    """A table line by line: names to the left, figures to the right."""
    columns = [[row[number] for row in grid.rows] for number in range(len(grid.head))]
    heads = [
        textwrap.wrap(name, max(_HEAD_COLUMNS, *map(len, column)), break_long_words=False) or [""]
        for name, column in zip(grid.head, columns, strict=True)
    ]
    tall = max(map(len, heads))
    heads = [[""] * (tall - len(head)) + head for head in heads]
    widths = [max(map(len, head + column)) for head, column in zip(heads, columns, strict=True)]
    for row in [*zip(*heads, strict=True), *grid.rows]:
        cells = [
            text.ljust(width) if not number or name in _NAMED else text.rjust(width)
            for number, (name, text, width) in enumerate(zip(grid.head, row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def chart(line: Timeline) -> Iterator[str]:
    """A conversation from its first turn to its last: how its prompt grew, how long first tokens took, where it was cold.

    Where there are more turns than columns, a column is the most of its turns.
    """
    columns = min(_CHART_COLUMNS, len(line.points))
    parts = [
        line.points[at * len(line.points) // columns : (at + 1) * len(line.points) // columns] for at in range(columns)
    ]
    tokens = [max(float(each.prompt_tokens) for each in part) for part in parts]
    waits = [max(each.ttft_s or 0.0 for each in part) for part in parts]
    yield f"tokens  {_bars(tokens)}  {whole(line.most_tokens)} at most"
    yield f"TTFT    {_bars(waits)}  {seconds(max(waits))} s at most"
    yield f"cold    {''.join(_COLD if any(each.temperature == 'cold' for each in part) else ' ' for part in parts)}".rstrip()


def _bars(values: Sequence[float]) -> str:
    most = max(values) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int(value / most * len(_BARS)))] for value in values)


def _words(finding: Finding) -> Padding:
    said = Text.assemble((f"{finding.severity}: ", _STYLES[finding.severity]), finding.text)
    if finding.remedy is not None:
        said.append(f"\nRemedy: {finding.remedy.text}", "italic")
    if finding.replayed is not None:
        said.append(f"\n{finding.replayed.text}", "italic")
    return Padding(said, (0, 0, 0, 2), expand=False)
