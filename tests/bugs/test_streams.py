"""Streams: cut anywhere, never collected, never made complete, and timed by their first token."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from ramjet.config import LimitSettings
from ramjet.core.stream import SseObserver
from tests.bugs import case
from tests.bugs.wire import WITH_PROMPT, Reply, ask, body_for, request, wire
from tests.rig import ramjet
from tests.scripted import Connection, Script, Seen, scripted_engine

CHAT = "/v1/chat/completions"
STREAM = request(CHAT, body_for(CHAT, "hello", stream=True))


def data(event: Any) -> bytes:
    return b"data: " + (event if isinstance(event, bytes) else json.dumps(event, ensure_ascii=False).encode()) + b"\n\n"


def delta(**fields: Any) -> bytes:
    return data({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


ROLE = delta(role="assistant", content="")
PING = b": ping\n\n"
USAGE = data({"choices": [], "usage": {"prompt_tokens": 951, "prompt_tokens_details": {"cached_tokens": 896}}})
DONE = data(b"[DONE]")


def pieces(*parts: bytes, pause_s: float = 0.0) -> Script:
    """A stream in these chunks."""

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        for part in parts:
            await connection.chunk(part)
            await asyncio.sleep(pause_s)
        await connection.chunk(b"")

    return script


WHOLE = ROLE + delta(content="漢字 und 😀") + PING + delta(content="é\u2028") + USAGE + DONE
SHOWN = WHOLE.replace(USAGE, b"")


@case(25)
@pytest.mark.parametrize("size", [1, 2, 7, 100, 10_000])
async def test_where_the_network_cuts_does_not_matter(size: int) -> None:
    """
    From a byte at a time to all at once: the client gets the same, and so do the record's numbers.
    """
    parts = [WHOLE[at : at + size] for at in range(0, len(WHOLE), size)]
    async with scripted_engine(pieces(*parts)) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, STREAM)

        assert (reply.body, reply.complete) == (SHOWN, True)
        (record,) = front.records
        assert (record.usage.prompt_tokens, record.usage.cached_tokens, record.outcome) == (951, 896, "ok")
        assert record.ttft_s is not None


@case(25)
def test_no_single_cut_matters() -> None:
    for cut in range(1, len(WHOLE)):
        observer = SseObserver(hide_usage=True)
        got = observer.feed(WHOLE[:cut], 1.0) + observer.feed(WHOLE[cut:], 2.0) + observer.close()

        assert got == SHOWN
        assert observer.usage is not None
        assert observer.usage.cached_tokens == 896
        assert observer.first_token_at is not None


@case(27)
async def test_a_line_of_20_mb_passes_and_is_not_kept() -> None:
    """
    Whole, though nobody looks into it; the usage behind it is read.
    """
    line = data({"choices": [{"logprobs": "x" * 20_000_000}]})
    async with scripted_engine(pieces(ROLE, line, USAGE, DONE)) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, STREAM)

        assert reply.body == ROLE + line + DONE
        assert front.records[0].usage.cached_tokens == 896


@case(28)
@pytest.mark.parametrize("offer", ["Accept-Encoding: gzip", "X-None: 1"])
@pytest.mark.parametrize("path", WITH_PROMPT)
async def test_every_event_arrives_when_it_was_sent(path: str, offer: str) -> None:
    """
    At every endpoint: within 50 ms, with no length, and with what keeps others from collecting.
    """
    sent: list[float] = []

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        for number in range(4):
            sent.append(time.perf_counter())
            await connection.chunk(delta(content=str(number)))
            await asyncio.sleep(0.08)
        await connection.chunk(b"")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front, wire(front.url) as line:
        line.send(request(path, body_for(path, "hello", stream=True), offer))
        got = Reply()
        await line._head(got)
        arrived = []
        for _ in range(4):
            await line.reader.readuntil(b"}\n\n")
            arrived.append(time.perf_counter())

        late_s = sorted(there - here for here, there in zip(sent, arrived, strict=True))
        assert late_s[2] < 0.05
        assert arrived[-1] - arrived[0] > 0.2
        assert got.header("content-length") is None
        assert (got.header("cache-control"), got.header("x-accel-buffering")) == ("no-cache", "no")


@case(28)
async def test_what_the_engine_says_of_collecting_is_kept() -> None:
    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(DONE, kind="text/event-stream", cache_control="no-store", x_accel_buffering="yes")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, STREAM)

        assert (reply.all("cache-control"), reply.all("x-accel-buffering")) == (["no-store"], ["yes"])


@case(29)
@pytest.mark.parametrize("head_first", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prefill_without_a_byte_is_waited_for(head_first: bool, stream: bool) -> None:
    """
    Eight times as long as a gap in the middle may be, with the head at once or late.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        if head_first:
            await connection.start_stream()
        await asyncio.sleep(0.8)
        if not head_first:
            await connection.start_stream()
        await connection.chunk(delta(content="x"))
        await connection.chunk(b"")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}, limits={"gap_s": 0.1}) as front:
        reply = await ask(front.url, request(CHAT, body_for(CHAT, "x", stream=stream)))

        assert (reply.status, reply.complete, front.records[0].outcome) == (200, True, "ok")


