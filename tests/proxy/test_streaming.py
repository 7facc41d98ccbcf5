"""Streams on their way through: when their first token came, what the client sees, what is read on the side."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.rig import ramjet
from tests.scripted import Connection, Seen, scripted_engine

PAUSE_S = 0.05
"""Between the pieces of a stream that come before its first token."""


def data(event: Any) -> bytes:
    return b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n"


def typed(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\n".encode() + data(event)


def chat(**delta: Any) -> bytes:
    return data({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                 "choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None})  # fmt: skip


USAGE = data({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
              "usage": {"prompt_tokens": 951, "completion_tokens": 2, "total_tokens": 953,
                        "prompt_tokens_details": {"cached_tokens": 896}}})  # fmt: skip
DONE = data(b"[DONE]")
BEFORE_CHAT = [chat(role="assistant", content=""), b": ping\n\n"]
CLAUDE_USAGE = {
    "input_tokens": 55,
    "cache_read_input_tokens": 896,
    "cache_creation_input_tokens": 0,
    "output_tokens": 1,
}
CLAUDE: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
          "stop_sequence": None, "usage": CLAUDE_USAGE}  # fmt: skip
MESSAGE_START = typed({"type": "message_start", "message": CLAUDE})
BLOCK = typed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
HELLO = typed({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}})
END = (
    typed({"type": "content_block_stop", "index": 0})
    + typed({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}})
    + typed({"type": "message_stop"})
)
COMPLETION = data({"id": "c", "object": "text_completion", "created": 1, "model": "m",
                   "choices": [{"index": 0, "text": "hello", "finish_reason": None, "logprobs": None}]})  # fmt: skip

STREAMS = {
    "/v1/chat/completions": ([*BEFORE_CHAT, chat(content="hello"), USAGE, DONE], 2),
    "/v1/completions": ([b": ping\n\n", COMPLETION, USAGE, DONE], 1),
    "/v1/messages": ([MESSAGE_START, typed({"type": "ping"}), BLOCK, HELLO, END], 3),
}
"""Path to the stream's pieces, and which of them is the first token."""


Ask = Callable[[asyncio.Event], Awaitable[tuple[float, str]]]


@contextlib.asynccontextmanager
async def official_sdk(url: str, path: str) -> AsyncIterator[Ask]:
    """Asks for a stream; tells the seconds until the first text, when it sets an event, and the request's id.

    The client is made once, for that takes longer than the call.
    """
    messages: Any = [{"role": "user", "content": "x" * 3_800}]
    claude = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    async def message(seen: asyncio.Event) -> tuple[float, str]:
        started_at = time.perf_counter()
        async with claude.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
            async for _ in stream.text_stream:
                took_s = time.perf_counter() - started_at
                seen.set()
                break
            await stream.until_done()
            return took_s, stream.response.headers["x-request-id"]

    async def chat(seen: asyncio.Event) -> tuple[float, str]:
        took_s = 0.0
        started_at = time.perf_counter()
        chats = await client.chat.completions.create(model="m", messages=messages, stream=True)
        async for chunk in chats:
            if not took_s and chunk.choices[0].delta.content:
                took_s = time.perf_counter() - started_at
                seen.set()
        return took_s, chats.response.headers["x-request-id"]

    async def completion(seen: asyncio.Event) -> tuple[float, str]:
        took_s = 0.0
        started_at = time.perf_counter()
        texts = await client.completions.create(model="m", prompt="x" * 3_800, stream=True)
        async for text in texts:
            if not took_s and text.choices[0].text:
                took_s = time.perf_counter() - started_at
                seen.set()
        return took_s, texts.response.headers["x-request-id"]

    async with claude, client:
        yield {"/v1/messages": message, "/v1/chat/completions": chat, "/v1/completions": completion}[path]


@pytest.mark.parametrize("path", STREAMS)
async def test_ttft_is_what_the_client_measured(path: str) -> None:
    """
    Never before the engine sent the first token, though a role frame and a ping come long before; never after the client
    had it, and less than 50 ms before that, through the official SDKs.

    The last is said of the best call of fifty, for a busy machine can only make the client's clock late.
    """
    pieces, first = STREAMS[path]
    sent_s: list[float] = []
    client_has_it = asyncio.Event()

    async def play(connection: Connection, seen: Seen) -> None:
        came_at = time.perf_counter()
        await connection.start_stream()
        for piece in pieces[:first]:
            await connection.chunk(piece)
            await asyncio.sleep(PAUSE_S)
        sent_s.append(time.perf_counter() - came_at)
        await connection.chunk(pieces[first])
        await client_has_it.wait()
        await connection.chunk(b"".join(pieces[first + 1 :]))
        await connection.chunk(b"")

    async with (
        scripted_engine(play) as engine,
        ramjet({"a": engine.url}) as front,
        official_sdk(front.url, path) as ask,
    ):
        for _ in range(50):
            client_has_it.clear()
            took_s, request_id = await ask(client_has_it)
            await front.settled()
            record = front.record(request_id)
            assert record.ttft_s is not None
            assert sent_s[-1] <= record.ttft_s <= took_s
            assert (record.usage.prompt_tokens, record.usage.cached_tokens, record.outcome) == (951, 896, "ok")
            apart_s = took_s - record.ttft_s
            if apart_s < 0.05:
                break
        assert apart_s < 0.05

        assert front.metric("ramjet_cached_tokens_total", replica="a") == 896 * len(front.records)


