"""A fleet that is scaled by DNS while agents work through it, and what they saw."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramjet.demo.traffic import TurnResult, drive
from ramjet.replica.server import running_replica
from tests.discovery.dns_server import dns_server
from tests.discovery.support import free_port, until
from tests.replica.support import FAST, attention
from tests.rig import Front, ramjet

HOSTS = [f"127.0.0.{number}" for number in range(1, 7)]
PHASES = {"2": HOSTS[:2], "6": HOSTS, "3": HOSTS[1:4]}


@dataclass(slots=True)
class Phase:
    """What was seen while the fleet had so many replicas, and until it had another number."""

    replicas: int
    turns: int = 0
    errors: list[str] = field(default_factory=list)
    moved_for_nothing: list[str] = field(default_factory=list)
    """Turns that went elsewhere although the replica of the turn before still served, with the reason."""
    moved: int = 0
    """Turns that went elsewhere because it was gone."""
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def row(self) -> dict[str, Any]:
        """For a table."""
        return {
            "replicas": self.replicas,
            "turns": self.turns,
            "errors": len(self.errors),
            "turns moved, replica gone": self.moved,
            "turns moved, replica there": len(self.moved_for_nothing),
            "prompt tokens reused": f"{self.cached_tokens / max(1, self.prompt_tokens):.1%}",
        }


@contextlib.asynccontextmanager
async def replicas(port: int) -> AsyncIterator[None]:
    """Six simulated replicas at six addresses, which nobody knows yet."""
    async with contextlib.AsyncExitStack() as stack:
        for host in HOSTS:
            await stack.enter_async_context(running_replica(attention(), speed=FAST, host=host, port=port))
        yield


async def scaled(folder: Path, *, conversations: int, turns: int, think_s: float) -> list[Phase]:
    """Agents at work while DNS names two replicas, then six, then three, one of the first two not among them.

    Two thirds of the conversations begin with two replicas, the others with six; each phase ends when a third of all
    turns has ended.
    """
    port = free_port(HOSTS)
    phases = [Phase(len(hosts)) for hosts in PHASES.values()]
    homes: dict[int, str | None] = {}
    async with replicas(port), dns_server(folder, ttl_s=0) as server:
        resolver = "{}:{}".format(*server.resolver)
        dns = {"host": "glm.test", "port": port, "resolver": resolver, "least_s": 0.05}
        await server.write(glm=PHASES["2"])
        given: dict[str, Any] = {
            "discovery": {"sources": [{"name": "glm", "dns": dns}]},
            "health": {"interval_s": 0.5},
            "routing": {"leave_s": 60.0},  # so that load moves nobody: what is looked at is what discovery does
        }
        async with ramjet({}, watch=True, **given) as front:
            now = 0

            def seen(result: TurnResult, offset: int) -> None:
                phase, number = phases[now], result.conversation + offset
                phase.turns += 1
                phase.errors += [result.error] if result.error is not None else []
                phase.prompt_tokens += result.prompt_tokens or 0
                phase.cached_tokens += result.cached_tokens or 0
                home = homes.get(number)
                if home not in {None, result.replica}:
                    gone = home not in front.router.fleet.replicas or front.router.fleet[str(home)].draining
                    phase.moved += gone
                    phase.moved_for_nothing += [] if gone else [f"turn {result.turn}: {result.reason}"]
                homes[number] = result.replica

            async def work(count: int, offset: int) -> None:
                await drive(
                    front.url, conversations=count, turns=turns, concurrency=count, shared_system_tokens=1_000,
                    growth_tokens=400, think_s=think_s, seed=1 + offset, on_turn=lambda result: seen(result, offset),
                )  # fmt: skip

            first, third = conversations * 2 // 3, conversations * turns // 3
            await until(lambda: _serving(front) == _names("2", port))
            async with asyncio.TaskGroup() as agents:
                agents.create_task(work(first, 0))
                await until(lambda: phases[0].turns >= third, within_s=120)
                await server.write(glm=PHASES["6"])
                await until(lambda: _serving(front) == _names("6", port))
                now = 1
                agents.create_task(work(conversations - first, first))
                await until(lambda: phases[1].turns >= third, within_s=120)
                await server.write(glm=PHASES["3"])
                now = 2
                await until(lambda: set(front.router.fleet.replicas) == _names("3", port), within_s=60)
            assert _serving(front) == _names("3", port)
    return phases


def _serving(front: Front) -> set[str]:
    return {each.name for each in front.router.fleet.serving}


def _names(phase: str, port: int) -> set[str]:
    return {f"{host}-{port}" for host in PHASES[phase]}
