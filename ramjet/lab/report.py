"""What came out, for people: a table for each workload, and a page with a plot."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import ModuleType
from typing import TYPE_CHECKING

from rich.table import Table

from ramjet.lab.measure import Figures
from ramjet.lab.policies import BASELINES, INFINITE
from ramjet.lab.workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class NoPlots(Exception):
    """The library that draws is not installed; the message says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy on one workload: means over the seeds, but for the longest hold, which is the longest of all."""

    workload: str
    policy: str
    seeds: int
    mean_wait_s: float
    p95_wait_s: float
    p99_wait_s: float
    max_held_s: float
    conversation_wait_p95_s: float
    cached_share: float
    cold_share: float
    turns_per_min: float
    to_best: float | None
    """Its mean wait over that of the best baseline among these runs; None where there is none."""


def rows(runs: Collection[Figures]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each workload, in the order in which they were run."""
    for workload, group in groupby(runs, key=lambda each: each.workload):
        by_policy: dict[str, list[Figures]] = {}
        for each in group:
            by_policy.setdefault(each.policy, []).append(each)
        means = {policy: _mean([each.mean_wait_s for each in those]) for policy, those in by_policy.items()}
        best = min((mean for policy, mean in means.items() if policy in BASELINES and policy != INFINITE), default=None)
        yield workload, [_row(those, best) for those in by_policy.values()]


def _row(those: Sequence[Figures], best: float | None) -> Row:
    mean_wait_s = _mean([each.mean_wait_s for each in those])
    return Row(
        workload=those[0].workload,
        policy=those[0].policy,
        seeds=len(those),
        mean_wait_s=mean_wait_s,
        p95_wait_s=_mean([each.p95_wait_s for each in those]),
        p99_wait_s=_mean([each.p99_wait_s for each in those]),
        max_held_s=max(each.max_held_s for each in those),
        conversation_wait_p95_s=_mean([each.conversation_wait_p95_s for each in those]),
        cached_share=_mean([each.cached_share for each in those]),
        cold_share=_mean([each.cold_share for each in those]),
        turns_per_min=_mean([each.turns_per_min for each in those]),
        to_best=None if best is None else mean_wait_s / best,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


HEAD = (
    "policy", "mean s", "/ best", "p95 s", "p99 s", "max held s", "conv. p95 s", "cached", "cold", "turns/min",
)  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.policy,
        _seconds(row.mean_wait_s),
        "-" if row.to_best is None else f"{row.to_best:.2f}",
        _seconds(row.p95_wait_s),
        _seconds(row.p99_wait_s),
        _seconds(row.max_held_s),
        _seconds(row.conversation_wait_p95_s),
        f"{row.cached_share:.0%}",
        f"{row.cold_share:.0%}",
        f"{row.turns_per_min:.0f}",
    )


def _seconds(value: float) -> str:
    return f"{value:.2f}" if 0 < value < 10 else f"{value:,.0f}"


def _title(workload: str, those: Sequence[Figures]) -> str:
    first, seeds = those[0], len({each.seed for each in those})
    turns = _mean([each.turns for each in those])
    return (
        f"{workload}: {WORKLOADS[workload].about} ({first.replicas} x {first.profile}, {turns:,.0f} turns"
        f"{f', means of {seeds} seeds' if seeds > 1 else ''})"
    )


def tables(runs: Collection[Figures]) -> Iterator[Table]:
    """A table for each workload; waits are from a request's arrival to its first token."""
    for workload, those in rows(runs):
        table = Table(
            title=_title(workload, [each for each in runs if each.workload == workload]),
            title_justify="left",
            header_style="",
        )
        for name in HEAD:
            table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
        for row in those:
            # The best baseline, and whatever is at least as good.
            good = row.to_best is not None and row.to_best <= 1 and row.policy != INFINITE
            table.add_row(*_cells(row), style="bold" if good else None)
        yield table


# -- the page -------------------------------------------------------------------------------------------------------

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Ramjet: policies in the laboratory</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1b1b1f; background: #fff; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; margin: 0.5rem 0 2rem }}
th, td {{ padding: 0.15rem 0.8rem; text-align: right; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums }}
th:first-child, td:first-child {{ text-align: left }}
svg {{ max-width: 100%; height: auto }}
</style>
<h1>Policies in the laboratory</h1>
<p>Waits are in virtual seconds from a request's arrival to its first token, the time held included.
"/ best" is the mean over that of the best baseline here.</p>
{plot}
{tables}
</html>
"""


def page(runs: Collection[Figures]) -> str:
    """Everything in one HTML file that needs no other.

    Raises:
        NoPlots: matplotlib is not installed.
    """
    parts = []
    for workload, those in rows(runs):
        title = _title(workload, [each for each in runs if each.workload == workload])
        parts += [f"<h2>{html.escape(title)}</h2>", "<table>", _tr("th", HEAD)]
        parts += [_tr("td", _cells(row)) for row in those]
        parts.append("</table>")
    return _PAGE.format(plot=plot(runs), tables="\n".join(parts))


def _tr(cell: str, values: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(value)}</{cell}>" for value in values) + "</tr>"


def drawing() -> ModuleType:
    """The library that draws.

    Raises:
        NoPlots: it is not installed.
    """
    try:
        import matplotlib.figure  # noqa: PLC0415 - the one thing here that most installations do without
    except ImportError:
        raise NoPlots("the page has a plot, which needs matplotlib: pip install 'ramjet-lb[plots]'") from None
    return matplotlib


def plot(runs: Collection[Figures]) -> str:
    """An SVG element: for each workload, mean and p99 wait of each policy on a logarithmic scale.

    Raises:
        NoPlots: matplotlib is not installed.
    """
    matplotlib = drawing()
    panels = list(rows(runs))
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    most = max(len(those) for _, those in panels)
    # Text stays text, and equal figures give an equal file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ramjet", "font.size": 9}):
        figure = matplotlib.figure.Figure(figsize=(6 * columns, (0.22 * most + 0.9) * lines), layout="constrained")
        for place, (workload, those) in enumerate(panels, start=1):
            _panel(figure.add_subplot(lines, columns, place), workload, those)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    return svg[svg.index("<svg") :]


def _panel(axes: Axes, workload: str, those: Sequence[Row]) -> None:
    for at, row in enumerate(those):
        colour = "#9aa0a6" if row.policy in BASELINES else "#1a56db"
        axes.plot([row.mean_wait_s, row.p99_wait_s], [at, at], color=colour, linewidth=1, zorder=1)
        axes.plot(row.mean_wait_s, at, "o", color=colour, markersize=5)
        axes.plot(row.p99_wait_s, at, "o", color=colour, markersize=5, fillstyle="none")
    axes.set_yticks(range(len(those)), [row.policy for row in those])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("seconds to first token: mean (full) and p99")
    axes.set_title(workload, loc="left")
    axes.grid(visible=True, axis="x", color="#e4e4e7", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
