"""What the journal costs: its size, how fast it is written, and what it adds to the event loop's delay.

    python benchmarks/journal.py [--requests 20000] [--json]

Agents' conversations are invented: each begins with a system prompt that agents share and adds a few messages a turn,
up to some 100,000 tokens. The blocks of a prompt are as long as a fingerprint makes them. Four things are measured:

* size: bytes of the file for each request, and so megabytes for a million.
* rows: how many a second the writer gets into the file, when nothing else keeps the processor.
* put: what handing one in costs the event loop.
* lag: how late the event loop is, at its worst in a hundred looks, with so many requests a second handed in and
  without; and how many of them were dropped.
"""

# It stands alone, as a benchmark does.
# ruff: noqa: INP001

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from time import perf_counter, process_time

import click

from ramjet.core.fingerprint import Chain, Fingerprint
from ramjet.core.record import Record
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival
from ramjet.journal.read import Reader
from ramjet.journal.store import Entry, Store
from ramjet.journal.writer import Journal, wall_clock

AGENTS = 8
SYSTEM_BYTES = 68_000
MESSAGES = 3
"""Blocks that a turn adds: an answer, what a tool says, and what is longer than a block of it."""
MESSAGE_BYTES = (300, 4_096)
TURNS = 60
ALIVE = 200
"""Conversations at a time."""
BYTES_PER_TOKEN = 4
TICK_S = 0.001
SEED = 0x5EED


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured."""

    requests: int
    bytes_a_request: float
    megabytes_a_million: float
    blocks_a_prompt: float
    rows_a_second: float
    read_rows_a_second: float
    put_us: float
    offered_a_second: int
    lag_ms: float
    """The 99th percentile, with the journal."""
    idle_lag_ms: float
    """The same without."""
    dropped: int


def requests(seed: int = SEED) -> Iterator[tuple[Record, Arrival]]:
    """Turns of invented conversations, without end."""
    random = Random(seed)
    systems = [_grown(Chain(array("Q"), array("Q"), 0, 0), SYSTEM_BYTES // 4_096, random) for _ in range(AGENTS)]
    talks: list[tuple[str, int, Chain]] = []
    for number in count():
        if len(talks) < ALIVE:
            talks.append((f"{random.getrandbits(48):012x}", 0, random.choice(systems)))
        place = random.randrange(len(talks))
        name, turn, chain = talks[place]
        chain = _grown(chain, MESSAGES, random)
        if turn + 1 < TURNS:
            talks[place] = name, turn + 1, chain
        else:
            del talks[place]
        yield _request(number, name, turn + 1, chain, random)


def _grown(chain: Chain, blocks: int, random: Random) -> Chain:
    hashes, ends = chain.hashes[:], chain.ends[:]
    at = chain.size_bytes
    for _ in range(blocks):
        at += random.randrange(*MESSAGE_BYTES)
        hashes.append(random.getrandbits(64))
        ends.append(at)
    return Chain(hashes, ends, chain.head or len(hashes), at, chain.preamble or random.getrandbits(64))


def _request(number: int, name: str, turn: int, chain: Chain, random: Random) -> tuple[Record, Arrival]:
    tokens = chain.size_bytes // BYTES_PER_TOKEN
    costs = {each: random.random() for each in ("prefill", "queue", "crowding", "balance", "leave")}
    record = Record(
        request_id=f"{random.getrandbits(128):032x}",
        endpoint="chat",
        conversation=name,
        turn=turn,
        model="Qwen/Qwen3.5-4B",
        stream=True,
        replica=f"glm-{number % 4}",
        reason="affinity",
        costs=costs,
        prompt_bytes=chain.size_bytes + 2_000,
        estimated_tokens=tokens,
        matched_tokens=tokens - 2_000,
        reusable_tokens=tokens - 2_000,
        usage=Usage(prompt_tokens=tokens, cached_tokens=tokens - 2_100, completion_tokens=180),
        ttft_s=random.random(),
        duration_s=5 * random.random(),
        attempts=1,
        status=200,
    )
    arrival = Arrival(
        request_id=record.request_id,
        endpoint="chat",
        body_bytes=record.prompt_bytes,
        stream=True,
        model=record.model,
        fingerprint=Fingerprint(chain, chain),
    )
    return record, arrival


def written(made: list[tuple[Record, Arrival]], path: Path) -> tuple[float, int]:
    """Seconds of the processor to write them, and the file's bytes."""
    entries = [Entry(wall_clock(), record, arrival) for record, arrival in made]
    with closing(Store(path, "a secret", days=30, megabytes=1 << 20)) as store:
        began = process_time()
        for at in range(0, len(entries), 1_000):
            store.write(entries[at : at + 1_000])
        took_s = process_time() - began
    return took_s, path.stat().st_size


