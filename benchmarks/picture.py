"""What it costs to be watched: the time to make the page's picture of a large fleet, and to answer one question about it.

    python benchmarks/picture.py [--replicas 64] [--conversations 50000] [--json]

The fleet is the one of `decision.py`: its pools are full. All parts are made once, as for the first who looks, and again
after one turn at each of a tenth of the replicas, which is what a second of traffic leaves. Between two parts the loop
goes on, so the longest part is how long a running answer may have to wait. Times are of the processor, medians of nine.
"""

# It stands alone, as a benchmark does, and plays the other's scene.
# ruff: noqa: INP001, SLF001

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

import click
from decision import BASE, Scene

from ramjet.core.working import explain
from ramjet.picture import Picture

RUNS = 9
LONG_TOKENS = 300_000


@click.command()
@click.option("--replicas", type=click.IntRange(1), default=BASE.replicas, show_default=True)
@click.option("--conversations", type=click.IntRange(1), default=BASE.conversations, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(replicas: int, conversations: int, *, as_json: bool) -> None:
    """Fill a fleet, and time what watching it takes."""
    click.echo(f"{replicas} replicas are filled with {conversations:,} conversations", err=True)
    scene = Scene(replicas, conversations)
    router = scene.router
    found = [_picture(scene, changes=lambda: [_touch(belief) for belief in router.beliefs.values()])]
    some = list(router.beliefs.values())[:: max(1, min(10, replicas))]
    found.append(_picture(scene, changes=lambda: [_touch(belief) for belief in some]))
    rows = [{"what": what, **row} for what, row in zip(("first look", "a second later"), found, strict=True)]
    for tokens in (20_000, LONG_TOKENS):
        arrival = scene._arrival(conversations + 1_000_000, tokens)
        took = [_timed(lambda arrival=arrival: explain(router, arrival, scene._now)) for _ in range(RUNS)]
        row = {"what": f"explain {tokens:,} tokens", "all_ms": median(took), "longest_ms": median(took), "bytes": None}
        rows.append(row)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        size = "" if row["bytes"] is None else f", {row['bytes']:,} bytes"
        click.echo(f"{row['what']}: {row['all_ms']:.1f} ms in all, longest part {row['longest_ms']:.1f} ms{size}")


def _touch(belief: Any) -> None:
    belief.version += 1  # something has changed there, so that it is looked through again


def _picture(scene: Scene, changes: Callable[[], object]) -> dict[str, Any]:
    picture = Picture(scene.router)
    every, longest, size = [], [], 0
    for _ in range(RUNS):
        changes()
        took, sent, began = [], 0, process_time()
        for _name, part in picture.parts(scene._now, 0.0, "ok"):
            ended = process_time()
            took.append(1e3 * (ended - began))
            sent += len(part)
            began = ended
        every.append(sum(took))
        longest.append(max(took))
        size = sent
    return {"all_ms": median(every), "longest_ms": median(longest), "bytes": size}


def _timed(work: Callable[[], object]) -> float:
    began = process_time()
    work()
    return 1e3 * (process_time() - began)


if __name__ == "__main__":
    main()
