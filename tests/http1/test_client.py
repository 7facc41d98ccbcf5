"""The client towards replicas: framing cut anywhere, every way to close, and what must never reach the next request."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.retry import Failure
from ramjet.http1.client import Client, ReplicaFailed
from ramjet.http1.connection import Answer, Broken, Connection
from tests.scripted import Connection as Wire
from tests.scripted import Script, Seen, scripted_engine


class _Transport(asyncio.Transport):
    """Where a connection writes to, for what is to be tried with a thousand cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = self.reading = False
        self.sent = b""

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.sent += b"".join(list_of_data)

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The data in pieces."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [piece for start, end in zip([0, *ends], ends, strict=False) if (piece := data[start:end])]


async def asked(*pieces: bytes, method: str = "POST", lost: bool = False, poured: bool = False) -> tuple[Answer, bytes]:
    """The answer made of these pieces, and its body.

    Raises:
        Broken: it is none, or not whole.
    """
    connection, transport = Connection(), _Transport()
    connection.connection_made(transport)
    loop = asyncio.get_running_loop()
    for piece in pieces:
        loop.call_soon(connection.data_received, piece)
    if lost:
        loop.call_soon(connection.connection_lost, None)
    answer = await connection.ask(method, b"head", None)
    body = bytearray()
    if poured:

        def sink(piece: bytes) -> bool:
            body.extend(piece)
            return len(piece) % 2 == 1  # now and then it is full

        while not await answer.pour(sink):
            pass
    else:
        while piece := await answer.read():
            body += piece
    return answer, bytes(body)


@st.composite
def framed(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """An answer as it comes, its body, and whether the connection's end is the body's."""
    body = draw(st.binary(max_size=200))
    before = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"])
    )
    kind = draw(st.sampled_from(["length", "chunked", "close"]))
    head = b"HTTP/1.1 200 OK\r\nx-a: b\r\n"
    if kind == "length":
        return before + head + b"content-length: %d\r\n\r\n" % len(body) + body, body, False
    if kind == "close":
        return before + head + b"connection: close\r\n\r\n" + body, body, True
    chunks = cut(body, draw(st.lists(st.integers(0, 200), max_size=4)))
    end = draw(st.sampled_from([b"0\r\n\r\n", b"0\r\nx-trailer: 1\r\n\r\n"]))
    told = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end
    return before + head + b"transfer-encoding: chunked\r\n\r\n" + told, body, False


@given(framed(), st.lists(st.integers(0, 1_000), max_size=6), st.booleans())
def test_an_answer_is_the_same_wherever_it_is_cut(
    answer: tuple[bytes, bytes, bool],
    places: list[int],
    poured: bool,
) -> None:
    """
    Read or poured, with what informs before it, with trailers behind it.
    """
    data, body, until_close = answer

    found, read = asyncio.run(asked(*cut(data, places), lost=until_close, poured=poured))

    assert (found.status, found.named[b"x-a"], read, found.is_whole) == (200, b"b", body, True)


@given(framed(), st.integers(1, 400), st.booleans())
def test_half_an_answer_is_never_taken_for_one(
    answer: tuple[bytes, bytes, bool],
    less: int,
    poured: bool,
) -> None:
    """
    A connection that ends before the framing says so is broken, except where its end is the framing.
    """
    data, _, until_close = answer
    if until_close:
        less = max(less, len(data) - data.index(b"\r\n\r\n", data.index(b"200 OK")) - 3)

    with pytest.raises(Broken):
        asyncio.run(asked(data[: max(0, len(data) - less)], lost=True, poured=poured))


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_whatever_comes_ends_in_an_answer_or_is_said_to_be_none(data: bytes, places: list[int]) -> None:
    async def ask() -> None:
        try:
            await asked(*cut(data, places), lost=True)
        except Broken:
            return

    asyncio.run(ask())


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_ends_with_its_head(status: int) -> None:
    answer, body = await asked(b"HTTP/1.1 %d Whatever\r\n\r\n" % status)

    assert (answer.status, body) == (status, b"")


