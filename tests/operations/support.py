"""A `ramjet serve` of its own process with a config file, and engines that do what operators meet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.scripted import Connection, Seen

CHAT = "/v1/chat/completions"
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
QUICK_HEALTH = {"interval_s": 0.05, "timeout_s": 0.3, "delivering_s": 0.1}


def body(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def longer(request: dict[str, Any], text: str = "and then?") -> dict[str, Any]:
    """The next turn of a conversation."""
    messages = [*request["messages"], {"role": "assistant", "content": "ok"}, {"role": "user", "content": text}]
    return {**request, "messages": messages}


async def until(holds: Callable[[], bool], within_s: float = 15.0) -> None:
    """Wait until something holds; generously, for a busy machine."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - a belief has no event
            await asyncio.sleep(0.005)


async def sent(url: str, raw: bytes, within_s: float = 10.0) -> bytes:
    """What comes back for raw bytes on a connection of their own, until the other side closes."""
    reader, writer = await asyncio.open_connection(*address_of(url))
    try:
        writer.write(raw)
        async with asyncio.timeout(within_s):
            return await reader.read()
    finally:
        writer.transport.abort()


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rpartition(":")
    return host, int(port)


class Held:
    """An engine whose streams stand still after the first token until a test lets them end; the rest is answered."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.asked = 0
        self.probes = 0

    async def __call__(self, connection: Connection, seen: Seen) -> None:
        if seen.method == "GET":
            self.probes += seen.target == "/health"
            await connection.answer(b"{}")
            return
        self.asked += 1
        if b'"stream":true' not in seen.body:
            await connection.answer(b"{}")
            return
        await connection.start_stream()
        await connection.chunk(TOKEN)
        await self.let_go.wait()
        await connection.chunk(TOKEN)
        await connection.chunk(b"")


class Timed:
    """An engine that sends a token every so often; each says when it was sent."""

    def __init__(self, every_s: float, tokens: int) -> None:
        self.every_s = every_s
        self.tokens = tokens

    async def __call__(self, connection: Connection, seen: Seen) -> None:
        if b'"stream":true' not in seen.body:
            await connection.answer(b"{}")
            return
        await connection.start_stream()
        for _ in range(self.tokens):
            await connection.chunk(f"data: {time.monotonic():.6f}\n\n".encode())
            await asyncio.sleep(self.every_s)
        await connection.chunk(b"")


@dataclass(slots=True, eq=False)
class Streams:
    """Streams that are under way, and what came of each so far."""

    came: list[bytes] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)
    ended: int = 0

    async def take(self, client: httpx.AsyncClient, url: str, request: dict[str, Any]) -> None:
        index = len(self.came)
        self.came.append(b"")
        try:
            async with client.stream("POST", url + CHAT, json={**request, "stream": True}) as answer:
                async for piece in answer.aiter_raw():
                    self.came[index] += piece
            self.ended += 1
        except httpx.HTTPError as error:
            self.failed.append(error)


@dataclass(slots=True, eq=False)
class Live:
    """A running `ramjet serve`, and everything that it wrote."""

    process: Process
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    url: str = ""
    admin: str = ""
    _parsed: list[dict[str, Any]] = field(default_factory=list)
    _read: int = 0

    @property
    def written(self) -> str:
        """All of it, from both channels."""
        return "".join((*self.out, *self.err))

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it logged under this name."""
        for line in self.err[self._read :]:
            self._read += 1
            if line.startswith("{"):
                self._parsed.append(json.loads(line))
        return [said for said in self._parsed if said["event"] == name]

    async def said(self, name: str, times: int = 1, within_s: float = 20.0) -> dict[str, Any]:
        """Wait until it has logged something so many times; the last of them."""

        def holds() -> bool:
            assert self.process.returncode is None, f"it has ended: {self.written[-2_000:]}"
            return len(self.events(name)) >= times

        await until(holds, within_s)
        return self.events(name)[times - 1]

    async def reload(self, event: str = "config_reloaded") -> dict[str, Any]:
        """Send SIGHUP, and wait for what it says."""
        before = len(self.events(event))
        self.process.send_signal(signal.SIGHUP)
        return await self.said(event, before + 1)

    async def stop(self) -> int:
        """Ask it to end, and wait."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def live(path: Path, *more: str, **environ: str) -> AsyncIterator[Live]:
    """A `ramjet serve` with this config file."""
    command = (sys.executable, "-m", "ramjet", "serve", "--config", str(path), *more)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, env={**os.environ, **environ}, limit=1 << 22
    )
    assert process.stdout is not None
    assert process.stderr is not None
    ramjet = Live(process)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_keep(process.stdout, ramjet.out))
        tasks.create_task(_keep(process.stderr, ramjet.err))
        try:
            ready = await ramjet.said("serving")
            ramjet.url, ramjet.admin = ready["url"], ready["admin"]
            # Signal handlers are set right behind that line.
            async with httpx.AsyncClient() as client:
                await client.get(f"{ramjet.admin}/health")
            yield ramjet
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _keep(stream: asyncio.StreamReader, into: list[str]) -> None:
    while line := await stream.readline():
        into.append(line.decode())


def config(path: Path, replicas: dict[str, str | dict[str, Any]], **more: Any) -> Path:
    """Write a config file on free loopback ports, in one go; JSON is YAML."""
    listed = [{"name": name, **({"url": each} if isinstance(each, str) else each)} for name, each in replicas.items()]
    base = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "secret": "a test's", "limits": {"drain_s": 1}}
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({**base, "replicas": listed, **more}))
    draft.replace(path)
    return path


Work = Callable[[int], Awaitable[None]]


async def together(work: Work, count: int) -> None:
    """Do something many times at once."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(_one(work, number))


async def _one(work: Work, number: int) -> None:
    await work(number)
