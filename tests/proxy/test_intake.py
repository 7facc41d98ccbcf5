"""Long bodies on their way in: as they were sent, however they come, and the connection is as good as before."""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.web_protocol import RequestHandler

from ramjet.proxy.door import Door
from ramjet.proxy.intake import FIRST_BYTES, LEAST_BYTES, Intake
from tests.bugs.wire import Wire, body_for, request, wire
from tests.operations.test_security import certificate
from tests.rig import Front, ramjet
from tests.scripted import Connection, ScriptedEngine, Seen, scripted_engine

PATH = "/v1/embeddings"
LONG = 3 * LEAST_BYTES

Play = Callable[[Front, ScriptedEngine, Wire], Awaitable[None]]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Something is played in either loop, over one connection to a Ramjet with one replica."""
    run: Callable[[Coroutine[Any, Any, None]], None] = request.param

    def played(what: Play, tls: dict[str, str] | None = None, **limits: Any) -> None:
        async def whole() -> None:
            sections: dict[str, Any] = {"limits": limits} if tls is None else {"limits": limits, "tls": tls}
            async with scripted_engine() as engine, ramjet({"a": engine.url}, **sections) as front:
                trusted = None if tls is None else ssl.create_default_context(cafile=tls["certificate"])
                host, _, port = front.url.rpartition("//")[2].rpartition(":")
                reader, writer = await asyncio.open_connection(host, int(port), ssl=trusted)
                await what(front, engine, Wire(reader, writer))
                writer.transport.abort()
                await front.settled()
                assert front.running.handler.door.held_bytes == 0
                assert "internal_error" not in {record.outcome for record in front.records}

        run(whole())

    return played


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the bodies that were taken in here, and not as aiohttp does."""
    sizes: list[int] = []
    whole = Intake.body

    async def body(self: Intake, gap_s: float, takes: Callable[[int], None]) -> bytearray:
        data = await whole(self, gap_s, takes)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(Intake, "body", body)
    return sizes


def text(size: int, seed: int = 1) -> bytes:
    """A body that is not the same anywhere."""
    return random.Random(seed).randbytes(size)


async def in_pieces(line: Wire, raw: bytes, seed: int) -> None:
    """Send something cut anywhere, the receiver being quicker or slower than that."""
    chance, at = random.Random(seed), 0
    while at < len(raw):
        size = chance.choice((1, 100, 70_000, 300_000, 1_000_000))
        line.send(raw[at : at + size])
        at += size
        await line.writer.drain()
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.002)))


@pytest.mark.parametrize("seed", range(6))
def test_a_long_body_comes_as_it_was_sent(play: Callable[..., None], taken: list[int], seed: int) -> None:
    """
    One after another on a connection, short ones between them; and what is longer than the first buffer.
    """

    async def talk(_: Front, engine: ScriptedEngine, line: Wire) -> None:
        sent = [text(size, seed) for size in (LONG, 10, FIRST_BYTES + 1, LEAST_BYTES, 9 * FIRST_BYTES, 0, LONG + seed)]
        for body in sent:
            await in_pieces(line, request(PATH, body), seed)
            assert (await line.reply()).status == 200
        assert [seen.body for seen in engine.seen] == sent
        assert {LONG, FIRST_BYTES + 1, 9 * FIRST_BYTES, LONG + seed} <= set(taken)

    play(talk)


def test_a_long_body_comes_over_tls_too(play: Callable[..., None], taken: list[int], tmp_path: Path) -> None:
    """
    Where what has come is decrypted piece by piece.
    """
    made, key = certificate(tmp_path)

    async def talk(_: Front, engine: ScriptedEngine, line: Wire) -> None:
        sent = [text(size) for size in (LONG, 10, FIRST_BYTES + 1, 0)]
        for body in sent:
            await in_pieces(line, request(PATH, body), 2)
            assert (await line.reply()).status == 200
        assert [seen.body for seen in engine.seen] == sent
        assert taken == [LONG, FIRST_BYTES + 1]

    play(talk, tls={"certificate": str(made), "key": str(key)})


