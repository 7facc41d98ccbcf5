"""Usage, metrics and logs: what is unknown stays unknown, what is asked for is hidden, what is secret is not said."""

from __future__ import annotations

import json
import random
import signal
import string
from typing import Any

import pytest

from ramjet.core.stream import SseObserver
from tests.bugs import case
from tests.bugs.test_streams import DONE, USAGE, data, delta
from tests.bugs.wire import ask, body_for, request
from tests.rig import ramjet
from tests.scripted import Connection, Seen, scripted_engine
from tests.test_serve import serving

CHAT = "/v1/chat/completions"

# -- asking for usage -----------------------------------------------------------------------------------------------------

ASKED: dict[str, tuple[Any, Any, bool]] = {
    "absent": (..., {"include_usage": True}, False),
    "empty": ({}, {"include_usage": True}, False),
    "null": (None, {"include_usage": True}, False),
    "no": ({"include_usage": False}, {"include_usage": False}, True),
    "yes": ({"include_usage": True}, {"include_usage": True}, True),
    "more": ({"include_usage": True, "continuous_usage_stats": True}, ..., True),
    "else": ({"continuous_usage_stats": True}, {"include_usage": True, "continuous_usage_stats": True}, False),
    "odd": (True, True, True),
}
"""What the client says, what the engine is told (... is the same), and whether the client sees the usage."""


@case(36)
@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_usage_is_seen_by_who_asked(what: str, path: str) -> None:
    """
    A yes or a no of the client's is left alone; where it said nothing, Ramjet asks and keeps the answer to itself.
    """
    said, told, shown = ASKED[what]

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(delta(content="x") + USAGE + DONE, kind="text/event-stream")

    more = {} if said is ... else {"stream_options": said}
    raw = body_for(path, "hello", stream=True, **more)
    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, request(path, raw))

        assert json.loads(engine.seen[0].body)["stream_options"] == (said if told is ... else told)
        assert shown == (engine.seen[0].body == raw)
        assert reply.body == delta(content="x") + (USAGE if shown else b"") + DONE
        assert front.records[0].usage.cached_tokens == 896


@case(36)
async def test_an_engine_that_refuses_the_question_need_not_be_asked() -> None:
    """
    Its 400 reaches the client as it is, and `ask_usage: false` ends it.
    """

    async def strict(connection: Connection, seen: Seen) -> None:
        asked = b"stream_options" in seen.body
        await connection.answer(b'{"error":{"message":"unknown field"}}', status=400 if asked else 200)

    raw = request(CHAT, body_for(CHAT, "hello", stream=True))
    async with scripted_engine(strict) as engine:
        async with ramjet({"a": engine.url}) as front:
            assert (await ask(front.url, raw)).status == 400
        async with ramjet({"a": {"url": engine.url, "ask_usage": False}}) as front:
            assert (await ask(front.url, raw)).status == 200


@case(36)
async def test_chunks_with_a_null_usage_are_left_alone() -> None:
    """
    Engines that were asked put `usage: null` into every chunk: clients know it, and rewriting costs more.
    """
    chunk = data({"choices": [{"delta": {"content": "x"}}], "usage": None})

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(chunk * 3 + USAGE + DONE, kind="text/event-stream")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        assert (await ask(front.url, request(CHAT, body_for(CHAT, "x", stream=True)))).body == chunk * 3 + DONE


# -- unknown is not zero ----------------------------------------------------------------------------------------------------

REPORTS: dict[str, tuple[Any, int | None]] = {
    "no usage": (..., None),
    "null": (None, None),
    "empty": ({}, None),
    "no details": ({"prompt_tokens": 9}, None),
    "details null": ({"prompt_tokens": 9, "prompt_tokens_details": None}, None),
    "details empty": ({"prompt_tokens": 9, "prompt_tokens_details": {}}, None),
    "cached null": ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}}, None),
    "cached a text": ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": "7"}}, None),
    "cached negative": ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": -1}}, None),
    "cached true": ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": True}}, None),
    "zero": ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}, 0),
    "many": ({"prompt_tokens": 60_000, "prompt_tokens_details": {"cached_tokens": 49_152}}, 49_152),
}


