"""Long prompts read in slices, over real sockets: what clients see, what engines see, and what goes wrong in between."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import anthropic
import httpx
import openai
import pytest
import structlog
from structlog.testing import LogCapture

from ramjet.core.fleet import State
from ramjet.front import front as front_module
from ramjet.proxy import handler
from ramjet.replica.dialects.base import Ask
from ramjet.replica.server import Replica
from tests.proxy.support import CHAT, body, held, prompt, until
from tests.replica.support import quick
from tests.rig import Front, ramjet
from tests.scripted import Connection, Script, ScriptedEngine, Seen, scripted_engine

SLICES = {"slices": {"enabled": True}}
LONG_TOKENS = 100_000
"""17 s of reading: five starts, and the prompt."""
COMPLETIONS = "/v1/completions"


def asks_of(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> list[Ask]:
    """What the engine is asked from now on, in order."""
    asks: list[Ask] = []
    inner = replica._job

    def job(ask: Ask) -> Any:
        asks.append(ask)
        return inner(ask)

    monkeypatch.setattr(replica, "_job", job)
    return asks


def talk(tokens: int = LONG_TOKENS, turns: int = 20) -> list[dict[str, Any]]:
    """A conversation of so many tokens that begins and ends with a question."""
    each = tokens // (2 * turns - 1)
    roles = ["user", "assistant"] * turns
    return [{"role": role, "content": prompt(f"{number}", each)} for number, role in enumerate(roles[:-1])]


# -- what clients and engines see --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sliced", [True, False], ids=["slices", "whole"])
async def test_a_warm_turn_slips_in_while_a_long_prompt_is_read(sliced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With slices a short turn that comes meanwhile is answered first, and without behind 17 s of reading; the long answer
    is the same either way. The engine saw the prompt grow, and the log says what was there before it did.
    """
    text = prompt("long", LONG_TOKENS)
    warm: list[Any] = [{"role": "user", "content": prompt("agent", 10_000)}]
    order: list[str] = []

    async with (
        quick(speed=20) as replica,
        ramjet({"a": replica.url}, routing=SLICES if sliced else {}) as front,
        openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as sdk,
    ):
        asks = asks_of(replica, monkeypatch)

        async def long() -> str:
            chunks = await sdk.completions.create(model="m", prompt=text, max_tokens=8, stream=True)
            said = ""
            async for chunk in chunks:
                order.append("long")
                said += chunk.choices[0].text
            return said

        async def short() -> None:
            async with sdk.chat.completions.stream(model="m", messages=warm, max_tokens=8) as stream:
                async for event in stream:
                    order.extend(["short"] if event.type == "content.delta" else [])

        answer = await sdk.chat.completions.create(model="m", messages=warm, max_tokens=8)
        warm += [{"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": "?"}]
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(long())
            await until(lambda: replica.requests == (3 if sliced else 2))
            tasks.create_task(short())

        assert order[0] == ("short" if sliced else "long")
        assert [ask.text for ask in asks if ask.text.startswith(text)] == [text]
        starts = [ask for ask in asks if text.startswith(ask.text) and ask.text != text]
        assert len(starts) == (5 if sliced else 0)
        await front.settled()
        record = next(each for each in front.records if each.endpoint == "completions")
        # The first start's silence is a 0 since a later one has said what it found; without, nobody ever said anything.
        assert (record.slices, record.usage.cached_tokens) == ((5, 0) if sliced else (0, None))
        assert front.metric("ramjet_slices_total", replica="a") == len(starts)
        turn = next(each for each in front.records if each.turn == 2)
        assert (turn.slices, turn.temperature) == (0, "warm")
    async with quick() as fresh, openai.AsyncOpenAI(base_url=f"{fresh.url}/v1", api_key="none") as sdk:
        direct = await sdk.completions.create(model="m", prompt=text, max_tokens=8)

    assert reading.result() == direct.choices[0].text


