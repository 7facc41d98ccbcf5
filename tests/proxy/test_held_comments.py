"""Comments in the streams of those who are held, and what becomes of a status that has already been sent."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest

from ramjet.proxy import exchange as exchanges
from ramjet.proxy.exchange import Exchange
from ramjet.replica.dialects import DIALECTS, Reply
from tests.proxy.support import CHAT, body, held, prompt, until
from tests.rig import Front, ramjet, settings_for
from tests.scripted import Connection, Script, ScriptedEngine, Seen, scripted_engine

EVERY_S = 0.02
SPEAKS = {dialect.path: dialect for dialect in DIALECTS}
REPLY = Reply(
    engine="sglang",
    identity="0" * 32,
    model="m",
    created_at=1,
    prompt_tokens=20_000,
    cached_tokens=64,
    reports_cached=True,
    drops_zero=False,
    tokens=("hello", " there"),
    stopped=True,
    include_usage=True,
)


def stream_of(path: str) -> bytes:
    """A whole answer in an endpoint's dialect."""
    dialect = SPEAKS[path]
    tokens = b"".join(dialect.token(REPLY, at) for at in range(len(REPLY.tokens)))
    return dialect.opening(REPLY) + dialect.first(REPLY) + tokens + dialect.closing(REPLY)


async def answer(connection: Connection, seen: Seen) -> None:
    """Stream it."""
    await connection.start_stream()
    await connection.chunk(stream_of(seen.target))
    await connection.chunk(b"")


class Holding:
    """A Ramjet that holds what comes next, because its one replica reads a long prompt until `release` is set."""

    def __init__(self, front: Front, engine: ScriptedEngine, release: asyncio.Event, client: httpx.AsyncClient) -> None:
        self.front, self.engine, self.release, self.client = front, engine, release, client

    async def comes_and_goes(self, comments: int = 3) -> None:
        """Let the next request be held until it has been sent so many comments, and then in."""
        await until(lambda: held(self.front) == 1)
        await asyncio.sleep(comments * EVERY_S * 1.5)
        self.release.set()

    def stream(self, path: str = CHAT, name: str = "second", **more: Any) -> Any:
        """The next request, as an httpx stream."""
        return self.client.stream("POST", self.front.url + path, json=asking(path, name) | more)

    async def record(self) -> Any:
        """What was recorded of the request that was held."""
        await until(lambda: any(each.held_s for each in self.front.records))
        return next(each for each in self.front.records if each.held_s)


def asking(path: str, name: str) -> dict[str, Any]:
    """A request for a stream in an endpoint's dialect, long enough to be held."""
    if path in {CHAT, "/v1/messages"}:
        return body(name, stream=True, max_tokens=9)
    field = {"/v1/completions": "prompt", "/v1/responses": "input", "/generate": "text"}[path]
    return {"model": "m", "stream": True, field: prompt(name)}


@contextlib.asynccontextmanager
async def holding(script: Script = answer, *, limits: Any = None, **admission: Any) -> AsyncIterator[Holding]:
    """The scene of every test here: one is being read, and whoever comes next is held."""
    release = asyncio.Event()

    async def play(connection: Connection, seen: Seen) -> None:
        if prompt("first")[:100].encode() in seen.body:
            await release.wait()
            await answer(connection, seen)
        else:
            await script(connection, seen)

    admission = {"comment_every_s": EVERY_S, **admission}
    async with (
        scripted_engine(play) as engine,
        httpx.AsyncClient(timeout=20) as client,
        ramjet({"a": engine.url}, routing={"admission": admission}, limits=limits or {}) as front,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(client.post(front.url + CHAT, json=asking(CHAT, "first")))
        await until(lambda: len(engine.seen) == 1)
        yield Holding(front, engine, release, client)
        release.set()


async def say(url: str, path: str, *, timeout_s: float = 20.0) -> str:
    """The text that the endpoint's official SDK gets out of a stream; /generate has none."""
    given = asking(path, "second")
    if path == "/v1/messages":
        del given["stream"]
        async with (
            anthropic.AsyncAnthropic(base_url=url, api_key="none", timeout=timeout_s) as claude,
            claude.messages.stream(**given) as stream,
        ):
            return "".join([text async for text in stream.text_stream])
    if path == "/generate":
        async with httpx.AsyncClient(timeout=timeout_s) as client:
            lines = (await client.post(url + path, json=given)).text.splitlines()
        told = [json.loads(line[5:]) for line in lines if line.startswith("data: {")][-1]
        if "error" in told:
            raise openai.APIError(told["error"]["message"], httpx.Request("POST", url), body=told["error"])  # type: ignore[arg-type]
        return str(told["text"])
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=timeout_s) as sdk:
        if path == CHAT:
            chats = await sdk.chat.completions.create(**given)
            return "".join([each.choices[0].delta.content or "" async for each in chats if each.choices])
        if path == "/v1/completions":
            texts = await sdk.completions.create(**given)
            return "".join([each.choices[0].text async for each in texts if each.choices])
        events = await sdk.responses.create(**given)
        return "".join([each.delta async for each in events if each.type == "response.output_text.delta"])