@case(37)
@pytest.mark.parametrize("what", REPORTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_not_reported_is_unknown(what: str, stream: bool) -> None:
    """
    None in the record and `null` in the log, counted as unknown; a 0 is a 0, and a turn is judged by what is known.
    """
    usage, cached = REPORTS[what]
    more = {} if usage is ... else {"usage": usage}

    async def script(connection: Connection, seen: Seen) -> None:
        if stream:
            last = data({"choices": [], **more})
            await connection.answer(delta(content="x") + last + DONE, kind="text/event-stream")
        else:
            await connection.answer(json.dumps({"choices": [], **more}).encode())

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        for turns in (1, 2):
            texts = ["x" * 3_000, "go on"][:turns]
            assert (await ask(front.url, request(CHAT, body_for(CHAT, *texts, stream=stream)))).status == 200

        assert [record.usage.cached_tokens for record in front.records] == [cached, cached]
        assert front.records[1].log_fields()["cached_tokens"] == cached
        assert (front.records[1].cold is None) == (cached is None)
        assert front.metric("ramjet_usage_unknown_total", replica="a") == (2 if cached is None else 0)


@case(37)
async def test_a_stream_that_ends_before_its_usage_knows_nothing() -> None:
    async def script(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        await connection.chunk(delta(content="x"))
        connection.writer.close()

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        await ask(front.url, request(CHAT, body_for(CHAT, "x", stream=True)))
        await front.settled()

        assert front.records[0].usage.cached_tokens is None
        assert front.records[0].outcome == "upstream_reset"


FULL = {"input_tokens": 10, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 5}
ANTHROPIC: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "at the start": (FULL, {"output_tokens": 7}, (315, 300)),
    "at the end": ({"output_tokens": 0}, {**FULL, "output_tokens": 7}, (315, 300)),
    "zeros first": ({"input_tokens": 0, "output_tokens": 0}, {**FULL, "output_tokens": 7}, (315, 300)),
    "both": ({**FULL, "input_tokens": 1}, {**FULL, "output_tokens": 7}, (315, 300)),
    "a later input alone": (FULL, {"input_tokens": 20, "output_tokens": 7}, (325, 300)),
    "a later cache alone": ({"input_tokens": 10}, {"cache_read_input_tokens": 300, "output_tokens": 7}, (310, 300)),
    "nulls later": (
        FULL,
        {
            "input_tokens": None,
            "cache_read_input_tokens": None,
            "cache_creation_input_tokens": None,
            "output_tokens": 7,
        },
        (315, 300),
    ),
}


@case(38)
@pytest.mark.parametrize("what", ANTHROPIC)
async def test_anthropics_numbers_add_up_wherever_they_stand(what: str) -> None:
    """
    Later values win one by one, absence erases nothing, and the prompt holds what was read from the cache.
    """
    start, end, (prompt, cached) = ANTHROPIC[what]
    events = (
        data({"type": "message_start", "message": {"usage": start}})
        + data({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}})
        + data({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end})
    )

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(events, kind="text/event-stream")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        await ask(front.url, request("/v1/messages", body_for("/v1/messages", "x", stream=True)))

        usage = front.records[0].usage
        assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (prompt, cached, 7)


@case(38)
async def test_an_anthropic_answer_in_one_piece_is_read_too() -> None:
    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(json.dumps({"type": "message", "usage": {**FULL, "output_tokens": 7}}).encode())

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        await ask(front.url, request("/v1/messages", body_for("/v1/messages", "x")))

        usage = front.records[0].usage
        assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (315, 300, 7)


