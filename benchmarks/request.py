"""What Ramjet does for one request beside moving its bytes: processor time by part, in microseconds.

    python benchmarks/request.py [--requests 2000] [--json]

Two kinds of requests are served by the parts that `ramjet serve` is made of, as it ships and with replicas of which nobody
has said anything; no socket is opened. Each is read and hashed, recognised and placed, its answer's usage is taken in, and
what became of it goes to the log, the metrics, the page and the journal:

* first: a new conversation of 1 KB.
* later: a conversation goes on whose prompt has some hundred blocks, 350 KB, 4 KB of them new.

Each part's time is the least average of a hundred requests in a row, for what else the machine does only adds to it. The
journal's part is what its thread does, a hundred rows at once; the log's ends where a line waits to be written with others.
"""

# It stands alone, as a benchmark does.
# ruff: noqa: INP001

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any, Literal, get_args
from uuid import uuid4

import click
import msgspec

from ramjet import logs
from ramjet.build import fleet_of, policy_of
from ramjet.config import Settings
from ramjet.core.bodies import Bodies, Reading, whole
from ramjet.core.record import Record
from ramjet.core.router import Router
from ramjet.core.stream import JsonObserver
from ramjet.core.visit import Arrival
from ramjet.journal.store import Entry, Store
from ramjet.metrics import Metrics
from ramjet.picture import Picture

Kind = Literal["first", "later"]

REPLICAS = (2, 64)
RUN = 100
"""Requests in a row whose average counts."""
WARM_UP = 300
"""Requests of a kind that are served before any is timed."""
FIRST_BYTES, MESSAGE_BYTES, ANSWER_BYTES, MESSAGES = 900, 4_096, 200, 84
TURNS = 9
"""Of a conversation that goes on."""
ANSWER_S, APART_S = 0.01, 0.001
SEED = 0x5EED
ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi " * 16}, "finish_reason": "stop"}],
}
LETTERS = "abcdefghijklmnopqrstuvwxyz     "


@dataclass(slots=True)
class Clock:
    """What each part of requests took, summed up over a run."""

    requests: int = 0
    took: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    at: float = 0.0

    def start(self) -> None:
        """The next part begins."""
        self.at = thread_time()

    def stop(self, part: str) -> None:
        """A part has ended, and the next begins."""
        now = thread_time()
        self.took[part] += now - self.at
        self.at = now


class Scene:
    """A Ramjet without sockets."""

    def __init__(self, replicas: int, folder: Path) -> None:
        urls = [{"name": f"r{at}", "url": f"http://127.0.0.1:{20_000 + at}"} for at in range(replicas)]
        settings = Settings.model_validate({"replicas": urls})
        self.router = Router(fleet_of(settings), policy_of(settings))
        self.metrics = Metrics(self.router.fleet.replicas)
        self.picture = Picture(self.router)
        self.router.on_placed = self.picture.placed
        self.store = Store(folder / f"{replicas}.db", "a benchmark's", days=1, megabytes=1_000)
        self._bodies = Bodies(SEED)
        self._now = 1_000.0
        self._waiting: list[Entry] = []

    def serve(self, body: bytes, clock: Clock) -> None:
        """One request, and its times."""
        clock.requests += 1
        clock.start()
        reading = self._read(body)
        clock.stop("read")
        arrival = Arrival(
            request_id=uuid4().hex,
            endpoint="chat",
            body_bytes=len(body),
            model=reading.envelope.model,
            fingerprint=reading.fingerprint,
        )
        clock.start()
        visit = self.router.arrive(arrival, self._now)
        clock.stop("arrive")
        lease = self.router.place(visit, self._now)
        clock.stop("place")
        assert lease is not None
        found = lease.scored.candidate.matched_tokens
        usage = {
            "prompt_tokens": visit.prompt_tokens,
            "completion_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": found},
        }
        answer = msgspec.json.encode({**ANSWER, "usage": usage})
        self._now += ANSWER_S
        clock.start()
        observer = JsonObserver()
        observer.feed(answer, self._now)
        observer.close()
        clock.stop("observe")
        record = self.router.finish(visit, self._now, outcome="ok", status=200, usage=observer.usage)
        clock.stop("finish")
        self._tell(record, arrival, clock)
        self._now += APART_S

    def _read(self, body: bytes) -> Reading:
        """As the proxy does, but for the pauses between the steps of a body that is new."""
        steps = self._bodies.steps(body, "chat")
        try:
            work = next(steps)
            while True:
                work = next(steps) if work is None else steps.send(work())
        except StopIteration as end:
            return end.value or whole(body, "chat", SEED)

    def _tell(self, record: Record, arrival: Arrival, clock: Clock) -> None:
        """What is done with a record, as in `ramjet.app`."""
        clock.start()
        logs.say_request(record.log_fields())
        clock.stop("log")
        self.metrics.observe(record)
        clock.stop("metrics")
        self.picture.finished(record, self._now)
        clock.stop("picture")
        self._waiting.append(Entry(self._now, record, arrival))

    def write(self, clock: Clock) -> None:
        """Have the journal take in what has been served."""
        clock.start()
        self.store.write(self._waiting)
        clock.stop("journal")
        self._waiting.clear()