async def test_the_length_that_head_is_told_is_of_no_body() -> None:
    answer, body = await asked(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", method="HEAD")

    assert (answer.named[b"content-length"], body) == (b"5", b"")


@pytest.mark.parametrize("end", [b"\r\n", b""])
async def test_a_head_without_end_is_none(end: bytes) -> None:
    """
    Of many lines, or of a single one.
    """
    line = b"x-1: " + b"a" * 60_000 + end

    with pytest.raises(Broken, match="without end"):
        await asked(b"HTTP/1.1 200 OK\r\n", *([line] * 8))


async def test_a_trailer_is_dropped_and_one_without_end_breaks_the_answer() -> None:
    head = b"HTTP/1.1 200 OK\r\nx-a: b\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"

    answer, body = await asked(head + b"x-a: other\r\nset-cookie: late\r\n\r\n")
    assert (answer.fields, body) == ([(b"x-a", b"b"), (b"transfer-encoding", b"chunked")], b"hello")

    with pytest.raises(Broken, match="trailer without end"):
        await asked(head + b"x-1: ", *([b"a" * 60_000] * 8))


async def test_who_is_read_slowly_is_paused() -> None:
    """
    A client that takes nothing must not make Ramjet take in what the engine has to say.
    """
    connection, transport = Connection(), _Transport()
    connection.connection_made(transport)
    asyncio.get_running_loop().call_soon(
        connection.data_received, b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n"
    )
    answer = await connection.ask("POST", b"head", (b"bo", memoryview(b"dy")))
    transport.reading = True
    for _ in range(3):
        connection.data_received(bytes(1 << 19))

    assert not transport.reading
    assert (len(await answer.read()), transport.reading) == (3 << 19, True)

    def full(piece: bytes) -> bool:
        del piece
        return True

    connection.data_received(b"more")
    assert (await answer.pour(full), transport.sent) == (False, b"headbody")
    connection.data_received(b"and more")
    assert not transport.reading


async def test_what_a_sink_raises_concerns_whom_it_is_poured_for() -> None:
    def broken(piece: bytes) -> bool:
        raise ZeroDivisionError(piece)

    connection = Connection()
    connection.connection_made(_Transport())
    asyncio.get_running_loop().call_soon(connection.data_received, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
    answer = await connection.ask("POST", b"head", None)

    with pytest.raises(ZeroDivisionError):
        await answer.pour(broken)


# -- over real sockets ------------------------------------------------------------------------------------------------


async def get(upstream: Client, url: str, method: str = "POST", body: bytes | None = b"{}") -> tuple[int, bytes]:
    """Status and body."""
    with await upstream.send(method, url, "/v1/x?y=1#z", b"x-a: b\r\n", None if body is None else (body,)) as answer:
        pieces = []
        while piece := await answer.read():
            pieces.append(piece)
        return answer.status, b"".join(pieces)


async def failure_of(script: Script, *, before: int = 0) -> Failure:
    """How the replica is said to have failed, after so many good answers."""

    async def after_some(wire: Wire, seen: Seen) -> None:
        await (wire.answer(b"{}") if len(engine.seen) <= before else script(wire, seen))

    upstream = Client(connect_s=1.0, idle_s=4.0)
    async with scripted_engine(after_some) as engine:
        for _ in range(before):
            await get(upstream, engine.url)
        with pytest.raises(ReplicaFailed) as failed:
            await get(upstream, engine.url)
        await upstream.close()
    return failed.value.failure


async def test_requests_share_a_connection_one_after_another() -> None:
    """
    The head is the client's, with a host and a length of our own and no fragment.
    """
    upstream = Client(connect_s=1.0, idle_s=4.0)
    async with scripted_engine() as engine:
        for _ in range(3):
            assert await get(upstream, f"{engine.url}/base") == (200, b"{}")
        assert engine.connections == 1
        (seen, *_) = engine.seen
        assert (seen.method, seen.target, seen.body) == ("POST", "/base/v1/x?y=1", b"{}")
        assert seen.headers == [("x-a", "b"), ("Content-Length", "2"), ("Host", engine.url.removeprefix("http://"))]

        await get(upstream, engine.url, "GET", None)
        assert engine.seen[-1].header("content-length") is None
        await get(upstream, engine.url, "POST", None)
        assert engine.seen[-1].header("content-length") == "0"
        await upstream.close()


async def test_a_connection_that_went_stale_costs_nothing() -> None:
    """
    The engine closes what is unused at the moment at which a request is sent.
    """

    async def close_after(wire: Wire, seen: Seen) -> None:
        del seen
        if wire.requests == 2:
            wire.reset()
        else:
            await wire.answer(b"{}")

    upstream = Client(connect_s=1.0, idle_s=4.0)
    async with scripted_engine(close_after) as engine:
        assert [await get(upstream, engine.url) for _ in range(3)] == [(200, b"{}")] * 3
        # The second was sent twice, on the old connection and on a fresh one, which the third found used once...
        assert [engine.connections, len(engine.seen)] == [3, 5]
        await upstream.close()


async def test_a_fresh_connection_that_breaks_is_the_replicas_fault() -> None:
    async def reset(wire: Wire, seen: Seen) -> None:
        del seen
        wire.reset()

    assert await failure_of(reset) is Failure.RESET
    assert await failure_of(reset, before=1) is Failure.RESET


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello",
    ],
)
async def test_what_is_no_answer_is_a_failure(said: bytes) -> None:
    async def nonsense(wire: Wire, seen: Seen) -> None:
        del seen
        await wire.send(said)
        wire.writer.close()

    assert await failure_of(nonsense) is Failure.RESET