async def openai_chat(url: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
        answer = await sdk.chat.completions.create(model="m", messages=talk(), max_completion_tokens=5)  # type: ignore[arg-type]
        return str(answer.choices[0].message.content)


async def anthropic_messages(url: str) -> str:
    async with (
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as claude,
        claude.messages.stream(model="m", messages=talk(), max_tokens=5, system="You are.") as stream,  # type: ignore[arg-type]
    ):
        return "".join([text async for text in stream.text_stream])


async def openai_ids(url: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
        ids = list(range(LONG_TOKENS // 2))
        return (await sdk.completions.create(model="m", prompt=ids, max_tokens=5)).choices[0].text


async def sglang_generate(url: str) -> str:
    asked = {"text": prompt("raw", LONG_TOKENS), "sampling_params": {"max_new_tokens": 5}}
    async with httpx.AsyncClient(timeout=20) as client:
        return str((await client.post(f"{url}/generate", json=asked)).json()["text"])


@pytest.mark.parametrize(
    ("say", "starts"), [(openai_chat, 5), (anthropic_messages, 5), (openai_ids, 2), (sglang_generate, 5)]
)
async def test_the_engine_reads_a_prompt_that_grows(
    say: Callable[[str], Any], starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each start is a strict prefix of the next as the engine renders it, asks for one token, and is no stream; the answer
    is what it would be without.
    """
    async with quick() as replica, ramjet({"a": replica.url}, routing=SLICES) as front:
        asks = asks_of(replica, monkeypatch)

        said = await say(front.url)

        assert len(asks) == starts + 1
        for shorter, longer in pairwise(asks):
            assert longer.text.startswith(shorter.text)
            assert len(longer.text) > len(shorter.text)
            assert (shorter.max_tokens, shorter.stream) == (1, False)
        assert asks[-1].max_tokens == 5
        await front.settled()
        assert front.records[0].slices == starts
        assert front.in_flight == {"a": 0}
        assert front.router.fleet["a"].queue_s == 0
        # Each has found the one before: nothing was read twice but ends of pages.
        engine = replica.engine
        read_tokens = engine.prompt_tokens_total - engine.cached_tokens_total
        assert read_tokens < 1.02 * len(asks[-1].text) / 4
    async with quick() as fresh:
        assert said == await say(fresh.url)


# -- what may go wrong -------------------------------------------------------------------------------------------------

OK = json.dumps(
    {
        "choices": [{"index": 0, "text": "ok", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}},
    }
).encode()


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> LogCapture:
    """What is logged of requests and their answers."""
    capture = LogCapture()
    everything = structlog.make_filtering_bound_logger(0)
    for module in (front_module, handler):
        monkeypatch.setattr(module, "log", structlog.wrap_logger(None, processors=[capture], wrapper_class=everything))
    return capture


def is_start(seen: Seen) -> bool:
    return (seen.header("x-request-id") or "").startswith("long-")


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt("long", LONG_TOKENS), "max_tokens": 9, **more}


async def ok(connection: Connection, _seen: Seen) -> None:
    await connection.answer(OK)


def at(number: int, script: Script) -> Script:
    """Answer everything but the start of this number, which a script answers."""

    async def play(connection: Connection, seen: Seen) -> None:
        await (script if seen.header("x-request-id") == f"long-{number}" else ok)(connection, seen)

    return play


def first_asked(script: Script) -> Script:
    """Of several engines the one that is asked first plays it, and the others answer."""
    hosts: list[str | None] = []

    async def play(connection: Connection, seen: Seen) -> None:
        hosts.append(seen.header("host"))
        await (script if hosts[-1] == hosts[0] else ok)(connection, seen)

    return play


def status(number: int, **headers: str) -> Script:
    async def play(connection: Connection, _seen: Seen) -> None:
        await connection.answer(b'{"error":{"message":"no"}}', status=number, **headers)

    return play


async def reset(connection: Connection, _seen: Seen) -> None:
    connection.reset()


async def half(connection: Connection, _seen: Seen) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
    connection.reset()


async def switched(connection: Connection, _seen: Seen) -> None:
    await connection.send(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")


@contextlib.asynccontextmanager
async def scene(
    script: Script, *, replicas: int = 1, **config: Any
) -> AsyncIterator[tuple[Front, list[ScriptedEngine], httpx.AsyncClient]]:
    """Ramjet with slices in front of scripted engines that all play one script."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(scripted_engine(script)) for _ in range(replicas)]
        urls = {name: engine.url for name, engine in zip("ab", engines, strict=False)}
        front = await stack.enter_async_context(ramjet(urls, routing=SLICES, **config))
        client = await stack.enter_async_context(
            httpx.AsyncClient(timeout=20, base_url=front.url, headers={"x-request-id": "long"})
        )
        yield front, engines, client
        await front.settled()
        assert set(front.in_flight.values()) == {0}
        assert not any(replica.queue for replica in front.router.fleet)


async def test_each_start_has_the_requests_headers_and_an_id_of_its_own() -> None:
    """
    The engine's own log tells them apart.
    """
    async with scene(ok) as (_, (engine,), client):
        await client.post(COMPLETIONS + "?a=b", json=asked(stream=True), headers={"authorization": "Bearer key"})

        names = [seen.header("x-request-id") for seen in engine.seen]
        assert names == ["long-1", "long-2", "long-3", "long-4", "long-5", "long"]
        for seen in engine.seen:
            assert (seen.target, seen.header("authorization")) == (COMPLETIONS + "?a=b", "Bearer key")
            assert seen.header("content-type") == "application/json"
            assert seen.header("content-length") == str(len(seen.body))


async def test_a_client_that_leaves_takes_its_starts_along() -> None:
    """
    The engine sees the connection close, and is sent nothing more; what it has read is believed to be there.
    """
    gone = asyncio.Event()

    async def waits(connection: Connection, _seen: Seen) -> None:
        assert await connection.gone()
        gone.set()

    async with scene(at(3, waits)) as (front, (engine,), client), asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(client.post(COMPLETIONS, json=asked()))
        await until(lambda: len(engine.seen) == 3)
        leaving.cancel()
        await asyncio.wait_for(gone.wait(), 5)
        await front.settled()

        (record,) = front.records
        assert (record.outcome, record.status, record.slices) == ("client_disconnect", None, 2)
        assert 30_000 < front.router.resident_tokens("a") < 40_000
        assert len(engine.seen) == 3


@pytest.mark.parametrize("fails", [reset, half, switched, status(429), status(503)])
async def test_another_replica_reads_all_of_it_where_the_first_one_fails(fails: Script) -> None:
    """
    In the middle of the starts: the other has none of them, so it gets them all.
    """
    async with scene(first_asked(at(3, fails)), replicas=2) as (front, engines, client):
        answer = await client.post(COMPLETIONS, json=asked())

        assert (answer.status_code, answer.headers["x-ramjet-reason"]) == (200, "retry")
        # A set, for what breaks on a connection that was used before is sent again on another.
        read = [{seen.header("x-request-id") for seen in engine.seen if is_start(seen)} for engine in engines]
        assert sorted(map(len, read)) == [3, 5]
        await front.settled()
        record = front.record("long")
        assert (record.slices, record.attempts, record.usage.cached_tokens) == (5, 2, 4)


@pytest.mark.parametrize("busy", [429, 503])
async def test_a_busy_engines_word_at_a_start_is_the_clients(busy: int) -> None:
    """
    As at the prompt itself, with the time after which to come back.
    """
    async with scene(at(2, status(busy, retry_after="7"))) as (front, (engine,), client):
        answer = await client.post(COMPLETIONS, json=asked())

        assert (answer.status_code, answer.headers["retry-after"]) == (busy, "7")
        assert answer.json() == {"error": {"message": "no"}}
        assert len(engine.seen) == 2
        await front.settled()
        assert front.record("long").slices == 1


@pytest.mark.parametrize("said", [302, 400, 404, 500])
@pytest.mark.parametrize("number", [1, 3])
async def test_an_engine_that_refuses_a_start_gets_the_prompt(said: int, number: int, logged: LogCapture) -> None:
    """
    The client learns nothing of it, and the log does; what was there before is known if one start was read.
    """
    async with scene(at(number, status(said))) as (front, (engine,), client):
        answer = await client.post(COMPLETIONS, json=asked())

        assert (answer.status_code, answer.content) == (200, OK)
        assert len(engine.seen) == number + 1
        await front.settled()
        record = front.record("long")
        assert (record.outcome, record.slices) == ("ok", number - 1)
        assert record.usage.cached_tokens == (None if number == 1 else 4)

    told = {"request_id": "long", "replica": "a", "status": said}
    assert logged.entries == [{"event": "slice_refused", "log_level": "info", **told}]


async def test_what_an_engine_says_of_the_prompt_is_the_clients() -> None:
    """
    It refuses a start as it will refuse the whole.
    """
    async with scene(status(400)) as (front, (engine,), client):
        answer = await client.post(COMPLETIONS, json=asked())

        assert answer.status_code == 400
        assert [is_start(seen) for seen in engine.seen] == [True, False]
        await front.settled()
        assert front.record("long").outcome == "http_4xx"


async def test_a_start_that_is_never_answered_is_a_timeout() -> None:
    """
    As for the prompt: the engine has begun, and another would only do the same work again.
    """

    async def silent(connection: Connection, _seen: Seen) -> None:
        await connection.gone()

    script, limits = first_asked(at(2, silent)), {"first_byte_s": 0.5}
    async with scene(script, replicas=2, limits=limits) as (front, engines, client):
        answer = await client.post(COMPLETIONS, json=asked())

        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "replica_timeout")
        assert sorted(len(engine.seen) for engine in engines) == [0, 2]
        await front.settled()
        assert front.record("long").outcome == "timeout_first_byte"


async def test_each_start_has_the_time_for_a_first_byte_to_itself() -> None:
    """
    A prompt is not too slow because there are two of them that take two thirds of it each.
    """

    async def slow(connection: Connection, seen: Seen) -> None:
        await asyncio.sleep(0.6 if is_start(seen) else 0)
        await ok(connection, seen)

    async with scene(slow, limits={"first_byte_s": 1.0}) as (_, (engine,), client):
        answer = await client.post(COMPLETIONS, json=asked(prompt=prompt("long", 60_000)))

        assert answer.status_code == 200
        assert len(engine.seen) == 3


async def test_a_replica_on_trial_is_up_with_its_first_start(logged: LogCapture) -> None:
    """
    Its answer is a good one.
    """
    async with scene(at(2, reset)) as (front, _, client):
        front.router.fleet["a"].state = State.TRIAL
        await client.post(COMPLETIONS, json=asked())

        assert front.router.fleet["a"].state is State.UP

    assert [line["event"] for line in logged.entries] == ["replica_up", "replica_failed"]


async def test_a_start_is_sent_by_the_method_that_the_client_chose() -> None:
    """
    No engine generates for a GET, and none does because there is a start of it.
    """
    async with scene(status(405)) as (_, (engine,), client):
        answer = await client.request("GET", COMPLETIONS, json=asked())

        assert answer.status_code == 405
        assert {seen.method for seen in engine.seen} == {"GET"}


async def test_turning_slices_on_and_off_changes_what_comes_next() -> None:
    """
    Who is being read goes on as it began.
    """
    go_on = asyncio.Event()

    async def waits(connection: Connection, seen: Seen) -> None:
        await go_on.wait()
        await ok(connection, seen)

    async with scene(at(2, waits)) as (front, (engine,), client), asyncio.TaskGroup() as tasks:
        tasks.create_task(client.post(COMPLETIONS, json=asked()))
        await until(lambda: len(engine.seen) == 2)
        front.router.change_policy(replace(front.router.policy, slice_s=None))
        go_on.set()
        await front.settled()
        assert len(engine.seen) == 6

        for slice_s, requests in ((None, 7), (3.0, 13)):
            front.router.change_policy(replace(front.router.policy, slice_s=slice_s))
            fresh = asked(prompt=prompt(f"another {slice_s}", LONG_TOKENS))
            await client.post(COMPLETIONS, json=fresh)
            assert len(engine.seen) == requests


async def test_a_prompt_is_cut_short_when_ramjet_stops() -> None:
    """
    Its starts are requests like any other: the drain waits for them, and then no more is sent.
    """
    gone = asyncio.Event()

    async def waits(connection: Connection, _seen: Seen) -> None:
        assert await connection.gone()
        gone.set()

    async def post(url: str) -> None:
        async with httpx.AsyncClient(timeout=20, headers={"x-request-id": "long"}) as client:
            with pytest.raises(httpx.TransportError):
                await client.post(url + COMPLETIONS, json=asked())

    async with scripted_engine(at(2, waits)) as engine, asyncio.TaskGroup() as tasks:
        async with ramjet({"a": engine.url}, routing=SLICES, limits={"drain_s": 0.1}) as front:
            tasks.create_task(post(front.url))
            await until(lambda: len(engine.seen) == 2)
        await asyncio.wait_for(gone.wait(), 5)
        assert [record.outcome for record in front.records] == ["shutdown"]
        assert len(engine.seen) == 2


STREAM = b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("said", "told"),
    [(400, b"hello"), (503, b'"code":503'), (None, b"replica a failed")],
    ids=["refused", "busy", "reset"],
)
async def test_a_held_stream_that_has_begun_goes_on_whatever_becomes_of_its_starts(
    said: int | None, told: bytes
) -> None:
    """
    A start that is refused is made up for by the prompt; one that comes at the wrong time is told as an event.
    """
    release = asyncio.Event()

    async def play(connection: Connection, seen: Seen) -> None:
        if prompt("first")[:100].encode() in seen.body:
            await release.wait()
        elif is_start(seen):
            await (reset if said is None else status(said))(connection, seen)
            return
        await connection.start_stream()
        await connection.chunk(STREAM)
        await connection.chunk(b"")

    long = {"model": "m", "messages": talk(turns=10), "stream": True}
    routing = {**SLICES, "admission": {"comment_every_s": 0.02}}
    async with (
        scripted_engine(play) as engine,
        ramjet({"a": engine.url}, routing=routing) as front,
        httpx.AsyncClient(timeout=20, base_url=front.url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(client.post(CHAT, json=body("first", stream=True)))
        await until(lambda: len(engine.seen) == 1)
        second = tasks.create_task(client.post(CHAT, json=long, headers={"x-request-id": "long"}))
        await until(lambda: held(front) == 1)
        await asyncio.sleep(0.1)
        release.set()

        content = (await second).content
        assert content.startswith(b": held\n\n")
        assert told in content
        await front.settled()
        assert front.record("long").slices == 0
        assert {seen.header("x-request-id") for seen in engine.seen if is_start(seen)} == {"long-1"}
