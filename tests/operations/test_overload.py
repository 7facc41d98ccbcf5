"""More than it can take: what is over the limit is told so, and what is within does not notice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest

from ramjet.core.fleet import State
from tests.operations.support import CHAT, Held, Streams, address_of, body, config, live, sent, together, until
from tests.rig import Front, ramjet
from tests.scripted import Connection, Script, Seen, scripted_engine

BUSY = b'{"error":{"message":"the queue is full","type":"engine_busy"}}'


def busy(status: int = 503, retry_after: str = "7") -> Script:
    """An engine that has too much to do, and says so in its own words; its health is good."""

    async def script(connection: Connection, seen: Seen) -> None:
        if seen.method == "GET":
            await connection.answer(b"{}")
            return
        await connection.answer(BUSY, status=status, retry_after=retry_after, x_engine="its own")

    return script


def head_of(length: int, *more: str) -> bytes:
    lines = (f"POST {CHAT} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {length}", *more)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def told_to_come_back(answer: httpx.Response) -> bool:
    error = answer.json()["error"]
    return (
        answer.status_code == 429
        and 1 <= int(answer.headers["retry-after"]) <= 60
        and (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
    )


def nothing_left(front: Front) -> bool:
    door = front.running.handler.door
    return (door.inside, door.held_bytes, *front.in_flight.values()) == (0,) * (2 + len(front.in_flight))


# -- limits -------------------------------------------------------------------------------------------------------------


async def test_requests_above_the_limit_are_shed_and_the_running_ones_go_on() -> None:
    """
    429 with a Retry-After that can be used, for those beyond and for nobody else; then there is room again.
    """
    held = Held()
    async with scripted_engine(held) as engine, httpx.AsyncClient(timeout=20) as client:
        async with ramjet({"a": engine.url}, limits={"in_flight": 8}) as front:
            streams = Streams()
            async with asyncio.TaskGroup() as tasks:
                for number in range(8):
                    tasks.create_task(streams.take(client, front.url, body(str(number))))
                await until(lambda: held.asked == 8)
                shed = [await client.post(front.url + CHAT, json=body("late")) for _ in range(20)]
                health = await client.get(f"{front.url}/health")
                held.let_go.set()
            await front.settled()
            fine = await client.post(front.url + CHAT, json=body("later"))
            await front.settled()

            assert all([await told_to_come_back(each) for each in shed])
            assert "limits.in_flight = 8" in shed[0].json()["error"]["message"]
            assert held.asked == 9
            assert (streams.ended, streams.failed, {came.count(b"data:") for came in streams.came}) == (8, [], {2})
            assert (health.status_code, fine.status_code) == (200, 200)
            assert nothing_left(front)
            assert Counter(record.outcome for record in front.records) == {"ok": 9, "shed": 20}
            assert front.metric("ramjet_requests_total", outcome="shed") == 20


@pytest.mark.parametrize("announced", [True, False])
async def test_bodies_are_held_up_to_a_bound(announced: bool) -> None:
    """
    With their lengths told and without: 429 once there is no room, never more held than that, and zero at the end.
    """
    held = Held()
    most, mega = 3_000_000, b'{"stream":true,"messages":[{"role":"user","content":"' + b"x" * 900_000 + b'"}]}'
    async with scripted_engine(held) as engine, httpx.AsyncClient(timeout=20) as client:
        async with ramjet({"a": engine.url}, limits={"held_bytes": most}) as front:
            door, peak = front.running.handler.door, 0
            answers: list[httpx.Response] = []

            async def pieces() -> object:
                for start in range(0, len(mega), 100_000):
                    yield mega[start : start + 100_000]

            async def post(number: int) -> None:
                content = mega if announced else pieces()
                answers.append(await client.post(front.url + CHAT, content=content))  # type: ignore[arg-type]

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(together(post, 10))
                for _ in range(200):
                    peak = max(peak, door.held_bytes)
                    await asyncio.sleep(0.005)
                # Of those without a length all may be refused, each in the middle of its body.
                assert held.asked <= 3
                held.let_go.set()
            await front.settled()
            shed = [each for each in answers if each.status_code == 429]
            fine = await client.post(front.url + CHAT, content=mega)
            await front.settled()

            assert 0 < peak <= most
            assert len(shed) >= 7
            assert all([await told_to_come_back(each) for each in shed])
            assert {each.status_code for each in answers} <= {200, 429}
            assert fine.status_code == 200
            assert nothing_left(front)


async def test_bodies_that_are_cut_off_are_given_back() -> None:
    """
    Clients that leave in the middle of a body, too long ones, broken framing: nothing stays counted.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, limits={"body_bytes": 200_000}) as front:

        async def visit(number: int) -> None:
            raw = (
                head_of(150_000) + b"x" * 100_000,
                head_of(1_000, "expect: 100-continue"),
                head_of(300_000) + b"x" * 300_000,
                head_of(0).replace(b"content-length: 0", b"transfer-encoding: chunked") + b"9\r\nxxx",
                head_of(0).replace(b"content-length: 0", b"transfer-encoding: chunked") + b"ffff\r\n" + b"x" * 9_999,
                head_of(0).replace(b"content-length: 0", b"transfer-encoding: chunked") + b"nonsense\r\n",
            )[number % 6]
            _, writer = await asyncio.open_connection(*address_of(front.url))
            writer.write(raw)
            await asyncio.sleep(0.05)
            writer.transport.abort()

        await together(visit, 60)
        await front.settled()

        assert nothing_left(front)
        assert "internal_error" not in {record.outcome for record in front.records}