async def post_stream(url: str, body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    async with httpx.AsyncClient(timeout=20) as client:
        return (await client.post(url + path, json={"model": "m", "stream": True, **body})).content


MESSAGES = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("options", "asked", "shown"),
    [
        ({}, {"include_usage": True}, False),
        ({"stream_options": None}, {"include_usage": True}, False),
        ({"stream_options": {}}, {"include_usage": True}, False),
        ({"stream_options": {"x": 1}}, {"include_usage": True, "x": 1}, False),
        ({"stream_options": {"include_usage": False}}, {"include_usage": False}, True),
        ({"stream_options": {"include_usage": True}}, {"include_usage": True}, True),
    ],
)  # fmt: skip
async def test_usage_is_asked_for_and_shown_only_to_who_asked(
    options: dict[str, Any], asked: dict[str, Any], shown: bool
) -> None:
    """
    Where the client said nothing Ramjet asks and hides the answer; a yes or a no of the client's stands.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        await connection.chunk(chat(content="hello") + USAGE[:40])
        await asyncio.sleep(0.02)
        await connection.chunk(USAGE[40:] + DONE)
        await connection.chunk(b"")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        got = await post_stream(front.url, {**MESSAGES, **options})

        assert json.loads(engine.seen[0].body)["stream_options"] == asked
        assert got == chat(content="hello") + (USAGE if shown else b"") + DONE
        assert front.records[0].usage.cached_tokens == 896


async def test_a_replica_that_refuses_stream_options_is_not_asked() -> None:
    """
    `ask_usage: false` leaves the body alone, and the usage unknown.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(chat(content="hello") + DONE, kind="text/event-stream")

    async with scripted_engine(script) as engine:
        async with ramjet({"a": {"url": engine.url, "ask_usage": False}}) as front:
            await post_stream(front.url, MESSAGES)

            assert "stream_options" not in json.loads(engine.seen[0].body)
            assert front.records[0].usage.cached_tokens is None


async def test_events_reach_the_client_when_they_are_sent() -> None:
    """
    Nothing is collected on the way: they come apart as they were sent, and no length is promised.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        for number in range(5):
            await connection.chunk(chat(content=str(number)))
            await asyncio.sleep(0.15)
        await connection.chunk(b"")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        body = {"model": "m", "stream": True, **MESSAGES}
        async with client.stream("POST", f"{front.url}/v1/chat/completions", json=body) as answer:
            arrivals = [time.perf_counter() async for _ in answer.aiter_raw()]

            assert "content-length" not in answer.headers
            assert answer.headers["x-accel-buffering"] == "no"
        gaps = [later - earlier for earlier, later in pairwise(arrivals)]
        assert len(gaps) == 4
        assert sorted(gaps)[1] > 0.1


@pytest.mark.parametrize("ending", ["fin", "reset", "short"])
async def test_a_replica_that_dies_in_the_middle_never_looks_complete(ending: str) -> None:
    """
    The client sees a broken answer, the log says whose fault it was, and no `[DONE]` is made up.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        if ending == "short":
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
        else:
            await connection.start_stream()
            await connection.chunk(chat(content="hello"))
        await asyncio.sleep(0.1)
        connection.reset() if ending == "reset" else connection.writer.close()

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        with pytest.raises(httpx.RemoteProtocolError):
            await post_stream(front.url, MESSAGES)
        await front.settled()

        assert [record.outcome for record in front.records] == ["upstream_reset"]
        assert front.in_flight == {"a": 0}


async def test_a_stream_that_stalls_is_given_up() -> None:
    """
    After `gap_s` without a byte the request ends, while a long silence before the first byte is allowed.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        await asyncio.sleep(0.6)
        await connection.start_stream()
        await connection.chunk(chat(content="hello"))
        await connection.gone()

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}, limits={"gap_s": 0.3}) as front:
        with pytest.raises(httpx.RemoteProtocolError):
            await post_stream(front.url, MESSAGES)
        await front.settled()

        assert [record.outcome for record in front.records] == ["upstream_stall"]


async def test_a_replica_that_never_answers_is_given_up_and_nobody_else_is_asked() -> None:
    """
    After `first_byte_s` the client gets 504: another replica would only do the same work again.
    """

    async def silent(connection: Connection, seen: Seen) -> None:
        await connection.gone()

    async with (
        scripted_engine(silent) as one,
        scripted_engine(silent) as two,
        ramjet({"a": one.url, "b": two.url}, limits={"first_byte_s": 0.3}) as front,
        httpx.AsyncClient() as client,
    ):
        answer = await client.post(f"{front.url}/v1/chat/completions", json={"model": "m", **MESSAGES})

        assert answer.status_code == 504
        assert "first_byte_s" in answer.json()["error"]["message"]
        assert len(one.seen) + len(two.seen) == 1
        assert front.records[0].outcome == "timeout_first_byte"


async def test_an_error_event_inside_a_stream_is_no_success() -> None:
    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(
            chat(content="x") + data({"error": {"message": "died"}}) + DONE, kind="text/event-stream"
        )

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        await post_stream(front.url, MESSAGES)

        assert (front.records[0].outcome, front.records[0].status) == ("stream_error_event", 200)
