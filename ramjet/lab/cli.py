"""`ramjet lab`: the laboratory on the command line. What it needs is imported when a command runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from ramjet.lab.measure import Figures
    from ramjet.lab.runs import Case

_WIDTH = 140
"""Columns of a table that nobody's terminal limits."""


def _workloads() -> list[str]:
    from ramjet.lab.workloads import WORKLOADS  # noqa: PLC0415 - serving needs none of this

    return list(WORKLOADS)


def _policies() -> list[str]:
    from ramjet.lab.runs import policies  # noqa: PLC0415

    return list(policies())


def _profiles() -> list[str]:
    from ramjet.lab.workloads import REPLICAS  # noqa: PLC0415

    return list(REPLICAS)


class _Name(click.ParamType[str]):
    """One of a list of names that is known when it is asked for."""

    def __init__(self, what: str, names: Callable[[], list[str]]) -> None:
        self.name = what
        self._names = names

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        names = self._names()
        if value not in names:
            self.fail(f"no {self.name} {value!r}; there are {', '.join(names)}", param, ctx)
        return value


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def lab() -> None:
    """Compare routing policies in virtual time, on simulated replicas."""


@lab.command(name="list", short_help="The workloads and the policies.")
def list_command() -> None:
    """Show every workload and every policy, with where its logic is published."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from ramjet.lab.runs import policies  # noqa: PLC0415
    from ramjet.lab.workloads import WORKLOADS  # noqa: PLC0415

    workloads = Table("workload", "replicas", "profile", "what", title="Workloads", title_justify="left")
    for each in WORKLOADS.values():
        workloads.add_row(each.name, str(each.replicas), each.profile.name, each.about)
    table = Table("policy", "what", "source", title="Policies", title_justify="left")
    for name, factory in policies().items():
        about = (factory.__doc__ or "").strip().partition("\n")[0]
        table.add_row(name, about, getattr(factory, "source", "Ramjet"))
    console = _console(Console)
    console.print(workloads)
    console.print(table)


@lab.command(name="run", short_help="Play workloads through policies.")
@click.option(
    "--workload", "workloads", type=_Name("workload", _workloads), multiple=True, help="May be repeated.  [all]"
)
@click.option("--policy", "chosen", type=_Name("policy", _policies), multiple=True, help="May be repeated.  [all]")
@click.option("--replicas", type=click.IntRange(1, 1_000), help="How many replicas.  [what the workload is meant for]")
@click.option("--profile", type=_Name("profile", _profiles), help="Which replicas.  [what the workload is meant for]")
@click.option("--routers", type=click.IntRange(1, 64), default=1, show_default=True, help="Deal requests to so many.")
@click.option("--no-store", is_flag=True, help="The routers share nothing of what they know.")
@click.option(
    "--delay",
    "delay_s",
    type=click.FloatRange(0, 60),
    help="Seconds until what one router tells reaches the others.  [0.5]",
)
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="How many: 1, 2, 3 and so on.")
@click.option("--jobs", type=click.IntRange(1), help="Processes at a time.  [one for each processor]")
@click.option("--json", "as_json", is_flag=True, help="Print the figures of every run as one JSON document.")
@click.option(
    "--html",
    "path",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Also write a page with a plot to this file.",
)
def run_command(
    *,
    workloads: Sequence[str],
    chosen: Sequence[str],
    replicas: int | None,
    profile: str | None,
    routers: int,
    no_store: bool,
    delay_s: float | None,
    seeds: int,
    jobs: int | None,
    as_json: bool,
    path: Path | None,
) -> None:
    """Play workloads through policies and compare how long clients waited for the first token.

    Runs are chaotic: one seed's mean moves by 15 % for no reason. Take five before you believe a smaller difference.

    \b
    Examples:
      ramjet lab run --workload W1 --seeds 3
      ramjet lab run --workload W5 --policy seconds --policy round_robin --json
      ramjet lab run --workload W2 --policy ramjet --routers 8 --no-store
      ramjet lab run --html lab.html
    """
    from rich.console import Console  # noqa: PLC0415

    from ramjet.lab import report  # noqa: PLC0415
    from ramjet.lab.routers import DELAY_S  # noqa: PLC0415
    from ramjet.lab.runs import Case  # noqa: PLC0415

    try:
        if path is not None:
            # Before the work, not after.
            report.drawing()
            if not path.parent.is_dir():
                raise click.ClickException(f"{path}: there is no directory {path.parent}")
        cases = [
            Case(
                workload=workload,
                policy=policy,
                seed=seed,
                replicas=replicas,
                profile=profile,
                routers=routers,
                delay_s=None if no_store else DELAY_S if delay_s is None else delay_s,
            )
            for workload in _unique(workloads) or _workloads()
            for seed in range(1, seeds + 1)
            for policy in _unique(chosen) or _policies()
        ]
        figures = _run(cases, jobs or os.cpu_count() or 1)
    except (ValueError, report.NoPlots) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)
    if path is not None:
        path.write_text(report.page(figures), encoding="utf-8")
    if as_json:
        click.echo(json.dumps([asdict(each) for each in figures], indent=2))
        return
    console = _console(Console)
    for table in report.tables(figures):
        console.print(table)


def _run(cases: Sequence[Case], processes: int) -> list[Figures]:
    """All figures in the order of the cases, with a bar on stderr meanwhile."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    from ramjet.lab.runs import run_all  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    done = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("runs", total=len(cases))
        for place, figures in run_all(cases, processes=processes):
            done[place] = figures
            progress.update(task, advance=1, description=f"{figures.workload} {figures.policy}")
    return [done[place] for place in range(len(cases))]


def _unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _console(make: type[Console]) -> Console:
    console = make()
    if not console.is_terminal:
        console.width = _WIDTH
    return console
