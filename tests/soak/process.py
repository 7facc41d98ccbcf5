"""A real `ramjet serve`: a process of its own, its log in a file, looked at from outside only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from ramjet.logs import FLUSH_S

_START_S = 30.0
_STOP_S = 20.0
_LOGGED_S = 5 * FLUSH_S
"""Lines wait for others, and a busy machine for its turn."""


@dataclass(slots=True, eq=False)
class Served:
    """A Ramjet that runs."""

    process: Process
    url: str
    admin: str
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        """Host and port for clients."""
        host, _, port = self.url.partition("://")[2].rpartition(":")
        return host, int(port)

    def rss_mib(self) -> float:
        """Memory that the process takes now."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20

    async def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            text = (await client.get(f"{self.admin}/metrics")).text
        lines = [line for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def in_flight(self, patience_s: float = 10.0) -> float:
        """Requests in flight by the metrics, once they have come to 0 or patience has come to an end.

        What it says of them is in its log then.
        """
        for _ in range(int(patience_s / 0.1)):
            if not (left := await self.metric("ramjet_in_flight")):
                await asyncio.sleep(_LOGGED_S)
                return 0.0
            await asyncio.sleep(0.1)
        return left

    async def stop(self) -> int:
        """End it as an operator would; its exit code."""
        self.process.terminate()
        async with asyncio.timeout(_STOP_S):
            return await self.process.wait()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Its log; a line that is no JSON has the event `not_json`."""
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    said = json.loads(line)
                except ValueError:
                    said = {"event": "not_json", "level": "error", "line": line.rstrip()[:500]}
                yield said


@contextlib.asynccontextmanager
async def served(
    settings: dict[str, Any], directory: Path, *, program: Sequence[str] = ("-m", "ramjet"), command: str = "serve"
) -> AsyncIterator[Served]:
    """A Ramjet with these settings, on free ports; config and log are in `directory`, and stay there.

    Args:
        settings: what is not as in these tests' own.
        directory: for its files.
        program: how Python finds the command.
        command: which of those that serve.
    """
    base = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "secret": "a test's",
        "log": {"format": "json", "level": "info"},
    }
    config, log = directory / "ramjet.yaml", directory / "ramjet.log"
    config.write_text(json.dumps(base | settings), encoding="utf-8")  # JSON is YAML
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAMJET_")}
    environ["XDG_STATE_HOME"] = str(directory)
    with log.open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *program, command, "--config", str(config)),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=said,
            env=environ,
            start_new_session=True,  # Ctrl-C is for the program that watches it
        )
    try:
        ready = await _ready(process, log)
        yield Served(process, ready["url"], ready["admin"], log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ready(process: Process, log: Path) -> dict[str, Any]:
    for _ in range(int(_START_S / 0.05)):
        if (said := _serving(log)) is not None:
            return said
        if process.returncode is not None:
            break
        await asyncio.sleep(0.05)
    raise RuntimeError(f"ramjet did not start: {_read(log)[-2_000:]}")


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8")


def _serving(log: Path) -> dict[str, Any] | None:
    for line in _read(log).splitlines():
        if '"serving"' in line and line.endswith("}"):
            said: dict[str, Any] = json.loads(line)
            return said
    return None


def lasting_port() -> int:
    """A free port that the system gives to nobody else while its owner is dead: below those for outgoing connections."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 20,000 and 30,000")