@case(29, 30)
def test_the_defaults_allow_what_is_normal() -> None:
    """
    Seven minutes before the first byte, five between two; nothing limits the whole.
    """
    limits = LimitSettings()

    assert limits.first_byte_s >= 420
    assert limits.gap_s >= 60
    assert not [name for name in LimitSettings.model_fields if "total" in name]


@case(30)
async def test_a_long_answer_is_not_cut_while_it_flows() -> None:
    """
    Far longer than every limit there is, with no gap as long as one.
    """
    limits = {"first_byte_s": 0.3, "gap_s": 0.3, "connect_s": 0.3, "client_idle_s": 0.3, "body_gap_s": 0.3}
    events = [delta(content=str(number)) for number in range(15)]
    async with (
        scripted_engine(pieces(*events, pause_s=0.1)) as engine,
        ramjet({"a": engine.url}, limits=limits) as front,
    ):
        reply = await ask(front.url, STREAM)

        assert (reply.body, reply.complete) == (b"".join(events), True)


@case(31)
async def test_a_silent_replica_holds_nobody_elses_requests() -> None:
    """
    One stalls in the middle, one before the first byte; fifty others are served meanwhile, and both end by their limits.
    """

    async def half(connection: Connection, seen: Seen) -> None:
        if b"in the middle" in seen.body:
            await connection.start_stream()
            for _ in range(3):
                await connection.chunk(delta(content="x"))
        if b"stall" in seen.body:
            await connection.gone()
        else:
            await connection.answer(b"{}")

    async with scripted_engine(half) as one, scripted_engine(half) as two:
        limits = {"gap_s": 1.0, "first_byte_s": 1.0}
        async with ramjet({"a": one.url, "b": two.url}, limits=limits) as front, asyncio.TaskGroup() as tasks:
            stalled = [
                tasks.create_task(ask(front.url, request(CHAT, body_for(CHAT, text, stream=True))))
                for text in ("stall in the middle", "stall before")
            ]
            await asyncio.sleep(0.1)
            started_at = time.perf_counter()
            for number in range(50):
                assert (await ask(front.url, request(CHAT, body_for(CHAT, f"{number} fine")))).status == 200
            assert time.perf_counter() - started_at < 0.9
            middle, before = [await task for task in stalled]
            await front.settled()

            assert (middle.status, middle.complete) == (200, False)
            assert (before.status, before.json()["error"]["code"]) == (504, "replica_timeout")
            outcomes = [record.outcome for record in front.records]
            assert sorted(set(outcomes)) == ["ok", "timeout_first_byte", "upstream_stall"]
            assert front.in_flight == {"a": 0, "b": 0}


