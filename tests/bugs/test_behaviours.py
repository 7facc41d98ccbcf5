"""One table of what an engine may do, at every endpoint, streaming or not: what the client sees and what is booked."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from ramjet.core.fleet import State
from ramjet.core.record import OUTCOMES
from tests.bugs.wire import ENDPOINTS, WITH_PROMPT, Reply, ask, body_for, request
from tests.rig import Front, ramjet
from tests.scripted import Connection, Script, Seen, dead_url, scripted_engine

JSON = b'{"id":"x","choices":[]}'
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
STREAM = EVENT * 2 + b"data: [DONE]\n\n"
ERROR = b'{"error":{"message":"of the engine","type":"x","code":1}}'
ERROR_STREAM = EVENT + b"data: " + ERROR + b"\n\ndata: [DONE]\n\n"
SSE = b"content-type: text/event-stream\r\n"


def streaming(seen: Seen) -> bool:
    return b'"stream": true' in seen.body


def usual(seen: Seen) -> bytes:
    """What an engine says when all is well."""
    return STREAM if streaming(seen) else JSON


def kind_of(seen: Seen) -> bytes:
    return SSE if streaming(seen) else b"content-type: application/json\r\n"


async def well(connection: Connection, seen: Seen) -> None:
    if not streaming(seen):
        await connection.answer(JSON)
        return
    await connection.start_stream()
    await connection.chunk(STREAM)
    await connection.chunk(b"")


def status(code: int, *lines: str) -> Script:
    """The engine's own error, whatever was asked for."""

    async def script(connection: Connection, seen: Seen) -> None:
        more = dict(line.split(": ") for line in lines)
        await connection.answer(ERROR, status=code, **{name.replace("-", "_"): value for name, value in more.items()})

    return script


def plain(make: Callable[[Seen], bytes], *, close: bool = False) -> Script:
    """Bytes as they are."""

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.send(make(seen))
        if close:
            connection.writer.close()

    return script


async def reset(connection: Connection, seen: Seen) -> None:
    connection.reset()


async def closed(connection: Connection, seen: Seen) -> None:
    connection.writer.close()


async def reset_after_head(connection: Connection, seen: Seen) -> None:
    await connection.start_stream()
    await asyncio.sleep(0.02)
    connection.reset()


async def reset_after_byte(connection: Connection, seen: Seen) -> None:
    await connection.start_stream()
    await connection.chunk(EVENT)
    await asyncio.sleep(0.03)
    connection.reset()


async def stall(connection: Connection, seen: Seen) -> None:
    await connection.gone()


async def stall_after_head(connection: Connection, seen: Seen) -> None:
    await connection.start_stream()
    await connection.gone()


async def stall_after_byte(connection: Connection, seen: Seen) -> None:
    await connection.start_stream()
    await connection.chunk(EVENT)
    await connection.gone()


async def truncated(connection: Connection, seen: Seen) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\n" + kind_of(seen) + b"transfer-encoding: chunked\r\n\r\nff\r\n" + EVENT)
    await asyncio.sleep(0.03)
    connection.writer.close()


async def short(connection: Connection, seen: Seen) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\n" + kind_of(seen) + b"content-length: 999\r\n\r\n" + EVENT)
    await asyncio.sleep(0.03)
    connection.writer.close()


async def error_event(connection: Connection, seen: Seen) -> None:
    await connection.start_stream()
    await connection.chunk(ERROR_STREAM)
    await connection.chunk(b"")


async def early_hints(connection: Connection, seen: Seen) -> None:
    await connection.send(b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.01)
    await connection.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n", pause_s=0.01)
    await well(connection, seen)


def framed(seen: Seen, *, version: bytes = b"1.1", more: bytes = b"", length: bool = True) -> bytes:
    content = usual(seen)
    size = b"content-length: %d\r\n" % len(content) if length else b""
    return b"HTTP/" + version + b" 200 OK\r\n" + kind_of(seen) + more + size + b"\r\n" + content


def zipped(seen: Seen) -> bytes:
    content = gzip.compress(usual(seen), mtime=0)
    head = b"HTTP/1.1 200 OK\r\n" + kind_of(seen) + b"content-encoding: gzip\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(content) + content