def test_requests_that_are_sent_before_the_answer_come_in_their_order(play: Callable[..., None]) -> None:
    """
    A long one is the first, is in the middle, and is the last: what follows it is no part of its body.
    """

    async def talk(_: Front, engine: ScriptedEngine, line: Wire) -> None:
        sent = [text(size) for size in (LONG, 10, LONG + 1, LONG + 2, 20, LONG + 3)]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(in_pieces(line, b"".join([request(PATH, body) for body in sent]), 3))
            assert [(await line.reply()).status for _ in sent] == [200] * len(sent)
        assert [seen.body for seen in engine.seen] == sent

    play(talk)


def test_a_client_that_waits_to_be_told_is_told(play: Callable[..., None], taken: list[int]) -> None:
    """
    It sends nothing of its body before.
    """

    async def talk(_: Front, engine: ScriptedEngine, line: Wire) -> None:
        body = text(LONG)
        line.send(request(PATH, body, "Expect: 100-continue").removesuffix(body))
        assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.send(body)
        assert (await line.reply()).status == 200
        assert engine.seen[0].body == body
        assert taken == [LONG]

    play(talk)


@pytest.mark.parametrize("came", [0, 1_000, LEAST_BYTES, LONG - 1])
def test_a_body_that_does_not_go_on_is_refused(play: Callable[..., None], came: int) -> None:
    """
    After so long without a byte, however much has come; the client gets to read why, and the connection is closed.
    """

    async def talk(_: Front, engine: ScriptedEngine, line: Wire) -> None:
        line.send(request(PATH, text(LONG))[: came - LONG])
        reply = await line.reply()
        assert (reply.status, "limits.body_gap_s" in reply.json()["error"]["message"]) == (408, True)
        line.send(text(LONG)[came:])
        assert await line.closed()
        assert not engine.seen

    play(talk, body_gap_s=0.3)


def test_a_slow_body_is_waited_for_as_long_as_it_goes_on(play: Callable[..., None]) -> None:
    """
    The whole of it takes longer than it may pause.
    """

    async def talk(_: Front, engine: ScriptedEngine, line: Wire) -> None:
        raw = request(PATH, text(LONG))
        for at in range(0, len(raw), 150_000):
            line.send(raw[at : at + 150_000])
            await asyncio.sleep(0.2)
        assert (await line.reply()).status == 200
        assert len(engine.seen[0].body) == LONG

    play(talk, body_gap_s=0.6)


