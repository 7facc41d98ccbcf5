"""How engines' pages are asked for: on a kept connection, with bounds."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import uvloop

from ramjet.http1.client import Client
from ramjet.watch.page import Page, page
from tests.scripted import Connection as Wire
from tests.scripted import Seen, scripted_engine

BODY = "a page\r\n\r\nof text"
ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\na page\r\n\r\nof text",
    "chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6;x=y\r\na page\r\nb\r\n\r\n\r\nof text\r\n0\r\n\r\n",
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11\r\na page\r\n\r\nof text\r\n0\r\nx-sum: 1\r\n\r\n",
    "continue": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\na page\r\n\r\nof text",
}


class Script:
    """An engine that answers as a test says, and counts its connections."""

    def __init__(self) -> None:
        self.connections: set[Wire] = set()
        self.closes = False
        self.says_close = False
        self.size = 1
        """Of the pieces that an answer comes in, in bytes."""

    async def __call__(self, connection: Wire, seen: Seen) -> None:
        self.connections.add(connection)
        if seen.target == "/hangs":
            await connection.gone(60)
        elif seen.target == "/drips":
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", *[b"x"] * 90, pause_s=0.05)
        elif seen.target.removeprefix("/base/") in ANSWERS:
            raw = ANSWERS[seen.target.removeprefix("/base/")]
            await connection.send(*[raw[at : at + self.size] for at in range(0, len(raw), self.size)], pause_s=0.001)
        elif seen.target == "/base/much":
            with contextlib.suppress(ConnectionError):
                await connection.send(b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * (1 << 20)] * 20)
        elif seen.target == "/base/junk":
            await connection.send(b"SSH-2.0-OpenSSH\r\n\r\n")
        elif seen.target == "/ends":
            await connection.send(b"HTTP/1.1 200 OK\r\n\r\nno length")
            connection.writer.close()
        else:
            if self.says_close:
                await connection.answer(seen.target.encode(), connection="close")
            else:
                await connection.answer(seen.target.encode())
            if self.closes:
                connection.writer.close()


@dataclass
class Asking:
    """One replica, asked for its pages."""

    client: Client
    url: str

    async def get(self, path: str, timeout_s: float) -> Page | None:
        """A page."""
        return await page(self.client, self.url, path, key="sesame", timeout_s=timeout_s)


@contextlib.asynccontextmanager
async def connected(base: str = "/base") -> AsyncIterator[tuple[Asking, Script]]:
    script, client = Script(), Client(connect_s=5.0, idle_s=4.0)
    async with scripted_engine(script) as engine:
        yield Asking(client, f"{engine.url}{base}"), script
        await client.close()


async def test_pages_come_on_one_connection_below_the_base_path() -> None:
    """
    As long as it is kept.
    """
    async with connected() as (engine, script):
        for number in range(3):
            assert await engine.get(f"/{number}", 5) == (200, f"/base/{number}")

        assert len(script.connections) == 1


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_where_an_answer_is_cut_never_matters(size: int) -> None:
    """
    With a length or in chunks, and on one connection.
    """
    async with connected() as (engine, script):
        script.size = size
        for name in ANSWERS:
            assert await engine.get(f"/{name}", 20) == (200, BODY)

        assert len(script.connections) == 1


@pytest.mark.parametrize("path", ["/much", "/junk"])
async def test_too_much_is_not_waited_for_nor_what_is_no_http(path: str) -> None:
    """
    And it spoils no later answer.
    """
    async with connected() as (engine, _):
        started_at = time.monotonic()
        assert await engine.get(path, 20) is None
        assert time.monotonic() - started_at < 10
        assert await engine.get("/next", 5) == (200, "/base/next")


@pytest.mark.parametrize("says", [True, False])
async def test_one_that_was_closed_meanwhile_is_opened_again(says: bool) -> None:
    """
    With a word or without: an engine lets idle connections go.
    """
    async with connected() as (engine, script):
        script.says_close, script.closes = says, not says
        for number in range(3):
            assert await engine.get(f"/{number}", 5) == (200, f"/base/{number}")
            await asyncio.sleep(0.01)

        assert len(script.connections) == 3


async def test_late_is_nothing_and_spoils_no_later_answer() -> None:
    """
    Nor does a byte now and then keep a page alive.
    """
    async with connected("") as (engine, script):
        for path in ("/hangs", "/drips"):
            started_at = time.monotonic()
            assert await engine.get(path, 0.2) is None
            assert time.monotonic() - started_at < 2
            assert await engine.get("/next", 5) == (200, "/next")

        assert await engine.get("/ends", 5) == (200, "no length")
        assert await engine.get("/next", 5) == (200, "/next")
        assert len(script.connections) >= 3


async def test_nobody_listens_is_told_from_silence() -> None:
    """
    It is the one thing that shows that a replica has gone.
    """
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]

    client = Client(connect_s=5.0, idle_s=4.0)
    with pytest.raises(ConnectionRefusedError):
        await Asking(client, f"http://127.0.0.1:{port}").get("/", 5)
    assert await Asking(client, "http://nowhere.invalid:1").get("/", 5) is None
    await client.close()


def test_it_does_the_same_in_the_loop_that_serves() -> None:
    """
    `ramjet serve` runs in uvloop, whose transports are of no class of asyncio's.
    """

    async def ask() -> None:
        async with connected() as (engine, _):
            assert await engine.get("/page", 5) == (200, "/base/page")
            assert await engine.get("/again", 5) == (200, "/base/again")

    uvloop.run(ask())
