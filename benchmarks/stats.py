"""What it costs to ask many replicas every second what they are doing, in per cent of a core.

    python benchmarks/stats.py [--replicas 64] [--seconds 30] [--json]

The replicas are loopback servers in a process of their own, which answer what real engines have answered, at its real
size: an engine's page of metrics is padded with buckets to what it has after some traffic. They are asked as `ramjet serve`
does, with one loop for each in one process, and that process' own time is what is measured, for each engine by itself.
The first seconds, in which replicas are met, are not counted; looks at the facts, once a minute, are.
"""

# It stands alone, as a benchmark does.
# ruff: noqa: INP001

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time
from typing import Any, cast

import click
import uvloop

from ramjet.core.fleet import Fleet, Replica
from ramjet.core.policies import Policy
from ramjet.core.router import Router
from ramjet.logs import configure
from ramjet.watch.stats import Polling, StatsWatch

ANSWERS = Path(__file__).parent.parent / "tests" / "engines" / "answers"
ENGINES = {"sglang": "sglang-0.5.23-qwen3_next", "vllm": "vllm-0.32.0-qwen3_next"}
METRICS_BYTES = {"sglang": 96_000, "vllm": 60_000}
"""As they were after some dozens of requests."""
MOST_PERCENT = 3.0
WARM_S = 5.0


@click.command()
@click.option("--replicas", type=click.IntRange(1, 512), default=64, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(1, 600), default=30.0, show_default=True, help="Measured for each engine."
)
@click.option("--interval", type=click.FloatRange(0.05), default=1.0, show_default=True, help="Between two questions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(replicas: int, seconds: float, interval: float, *, as_json: bool) -> None:
    """Measure it."""
    configure("json", "error")
    rows = [_measured(engine, replicas, seconds, interval) for engine in ENGINES]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        click.echo(
            f"{row['replicas']} replicas of {row['engine']}: {row['percent']:.2f} % of a core, "
            f"{row['asked_per_s']:.1f} pages a second, {row['us_each']:.0f} us each"
        )
    worst = max(row["percent"] for row in rows)
    click.echo(f"{'within' if worst < MOST_PERCENT else 'BEYOND'} the {MOST_PERCENT:g} % that it may take")


def _measured(engine: str, replicas: int, seconds: float, interval_s: float) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    serving = context.Process(target=_serve, args=(engine, replicas, there), daemon=True)
    serving.start()
    try:
        ports = here.recv()
        used_s, asked = uvloop.run(_poll(ports, here, seconds, interval_s))
    finally:
        serving.terminate()
        serving.join()
    return {
        "engine": engine,
        "replicas": replicas,
        "percent": 100 * used_s / seconds,
        "asked_per_s": asked / seconds,
        "us_each": 1e6 * used_s / max(1, asked),
    }


async def _poll(ports: list[int], servers: Connection, seconds: float, interval_s: float) -> tuple[float, int]:
    """Seconds of the processor that asking took, and how many pages were asked for."""
    fleet = Fleet()
    for number, port in enumerate(ports):
        fleet.add(Replica(f"r{number}", f"http://127.0.0.1:{port}"))
    watch = StatsWatch(Router(fleet, Policy()), Polling(interval_s=interval_s))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(watch.run())
        await asyncio.sleep(WARM_S)
        assert all(seen.loads for seen in watch.seen.values()), "a replica has not answered"
        before = _asked(servers)
        started_s = process_time()
        await asyncio.sleep(seconds)
        used_s = process_time() - started_s
        asked = _asked(servers) - before
        running.cancel()
    return used_s, asked


def _asked(servers: Connection) -> int:
    servers.send(None)
    count: int = servers.recv()
    return count


# -- the servers ----------------------------------------------------------------------------------------------------------


def _serve(engine: str, replicas: int, asked: Connection) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_servers(_answers(engine), replicas, asked))


async def _servers(answers: Mapping[bytes, bytes], replicas: int, asked: Connection) -> None:
    count = 0

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = cast("asyncio.Transport", transport)

        def data_received(self, data: bytes) -> None:
            nonlocal count
            count += 1
            self._transport.write(answers.get(data.split(b" ", 2)[1], _answer(b"{}", status=404)))

    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Server, "127.0.0.1", 0) for _ in range(replicas)]
    asked.send([server.sockets[0].getsockname()[1] for server in servers])
    while True:
        await loop.run_in_executor(None, asked.recv)
        asked.send(count)


def _answers(engine: str) -> dict[bytes, bytes]:
    """What each path is answered with."""
    found = {}
    for path in (ANSWERS / ENGINES[engine]).iterdir():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".txt":
            number = 0
            while len(text) < METRICS_BYTES[engine]:
                text += f'{engine}:some_seconds_bucket{{engine="0",le="{number}",model_name="tiny"}} {number}.0\n'
                number += 1
        found["/" + path.stem.replace("v1_", "v1/")] = text
    return {path.encode(): _answer(text.encode()) for path, text in found.items()}


def _answer(body: bytes, *, status: int = 200) -> bytes:
    head = f"HTTP/1.1 {status} x\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


if __name__ == "__main__":
    main()