def read(path: Path) -> float:
    """Seconds of the processor to read all of them, with blocks."""
    with Reader(path) as reader:
        began = process_time()
        for _ in reader.rows():
            pass
        return process_time() - began


async def lag(seconds: float, rate: int, made: list[tuple[Record, Arrival]], journal: Journal | None) -> list[float]:
    """How late each tick of the event loop was, in seconds, while requests are handed in."""
    loop = asyncio.get_running_loop()
    late: list[float] = []
    began, handed = loop.time(), 0
    while (now := loop.time()) < began + seconds:
        if journal is not None:
            upto = min(len(made), int((now - began) * rate))
            for record, arrival in made[handed:upto]:
                journal.put(record, arrival)
            handed = upto
        before = loop.time()
        await asyncio.sleep(TICK_S)
        late.append(loop.time() - before - TICK_S)
    return late


def measure(requests_wanted: int, rate: int, seconds: float) -> Figures:
    """Measure all of it in a directory that goes."""
    made = list(islice(requests(), requests_wanted))
    blocks = sum(len(arrival.fingerprint.usable) for _, arrival in made if arrival.fingerprint is not None)
    with tempfile.TemporaryDirectory() as directory:
        took_s, size = written(made, Path(directory) / "size.db")
        read_s = read(Path(directory) / "size.db")
        idle = asyncio.run(lag(seconds, rate, made, None))
        journal = Journal(Store(Path(directory) / "lag.db", "a secret", days=30, megabytes=1 << 20))
        try:
            busy = asyncio.run(lag(seconds, rate, made, journal))
        finally:
            journal.close()
        quiet = Journal(
            Store(Path(directory) / "put.db", "a secret", days=30, megabytes=1 << 20), most_waiting=len(made)
        )
        try:
            some = made[:2_000]
            began = perf_counter()
            for record, arrival in some:
                quiet.put(record, arrival)
            put_s = (perf_counter() - began) / len(some)
        finally:
            quiet.close()
    return Figures(
        requests=len(made),
        bytes_a_request=round(size / len(made), 1),
        megabytes_a_million=round(size / len(made), 1),
        blocks_a_prompt=round(blocks / len(made), 1),
        rows_a_second=round(len(made) / took_s),
        read_rows_a_second=round(len(made) / read_s),
        put_us=round(1e6 * put_s, 2),
        offered_a_second=rate,
        lag_ms=round(1e3 * _p99(busy), 2),
        idle_lag_ms=round(1e3 * _p99(idle), 2),
        dropped=journal.dropped,
    )


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


@click.command()
@click.option("--requests", "wanted", type=click.IntRange(2_000), default=20_000, show_default=True)
@click.option(
    "--rate", type=click.IntRange(1), default=2_000, show_default=True, help="Requests a second while lag is measured."
)
@click.option(
    "--seconds", type=click.FloatRange(0.5, 60), default=5.0, show_default=True, help="For how long, with and without."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(wanted: int, rate: int, seconds: float, *, as_json: bool) -> None:
    """Measure the journal."""
    sys.setswitchinterval(0.0005)  # as `ramjet serve` does
    figures = measure(wanted, rate, seconds)
    if as_json:
        click.echo(json.dumps(asdict(figures)))
        return
    for name, value in asdict(figures).items():
        click.echo(f"{name:20} {value:>12,}")


if __name__ == "__main__":
    main()
