"""`ramjet demo`: simulated replicas, Ramjet in front of them, and what to try next."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ramjet.app import Running, running
from ramjet.config import ReplicaSettings, Settings
from ramjet.core.admission import Mode
from ramjet.core.record import Record
from ramjet.demo.compare import Side, Workload, side, table
from ramjet.demo.table import TrafficTable
from ramjet.demo.traffic import drive
from ramjet.replica.server import running_replica
from ramjet.sim.profile import ATTENTION, GLM, Profile

_NEXT = """
Ramjet is in front of {count} simulated replicas. Try:

  curl {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model":"demo","stream":true,"max_tokens":32,"messages":[{{"role":"user","content":"hello"}}]}}'

  python -c 'from openai import OpenAI; c = OpenAI(base_url="{url}/v1", api_key="none"); \\
    print(c.chat.completions.create(model="demo", messages=[{{"role": "user", "content": "hello"}}]).usage)'

  {admin}/                                       the live page: who lives where, and why
  curl -s {admin}/metrics | grep ^ramjet_        what Prometheus scrapes
  curl -s {url}/health                         the replicas' state
  ramjet demo --traffic                                agent conversations and a live table

{below} Ctrl-C ends it.
"""

# The seed's replica with the seed's fix: one long conversation cannot push everybody's snapshots out.
_PROFILE = GLM.with_flags(states_per_path=2)

_WORKLOAD = Workload()
_COMPARED = """\
{agents} agents take {workload.turns} turns each, up to some {tokens:,} tokens, and {count} simulated replicas hold
{workload.pool_tokens:,} each: once with admission off and once on, at the same time. It ends after {workload.limit_s:.0f} s at most.
"""


async def demo(settings: Settings, *, count: int, speed: float, traffic: bool) -> None:
    """Run until Ctrl-C, or with `traffic` until the conversations have ended.

    Args:
        settings: where to listen and how to log; the replicas are put in.
        count: how many replicas.
        speed: times as fast as the seed's hardware.
        traffic: drive conversations and show a table.
    """
    async with contextlib.AsyncExitStack() as stack:
        ramjet = await stack.enter_async_context(_front(settings, _PROFILE, count=count, speed=speed))
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        below = "Eight agents are at work:" if traffic else "Every request is one log line below."
        click.echo(_NEXT.format(count=count, url=ramjet.url, admin=ramjet.admin_url, below=below), err=True)
        if traffic:
            async with asyncio.TaskGroup() as tasks:
                driving = tasks.create_task(_traffic(ramjet, stop))
                await stop.wait()
                driving.cancel()
        else:
            await stop.wait()


async def compare_admission(settings: Settings, *, count: int, speed: float, as_json: bool) -> None:
    """Let the same agents work with admission off and on at once, and print what either side measured.

    Args:
        settings: everything but where to listen: either side has its own replicas and Ramjet, on free ports.
        count: how many replicas either side has.
        speed: times as fast as the seed's hardware. The agents' pauses are shorter by as much; admission's own seconds
            are not.
        as_json: print the figures as they are, and no table.
    """
    said = {"agents": _WORKLOAD.agents * count, "count": count, "tokens": _WORKLOAD.most_tokens}
    click.echo(_COMPARED.format(workload=_WORKLOAD, **said), err=True)
    sides = await _sides(settings, count=count, speed=speed)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in sides], indent=2))
    else:
        Console().print(table(sides))


async def _sides(settings: Settings, *, count: int, speed: float) -> list[Side]:
    """Both at once, with a bar for each."""
    modes: tuple[Mode, ...] = ("off", "enforce")
    columns = (TextColumn("admission {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        async with asyncio.TaskGroup() as tasks:
            sides = [tasks.create_task(_side(settings, mode, progress, count=count, speed=speed)) for mode in modes]
    return [each.result() for each in sides]


async def _side(settings: Settings, mode: Mode, progress: Progress, *, count: int, speed: float) -> Side:
    workload = _WORKLOAD
    agents = workload.agents * count
    wanted = agents * workload.turns
    bar = progress.add_task("off" if mode == "off" else "on ", total=wanted)
    admission = settings.routing.admission.model_copy(update={"mode": mode})
    routing = settings.routing.model_copy(update={"admission": admission})
    anywhere = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "routing": routing}
    profile = ATTENTION.with_flags(pool_tokens=workload.pool_tokens)
    records: list[Record] = []
    front = _front(settings.model_copy(update=anywhere), profile, count=count, speed=speed, on_record=records.append)
    async with front as ramjet:
        summary = await drive(
            ramjet.url,
            conversations=agents,
            turns=workload.turns,
            concurrency=agents,
            shared_system_tokens=workload.shared_system_tokens,
            growth_tokens=workload.growth_tokens,
            think_s=workload.think_s / speed,
            seed=workload.seed,
            on_turn=lambda _: progress.advance(bar),
            limit_s=workload.limit_s,
        )
    return side(mode, summary, records, wanted=wanted)


@contextlib.asynccontextmanager
async def _front(
    settings: Settings,
    profile: Profile,
    *,
    count: int,
    speed: float,
    on_record: Callable[[Record], None] | None = None,
) -> AsyncIterator[Running]:
    """Simulated replicas, and a Ramjet in front of them."""
    async with contextlib.AsyncExitStack() as stack:
        replicas = []
        for number in range(1, count + 1):
            simulated = await stack.enter_async_context(running_replica(profile, speed=speed))
            replicas.append(ReplicaSettings(name=f"demo-{number}", url=simulated.url))
        # What the demo has in flight is worth nothing: it does not wait for it when it ends.
        limits = settings.limits.model_copy(update={"drain_s": 0.1})
        settings = settings.model_copy(update={"replicas": replicas, "limits": limits})
        yield await stack.enter_async_context(running(settings, on_record=on_record))


async def _traffic(ramjet: Running, stop: asyncio.Event) -> None:
    """Eight agents with one system prompt between them."""
    with TrafficTable(Console(stderr=not sys.stdout.isatty())) as table:
        await drive(
            ramjet.url,
            conversations=8,
            turns=6,
            concurrency=8,
            shared_system_tokens=6_000,
            growth_tokens=1_500,
            think_s=1.0,
            seed=1,
            on_turn=table.take,
        )
    stop.set()
