"""A real Envoy asks Ramjet where requests are to go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from structlog.testing import LogCapture

from ramjet.epp import picker
from ramjet.replica.server import Replica
from tests.epp.support import EXAMPLE, behind_envoy, binary, client, duplex, envoy, example
from tests.proxy.support import body, held, until
from tests.replica.support import ask, frames, prompt, quick
from tests.rig import Front, QuickEngine, quick_engine, ramjet
from tests.scripted import Connection, Seen, answer_ok, dead_url, scripted_engine
from tests.soak.process import lasting_port

CHAT = "/v1/chat/completions"


@contextlib.asynccontextmanager
async def fleet(count: int) -> AsyncIterator[list[Replica]]:
    """So many quick replicas."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(quick()) for _ in range(count)]


def buffered(_config: dict[str, Any]) -> None:
    """As the example has it."""


modes = pytest.mark.parametrize("mode", [buffered, duplex])


async def recorded(front: Front, answer: httpx.Response) -> Any:
    """The record of a request, once there is nothing under way any more."""
    await front.settled()
    return front.record(answer.headers["x-request-id"])


@modes
async def test_the_pick_is_obeyed(tmp_path: Path, mode: Any) -> None:
    """
    A request goes where Ramjet says, and its answer tells where that was.
    """
    async with fleet(3) as replicas, behind_envoy(tmp_path, replicas, mode) as (front, http):
        before = [each.requests for each in replicas]
        for number in range(6):
            answer = await http.post(CHAT, json=ask(prompt(2_000, str(number)), max_tokens=4))
            assert answer.status_code == 200, answer.text
            before["abc".index(answer.headers["x-ramjet-replica"])] += 1

            assert [each.requests for each in replicas] == before
            record = await recorded(front, answer)
            assert record.outcome == "ok"
            assert record.usage.prompt_tokens == answer.json()["usage"]["prompt_tokens"]
        assert front.in_flight == {"a": 0, "b": 0, "c": 0}
        assert len({index for index, count in enumerate(before) if count}) > 1


@modes
async def test_the_turns_of_a_conversation_stay_and_what_they_reused_is_known(tmp_path: Path, mode: Any) -> None:
    """
    Usage is asked for without the client's notice, and its first token is seen as it passes.
    """
    async with fleet(3) as replicas, behind_envoy(tmp_path, replicas, mode) as (front, http):
        said = [{"role": "user", "content": prompt(8_000, "first")}]
        for turn in range(1, 4):
            answer = await http.post(CHAT, json={"model": "demo", "messages": said, "stream": True, "max_tokens": 8})
            chunks = frames(answer.text)
            text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
            record = await recorded(front, answer)

            assert answer.text.endswith("data: [DONE]\n\n")
            assert all(not chunk.get("usage") for chunk in chunks)
            assert (record.turn, record.outcome, record.status) == (turn, "ok", 200)
            assert record.temperature == ("first" if turn == 1 else "warm")
            assert record.ttft_s is not None
            said += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": prompt(500, f"turn {turn}")},
            ]
        assert len({each.replica for each in front.records if each.endpoint == "chat"}) == 1
        assert front.metric("ramjet_cached_tokens_total") > 16_000


@modes
async def test_streams_flow(tmp_path: Path, mode: Any) -> None:
    """
    Each piece reaches the client when the replica has sent it, and no other is waited for.
    """
    go_on = asyncio.Event()

    async def slow(connection: Connection, _seen: Seen) -> None:
        await connection.start_stream()
        for number in range(3):
            go_on.clear()
            choice = {"index": 0, "delta": {"content": f"word {number}"}}
            await connection.chunk(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())
            await go_on.wait()
        await connection.chunk(b"data: [DONE]\n\n")
        await connection.chunk(b"")

    async with scripted_engine(slow) as engine, behind_envoy(tmp_path, [engine.url], mode, settled=False) as (_, http):
        request = ask(prompt(100), stream=True, stream_options={"include_usage": False})
        async with asyncio.timeout(20), http.stream("POST", CHAT, json=request) as answer:
            lines = (line async for line in answer.aiter_lines() if line)
            for number in range(3):
                assert f"word {number}" in await anext(lines)
                go_on.set()
            assert await anext(lines) == "data: [DONE]"