# -- a good answer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SPEAKS)
async def test_official_sdks_read_past_the_comments_to_a_normal_answer(path: str) -> None:
    """
    They wait as long as something comes, which is what the comments are for: their own limit is shorter than the hold.
    No comment is taken for the first token.
    """
    async with holding() as scene, asyncio.TaskGroup() as tasks:
        said = tasks.create_task(say(scene.front.url, path, timeout_s=0.5))
        await until(lambda: held(scene.front) == 1)
        await asyncio.sleep(1.0)
        scene.release.set()

        assert await said == "hello there"
        record = await scene.record()
        assert (record.outcome, record.status, record.replica) == ("ok", 200, "a")
        assert record.held_s > 1.0
        assert record.ttft_s >= record.held_s
        assert record.usage.prompt_tokens == 20_000


async def test_what_is_on_the_wire() -> None:
    """
    The head of a stream with the request's id and no replica, which nobody knows yet; comments; then the engine's bytes.
    """
    async with holding() as scene, asyncio.TaskGroup() as tasks:
        tasks.create_task(scene.comes_and_goes())
        async with scene.stream() as got:
            content = await got.aread()

        assert (got.status_code, got.headers["content-type"]) == (200, "text/event-stream")
        assert got.headers["x-accel-buffering"] == "no"
        assert got.headers["date"]
        assert got.headers["x-request-id"] == (await scene.record()).request_id
        assert "x-ramjet-replica" not in got.headers
        comments = content.count(b": held\n\n")
        assert comments >= 3
        # Ramjet asked for the usage and the client did not, so that chunk is not there.
        rest = content[comments * len(b": held\n\n") :]
        assert rest == b"".join(
            each + b"\n\n" for each in stream_of(CHAT).split(b"\n\n")[:-1] if b'"choices": []' not in each
        )


async def test_who_waits_for_less_than_that_gets_an_answer_like_any_other() -> None:
    """
    The first comment comes after the pause and not before it, so short holds cost nothing.
    """
    async with holding(comment_every_s=60) as scene, asyncio.TaskGroup() as tasks:
        tasks.create_task(scene.comes_and_goes())
        async with scene.stream() as got:
            content = await got.aread()

        assert got.headers["x-ramjet-replica"] == "a"
        assert b": held" not in content


@pytest.mark.parametrize(("stream", "every_s"), [(False, EVERY_S), (True, None)])
async def test_only_streams_are_opened_and_only_where_that_is_on(*, stream: bool, every_s: float | None) -> None:
    """
    Others keep their status: here the refusal's.
    """
    async with holding(max_hold_s=4 * EVERY_S, comment_every_s=every_s) as scene:
        async with scene.stream(stream=stream) as got:
            await got.aread()

        assert (got.status_code, got.json()["error"]["code"]) == (429, "held_too_long")
        assert "retry-after" in got.headers


