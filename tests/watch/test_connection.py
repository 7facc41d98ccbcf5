"""The kept connection on which engines' pages are asked for, and answers however they are cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from ramjet.watch.answer import MOST_BYTES, Answer
from ramjet.watch.connection import Connection
from tests.scripted import Connection as Wire
from tests.scripted import Seen, scripted_engine

BODY = b"a page\r\n\r\nof text"
ANSWERS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n" + BODY,
    "chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6;x=y\r\na page\r\nb\r\n\r\n\r\nof text\r\n0\r\n\r\n",
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n" + BODY + b"\r\n0\r\nx-sum: 1\r\n\r\n",
    "continue": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n" + BODY,
}


@given(name=st.sampled_from(sorted(ANSWERS)), cuts=st.lists(st.integers(0, 120), max_size=8))
def test_where_an_answer_is_cut_never_matters(name: str, cuts: list[int]) -> None:
    """
    With a length or in chunks.
    """
    raw, answer = ANSWERS[name], Answer()
    places = [0, *sorted(cuts), len(raw)]
    for start, end in pairwise(places):
        assert answer.body is None or start >= len(raw)
        answer.feed(raw[start:end])

    assert (answer.status, answer.body, answer.keeps) == (200, BODY, True)


@given(junk=st.binary(max_size=200), cut=st.integers(0, 200))
def test_whatever_comes_is_an_answer_or_an_error(junk: bytes, cut: int) -> None:
    """
    And nothing else is raised.
    """
    for raw in (junk, b"HTTP/1.1 200 OK\r\n" + junk, ANSWERS["chunks"][:60] + junk):
        answer = Answer()
        with contextlib.suppress(ValueError):
            answer.feed(raw[:cut])
            answer.feed(raw[cut:])
            answer.end()


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (MOST_BYTES + 1),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % (MOST_BYTES + 1),
        b"x" * (1 << 17),
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
    ids=["length", "chunk", "head", "no HTTP"],
)
def test_too_much_is_not_waited_for(raw: bytes) -> None:
    """
    Nor is what is no HTTP.
    """
    with pytest.raises(ValueError, match=r"too much|head|HTTP|literal"):
        Answer().feed(raw)


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 0", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive", True),
        (b"HTTP/1.1 204 No Content", True),
    ],
)
def test_a_connection_is_kept_where_that_is_meant(head: bytes, keeps: bool) -> None:
    """
    By the version and the header.
    """
    answer = Answer()
    answer.feed(head + b"\r\n\r\n")

    assert (answer.body, answer.keeps) == (b"", keeps)


# -- the connection -----------------------------------------------------------------------------------------------------


class Script:
    """An engine that answers as a test says, and counts its connections."""

    def __init__(self) -> None:
        self.connections: set[Wire] = set()
        self.closes = False
        self.says_close = False

    async def __call__(self, connection: Wire, seen: Seen) -> None:
        self.connections.add(connection)
        if seen.target == "/hangs":
            await connection.gone(60)
        elif seen.target == "/drips":
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", *[b"x"] * 90, pause_s=0.05)
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