# -- busy engines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_engine_is_relieved_by_another(status: int) -> None:
    """
    The client gets the other's answer; the busy one is asked once, stays up, and is not believed to hold the prompt.
    """
    async with scripted_engine(busy(status)) as one, scripted_engine() as two, httpx.AsyncClient() as client:
        async with ramjet({"a": one.url, "b": two.url}) as front:
            answers = [await client.post(front.url + CHAT, json=body(f"{n} " + "x" * 8_000)) for n in range(8)]
            await front.settled()

            assert {each.status_code for each in answers} == {200}
            assert {each.headers["x-ramjet-replica"] for each in answers} == {"b"}
            assert one.seen
            assert len(one.seen) + len(two.seen) == 8 + len(one.seen)
            assert {each.state for each in front.router.fleet} == {State.UP}
            assert front.router.resident_tokens("a") == 0
            assert nothing_left(front)


@pytest.mark.parametrize("status", [429, 503])
async def test_when_all_are_busy_their_own_words_are_passed_on(status: int) -> None:
    """
    Status, body and Retry-After of an engine; two asked of three, and all of them up.
    """
    async with scripted_engine(busy(status)) as one, scripted_engine(busy(status)) as two:
        async with scripted_engine(busy(status)) as three, httpx.AsyncClient() as client:
            async with ramjet({"a": one.url, "b": two.url, "c": three.url}) as front:
                answer = await client.post(front.url + CHAT, json=body(stream=True))
                await front.settled()

                assert (answer.status_code, answer.content) == (status, BUSY)
                assert (answer.headers["retry-after"], answer.headers["x-engine"]) == ("7", "its own")
                assert answer.headers["x-ramjet-replica"] in {"a", "b", "c"}
                assert len(one.seen) + len(two.seen) + len(three.seen) == 2
                assert {each.state for each in front.router.fleet} == {State.UP}
                assert [(each.attempts, each.status) for each in front.records] == [(2, status)]
                assert nothing_left(front)