COOKIES = b"set-cookie: a=1\r\nset-cookie: b=2; Path=/\r\n"
USUAL = "usual"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What an engine does, and what must come of it."""

    script: Script | None
    """None: nobody listens."""
    outcome: str
    status: int = 200
    body: bytes | str = USUAL
    """USUAL is what an engine says when all is well, in the form that was asked for."""
    complete: bool = True
    attempts: int = 1
    method: str = "POST"
    headers: tuple[tuple[str, list[str]], ...] = ()
    interim: list[int] = field(default_factory=list)
    only: str = "json sse"
    ours: str | None = None
    """The code of Ramjet's own error."""


BEHAVIOURS = {
    "well": Behaviour(well, "ok"),
    "refused": Behaviour(None, "upstream_connect", 502, attempts=2, ours="replica_unreachable"),
    "reset": Behaviour(reset, "upstream_reset", 502, attempts=2, ours="replica_reset"),
    "closed without a byte": Behaviour(closed, "upstream_reset", 502, attempts=2, ours="replica_reset"),
    "reset after head": Behaviour(reset_after_head, "upstream_reset", 502, attempts=2, ours="replica_reset"),
    "reset after a byte": Behaviour(reset_after_byte, "upstream_reset", body=EVENT, complete=False),
    "stall": Behaviour(stall, "timeout_first_byte", 504, ours="replica_timeout"),
    "stall after head": Behaviour(stall_after_head, "timeout_first_byte", 504, ours="replica_timeout"),
    "stall after a byte": Behaviour(stall_after_byte, "upstream_stall", body=EVENT, complete=False),
    **{str(code): Behaviour(status(code), "http_4xx", code, ERROR) for code in (400, 401, 404, 413, 422)},
    "429": Behaviour(
        status(429, "retry-after: 7"), "http_4xx", 429, ERROR, attempts=2, headers=(("retry-after", ["7"]),)
    ),
    "500": Behaviour(status(500), "http_5xx", 500, ERROR),
    "503": Behaviour(
        status(503, "retry-after: 7"), "http_5xx", 503, ERROR, attempts=2, headers=(("retry-after", ["7"]),)
    ),
    "garbage": Behaviour(
        plain(lambda _: b"\x16\x03\x01garbage\r\n\r\n", close=True),
        "upstream_reset",
        502,
        attempts=2,
        ours="replica_reset",
    ),
    "another protocol": Behaviour(
        plain(lambda _: b"SSH-2.0-OpenSSH_9.6\r\n", close=True),
        "upstream_reset",
        502,
        attempts=2,
        ours="replica_reset",
    ),
    "two lengths": Behaviour(
        plain(lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
        "upstream_reset",
        502,
        attempts=2,
        ours="replica_reset",
    ),
    "truncated chunked": Behaviour(truncated, "upstream_reset", body=EVENT, complete=False),
    "short length": Behaviour(short, "upstream_reset", body=EVENT, complete=False),
    "error event": Behaviour(error_event, "stream_error_event", body=ERROR_STREAM, only="sse"),
    "1xx before": Behaviour(early_hints, "ok"),
    "204": Behaviour(plain(lambda _: b"HTTP/1.1 204 No Content\r\n\r\n"), "ok", 204, b""),
    "304": Behaviour(
        plain(lambda _: b'HTTP/1.1 304 Not Modified\r\netag: "x"\r\n\r\n'),
        "ok",
        304,
        b"",
        headers=(("etag", ['"x"']),),
    ),
    "HEAD": Behaviour(  # no stream is asked for with HEAD
        plain(lambda _: b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 123\r\n\r\n"),
        "ok",
        body=b"",
        method="HEAD",
        headers=(("content-length", ["123"]),),
        only="json",
    ),
    "redirect": Behaviour(
        plain(lambda _: b"HTTP/1.1 307 Elsewhere\r\nlocation: http://127.0.0.1:1/x\r\ncontent-length: 0\r\n\r\n"),
        "ok",
        307,
        b"",
        headers=(("location", ["http://127.0.0.1:1/x"]),),
    ),
    "gzip": Behaviour(plain(zipped), "ok", body="gzip", headers=(("content-encoding", ["gzip"]),)),
    "cookies": Behaviour(
        plain(lambda seen: framed(seen, more=COOKIES)), "ok", headers=(("set-cookie", ["a=1", "b=2; Path=/"]),)
    ),
    "connection close": Behaviour(plain(lambda seen: framed(seen, more=b"connection: close\r\n"), close=True), "ok"),
    "HTTP/1.0": Behaviour(plain(lambda seen: framed(seen, version=b"1.0"), close=True), "ok"),
    "until close": Behaviour(plain(lambda seen: framed(seen, length=False), close=True), "ok"),
}


@asynccontextmanager
async def two_replicas(script: Script | None) -> AsyncIterator[Front]:
    """A fleet of two that both do the same, so that a second attempt is seen and does not help."""
    limits = {"first_byte_s": 1.5, "gap_s": 1.0}
    if script is None:
        async with ramjet({"a": dead_url(), "b": dead_url()}, limits=limits) as front:
            yield front
        return
    async with scripted_engine(script) as engine:
        async with ramjet({"a": engine.url, "b": f"{engine.url}/b"}, limits=limits) as front:
            yield front


@pytest.mark.parametrize("form", ["json", "sse"])
@pytest.mark.parametrize("what", BEHAVIOURS)
async def test_whatever_an_engine_does_is_passed_on_and_booked(what: str, form: str) -> None:
    """
    The client sees what the engine did or Ramjet's own error, the record says the same, and nothing is left in flight.
    """
    expected = BEHAVIOURS[what]
    if form not in expected.only:
        pytest.skip("a stream's own")
    async with two_replicas(expected.script) as front, asyncio.TaskGroup() as tasks:
        for path in ENDPOINTS:
            tasks.create_task(play(front, path, expected, form), name=path)


async def play(front: Front, path: str, expected: Behaviour, form: str) -> None:
    sent = body_for(path, "hello", stream=form == "sse")
    name = f"{ENDPOINTS[path]}-{form}"
    reply = await ask(front.url, request(path, sent, f"X-Request-Id: {name}", method=expected.method))
    await front.settled()

    check_reply(reply, expected, form)
    record = front.record(name)
    assert (record.outcome, record.status, record.attempts, record.endpoint) == (
        expected.outcome, expected.status, expected.attempts, ENDPOINTS[path],
    )  # fmt: skip
    assert record.outcome in OUTCOMES
    assert front.in_flight == {"a": 0, "b": 0}
    assert [replica.queue_s for replica in front.router.fleet] == [0.0, 0.0]
    assert {replica.state is State.DOWN for replica in front.router.fleet} == {expected.script is None}
    assert front.metric("ramjet_requests_total", endpoint=ENDPOINTS[path], outcome=expected.outcome) == 1


def check_reply(reply: Reply, expected: Behaviour, form: str) -> None:
    content = STREAM if form == "sse" else JSON
    assert (reply.status, reply.complete, reply.interim) == (expected.status, expected.complete, expected.interim)
    if expected.ours is not None:
        assert reply.json()["error"]["code"] == expected.ours
    elif expected.body == "gzip":
        assert gzip.decompress(reply.body) == content
    else:
        assert reply.body == (content if expected.body == USUAL else expected.body)
    for name, values in expected.headers:
        assert reply.all(name) == values
    assert len(reply.all("x-request-id")) == 1


@pytest.mark.parametrize("what", ["reset", "429", "503", "closed without a byte", "reset after head", "garbage"])
@pytest.mark.parametrize("path", WITH_PROMPT)
async def test_the_other_replica_serves_what_the_first_did_not(what: str, path: str) -> None:
    """
    While no byte has reached the client, it never learns of it.
    """
    broken = BEHAVIOURS[what].script
    assert broken is not None
    async with scripted_engine(broken) as one, scripted_engine(well) as two:
        async with ramjet({"a": one.url, "b": two.url}) as front:
            replies = [await ask(front.url, request(path, body_for(path, f"{n}" * 3_000))) for n in range(6)]
            await front.settled()

            assert {(reply.status, reply.body) for reply in replies} == {(200, JSON)}
            assert {record.replica for record in front.records} == {"b"}
            assert 1 <= len(one.seen) <= 6
            assert max(record.attempts for record in front.records) == 2
            assert all(replica.state is State.UP for replica in front.router.fleet)
