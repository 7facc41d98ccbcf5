"""How an answer's bytes leave for the client: framed as its head says, and the head in one write with the first."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from aiohttp import web

from ramjet.proxy.exchange import Exchange
from ramjet.proxy.headers import Head
from ramjet.proxy.reply import ClientLeft, Reply

Play = Callable[[Exchange], Awaitable[Reply]]
UNSIZED, SIZED = Head(200, b"OK", b"", is_sized=False), Head(200, b"OK", b"content-length: 15\r\n", is_sized=True)


class Wire(asyncio.Transport):
    """A client's connection that keeps what is written to it, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 100_000

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


async def raw_writes_of(
    play: Callable[[web.BaseRequest], Awaitable[Reply]], version: str = "1.1", method: str = "GET", given: str = ""
) -> list[bytes]:
    """What leaves for one request, write by write."""
    wire, done = Wire(), asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return cast("web.StreamResponse", await play(request))
        finally:
            done.set()

    server = web.Server(handle)
    protocol = server()
    protocol.connection_made(wire)
    protocol.data_received(f"{method} / HTTP/{version}\r\nhost: h\r\n{given}\r\n".encode())
    async with asyncio.timeout(5):
        await done.wait()
    await asyncio.sleep(0)
    await server.shutdown(0.01)
    return wire.writes


async def writes_of(play: Play, version: str = "1.1") -> list[bytes]:
    """The same, the head's own lines left out."""
    writes = await raw_writes_of(lambda request: play(Exchange(request, "id", "chat", 0.0, 10.0)), version)
    return [re.sub(rb"\AHTTP/1.*?\r\n\r\n", b"HEAD ", data, flags=re.DOTALL) for data in writes]


@pytest.mark.parametrize(
    ("version", "head", "framed"),
    [
        ("1.1", UNSIZED, [b"HEAD 3\r\none\r\n", b"c\r\nand a second\r\n", b"0\r\n\r\n"]),
        ("1.1", SIZED, [b"HEAD one", b"and a second"]),
        ("1.0", UNSIZED, [b"HEAD one", b"and a second"]),
    ],
)
async def test_the_head_leaves_with_the_first_bytes_and_what_follows_is_framed_as_it_says(
    version: str, head: Head, framed: list[bytes]
) -> None:
    async def play(exchange: Exchange) -> Reply:
        reply = exchange.start(head)
        is_behind = reply.put(b"one")
        assert (is_behind, reply.put(b""), reply.put(b"and a second")) == (True, False, True)
        return await exchange.end()

    assert await writes_of(play, version) == framed


async def test_a_head_does_not_wait_for_bytes_that_are_held_back() -> None:
    async def play(exchange: Exchange) -> Reply:
        reply = exchange.start(UNSIZED)
        reply.put(b"")
        reply.put(b"one")
        return await exchange.end()

    assert await writes_of(play) == [b"HEAD ", b"3\r\none\r\n", b"0\r\n\r\n"]


@pytest.mark.parametrize(("last", "framed"), [(b"", b"HEAD 0\r\n\r\n"), (b"all", b"HEAD 3\r\nall\r\n0\r\n\r\n")])
async def test_an_answer_that_is_whole_at_once_is_one_write(last: bytes, framed: bytes) -> None:
    async def play(exchange: Exchange) -> Reply:
        exchange.start(UNSIZED)
        return await exchange.end(last)

    assert await writes_of(play) == [framed]


async def test_it_is_the_client_that_is_waited_for_at_the_end() -> None:
    """
    So the replica is not blamed for a client that does not take the last bytes.
    """

    async def play(exchange: Exchange) -> Reply:
        exchange.start(UNSIZED)
        exchange.request.protocol.pause_writing()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await exchange.end(b"last")
        assert exchange.writing
        return exchange.cut("client_stall")

    assert await writes_of(play) == [b"HEAD 4\r\nlast\r\n0\r\n\r\n"]


@pytest.mark.parametrize("before", [0, 1])
async def test_whoever_left_is_told_nothing(before: int) -> None:
    """
    Be it before the head or after it.
    """

    async def play(exchange: Exchange) -> Reply:
        reply = exchange.start(UNSIZED)
        for _ in range(before):
            reply.put(b"one")
        assert exchange.request.transport is not None
        exchange.request.transport.close()
        with pytest.raises(ClientLeft):
            reply.put(b"two")
        raise asyncio.CancelledError

    assert await writes_of(play) == [b"HEAD 3\r\none\r\n"] * before
