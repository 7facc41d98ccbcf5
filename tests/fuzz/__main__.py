"""`make fuzz`: 200,000 requests and 200,000 answers through a real Ramjet, and as many in process, with a progress bar.

A case is its number: `python -m tests.fuzz --only requests:165,312` plays these two on one connection, and shows all.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.evidence import report
from tests.fuzz import campaign, cases, pure, wire
from tests.fuzz.campaign import Answers, Requests, Tally

_PLAYERS: dict[str, type[Requests] | type[Answers]] = {"requests": Requests, "answers": Answers}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--count", type=click.IntRange(1), default=200_000, show_default=True, help="Cases of each kind.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="Number of the first case.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of all cases.")
@click.option("--lines", type=click.IntRange(1, 1_000), default=96, show_default=True, help="Connections at once.")
@click.option(
    "--batch", type=click.IntRange(1), default=5_000, show_default=True, help="Cases between two looks at the whole."
)
@click.option("--only", help="KIND:NUMBERS to play again, where KIND is requests, answers, bodies or streams.")
@click.option("--report/--no-report", "writes", default=True, help="Write docs/evidence/fuzz.md and .json.  [yes]")
def main(*, count: int, first: int, seed: int, lines: int, batch: int, only: str | None, writes: bool) -> None:
    """Send a Ramjet what nobody should send, from both sides."""
    console = Console()
    if only is not None:
        kind, _, numbers = only.partition(":")
        uvloop.run(replay(console, kind, [int(number) for number in numbers.split(",")], seed))
        return
    stop = _Stop()
    played = range(first, first + count)
    with _progress(console) as progress:
        tallies = [in_process(name, seed, played, stop, _show(progress, name, count)) for name in pure.LAYERS]
        tallies += uvloop.run(
            end_to_end(
                seed, played, batch=batch, lines=lines, stop=stop, show=lambda name: _show(progress, name, count)
            )
        )
    rows = [row_of(tally) for tally in tallies]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()))
    console.print(table)
    _explain(console, tallies)
    if writes:
        ended = " Ended early by Ctrl-C." if stop.asked else ""
        report.write(
            "fuzz",
            "Mutated requests and mutated answers",
            f"Seed {seed}, cases from {first:,} on.{ended} End to end: raw sockets, {lines} connections at once, a real `ramjet serve`, an "
            "engine that reads by the letter of RFC 9112. After every batch: nothing in flight, a good request served. "
            "`make fuzz` runs it again; `python -m tests.fuzz --only requests:7` plays one case.",
            rows,
        )
    sys.exit(1 if any(tally.wrong for tally in tallies) else 0)


class _Stop:
    """Ctrl-C ends the cases and not the report; a second one ends the program."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __call__(self) -> bool:
        return self.asked


def in_process(
    name: str,
    seed: int,
    numbers: range,
    stop: Callable[[], bool] = lambda: False,
    on_case: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Cases of the parts without sockets."""
    tally, play, began = Tally(name), pure.LAYERS[name], time.monotonic()
    for number in numbers:
        if stop():
            tally.interrupted = True
            break
        case_at = time.monotonic()
        try:
            play(seed, number)
        except Exception as error:  # noqa: BLE001 - finding out which ones there are is the purpose
            tally.blame(f"{type(error).__name__}", str(number), error)
        took = time.monotonic() - case_at
        if took > tally.slowest_s:
            tally.slowest_s, tally.slowest = took, number
        tally.cases += 1
        tally.seconds = time.monotonic() - began
        on_case(tally)
    return tally


async def end_to_end(
    seed: int,
    numbers: range,
    *,
    batch: int,
    lines: int,
    stop: Callable[[], bool] = lambda: False,
    show: Callable[[str], Callable[[Tally], None]] = lambda _: lambda _: None,
) -> list[Tally]:
    """Cases through a Ramjet, which is another one for each kind."""
    tallies = []
    for kind, player in _PLAYERS.items():
        with tempfile.TemporaryDirectory() as scratch:
            async with campaign.fuzzed(Path(scratch)) as (ramjet, engine):
                tally = await campaign.run(
                    ramjet,
                    engine,
                    player(seed, engine),
                    numbers,
                    batch=batch,
                    lines=lines,
                    stop=stop,
                    on_case=show(kind),
                )
                await campaign.check_log(ramjet, engine, tally)
                tallies.append(tally)
    return tallies


async def replay(console: Console, kind: str, numbers: list[int], seed: int) -> None:
    """Play some cases one after another on one connection, and show what goes over it and what Ramjet logs."""
    if kind not in _PLAYERS:
        for number in numbers:
            pure.LAYERS[f"{kind}, in process"](seed, number)
            console.print(f"{kind}:{number} holds")
        return
    with tempfile.TemporaryDirectory() as scratch:
        async with campaign.fuzzed(Path(scratch)) as (ramjet, engine):
            player, tally = _PLAYERS[kind](seed, engine), Tally(kind)
            line = await wire.connect(ramjet.address)
            for number in numbers:
                case = cases.request(seed, number) if kind == "requests" else cases.answer(seed, number)
                console.print(f"[bold]{kind}:{number}[/bold]", case.pieces, highlight=False)
                line.cases.append(number)
                if not await player(line, number, tally):
                    line.close()
                    line = await wire.connect(ramjet.address)
                # What an engine sends after its answer may come after the answer.
                await asyncio.sleep(0.05)
            line.close()
            await campaign.check_log(ramjet, engine, tally)
            console.print(ramjet.log.read_text(encoding="utf-8"), markup=False, highlight=False)
            console.print(dict(tally.kinds))
            _explain(console, [tally])


def row_of(tally: Tally) -> dict[str, Any]:
    """The report's row."""
    kinds = ", ".join(f"{kind}: {count:,}" for kind, count in tally.kinds.most_common())
    return {
        "what": tally.name,
        "cases": tally.cases,
        "a second": round(tally.rate),
        "slowest, s": f"{tally.slowest_s:.3f} (case {tally.slowest})",
        "batches": tally.batches,
        "memory, MiB": round(tally.most_mib, 1),
        "how they ended": kinds,
        "faults": sum(tally.wrong.values()),
        "which": "; ".join(f"{kind}: {count:,} (case {tally.numbers[kind][0]})" for kind, count in tally.wrong.items()),
    }


def _explain(console: Console, tallies: list[Tally]) -> None:
    for tally in tallies:
        for kind, examples in tally.examples.items():
            console.print(f"[red]{tally.name}: {kind}[/red] ({tally.wrong[kind]:,})")
            name = tally.name.partition(",")[0]
            for number, example in zip(tally.numbers[kind], examples, strict=True):
                console.print(f"  --only {name}:{number}\n    {example}", markup=False, highlight=False)


def _show(progress: Progress, name: str, count: int) -> Callable[[Tally], None]:
    bar = progress.add_task(name, total=count)

    def show(tally: Tally) -> None:
        if tally.cases % 50 == 0 or tally.cases == count:
            faults = f", {sum(tally.wrong.values())} faults" if tally.wrong else ""
            progress.update(bar, completed=tally.cases, description=f"{name}: {tally.cases:,}{faults}")

    return show


def _progress(console: Console) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console)


if __name__ == "__main__":
    main()