@case(32)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("how", ["fin", "reset", "short"])
async def test_a_broken_answer_does_not_look_complete(how: str, version: str) -> None:
    """
    Also to a client that speaks HTTP/1.0, which knows an answer's end by its connection's: it must see a reset.

    nginx speaks HTTP/1.0 to what is behind it unless told otherwise.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        if how == "short":
            await connection.send(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 999\r\n\r\n"
                + delta(content="x")
            )
        else:
            await connection.start_stream()
            await connection.chunk(delta(content="x"))
        await asyncio.sleep(0.05)
        connection.reset() if how == "reset" else connection.writer.close()

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, request(CHAT, body_for(CHAT, "x", stream=True), version=version))

        assert (reply.status, reply.complete) == (200, False)
        assert b"[DONE]" not in reply.body
        assert front.records[0].outcome == "upstream_reset"


EVENTS = {
    "error alone": (data({"error": {"message": "m"}}), "stream_error_event"),
    "error later": (delta(content="a") * 2 + data({"error": {"message": "m"}}) + DONE, "stream_error_event"),
    "Anthropic's": (b"event: error\n" + data({"type": "error", "error": {"type": "overloaded_error"}}), "stream_error_event"),
    "of responses": (data({"type": "response.failed", "response": {"error": {"code": "x"}}}), "stream_error_event"),
    "vLLM's of old": (data({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}), "stream_error_event"),
    "llama.cpp's of old": (b'error: {"code":500,"message":"m","type":"server_error"}\n\n', "stream_error_event"),
    "text about errors": (delta(content='{"error": "no"}') * 2 + DONE, "ok"),
    "null": (data({"error": None, "choices": [{"delta": {"content": "a"}}]}) * 2 + DONE, "ok"),
}  # fmt: skip


@case(33)
@pytest.mark.parametrize("what", EVENTS)
async def test_an_error_inside_a_stream_is_an_error(what: str) -> None:
    """
    Passed on as it came, and booked as what it is; what only looks like one is none.
    """
    content, outcome = EVENTS[what]

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(content, kind="text/event-stream")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, STREAM)

        assert (reply.status, reply.body) == (200, content)
        assert (front.records[0].outcome, front.records[0].status) == (outcome, 200)


@case(33)
async def test_an_error_before_the_stream_keeps_its_status() -> None:
    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(b'{"error":{"message":"too long"}}', status=400)

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, STREAM)

        assert (reply.status, reply.header("content-type")) == (400, "application/json")
        assert reply.json()["error"]["message"] == "too long"
        assert front.records[0].outcome == "http_4xx"


FIRST = {
    "content": (CHAT, delta(content="x")),
    "reasoning": (CHAT, delta(reasoning_content="x")),
    "tool call": (CHAT, delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}])),
    "text": ("/v1/completions", data({"choices": [{"index": 0, "text": "x"}]})),
    "Anthropic text": ("/v1/messages", data({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}})),
    "Anthropic thinking": ("/v1/messages", data({"type": "content_block_delta", "delta": {"thinking": "x"}})),
    "Anthropic tool": ("/v1/messages", data({"type": "content_block_start", "content_block": {"type": "tool_use"}})),
    "responses": ("/v1/responses", data({"type": "response.output_text.delta", "delta": "x"})),
    "generate": ("/generate", data({"text": "x", "meta_info": {"id": "1"}})),
}  # fmt: skip
BEFORE = {
    CHAT: [ROLE, PING, delta(content="", tool_calls=[])],
    "/v1/completions": [PING, data({"choices": [{"index": 0, "text": ""}]})],
    "/v1/messages": [
        data({"type": "message_start", "message": {"role": "assistant", "content": []}}),
        data({"type": "ping"}),
        data({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}),
    ],
    "/v1/responses": [data({"type": "response.created", "response": {}}), PING],
    "/generate": [PING, data({"text": "", "meta_info": {}})],
}


@case(34)
@pytest.mark.parametrize("what", FIRST)
async def test_ttft_ends_with_the_first_token(what: str) -> None:
    """
    Not with a role, a ping or an empty text, and with whatever a model generates first; within 50 ms.
    """
    path, first = FIRST[what]
    sent_at = 0.0

    async def script(connection: Connection, seen: Seen) -> None:
        nonlocal sent_at
        await connection.start_stream()
        for piece in BEFORE[path]:
            await connection.chunk(piece)
            await asyncio.sleep(0.08)
        sent_at = time.monotonic()
        await connection.chunk(first)
        await connection.chunk(b"")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        started_at = time.monotonic()
        await ask(front.url, request(path, body_for(path, "hello", stream=True)))

        (record,) = front.records
        assert record.ttft_s is not None
        assert abs(record.ttft_s - (sent_at - started_at)) < 0.05
        assert front.metric("ramjet_ttft_seconds_count") == 1


@case(34)
@pytest.mark.parametrize("path", WITH_PROMPT)
async def test_a_stream_without_a_token_has_no_ttft(path: str) -> None:
    """
    Nor has an answer in one piece; both are counted as requests.
    """
    async with scripted_engine(pieces(*BEFORE[path], DONE)) as engine, ramjet({"a": engine.url}) as front:
        for stream in (True, False):
            await ask(front.url, request(path, body_for(path, "hello", stream=stream)))

        assert [record.ttft_s for record in front.records][:1] == [None]
        assert front.metric("ramjet_requests_total", outcome="ok") == 2


@case(52)
@pytest.mark.parametrize("path", [*WITH_PROMPT, "/v1/embeddings", "/inference/v1/x"])
async def test_a_large_stream_is_complete(path: str) -> None:
    """
    3 MB on every path through the code, slowly and at once.
    """
    event = delta(content="x" * 100_000)
    async with scripted_engine(pieces(*[event] * 30, pause_s=0.001)) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, request(path, body_for(path, "hello", stream=True)))

        assert (len(reply.body), reply.complete) == (30 * len(event), True)