async def test_a_reload_turns_it_on_and_off() -> None:
    """
    For those who are held from then on.
    """
    async with holding(comment_every_s=None, max_hold_s=4 * EVERY_S) as scene:
        admission = {"comment_every_s": EVERY_S, "max_hold_s": 4 * EVERY_S}
        scene.front.running.control.apply(
            settings_for({"a": scene.engine.url}, routing={"admission": admission}, limits={})
        )
        async with scene.stream() as got:
            await got.aread()

        assert got.status_code == 200


# -- a bad one --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SPEAKS)
async def test_official_sdks_raise_for_who_is_held_for_too_long(path: str) -> None:
    """
    Once, for they try again by status alone. The refusal is an event of the endpoint's dialect; the record has the
    outcome and the status that it would have had.
    """
    async with holding(max_hold_s=4 * EVERY_S) as scene:
        with pytest.raises((openai.APIError, anthropic.APIError), match="no replica had room"):
            await say(scene.front.url, path)

        record = await scene.record()
        assert (record.outcome, record.status, record.attempts, record.ttft_s) == ("shed", 429, 0, None)
        assert [each.outcome for each in scene.front.records] == ["shed"]
        assert len(scene.engine.seen) == 1


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (CHAT, b'data: {"error":{"message":"%s","type":"rate_limit_error","param":null,"code":"held_too_long"}}\n\n'
               b"data: [DONE]\n\n"),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"rate_limit_error","message":"%s"}}\n\n'),
        ("/v1/responses", b'event: error\ndata: {"type":"error","sequence_number":0,"code":"held_too_long",'
                          b'"message":"%s","param":null,"error":{"message":"%s","type":"rate_limit_error",'
                          b'"param":null,"code":"held_too_long"}}\n\n'),
    ],
)  # fmt: skip
async def test_an_error_event_in_each_dialect(path: str, told: bytes) -> None:
    """
    With the time to come back in the stream's own word, and an end that is complete.
    """
    async with holding(max_hold_s=4 * EVERY_S) as scene:
        async with scene.stream(path) as got:
            content = await got.aread()  # an answer that was cut would raise here

        message = b"no replica had room for this conversation for routing.admission.max_hold_s = 0.08 s; try later"
        retry, _, event = content.replace(b": held\n\n", b"").partition(b"\n")
        assert event == told.replace(b"%s", message)
        assert retry.startswith(b"retry: ")
        assert int(retry[7:]) >= 1_000


def failing(status: int, error: bytes, **headers: str) -> Script:
    """An engine that answers with an error."""

    async def play(connection: Connection, _seen: Seen) -> None:
        await connection.answer(error, status=status, **headers)

    return play


SGLANG = b'{"object":"error","message":"prompt too long","type":"BadRequestError","param":null,"code":400}'