@modes
@pytest.mark.parametrize("size", [100_000, 3 << 20])
async def test_bodies_arrive_as_they_were_sent(tmp_path: Path, mode: Any, size: int) -> None:
    """
    However long, with what was spliced in and nothing else; what cannot be read as a prompt untouched.
    """
    async with scripted_engine() as engine, behind_envoy(tmp_path, [engine.url], mode, settled=False) as (_, http):
        given = json.dumps(ask("x" * size, stream=True)).encode()
        for sent in (given, b"\x00\xff" * (size // 2)):
            answer = await http.post(CHAT, content=sent, headers={"content-type": "application/json"})
            assert answer.status_code == 200, answer.text
            expected = sent.replace(b"{", b'{"stream_options":{"include_usage":true},', 1) if sent is given else sent
            assert engine.seen[-1].body == expected


@modes
async def test_the_subset_hint_is_honoured(tmp_path: Path, mode: Any) -> None:
    """
    Only listed endpoints are picked; where none of them can serve it is 503 at once, and no replica sees the request.
    """
    subset: list[str] = []

    def hinted(config: dict[str, Any]) -> None:
        mode(config)

    async with fleet(3) as replicas:
        subset[:] = [each.url.removeprefix("http://") for each in replicas[1:2]]
        async with behind_envoy(tmp_path, replicas, hinted, subset=subset) as (front, http):
            for number in range(4):
                answer = await http.post(CHAT, json=ask(prompt(2_000, str(number)), max_tokens=4))
                assert answer.headers["x-ramjet-replica"] == "b"
            assert replicas[0].requests + replicas[2].requests == 0
            front.running.control.drain("b")
            answer = await http.post(CHAT, json=ask(prompt(2_000), max_tokens=4))

            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "no_replica"
            assert (await recorded(front, answer)).outcome == "no_replica"
        async with behind_envoy(tmp_path, replicas, hinted, subset=[], settled=False) as (_, http):
            answer = await http.post(CHAT, json=ask(prompt(2_000), max_tokens=4))

            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1


@contextlib.asynccontextmanager
async def one_replica(
    directory: Path, mode: Any, **admission: Any
) -> AsyncIterator[tuple[Front, httpx.AsyncClient, QuickEngine, asyncio.Event]]:
    """Envoy and a picker in front of one engine, which answers nobody before the event is set."""
    answer = asyncio.Event()

    async def when(_engine: QuickEngine) -> None:
        await answer.wait()

    def impatient(config: dict[str, Any]) -> None:
        mode(config)
        config["message_timeout"] = "0.5s"

    async with (
        quick_engine() as engine,
        behind_envoy(directory, [engine.url], impatient, routing={"admission": admission}) as (front, http),
    ):
        engine.answer_when = when
        yield front, http, engine, answer
        answer.set()


@modes
async def test_who_is_held_waits_in_ramjet_for_longer_than_envoy_waits_for_a_pick(tmp_path: Path, mode: Any) -> None:
    """
    Envoy is asked for more time; the engine sees one cold read at a time.
    """
    async with one_replica(tmp_path, mode) as (front, http, engine, answer):
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(http.post(CHAT, json=body("first", stream=True)))
            await until(lambda: engine.in_flight == 1)
            second = tasks.create_task(http.post(CHAT, json=body("second", stream=True)))
            await until(lambda: held(front) == 1)
            await asyncio.sleep(1.0)

            assert held(front) == 1
            assert engine.in_flight == 1
            answer.set()

        assert {first.result().status_code, second.result().status_code} == {200}
        assert engine.most_in_flight == 1
        await front.settled()
        assert max(each.held_s for each in front.records) > 1.0


@modes
async def test_who_leaves_while_held_leaves_the_queue(tmp_path: Path, mode: Any) -> None:
    """
    At once, and the engine never hears of it.
    """
    async with one_replica(tmp_path, mode) as (front, http, engine, answer):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(http.post(CHAT, json=body("first", stream=True)))
            await until(lambda: engine.in_flight == 1)
            left = tasks.create_task(http.post(CHAT, json=body("second", stream=True)))
            await until(lambda: held(front) == 1)
            left.cancel()
            began = time.monotonic()
            await until(lambda: not held(front))

            assert time.monotonic() - began < 2.0
            answer.set()

        await front.settled()
        assert engine.most_in_flight == 1
        gone = next(each for each in front.records if each.outcome == "client_disconnect")
        assert (gone.replica, gone.attempts) == (None, 0)
        assert front.in_flight == {"a": 0}


@modes
async def test_who_is_held_for_too_long_is_told_when_to_come_back(tmp_path: Path, mode: Any) -> None:
    """
    As in proxy mode: 429, Retry-After, and a code of its own.
    """
    async with one_replica(tmp_path, mode, max_hold_s=0.3) as (front, http, engine, answer):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(http.post(CHAT, json=body("first", stream=True)))
            await until(lambda: engine.in_flight == 1)
            refused = await http.post(CHAT, json=body("second"))
            answer.set()

        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "held_too_long")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await recorded(front, refused)).outcome == "shed"