async def test_a_busy_engines_words_are_passed_on_whole() -> None:
    """
    However many packets they come in.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        head = f"HTTP/1.1 503 Busy\r\ncontent-type: application/json\r\ncontent-length: {len(BUSY)}\r\n\r\n".encode()
        await connection.send(head + BUSY[:20], BUSY[20:40], BUSY[40:], pause_s=0.05)

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        answer = await client.post(front.url + CHAT, json=body())

        assert (answer.status_code, answer.content) == (503, BUSY)


async def test_a_replicas_models_are_read_whole() -> None:
    """
    However many packets the list comes in: no model is missing, and no failure is made up.
    """
    models = [{"id": f"model-{n}", "object": "model"} for n in range(50)]
    listed = json.dumps({"object": "list", "data": models}).encode()

    async def script(connection: Connection, seen: Seen) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(listed)}\r\n\r\n".encode()
        await connection.send(head + listed[:900], listed[900:], pause_s=0.05)

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        answer = await client.get(f"{front.url}/v1/models")

        assert (answer.status_code, len(answer.json()["data"])) == (200, 50)


async def test_a_busy_answer_that_never_ends_is_given_up() -> None:
    """
    After the time for a first byte: the client is told, and nothing is left behind.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.send(b"HTTP/1.1 503 Busy\r\ncontent-length: 100\r\n\r\n")
        await connection.gone()

    async with scripted_engine(script) as engine, httpx.AsyncClient(timeout=20) as client:
        async with ramjet({"a": engine.url}, limits={"first_byte_s": 0.3}) as front:
            answer = await client.post(front.url + CHAT, json=body())
            await front.settled()

            assert answer.status_code in {503, 504}
            assert nothing_left(front)


async def test_failing_engines_get_no_storm_of_retries(tmp_path: Path) -> None:
    """
    100 requests of 1 MB at once while all say 503: two attempts each and no more, again and again, in the same memory.
    """
    payload = json.dumps(body("x" * 1_000_000)).encode()
    limits = httpx.Limits(max_connections=None)
    async with scripted_engine(busy()) as one, scripted_engine(busy()) as two, scripted_engine(busy()) as three:
        urls = {"a": one.url, "b": two.url, "c": three.url}
        path = config(tmp_path / "ramjet.yaml", dict(urls))
        async with live(path) as served, httpx.AsyncClient(timeout=60, limits=limits) as client:
            process = psutil.Process(served.process.pid)
            after: list[int] = []
            for _ in range(3):
                statuses: list[int] = []

                async def post(number: int, statuses: list[int] = statuses) -> None:
                    answer = await client.post(served.url + CHAT, content=payload)
                    statuses.append(answer.status_code)

                for engine in (one, two, three):
                    engine.seen.clear()
                await together(post, 100)
                assert Counter(statuses) == {503: 100}
                tries = Counter(
                    seen.header("x-request-id") for engine in (one, two, three) for seen in engine.seen if seen.body
                )
                assert (len(tries), max(tries.values())) == (100, 2)
                after.append(process.memory_info().rss)

            await served.said("request", 300)
            assert max(line["attempts"] for line in served.events("request")) == 2
            assert [said["error"] for said in served.events("replica_down")] == []
            # The first rounds grow the heap to what 100 MB under way take; then it must stay there.
            assert after[-1] - after[1] < 60 << 20, after


# -- slow clients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [b"", b"P", b"POST / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_head_that_never_ends_is_given_up(begin: bytes) -> None:
    """
    After `client_idle_s` the connection is closed, however little or much has come.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, limits={"client_idle_s": 0.4}) as front:
        await sent(front.url, begin, within_s=8)

        assert front.running.handler.door.inside == 0
        assert engine.seen == []


@pytest.mark.parametrize("kept", [False, True])
async def test_a_head_that_drips_is_given_up(kept: bool) -> None:
    """
    A line now and then does not buy more time, neither on a new connection nor on one that was used before.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, limits={"client_idle_s": 0.4}) as front:
        reader, writer = await asyncio.open_connection(*address_of(front.url))
        if kept:
            writer.write(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"{}")
        closed = False
        try:
            writer.write(b"GET /y HTTP/1.1\r\nhost: x\r\n")
            async with asyncio.timeout(8):
                for number in range(80):
                    writer.write(f"x-{number}: y\r\n".encode())
                    await writer.drain()
                    await asyncio.sleep(0.1)
                    if reader.at_eof():
                        closed = True
                        break
        except ConnectionError:
            closed = True
        writer.transport.abort()

        assert closed
        assert len(engine.seen) == kept