def test_a_client_that_leaves_in_the_middle_leaves_nothing(play: Callable[..., None]) -> None:
    """
    Gone or closed in one direction, it is a client that left.
    """

    async def talk(front: Front, _: ScriptedEngine, line: Wire) -> None:
        for at_once in (True, False):
            async with wire(front.url) as other:
                other.send(request(PATH, text(LONG))[: -LONG // 2])
                await asyncio.sleep(0.1)
                assert front.running.handler.door.held_bytes == LONG
                if at_once:
                    other.writer.transport.abort()
                else:
                    other.writer.write_eof()
                await front.settled()
        assert [record.outcome for record in front.records] == ["client_disconnect"] * 2
        line.send(request(PATH, b"{}"))
        assert (await line.reply()).status == 200

    play(talk)


def test_who_only_announces_a_body_takes_little_room(play: Callable[..., None]) -> None:
    """
    Where there is no more room for what has been announced, the rest of the body is not taken in.
    """

    async def talk(front: Front, _: ScriptedEngine, line: Wire) -> None:
        door = front.running.handler.door
        line.send(request(PATH, b"", f"Content-Length: {10 * FIRST_BYTES}"))
        await asyncio.sleep(0.1)
        assert door.held_bytes == FIRST_BYTES
        door.options = replace(door.options, held_bytes=2 * FIRST_BYTES)
        line.send(bytes(10 * FIRST_BYTES))
        assert (await line.reply()).status == 429

    play(talk)


def test_a_body_that_nobody_wants_is_read_away(play: Callable[..., None], taken: list[int]) -> None:
    """
    A request that is refused by its head alone is answered, and what follows is no request.
    """

    async def talk(front: Front, engine: ScriptedEngine, line: Wire) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(in_pieces(line, request(PATH, text(LONG)), 4))
            assert (await line.reply()).status == 413
        assert await line.closed()
        assert not engine.seen
        assert not taken
        assert [record.outcome for record in front.records] == ["refused"]

    play(talk, body_bytes=LONG - 1)


def test_a_body_for_which_there_is_no_room_any_more_is_read_away(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Others have taken it since the head was looked at.
    """
    looked = Door.check_room
    asked: list[int] = []

    def check(self: Door, size: int) -> None:
        asked.append(size)
        looked(self, size if len(asked) == 1 else 1 << 40)

    monkeypatch.setattr(Door, "check_room", check)

    async def talk(_: Front, engine: ScriptedEngine, line: Wire) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(in_pieces(line, request(PATH, text(20 * LONG)), 4))
            assert (await line.reply()).status == 429
        assert await line.closed()
        assert not engine.seen

    play(talk)


def test_a_body_without_a_length_comes_too(play: Callable[..., None], taken: list[int]) -> None:
    """
    As aiohttp reads it.
    """

    async def talk(_: Front, engine: ScriptedEngine, line: Wire) -> None:
        body = text(LONG)
        raw = request(PATH, b"%x\r\n%b\r\n0\r\n\r\n" % (LONG, body), "Transfer-Encoding: chunked")
        await in_pieces(line, raw + request(PATH, b"{}"), 5)
        assert [(await line.reply()).status for _ in range(2)] == [200, 200]
        assert [seen.body for seen in engine.seen] == [body, b"{}"]
        assert not taken

    play(talk)


def test_nothing_of_a_body_stays_when_it_has_been_served(play: Callable[..., None]) -> None:
    """
    Memory goes with the request: no garbage collector has to be waited for, which comes rarely.
    """

    async def talk(_: Front, __: ScriptedEngine, line: Wire) -> None:
        gc.collect()
        gc.disable()
        try:
            for number in range(5):
                line.send(request(PATH, text(LONG + number)))
                assert (await line.reply()).status == 200
            await asyncio.sleep(0.05)
            left = [each for each in gc.get_objects() if isinstance(each, Intake)]
            # The loop may remember the last.
            assert len(left) <= 1
            assert not any(hasattr(each, name) for each in left for name in ("_data", "_connection"))
        finally:
            gc.enable()

    play(talk)


class Watched(bytearray):
    """A body of which can be told whether it is still there."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("asks", [True, False])
async def test_a_body_goes_when_its_answer_begins(asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Streams run for minutes, and bodies are long: no other replica will be asked, so nobody needs it.
    """
    bodies: list[weakref.ref[Watched]] = []
    whole = Door.body

    async def watched(self: Door, request: web.BaseRequest) -> Watched:
        made = Watched(await whole(self, request))
        bodies.append(weakref.ref(made))
        return made

    monkeypatch.setattr(Door, "body", watched)
    go_on = asyncio.Event()

    async def stream(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        await connection.chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
        await go_on.wait()
        await connection.chunk(b"data: [DONE]\n\n")
        await connection.chunk(b"")

    async with scripted_engine(stream) as engine:
        async with ramjet({"a": {"url": engine.url, "ask_usage": asks}}) as front, wire(front.url) as line:
            line.send(request("/v1/chat/completions", body_for("/v1/chat/completions", "x" * LONG, stream=True)))
            await line.reader.readuntil(b"content")
            await asyncio.sleep(0.05)
            assert [body() for body in bodies] == [None]
            assert front.running.handler.door.held_bytes == 0
            go_on.set()
            await line.reader.readuntil(b"0\r\n\r\n")
            await front.settled()
            assert [(record.outcome, record.prompt_bytes > LONG) for record in front.records] == [("ok", True)]
            assert front.running.handler.door.held_bytes == 0


def test_what_is_leant_on_is_there() -> None:
    """
    Of aiohttp's: without one of these, bodies would be read in the old way, or not at all.
    """
    assert {"_messages", "_request_in_progress", "_read_bufsize"} <= set(RequestHandler.__slots__)
    assert {"_parser", "_reading_paused"} <= set(BaseProtocol.__slots__)