async def test_a_replica_that_comes_while_a_request_is_held_is_not_its_if_it_may_not_go_there(tmp_path: Path) -> None:
    """
    It was told where it may go when it came.
    """
    hold = asyncio.Event()

    async def when(_engine: QuickEngine) -> None:
        await hold.wait()

    async with quick_engine() as engine, quick() as late:
        engine.answer_when = when
        subset = [engine.url.removeprefix("http://")]
        async with behind_envoy(tmp_path, [engine.url], subset=subset) as (front, http), asyncio.TaskGroup() as tasks:
            first = tasks.create_task(http.post(CHAT, json=body("first", stream=True)))
            await until(lambda: engine.in_flight == 1)
            second = tasks.create_task(http.post(CHAT, json=body("second", stream=True)))
            await until(lambda: held(front) == 1)
            front.running.control.add({"name": "late", "url": late.url})
            await asyncio.sleep(1.5)  # who is held is looked at once a second
            hold.set()
            await asyncio.wait([first, second])

            assert late.requests == 0
            assert first.result().status_code == 200
            await front.settled()
            assert front.in_flight == {"a": 0, "late": 0}


@modes
async def test_where_the_first_choice_cannot_serve_envoy_takes_the_second(tmp_path: Path, mode: Any) -> None:
    """
    And Ramjet's books follow it there: nothing is left at the one, and the other is believed to hold the prompt.
    """
    async with quick() as alive, behind_envoy(tmp_path, [dead_url(), alive.url], mode) as (front, http):
        for number in range(6):
            answer = await http.post(CHAT, json=ask(prompt(2_000, str(number)), max_tokens=4))
            assert answer.status_code == 200, answer.text
            record = await recorded(front, answer)
            assert record.replica == "b"
            if record.attempts == 2:
                break

        assert record.attempts == 2
        assert record.reason == "retry"
        assert answer.headers["x-ramjet-replica"] == "b"
        assert front.router.resident_tokens("a") == 0
        assert front.in_flight == {"a": 0, "b": 0}


@modes
async def test_what_envoy_says_of_replicas_that_fail_is_the_outcome(tmp_path: Path, mode: Any) -> None:
    """
    Nobody listens, or the connection breaks: Envoy answers, and the record says why.
    """

    async def reset(connection: Connection, _seen: Seen) -> None:
        connection.reset()

    async with behind_envoy(tmp_path, [dead_url()], mode, settled=False) as (front, http):
        answer = await http.post(CHAT, json=ask(prompt(100)))
        assert answer.status_code == 503
        assert (await recorded(front, answer)).outcome == "upstream_connect"
    async with (
        scripted_engine(reset) as engine,
        behind_envoy(tmp_path, [engine.url], mode, settled=False) as (
            front,
            http,
        ),
    ):
        answer = await http.post(CHAT, json=ask(prompt(100)))
        assert answer.status_code == 503
        assert (await recorded(front, answer)).outcome == "upstream_reset"
        assert front.in_flight == {"a": 0}