async def test_nothing_after_an_answer_reaches_the_next() -> None:
    async def twice(wire: Wire, seen: Seen) -> None:
        del seen
        await wire.send(
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstray"
        )

    upstream = Client(connect_s=1.0, idle_s=4.0)
    async with scripted_engine(twice) as engine:
        assert [await get(upstream, engine.url) for _ in range(3)] == [(200, b"{}")] * 3
        assert engine.connections == 3
        await upstream.close()


async def test_an_unused_connection_is_closed_before_the_engine_does() -> None:
    upstream = Client(connect_s=1.0, idle_s=0.1)
    gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def answer(wire: Wire, seen: Seen) -> None:
        del seen
        await wire.answer(b"{}")
        gone.set_result(await wire.gone(2.0))

    async with scripted_engine(answer) as engine:
        await get(upstream, engine.url)
        assert await asyncio.wait_for(gone, 3.0)
        await upstream.close()


async def test_who_leaves_in_the_middle_closes_the_connection() -> None:
    """
    That is how an engine learns that nobody waits for the rest.
    """
    gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def stream(wire: Wire, seen: Seen) -> None:
        del seen
        await wire.start_stream()
        await wire.chunk(b"one")
        gone.set_result(await wire.gone(2.0))

    upstream = Client(connect_s=1.0, idle_s=4.0)
    async with scripted_engine(stream) as engine:
        with await upstream.send("POST", engine.url, "/", b"", (b"",)) as answer:
            assert await answer.read() == b"one"
        assert await asyncio.wait_for(gone, 3.0)
        await upstream.close()


async def test_nobody_listens_there() -> None:
    async with scripted_engine() as engine:
        url = engine.url
    upstream = Client(connect_s=1.0, idle_s=4.0)
    with pytest.raises(ReplicaFailed, match="refused") as failed:
        await get(upstream, url.replace("127.0.0.1", "localhost"))
    assert failed.value.failure is Failure.REFUSED
    await upstream.close()


async def test_a_name_that_nobody_knows() -> None:
    upstream = Client(connect_s=5.0, idle_s=4.0)
    with pytest.raises(ReplicaFailed) as failed:
        await get(upstream, "http://no-such-name.invalid:1")
    assert failed.value.failure is Failure.UNREACHABLE
    await upstream.close()


async def test_tls_is_asked_for_and_checked() -> None:
    """
    An engine that speaks no TLS cannot be reached at an https address.
    """
    upstream = Client(connect_s=1.0, idle_s=4.0)
    async with scripted_engine() as engine:
        with pytest.raises(ReplicaFailed) as failed:
            await get(upstream, engine.url.replace("http://", "https://"))
    assert failed.value.failure is Failure.UNREACHABLE
    assert upstream._context().verify_mode is ssl.CERT_REQUIRED
    await upstream.close()
