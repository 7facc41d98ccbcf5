"""`ramjet demo`: simulated replicas, Ramjet in front of them, and what to try next."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import click
from rich.console import Console

from ramjet.app import Running, running
from ramjet.config import ReplicaSettings, Settings
from ramjet.demo.table import TrafficTable
from ramjet.demo.traffic import drive
from ramjet.replica.server import running_replica
from ramjet.sim.profile import GLM

_NEXT = """
Ramjet is in front of {count} simulated replicas. Try:

  curl {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model":"demo","stream":true,"max_tokens":32,"messages":[{{"role":"user","content":"hello"}}]}}'

  python -c 'from openai import OpenAI; c = OpenAI(base_url="{url}/v1", api_key="none"); \\
    print(c.chat.completions.create(model="demo", messages=[{{"role": "user", "content": "hello"}}]).usage)'

  curl -s {admin}/metrics | grep ^ramjet_        what Prometheus scrapes
  curl -s {url}/health                         the replicas' state
  ramjet demo --traffic                                agent conversations and a live table

{below} Ctrl-C ends it.
"""

# The seed's replica with the seed's fix: one long conversation cannot push everybody's snapshots out.
_PROFILE = GLM.with_flags(states_per_path=2)


async def demo(settings: Settings, *, count: int, speed: float, traffic: bool) -> None:
    """Run until Ctrl-C, or with `traffic` until the conversations have ended.

    Args:
        settings: where to listen and how to log; the replicas are put in.
        count: how many replicas.
        speed: times as fast as the seed's hardware.
        traffic: drive conversations and show a table.
    """
    async with contextlib.AsyncExitStack() as stack:
        replicas = []
        for number in range(1, count + 1):
            simulated = await stack.enter_async_context(running_replica(_PROFILE, speed=speed))
            replicas.append(ReplicaSettings(name=f"demo-{number}", url=simulated.url))
        # What the demo has in flight is worth nothing: it does not wait for it when it ends.
        limits = settings.limits.model_copy(update={"drain_s": 0.1})
        settings = settings.model_copy(update={"replicas": replicas, "limits": limits})
        ramjet = await stack.enter_async_context(running(settings))
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