def bodies(kind: Kind) -> Iterator[tuple[bytes, bool]]:
    """Requests of a kind, one after another, and whether they are timed: a conversation's first one may only prepare."""
    chance = Random(SEED)
    filler = "".join(chance.choices(LETTERS, k=MESSAGE_BYTES))

    def body(messages: list[dict[str, Any]]) -> bytes:
        return msgspec.json.encode({"model": "m", "max_tokens": 16, "messages": messages})

    while True:
        opening = "".join(chance.choices(LETTERS, k=FIRST_BYTES))
        messages = [{"role": "system", "content": "You help."}, {"role": "user", "content": opening}]
        if kind == "first":
            yield body(messages), True
            continue
        messages += [{"role": role, "content": filler} for _ in range(MESSAGES // 2) for role in ("assistant", "user")]
        yield body(messages), False
        for _ in range(TURNS):
            messages += [{"role": "assistant", "content": filler[:ANSWER_BYTES]}, {"role": "user", "content": filler}]
            yield body(messages), True


def measure(replicas: int, kind: Kind, requests: int, folder: Path) -> dict[str, float]:
    """Microseconds by part."""
    scene, given, runs = Scene(replicas, folder), bodies(kind), []
    for run in range(WARM_UP // RUN + requests // RUN):
        clock = Clock()
        for body, is_timed in islice(given, RUN):
            scene.serve(body, clock if is_timed else Clock())
        scene.write(clock)
        if run >= WARM_UP // RUN:
            runs.append({part: 1e6 * took / clock.requests for part, took in clock.took.items()})
    scene.store.close()
    return {part: min(run[part] for run in runs) for part in runs[0]}


@click.command()
@click.option("--requests", type=click.IntRange(RUN), default=2_000, show_default=True, help="Timed, of each kind.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def main(requests: int, *, as_json: bool) -> None:
    """Serve small first turns and long later ones, and time each part of what is done for them."""
    with Path(os.devnull).open("w") as nowhere:
        with contextlib.redirect_stderr(nowhere):
            logs.configure()
        rows: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as folder:
            for kind, replicas in product(get_args(Kind), REPLICAS):
                click.echo(f"{requests:,} of kind {kind} are served by {replicas} replicas", err=True)
                parts = measure(replicas, kind, requests, Path(folder))
                rows.append({"kind": kind, "replicas": replicas, **{name: round(us, 1) for name, us in parts.items()}})
        logs.configure()
    if as_json:
        click.echo(json.dumps(rows))
        return
    names = list(rows[0])
    widths = [max(8, len(name)) for name in names]
    for row in [dict(zip(names, names, strict=True)), *rows]:
        cells = [f"{row[name]:>{width}}" for name, width in zip(names, widths, strict=True)]
        total = "all" if row["kind"] == "kind" else f"{sum(row[name] for name in names[2:]):.1f}"
        click.echo(" ".join([*cells, f"{total:>8}"]))


if __name__ == "__main__":
    main()
