"""`make soak`: ten minutes by default, with a progress bar; the result goes to docs/evidence/soak.md and .json."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.evidence import report
from tests.soak.clients import Clients
from tests.soak.engine import Mode
from tests.soak.run import BASE_MIB, LEAST_SLOPE_S, MOST_MIB_PER_MINUTE, SETTINGS, Result, soak


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.FloatRange(5), default=600.0, show_default=True, help="How long.")
@click.option(
    "--conversations", type=click.IntRange(1, 1_000), default=100, show_default=True, help="In flight at once."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of what clients say and do.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep Ramjet's log in this directory.")
@click.option("--report/--no-report", "writes", default=True, help="Write docs/evidence/soak.md and .json.  [yes]")
def main(*, seconds: float, conversations: int, seed: int, keep: Path | None, writes: bool) -> None:
    """Soak a Ramjet: many conversations, one replica that is well and one that falls ill in every way in turn."""
    console = Console()
    with tempfile.TemporaryDirectory() as scratch, _progress(console) as progress:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
        bar = progress.add_task("starting", total=seconds)

        def show(result: Result, clients: Clients, mode: Mode) -> None:
            mib = result.memory[-1][1] if result.memory else 0.0
            says = f"{len(clients.sights):,} requests, {mib:.0f} MiB, replica is {mode.value}"
            progress.update(bar, completed=min(seconds, result.seconds), description=says)

        result = asyncio.run(soak(seconds, keep or Path(scratch), conversations=conversations, seed=seed, on_tick=show))
    rows = rows_of(result, conversations)
    table = Table("what", "figure", "required")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()))
    console.print(table)
    for kind, examples in result.seen.examples.items():
        console.print(f"[red]{kind}[/red]")
        for example in examples:
            console.print("  " + example, markup=False)
    if writes:
        ended = ", ended early by Ctrl-C" if result.interrupted else ""
        report.write(
            "soak",
            "A soak: one replica well, one ill in every way in turn",
            f"{result.seconds:,.0f} s{ended}, {conversations} conversations in flight, a real `ramjet serve`; one of two replicas is "
            f"killed and restarted, wedged, slowed, made to answer 503 or 429, and made to reset streams in the middle. "
            f"Every answer names its request. `make soak` runs it again (seed {seed}).",
            rows,
        )
    sys.exit(1 if result.faults() else 0)


def rows_of(result: Result, conversations: int) -> list[dict[str, Any]]:
    """The report's rows, one for each figure."""
    seen = result.seen
    seconds = max(result.seconds, 1e-9)
    warm = result.warm or [(0.0, 0.0)]
    bound = BASE_MIB + SETTINGS["beliefs"]["memory_mb"]
    figures: list[tuple[str, Any, Any]] = [
        ("seconds", round(result.seconds, 1), ""),
        ("conversations in flight / in all", f"{conversations} / {result.conversations:,}", ""),
        ("illnesses", sum(phase != "good" for phase in result.phases), ""),
        ("requests", result.requests, ""),
        ("requests a second", round(result.requests / seconds, 1), ""),
        *((f"client saw: {saw}; log says: {said}", count, "") for (saw, said), count in sorted(seen.outcomes.items())),
        ("clients that left as their request ended otherwise", seen.raced, ""),
        ("clients that left before their request was read", seen.unread, ""),
        ("later turns of conversations at home on the well replica", seen.homed, "all there"),
        ("in flight at the end, by the metrics", result.in_flight, 0),
        ("memory: most, MiB", round(result.most_mib, 1), f"<= {bound}"),
        ("memory: after the warm-up / at the end, MiB", f"{warm[0][1]:.1f} / {warm[-1][1]:.1f}", ""),
        (
            "memory: growth after the warm-up, MiB a minute",
            round(result.mib_per_minute, 3),
            f"<= {MOST_MIB_PER_MINUTE:g}" if result.seconds >= LEAST_SLOPE_S else "(run too short)",
        ),
        ("exit code after SIGTERM", result.exit_code, 0),
        *((f"WRONG: {kind}", count, 0) for kind, count in result.faults().items()),
        ("faults", sum(result.faults().values()), 0),
    ]
    return [{"what": what, "figure": figure, "required": required} for what, figure, required in figures]


def _progress(console: Console) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console)


if __name__ == "__main__":
    main()
