"""The kept connection on which engines' pages are asked for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest
import uvloop

from ramjet.watch.connection import Connection
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


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, Script]]:
    script = Script()
    async with scripted_engine(script) as engine:
        connection = Connection(f"{engine.url}/base", "sesame")
        try:
            yield connection, script
        finally:
            connection.close()


async def test_pages_come_on_one_connection_below_the_base_path() -> None:
    """
    As long as it is kept.
    """
    async with connected() as (connection, script):
        for number in range(3):
            assert await connection.get(f"/{number}", 5) == (200, f"/base/{number}")

        assert len(script.connections) == 1


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_where_an_answer_is_cut_never_matters(size: int) -> None:
    """
    With a length or in chunks, and on one connection.
    """
    async with connected() as (connection, script):
        script.size = size
        for name in ANSWERS:
            assert await connection.get(f"/{name}", 20) == (200, BODY)

        assert len(script.connections) == 1


@pytest.mark.parametrize("path", ["/much", "/junk"])
async def test_too_much_is_not_waited_for_nor_what_is_no_http(path: str) -> None:
    """
    And it spoils no later answer.
    """
    async with connected() as (connection, _):
        started_at = time.monotonic()
        assert await connection.get(path, 20) is None
        assert time.monotonic() - started_at < 10
        assert await connection.get("/next", 5) == (200, "/base/next")


@pytest.mark.parametrize("says", [True, False])
async def test_one_that_was_closed_meanwhile_is_opened_again(says: bool) -> None:
    """
    With a word or without: an engine lets idle connections go.
    """
    async with connected() as (connection, script):
        script.says_close, script.closes = says, not says
        for number in range(3):
            assert await connection.get(f"/{number}", 5) == (200, f"/base/{number}")
            await asyncio.sleep(0.01)

        assert len(script.connections) == 3


async def test_late_is_nothing_and_spoils_no_later_answer() -> None:
    """
    Nor does a byte now and then keep a page alive.
    """
    async with connected() as (connection, script):
        connection._before = "GET "
        for path in ("/hangs", "/drips"):
            started_at = time.monotonic()
            assert await connection.get(path, 0.2) is None
            assert time.monotonic() - started_at < 2
            assert await connection.get("/next", 5) == (200, "/next")

        assert await connection.get("/ends", 5) == (200, "no length")
        assert await connection.get("/next", 5) == (200, "/next")
        assert len(script.connections) >= 3


async def test_nobody_listens_is_told_from_silence() -> None:
    """
    It is the one thing that shows that a replica has gone.
    """
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]

    with pytest.raises(ConnectionRefusedError):
        await Connection(f"http://127.0.0.1:{port}").get("/", 5)
    assert await Connection("http://nowhere.invalid:1").get("/", 5) is None


def test_it_does_the_same_in_the_loop_that_serves() -> None:
    """
    `ramjet serve` runs in uvloop, whose transports are of no class of asyncio's.
    """

    async def ask() -> None:
        async with connected() as (connection, _):
            assert await connection.get("/page", 5) == (200, "/base/page")
            assert await connection.get("/again", 5) == (200, "/base/again")

    uvloop.run(ask())