async def test_a_body_that_stops_is_told_so() -> None:
    """
    408 in OpenAI's shape after `body_gap_s`, on a connection that ends with it, and nothing stays counted.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, limits={"body_gap_s": 0.3}) as front:
        for raw in (
            head_of(1_000_000) + b"x" * 500_000,
            head_of(0).replace(b"content-length: 0", b"transfer-encoding: chunked") + b"5\r\nxxxxx\r\n",
        ):
            reader, writer = await asyncio.open_connection(*address_of(front.url))
            writer.write(raw)
            async with asyncio.timeout(8):
                answer = await reader.readuntil(b"\r\n\r\n")
                told = await reader.readuntil(b"}}")
            # The rest may still come for a while, and is thrown away: a reset would cost the client its answer.
            writer.transport.abort()

            assert answer.startswith(b"HTTP/1.1 408")
            assert b"connection: close" in answer.lower()
            assert "limits.body_gap_s" in json.loads(told)["error"]["message"]
        await front.settled()

        assert {record.outcome for record in front.records} == {"client_stall"}
        assert engine.seen == []
        assert nothing_left(front)


async def test_a_slow_body_that_goes_on_arrives() -> None:
    """
    It is the gap that is limited, and not the time.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, limits={"body_gap_s": 1.0}) as front:
        payload = json.dumps(body("x" * 100)).encode()
        reader, writer = await asyncio.open_connection(*address_of(front.url))
        writer.write(head_of(len(payload), "connection: close"))
        for start in range(0, len(payload), 10):
            writer.write(payload[start : start + 10])
            await asyncio.sleep(0.1)
        async with asyncio.timeout(10):
            came = await reader.read()
        writer.close()

        assert came.startswith(b"HTTP/1.1 200")
        assert engine.seen[0].body == payload


async def test_slow_readers_are_cut_and_the_others_do_not_notice() -> None:
    """
    After `gap_s` without taking a byte each is `client_stall`, its engine is released, and a stream beside them is whole.
    """
    released = 0

    async def script(connection: Connection, seen: Seen) -> None:
        nonlocal released
        await connection.start_stream()
        if b"quick" in seen.body:
            for _ in range(20):
                await connection.chunk(b"data: {}\n\n")
                await asyncio.sleep(0.05)
            await connection.chunk(b"")
            return
        try:
            while True:
                await connection.chunk(b"data: " + b"x" * 100_000 + b"\n\n")
        finally:
            released += 1

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}, limits={"gap_s": 0.8}) as front:
        payload = json.dumps(body("slow", stream=True)).encode()
        writers = []
        for _ in range(5):
            _, writer = await asyncio.open_connection(*address_of(front.url), limit=1_000)
            writer.write(head_of(len(payload)) + payload)
            writers.append(writer)
        async with httpx.AsyncClient(timeout=20) as client:
            quick = await client.post(front.url + CHAT, json=body("quick", stream=True))
        await front.settled()
        await until(lambda: released == 5)
        for writer in writers:
            writer.transport.abort()

        assert quick.text.count("data:") == 20
        assert Counter(record.outcome for record in front.records) == {"client_stall": 5, "ok": 1}
        assert nothing_left(front)


async def test_a_thousand_idle_connections_do_no_harm(tmp_path: Path) -> None:
    """
    They count as no requests, others are served beside them, and they are closed after `client_idle_s`.
    """
    limits = {"drain_s": 1, "client_idle_s": 3, "in_flight": 50}
    async with scripted_engine() as engine, httpx.AsyncClient(timeout=20) as client:
        async with live(config(tmp_path / "ramjet.yaml", {"a": engine.url}, limits=limits)) as served:
            idle = [await asyncio.open_connection(*address_of(served.url)) for _ in range(1_000)]
            try:
                statuses = [(await client.post(served.url + CHAT, json=body(str(n)))).status_code for n in range(20)]
                assert statuses == [200] * 20
                async with asyncio.timeout(25):
                    assert {await reader.read() for reader, _ in idle} == {b""}
            finally:
                for _, writer in idle:
                    writer.transport.abort()
            assert (await client.get(f"{served.url}/health")).status_code == 200
