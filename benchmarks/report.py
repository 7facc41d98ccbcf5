"""What a report costs: seconds and memory for a journal of a million requests.

    python benchmarks/report.py [--requests 1000000] [--json]

The journal is that of `benchmarks/journal.py`, with every thirtieth turn cold; so many are made as take some seconds, and
copied inside SQLite, with other names and at later times, until there are enough. It is read by a process of its own,
so that the memory is the command's.
"""

# It stands alone, as a benchmark does.
# ruff: noqa: INP001

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

import click
from journal import requests
from msgspec.structs import replace

from ramjet.core.causes import Clues, Loss, Pressure
from ramjet.core.record import Record
from ramjet.journal.schema import COLUMNS
from ramjet.journal.store import Entry, Store

MADE = 20_000
AT = 1_790_000_000.0
EVERY_S = 1.5
COLD_EVERY = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured."""

    requests: int
    megabytes: float
    """The journal's file."""
    seconds: float
    """From the command's start to its end, on the wall's clock..."""
    processor_s: float
    """...and of the processor."""
    peak_megabytes: float
    """Memory of the command, the interpreter included."""


def cold(number: int, record: Record) -> Record:
    """Every so many turns cold, for one cause or another."""
    if number % COLD_EVERY or record.turn == 1:
        return record
    tokens = record.usage.prompt_tokens or 0
    clues = Clues(
        expected_tokens=0,
        reusable_tokens=tokens,
        diverged_at_tokens=tokens,
        home_tokens=tokens if number % 4 == 0 else None,
        loss=None
        if number % 3
        else Loss("snapshot_pool" if number % 2 else "token_pool", 1 << 50, number=number, of_state=True),
        pressure=Pressure(tokens_ratio=0.95, slots_ratio=1.0, has_snapshots=True),
    )
    return replace(record, usage=replace(record.usage, cached_tokens=0), clues=clues, ttft_s=12.0)


def make(path: Path, wanted: int) -> None:
    """A journal of so many requests."""
    made = min(MADE, wanted)
    entries = [
        Entry(AT + EVERY_S * number, replace(cold(number, record), best_matched_tokens=record.matched_tokens), arrival)
        for number, (record, arrival) in enumerate(islice(requests(), made))
    ]
    with closing(Store(path, "a secret", days=30, megabytes=1 << 20)) as store:
        for start in range(0, made, 1_000):
            store.write(entries[start : start + 1_000])
    shown = [name for name in COLUMNS if name not in {"id", "base"}]
    taken = {"arrived_at": "arrived_at + ?", "conversation": "substr(conversation, 1, 8) || ?"}
    copy = (
        f"INSERT INTO requests ({', '.join(shown)}) SELECT {', '.join(taken.get(each, each) for each in shown)}"  # noqa: S608 - ours
        " FROM requests WHERE id <= ? ORDER BY id LIMIT ?"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for number in range(1, -(-wanted // made)):
            left = min(made, wanted - number * made)
            db.execute(copy, (number * made * EVERY_S, f"{number:04x}", made, left))


def measure(wanted: int) -> Figures:
    """Make a journal in a directory that goes, and report on it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.db"
        make(path, wanted)
        command = [sys.executable, "-m", "ramjet", "report", "--journal", str(path), "--json"]
        began = perf_counter()
        said = subprocess.run(command, check=True, capture_output=True).stdout  # noqa: S603 - ours
        took_s = perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        counted = json.loads(said)["periods"][0]["requests"]
        if counted != wanted:
            raise click.ClickException(f"{counted:,} of {wanted:,} requests were counted")
        return Figures(
            requests=counted,
            megabytes=round(path.stat().st_size / 1e6, 1),
            seconds=round(took_s, 1),
            processor_s=round(used.ru_utime + used.ru_stime, 1),
            peak_megabytes=round(used.ru_maxrss * 1024 / 1e6, 1),
        )


@click.command()
@click.option("--requests", "wanted", type=click.IntRange(1_000), default=1_000_000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(wanted: int, *, as_json: bool) -> None:
    """Measure the report."""
    figures = measure(wanted)
    if as_json:
        click.echo(json.dumps(asdict(figures)))
        return
    for name, value in asdict(figures).items():
        click.echo(f"{name:16} {value:>12,}")


if __name__ == "__main__":
    main()
