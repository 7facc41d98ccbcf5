"""What tests of peers share: a real store, engines that take no time, conversations that are dealt to routers in turn."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramjet.app import Running
from tests.rig import Front, quick_engine, ramjet

needs_store = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="no redis-server here (Debian: redis-server)"
)
SECRET = "one for all of them"


class Store:
    """A redis-server on a port of its own, which keeps nothing on disk; started and stopped as often as wanted."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"valkey://127.0.0.1:{self.port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = [
            "--port",
            self.port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            self._directory,
        ]
        self._process = subprocess.Popen(["redis-server", *map(str, options)], stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """It takes connections and answers nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def engines(count: int) -> AsyncIterator[dict[str, str]]:
    """So many replicas, by name."""
    async with contextlib.AsyncExitStack() as stack:
        yield {f"r{number}": (await stack.enter_async_context(quick_engine(0.005))).url for number in range(count)}


def sharing(replicas: dict[str, str], url: str, **more: Any) -> contextlib.AbstractAsyncContextManager[Front]:
    """A Ramjet that shares what it knows through a store."""
    return ramjet(replicas, secret=SECRET, peers={"url": url}, **more)


class Talk:
    """An agent: it sends its whole conversation with every turn, to whichever router is next."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replicas: list[str] = []
        self.statuses: list[int] = []
        self._messages = [
            {"role": "system", "content": "you are an agent " * 200},
            {"role": "user", "content": f"{name}: " + "look at this " * 300},
        ]

    async def turn(self, client: httpx.AsyncClient, url: str) -> None:
        body = {"model": "m", "messages": self._messages}
        answer = await client.post(f"{url}/v1/chat/completions", json=body)
        self.statuses.append(answer.status_code)
        self.replicas.append(answer.headers.get("x-ramjet-replica", ""))
        self._messages += [
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": f"and now {len(self._messages)} " + "read on " * 100},
        ]

    @property
    def stayed(self) -> list[bool]:
        """Of each later turn, whether it went where the one before was."""
        return [a == b for a, b in zip(self.replicas, self.replicas[1:], strict=False)]


async def play(talks: Sequence[Talk], urls: Sequence[str], turns: int, think_s: float = 0.3) -> None:
    """Each takes its turns, dealt to the routers one after another; as many at once as there are."""
    dealt = iter(range(1 << 30))

    async def one(talk: Talk, client: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(think_s * number / len(talks))
        for _ in range(turns):
            await talk.turn(client, urls[next(dealt) % len(urls)])
            await asyncio.sleep(think_s)

    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(trust_env=False, timeout=30, limits=limits) as client:
        await asyncio.gather(*(one(talk, client, number) for number, talk in enumerate(talks)))


def share_that_stayed(talks: Sequence[Talk], since: int = 0) -> float:
    """Of the later turns, from a turn on, those that went where the one before was."""
    stayed = [each for talk in talks for each in talk.stayed[since:]]
    assert stayed
    return sum(stayed) / len(stayed)


async def until(condition: Any, seconds: float = 10.0) -> None:
    """Wait for what is about to be so."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it is another process that changes it
            await asyncio.sleep(0.02)


def connected(*fronts: Front) -> bool:
    """Whether all of them hear one another."""
    links = [link_of(each.running) for each in fronts]
    return all(each.connected and each.living == len(fronts) - 1 for each in links)


def link_of(running: Running) -> Any:
    assert running.link is not None
    return running.link


def followed(front: Front) -> int:
    """Requests of peers that it counts."""
    return sum(link_of(front.running).in_flight.values())