def test_numbers_of_another_kind_do_not_break_the_stream() -> None:
    """
    A usage of odd shape says nothing.
    """
    odd: list[Any] = [[], "x", 7, {"prompt_tokens": 1e300}, {"prompt_tokens": [1]}, {"prompt_tokens_details": "x"}]
    for usage in odd:
        observer = SseObserver()
        observer.feed(data({"usage": usage}), 1.0)
        assert observer.close() == b""
        assert observer.usage is None or observer.usage.prompt_tokens is None


# -- metrics and logs -----------------------------------------------------------------------------------------------------


async def series(url: str) -> set[str]:
    """The names and labels of everything that is exported."""
    scrape = (await ask(url, request("/metrics", None, method="GET"))).body.decode()
    return {line.rpartition(" ")[0] for line in scrape.splitlines() if not line.startswith("#")}


@case(41)
async def test_metrics_do_not_grow_with_what_clients_send() -> None:
    """
    Hundreds of models, paths, methods and sessions: no new series at all.
    """
    chance = random.Random(41)

    def word() -> str:
        return "".join(chance.choices(string.ascii_lowercase, k=12))

    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front:
        await ask(front.url, request(CHAT, body_for(CHAT, "x")))
        before = await series(front.admin_url)
        for _ in range(150):
            raw = json.dumps({**json.loads(body_for(CHAT, word())), "model": word()}).encode()
            await ask(front.url, request(CHAT, raw, f"X-Session-Id: {word()}"))
            await ask(front.url, request(f"/{word()}/{word()}?{word()}", method=chance.choice(("GET", "PUT", "PURGE"))))

        assert await series(front.admin_url) == before
        assert len(front.records) == 301
        assert {record.endpoint for record in front.records} == {"chat", "other"}


@case(41)
async def test_no_key_and_no_prompt_is_said_anywhere() -> None:
    """
    At the most talkative level, on good answers, on failures, on refusals and on what cannot be read.
    """
    lines = [f"{name}: s3cret-key" for name in ("X-Api-Key", "Api-Key", "Cookie", "X-Session-Id")]
    lines.append("Authorization: Bearer s3cret-key")
    fields = [b"s3cret-prompt", json.dumps({"messages": [{"role": "user", "content": "s3cret-prompt"}]}).encode(),
              b'{"messages": "s3cret-prompt"', b'{"messages":[{"role":"s3cret-prompt","content":7}],"model":"m"}']  # fmt: skip

    async def moody(connection: Connection, seen: Seen) -> None:
        if seen.target.startswith("/broken"):
            await connection.send(b"HTTP/1.1 s3cret-answer\r\n\r\n")
            connection.writer.close()
        else:
            await connection.answer(b'{"error":{"message":"s3cret-answer"}}', status=400)

    async with scripted_engine(moody) as engine, serving(engine.url, "--log-level", "debug") as served:
        for path in (CHAT, "/v1/messages", "/broken", "/flush_cache", "/x%zz"):
            for raw in fields:
                await ask(served.url, request(f"{path}?api_key=s3cret-key", raw, *lines))
        await ask(served.url, request("/s3cret-key\x01", b"", *lines))
        await ask(served.url, b"s3cret-key\r\n\r\n")
        scrape = await ask(served.admin, request("/metrics", None, method="GET"))
        served.process.send_signal(signal.SIGTERM)
        assert await served.ended() == 0

        assert len([line for line in served.said if line["event"] == "request"]) >= 20
        assert "s3cret" not in json.dumps(served.said)
        assert b"s3cret" not in scrape.body


@case(41)
async def test_a_clients_words_do_not_make_a_log_line_long() -> None:
    """
    A model's name is the client's to choose, and may be a whole prompt that was put in the wrong place.
    """
    raw = json.dumps({"model": "m" * 200_000, "messages": [{"role": "user", "content": "x"}]}).encode()
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front:
        await ask(front.url, request(CHAT, raw))

        assert len(json.dumps(front.records[0].log_fields())) < 4_000