@modes
async def test_keys_and_paths_are_as_in_proxy_mode(tmp_path: Path, mode: Any) -> None:
    """
    Clients show a key of Ramjet's, replicas get their own, and nobody empties a cache.
    """
    named: dict[str, Any] = {"client_keys": ["a key of clients"], "keys": {"a": "a key of a replica's"}}
    async with (
        scripted_engine(answer_ok) as engine,
        behind_envoy(tmp_path, [engine.url], mode, settled=False, **named) as (
            front,
            http,
        ),
    ):
        refused = await http.post(CHAT, json=ask("x"))
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        shown = {"authorization": "Bearer a key of clients"}
        forbidden = await http.post("/flush_cache", headers=shown)
        assert (forbidden.status_code, forbidden.json()["error"]["code"]) == (403, "engine_admin_path")
        assert engine.seen == []
        answer = await http.post(
            CHAT, json=ask("x"), headers=shown | {"x-ramjet-probe": "1", "accept-encoding": "gzip"}
        )
        assert answer.status_code == 200
        (seen,) = engine.seen
        assert seen.header("authorization") == "Bearer a key of a replica's"
        assert seen.header("x-ramjet-probe") is None
        assert seen.header("accept-encoding") is None
        assert seen.header("x-request-id") == answer.headers["x-request-id"]
        assert (await recorded(front, answer)).probe


@modes
async def test_a_body_that_is_too_long_is_refused(tmp_path: Path, mode: Any) -> None:
    """
    By the length that its head names, and by what comes where that says nothing.
    """

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 1_000

    limits = {"body_bytes": 20_000}
    async with (
        scripted_engine() as engine,
        behind_envoy(tmp_path, [engine.url], mode, settled=False, limits=limits) as (front, http),
    ):
        for content in (b"x" * 30_000, pieces()):
            answer = await http.post(CHAT, content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        await front.settled()
        assert front.running.handler.door.held_bytes == 0
        assert engine.seen == []


def test_the_example_is_valid_as_it_is() -> None:
    """
    Envoy itself takes it, addresses and all.
    """
    run = subprocess.run(
        [binary(), "--mode", "validate", "-c", str(EXAMPLE)], capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr


async def begins(connection: Connection, _seen: Seen) -> None:
    """An answer that begins, and does not go on."""
    await connection.start_stream()
    await connection.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n')
    await connection.gone(20)


@modes
@pytest.mark.parametrize("leaves", ["client", "Envoy", "Ramjet"])
async def test_whoever_leaves_nothing_is_left_behind(
    tmp_path: Path, mode: Any, leaves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    One record, nothing in flight, nothing held, and no fault of ours in the log.
    """
    faults = LogCapture()
    monkeypatch.setattr(picker, "log", structlog.wrap_logger(None, processors=[faults]))
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(scripted_engine(begins))
        limits = {"drain_s": 0.1 if leaves == "Ramjet" else 5.0}
        ends = await stack.enter_async_context(contextlib.AsyncExitStack())
        front = await ends.enter_async_context(ramjet({"a": engine.url}, picking=True, limits=limits))
        after = await stack.enter_async_context(contextlib.AsyncExitStack())
        url = await after.enter_async_context(envoy(tmp_path, example(lasting_port(), [engine.url], [front.url], mode)))
        await asyncio.sleep(0.3)
        http = await stack.enter_async_context(client(url))
        begun = False
        with contextlib.suppress(httpx.HTTPError):
            async with http.stream("POST", CHAT, json=ask(prompt(100), stream=True)) as answer:
                lines = answer.aiter_lines()
                assert "word" in await anext(lines)
                assert front.in_flight == {"a": 1}
                begun = True
                if leaves == "Envoy":
                    await after.aclose()
                elif leaves == "Ramjet":
                    await ends.aclose()
        assert begun
        if leaves != "Ramjet":
            await front.settled()

        (record,) = [each for each in front.records if each.endpoint == "chat"]
        assert record.outcome == ("shutdown" if leaves == "Ramjet" else "client_disconnect")
        assert record.ttft_s is not None
        assert front.in_flight == {"a": 0}
        assert front.running.handler.door.inside == 0
        assert faults.entries == []