@pytest.mark.parametrize(
    ("status", "error", "said", "outcome"),
    [
        (400, SGLANG, "prompt too long", "http_4xx"),
        (500, b'{"error":{"message":"out of memory","type":"x","code":500}}', "out of memory", "http_5xx"),
        (503, b'{"error":{"message":"full","type":"x","code":503}}', "full", "http_5xx"),
        (502, b"", "the replica answered 502", "http_5xx"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_an_engines_error_is_told_as_an_event(
    path: str, status: int, error: bytes, said: str, outcome: str
) -> None:
    """
    In the engine's own words; the record's status is the engine's, whatever the stream began with.
    """
    async with holding(failing(status, error)) as scene, asyncio.TaskGroup() as tasks:
        tasks.create_task(scene.comes_and_goes())
        with pytest.raises((openai.APIError, anthropic.APIError), match=said):
            await say(scene.front.url, path)

        record = await scene.record()
        assert (record.outcome, record.status, record.replica) == (outcome, status, "a")


@pytest.mark.parametrize(
    ("after", "told"),
    [("7", b"retry: 7000\n"), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("9" * 5_000, None)],
    ids=["seconds", "date", "nonsense"],
)
async def test_a_busy_engines_retry_after_is_passed_on(after: str, told: bytes | None) -> None:
    """
    In seconds there, in milliseconds here; what is no number of seconds is left out.
    """
    async with holding(failing(429, b"{}", retry_after=after)) as scene, asyncio.TaskGroup() as tasks:
        tasks.create_task(scene.comes_and_goes())
        async with scene.stream() as got:
            content = await got.aread()

        assert (b"retry: " in content) == (told is not None)
        assert told is None or b"\n" + told in content
        assert content.endswith(b"data: [DONE]\n\n")


async def whole(connection: Connection, _seen: Seen) -> None:
    await connection.answer(json.dumps(SPEAKS[CHAT].whole(REPLY)).encode())


async def compressed(connection: Connection, seen: Seen) -> None:
    await connection.answer(gzip.compress(stream_of(seen.target)), kind="text/event-stream", content_encoding="gzip")


@pytest.mark.parametrize("script", [whole, compressed])
async def test_an_answer_that_cannot_go_on_in_the_stream_is_an_error(script: Script) -> None:
    """
    One JSON document, or compressed bytes, behind a head that promised plain events would be read by nobody.
    """
    async with holding(script) as scene, asyncio.TaskGroup() as tasks:
        tasks.create_task(scene.comes_and_goes())
        with pytest.raises(openai.APIError, match="replica a did not answer with a plain event stream"):
            await say(scene.front.url, CHAT)

        record = await scene.record()
        assert (record.outcome, record.status) == ("stream_error_event", 502)


async def test_another_replica_answers_when_the_first_fails_behind_the_comments() -> None:
    """
    Comments are no part of an answer: the client never learns that one replica has failed.
    """
    release, failed_at = asyncio.Event(), ""

    def script(name: str) -> Script:
        async def play(connection: Connection, seen: Seen) -> None:
            nonlocal failed_at
            if prompt("third")[:100].encode() not in seen.body:
                await release.wait()
            elif failed_at in {"", name}:
                failed_at = name
                connection.reset()
                return
            await answer(connection, seen)

        return play

    async with (
        scripted_engine(script("a")) as one,
        scripted_engine(script("b")) as two,
        ramjet({"a": one.url, "b": two.url}, routing={"admission": {"comment_every_s": EVERY_S}}) as front,
        httpx.AsyncClient(timeout=20) as client,
        asyncio.TaskGroup() as tasks,
    ):
        for name in ("first", "second"):
            tasks.create_task(client.post(front.url + CHAT, json=asking(CHAT, name)))
        await until(lambda: one.seen and two.seen)
        third = tasks.create_task(client.post(front.url + CHAT, json=asking(CHAT, "third")))
        scene = Holding(front, one, release, client)
        await scene.comes_and_goes()

        assert (await third).content.endswith(b"data: [DONE]\n\n")
        record = await scene.record()
        assert (record.outcome, record.attempts, record.reason) == ("ok", 2, "retry")
        assert failed_at != record.replica


async def test_a_failure_of_all_replicas_is_told_as_an_event() -> None:
    """
    Ramjet's own 502, as it would have been.
    """

    async def play(connection: Connection, _seen: Seen) -> None:
        connection.reset()

    async with holding(play) as scene, asyncio.TaskGroup() as tasks:
        tasks.create_task(scene.comes_and_goes())
        with pytest.raises(openai.APIError, match="replica a failed"):
            await say(scene.front.url, CHAT)

        record = await scene.record()
        assert (record.outcome, record.status) == ("upstream_reset", 502)


async def test_an_answer_that_breaks_is_cut_like_any_other() -> None:
    """
    From its first byte on it is an answer, and the client must not take a part for the whole.
    """

    async def play(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        await connection.chunk(stream_of(seen.target)[:200])
        connection.reset()

    async with holding(play) as scene, asyncio.TaskGroup() as tasks:
        tasks.create_task(scene.comes_and_goes())
        with pytest.raises(httpx.RemoteProtocolError):
            async with scene.stream() as got:
                await got.aread()

        record = await scene.record()
        assert (record.outcome, record.status) == ("upstream_reset", 200)


async def test_a_fault_of_ramjets_own_is_told_as_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Whatever it is, the stream ends with it and the client raises.
    """
    async with holding() as scene, asyncio.TaskGroup() as tasks:
        monkeypatch.setattr(type(scene.front.running.handler), "_attempt", lambda *_: 1 / 0)
        tasks.create_task(scene.comes_and_goes())
        with pytest.raises(openai.APIError, match="Ramjet failed"):
            await say(scene.front.url, CHAT)

        record = await scene.record()
        assert (record.outcome, record.status) == ("internal_error", 500)


# -- clients and ends -------------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_behind_the_comments_leaves_at_once() -> None:
    """
    Nothing was sent to an engine, nobody is held, and it was answered nothing.
    """
    async with holding() as scene:
        async with scene.stream() as got:
            assert await anext(got.aiter_bytes()) == b": held\n\n"
        await until(lambda: not held(scene.front))

        record = await scene.record()
        assert (record.outcome, record.status, record.attempts) == ("client_disconnect", None, 0)
        assert len(scene.engine.seen) == 1


async def test_a_client_that_takes_nothing_gets_no_more_comments_and_is_still_let_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Waiting for such a client would keep its place at the replica from everybody. Long comments fill its socket sooner.
    """
    due: list[Exchange] = []

    def comment(self: Exchange, really: Callable[[Exchange], Any] = Exchange.comment) -> None:
        due.append(self)
        really(self)

    def stuck() -> bool:
        transport = due[-1].request.transport if due else None
        return transport is not None and transport.get_write_buffer_size() > 0

    monkeypatch.setattr(exchanges, "_HELD", b": " + b"x" * 32_000 + b"\n\n")
    monkeypatch.setattr(Exchange, "comment", comment)
    async with holding(comment_every_s=0.001) as scene:
        port = int(scene.front.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            sent = json.dumps(asking(CHAT, "second")).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(sent)}\r\n\r\n"
            await asyncio.to_thread(client.sendall, head.encode() + sent)
            await until(stuck)
            many = len(due) + 20
            await until(lambda: len(due) > many)
            scene.release.set()

            await until(lambda: len(scene.engine.seen) == 2)


async def test_who_is_still_held_when_the_drain_is_over_is_cut() -> None:
    """
    Whoever stops Ramjet has waited for long enough; the client sees that this was no answer.
    """
    release = asyncio.Event()

    async def play(connection: Connection, seen: Seen) -> None:
        await release.wait()
        await answer(connection, seen)

    admission = {"comment_every_s": EVERY_S}
    async with scripted_engine(play) as engine, httpx.AsyncClient(timeout=20) as client, asyncio.TaskGroup() as tasks:
        async with ramjet({"a": engine.url}, routing={"admission": admission}, limits={"drain_s": 0.1}) as front:
            for name in ("first", "second"):
                tasks.create_task(cut_off(client, front.url, name))
                await until(lambda: engine.seen)
            await until(lambda: held(front) == 1)
            await asyncio.sleep(2 * EVERY_S)

        assert {(record.outcome, record.status) for record in front.records} == {("shutdown", None)}
        assert len(engine.seen) == 1


async def cut_off(client: httpx.AsyncClient, url: str, name: str) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post(url + CHAT, json=asking(CHAT, name))


async def test_a_client_of_old_gets_its_events_too() -> None:
    """
    HTTP/1.0 has no chunks: the stream's end is the connection's.
    """
    async with holding(max_hold_s=4 * EVERY_S) as scene:
        port = int(scene.front.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = json.dumps(asking(CHAT, "second")).encode()
        writer.write(f"POST {CHAT} HTTP/1.0\r\ncontent-length: {len(sent)}\r\n\r\n".encode() + sent)
        got = await reader.read()
        writer.close()

        assert got.startswith(b"HTTP/1.0 200 OK\r\n")
        assert got.count(b"\n: held\n\n") >= 1
        assert got.endswith(b"data: [DONE]\n\n")
