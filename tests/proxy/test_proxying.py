"""Requests on their way through: bytes, paths, limits, failures, and the ledger that must return to zero."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.fleet import State
from tests.proxy.support import until
from tests.rig import Front, QuickEngine, quick_engine, ramjet
from tests.scripted import Connection, Seen, dead_url, scripted_engine

CHAT = "/v1/chat/completions"


def body(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


# -- a Ramjet in a thread of its own, for property-based tests over real sockets ------------------------------------


class Threaded:
    """A Ramjet and a scripted engine behind it, on a loop in another thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.stop = asyncio.Event()
        self.answers: list[bytes] = [b"{}"]
        self.kind = "application/json"
        self.thread = threading.Thread(target=self.loop.run_until_complete, args=(self._run(),))
        self.thread.start()
        assert self.ready.wait(20)

    async def _run(self) -> None:
        async with scripted_engine(self._script) as self.engine, ramjet({"a": self.engine.url}) as self.front:
            self.ready.set()
            await self.stop.wait()

    async def _script(self, connection: Connection, seen: Seen) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {self.kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        await connection.send(head)
        for piece in self.answers:
            await connection.chunk(piece)
        await connection.chunk(b"")

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join()
        self.loop.close()

    def post(self, content: bytes, kind: str = "application/json", path: str = CHAT) -> tuple[bytes, bytes]:
        """Send a body; returns what the engine got, and what came back."""
        got = httpx.post(self.front.url + path, content=content, headers={"content-type": kind}, timeout=20)
        assert got.status_code == 200, got.text
        return self.engine.seen[-1].body, got.content


@pytest.fixture(scope="module")
def threaded() -> Iterator[Threaded]:
    running = Threaded()
    yield running
    running.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(raw=st.binary(max_size=2_000) | JSON.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=60, deadline=None)
def test_any_body_arrives_byte_for_byte(threaded: Threaded, raw: bytes) -> None:
    """
    Whatever it is: garbage, JSON that is no request, a request of odd shape; the engine judges, and nothing fails.
    """
    arrived, _ = threaded.post(raw)

    assert arrived == raw


SPELLINGS = st.builds(
    lambda ascii_only, indent, before, after: (
        lambda value: (before + json.dumps(value, ensure_ascii=ascii_only, indent=indent) + after).encode()
    ),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from(["", " ", "\n\t"]),
    st.sampled_from(["", "\n"]),
)


# Not the fields that a prompt is made of: where those are odd there is no prompt, and nothing is spliced.
OTHER_FIELDS = st.text(max_size=8).filter(lambda name: name not in {"system", "tools", "functions", "stream_options"})


@given(fields=st.dictionaries(OTHER_FIELDS, JSON, max_size=4), spell=SPELLINGS)
@settings(max_examples=60, deadline=None)
def test_only_the_request_for_usage_is_spliced_in(
    threaded: Threaded, fields: dict[str, Any], spell: Callable[[Any], bytes]
) -> None:
    """
    Taking the spliced bytes out again gives what the client sent, however it spells its JSON.
    """
    request = {**fields, **body(), "stream": True}
    sent = spell(request)

    arrived, _ = threaded.post(sent)

    spliced = b'"stream_options":{"include_usage":true},'
    assert arrived.replace(spliced, b"", 1) == sent
    assert json.loads(arrived)["stream_options"] == {"include_usage": True}


@given(
    answers=st.lists(st.binary(min_size=1, max_size=300), max_size=6),
    kind=st.sampled_from(["application/json", "text/event-stream", "application/octet-stream", "text/html"]),
)
@settings(max_examples=60, deadline=None)
def test_any_answer_comes_back_byte_for_byte(threaded: Threaded, answers: list[bytes], kind: str) -> None:
    """
    Whatever the engine says, in however many pieces; looking into it changes nothing.
    """
    threaded.answers, threaded.kind = answers, kind

    _, got = threaded.post(json.dumps(body()).encode())

    assert got == b"".join(answers)


# -- bad input --------------------------------------------------------------------------------------------------------

ODD = {
    "empty": b"",
    "not JSON": b"hello",
    "no object": b"[1, 2]",
    "messages of odd shape": b'{"messages": {"role": 3}}',
    "messages of numbers": b'{"messages": [1, null, "x"]}',
    "nested": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "doubled keys": b'{"messages": [], "messages": [{"role": "user", "content": "x"}], "model": "a", "model": "b"}',
    "not UTF-8": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "NaN": b'{"messages": [], "temperature": NaN}',
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_bad_input_is_the_engines_to_judge(threaded: Threaded, what: str, kind: str) -> None:
    """
    It is forwarded unchanged, never a 500, and other requests do not notice.
    """
    arrived, _ = threaded.post(ODD[what], kind)

    assert arrived == ODD[what]


async def test_a_body_above_the_limit_is_refused_readably() -> None:
    """
    413 with a message that names the limit, also for a client that sends everything before it reads.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, limits={"body_bytes": 1_000_000}) as front:
        async with httpx.AsyncClient(timeout=20) as client:

            async def pieces() -> Any:
                for _ in range(40):
                    yield b"x" * 100_000

            for content in (b"x" * 4_000_000, pieces()):
                answer = await client.post(front.url + CHAT, content=content)
                assert answer.status_code == 413
                assert "limits.body_bytes = 1,000,000" in answer.json()["error"]["message"]
            fine = await client.post(front.url + CHAT, content=b"x" * 999_999)

        assert fine.status_code == 200
        assert [record.outcome for record in front.records] == ["refused", "refused", "ok"]
        assert len(engine.seen) == 1


# -- paths and headers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_paths_and_queries_arrive_as_they_were_written(suffix: str) -> None:
    """
    Nothing is decoded on the way, a replica's base path is put in front once, and the SDKs' /v1 means the same replica.
    """
    async with scripted_engine() as engine, ramjet({"a": f"{engine.url}/base{suffix}"}) as front:
        for target in ("/v1/embeddings", "/a%2Fb/%E2%82%AC?x=b%2Fc&y=%20+&z", "/x?q=1;2", "//double//slash", "/x%00y"):
            host, port = front.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()

            assert engine.seen[-1].target == f"/base{target}"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_any_method_and_path_is_proxied(method: str) -> None:
    """
    What Ramjet does not know it passes on, with method, body and key.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        content = b"" if method == "GET" else b"anything"
        answer = await client.request(
            method, f"{front.url}/v1/rerank", content=content, headers={"authorization": "Bearer k", "x-one": "1"}
        )

        assert (answer.status_code, answer.content) == (200, b"{}")
        seen = engine.seen[0]
        assert (seen.method, seen.body, seen.header("authorization"), seen.header("x-one")) == (
            method, content, "Bearer k", "1",
        )  # fmt: skip
        assert seen.header("host") == engine.url.removeprefix("http://")
        assert seen.header("accept-encoding") == "gzip, deflate"
        assert seen.header("user-agent") == f"python-httpx/{httpx.__version__}"


async def test_head_keeps_the_length_and_has_no_body() -> None:
    async def script(connection: Connection, seen: Seen) -> None:
        await connection.send(
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n" + (b"" if seen.method == "HEAD" else b"12345")
        )

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        assert (await client.get(f"{front.url}/x")).text == "12345"
        head = await client.head(f"{front.url}/x")

        assert (head.headers["content-length"], head.content) == ("5", b"")


async def test_request_ids_and_decisions_come_back_in_headers() -> None:
    """
    A sane id of the client's is kept, an insane one replaced; the engine gets the same one.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        kept = await client.post(front.url + CHAT, json=body(), headers={"x-request-id": "mine-1"})
        made = await client.post(front.url + CHAT, json=body(), headers={"x-request-id": "not sane!"})

        assert kept.headers["x-request-id"] == engine.seen[0].header("x-request-id") == "mine-1"
        assert len(made.headers["x-request-id"]) == 32
        assert (kept.headers["x-ramjet-replica"], kept.headers["x-ramjet-reason"]) == ("a", "only")


async def test_engine_administration_is_closed_unless_it_is_opened() -> None:
    """
    403 with the remedy, and nothing reaches the engine.
    """
    async with scripted_engine() as engine, httpx.AsyncClient() as client:
        async with ramjet({"a": engine.url}) as front:
            answer = await client.post(f"{front.url}/flush_cache")
            assert answer.status_code == 403
            assert "allow_engine_admin" in answer.json()["error"]["message"]
            assert not engine.seen
        async with ramjet({"a": engine.url}, allow_engine_admin=True) as front:
            assert (await client.post(f"{front.url}/flush_cache")).status_code == 200


async def test_models_are_merged_over_the_replicas() -> None:
    """
    Each model once; a replica that does not answer is left out.
    """

    def lists(*names: str) -> Callable[[Connection, Seen], Any]:
        async def script(connection: Connection, seen: Seen) -> None:
            listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
            await connection.answer(json.dumps(listed).encode())

        return script

    async with scripted_engine(lists("m", "lora-a")) as one, scripted_engine(lists("m", "lora-b")) as two:
        async with ramjet({"a": one.url, "b": two.url, "c": dead_url()}) as front, httpx.AsyncClient() as client:
            answer = await client.get(f"{front.url}/v1/models")

            assert [entry["id"] for entry in answer.json()["data"]] == ["m", "lora-a", "lora-b"]


@pytest.mark.parametrize("status", [401, 500, 522])
async def test_a_refusal_to_list_models_is_passed_on(status: int) -> None:
    """
    Be it of a status that no RFC names, as some that stand before a replica have.
    """

    async def refuses(connection: Connection, seen: Seen) -> None:
        await connection.answer(b"no", status=status)

    async with scripted_engine(refuses) as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        answer = await client.get(f"{front.url}/v1/models")

        assert (answer.status_code, answer.content) == (status, b"no")


# -- failures -----------------------------------------------------------------------------------------------------------


async def test_a_dead_replica_is_tried_once_and_not_again() -> None:
    """
    Refused: the other one serves, the client notices nothing, and the dead one is down at once.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url, "dead": dead_url()}) as front:
        async with httpx.AsyncClient() as client:
            statuses = [(await client.post(front.url + CHAT, json=body(str(n)))).status_code for n in range(8)]
            health = (await client.get(f"{front.url}/health")).json()

        assert statuses == [200] * 8
        assert health["status"] == "degraded"
        assert health["replicas"]["dead"]["state"] == "down"
        assert sum(record.attempts for record in front.records) <= 9
        assert [record.reason for record in front.records].count("retry") <= 1


async def test_when_nobody_can_serve_the_client_is_told() -> None:
    """
    502 that names the replica, in OpenAI's shape, and health says 503; the next request still tries.
    """
    async with ramjet({"a": dead_url(), "b": dead_url()}) as front, httpx.AsyncClient() as client:
        for _ in range(2):
            answer = await client.post(front.url + CHAT, json=body())
            assert answer.status_code == 502
            assert "replica" in answer.json()["error"]["message"]
        health = await client.get(f"{front.url}/health")

        assert (health.status_code, health.json()["status"]) == (503, "down")
        assert [record.outcome for record in front.records] == ["upstream_connect"] * 2
        assert {record.attempts for record in front.records} == {2}


async def test_a_reset_before_the_answer_is_tried_once_elsewhere() -> None:
    async def broken(connection: Connection, seen: Seen) -> None:
        connection.reset()

    async with scripted_engine(broken) as one, scripted_engine(broken) as two, scripted_engine(broken) as three:
        urls = {"a": one.url, "b": two.url, "c": three.url}
        async with ramjet(urls) as front, httpx.AsyncClient() as client:
            answer = await client.post(front.url + CHAT, json=body())

            assert answer.status_code == 502
            assert len(one.seen) + len(two.seen) + len(three.seen) == 2
            assert front.records[0].outcome == "upstream_reset"


async def test_a_stale_connection_is_nobodys_fault() -> None:
    """
    An engine that closes its idle connections early costs no request, no retry elsewhere and no blame.
    """
    async with scripted_engine(idle_s=0.05) as engine, ramjet({"a": engine.url, "b": engine.url + "/b"}) as front:
        async with httpx.AsyncClient() as client:
            for pause_s in (0.04, 0.048, 0.05, 0.052, 0.06) * 8:
                assert (await client.post(front.url + CHAT, json=body())).status_code == 200
                await asyncio.sleep(pause_s)

        assert {record.attempts for record in front.records} == {1}
        assert all(replica.state is State.UP for replica in front.router.fleet)


async def test_the_engine_learns_at_once_that_the_client_has_left() -> None:
    """
    Its connection is closed within a second, before the head, in the middle, streaming or not.
    """
    closed: list[bool] = []
    waiting = asyncio.Event()

    async def script(connection: Connection, seen: Seen) -> None:
        if b"after" in seen.body:
            await connection.start_stream()
            await connection.chunk(b"data: {}\n\n")
        waiting.set()
        closed.append(await connection.gone(within_s=1.0))

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        for text in ("before", "after"):
            for stream in (False, True):
                waiting.clear()
                async with httpx.AsyncClient() as client:
                    async with asyncio.TaskGroup() as tasks:
                        asked = tasks.create_task(client.post(front.url + CHAT, json=body(text, stream=stream)))
                        await waiting.wait()
                        asked.cancel()
                await asyncio.sleep(0.1)
        await front.settled()

        assert closed == [True] * 4
        assert {record.outcome for record in front.records} == {"client_disconnect"}
        assert front.in_flight == {"a": 0}
        assert all(replica.state is State.UP for replica in front.router.fleet)


# -- many at once -------------------------------------------------------------------------------------------------------


async def test_three_hundred_requests_at_once_all_reach_the_replicas() -> None:
    """
    No hidden ceiling on connections, in front or behind: no engine answers before all of them have come.
    """
    everybody = asyncio.Event()

    async def hold(_engine: QuickEngine) -> None:
        if one.in_flight + two.in_flight == 300:
            everybody.set()
        await everybody.wait()

    async with quick_engine() as one, quick_engine() as two:
        one.answer_when = two.answer_when = hold
        async with ramjet({"a": one.url, "b": two.url}) as front:
            limits = httpx.Limits(max_connections=None)
            async with (
                httpx.AsyncClient(timeout=60, limits=limits) as client,
                asyncio.timeout(60),
                asyncio.TaskGroup() as tasks,
            ):
                sent = [tasks.create_task(client.post(front.url + CHAT, json=body(str(n)))) for n in range(300)]

            assert {task.result().status_code for task in sent} == {200}
            assert abs(one.most_in_flight - two.most_in_flight) <= 30


async def test_a_burst_is_spread_before_any_answer_has_come() -> None:
    """
    Twelve prompts that share nothing, while no replica has said a byte: six each.
    """
    async with quick_engine(answer_s=0.5) as one, quick_engine(answer_s=0.5) as two:
        async with ramjet({"a": one.url, "b": two.url}) as front, httpx.AsyncClient() as client:
            async with asyncio.TaskGroup() as tasks:
                for number in range(12):
                    tasks.create_task(client.post(front.url + CHAT, json=body(f"{number} " + "x" * 4_000)))

            assert (one.most_in_flight, two.most_in_flight) == (6, 6)


async def leave_at_random(front: Front, *, requests: int, seed: int) -> None:
    """Clients that close their sockets at a random moment: in the body, before the head, in the stream, at its end.

    One in eight stays for all of it, however long a busy machine takes.
    """
    chance = random.Random(seed)
    host, port = front.url.removeprefix("http://").split(":")
    gate = asyncio.Semaphore(64)

    async def visit(number: int) -> None:
        async with gate:
            payload = json.dumps(
                body(f"{number} " + "x" * chance.choice((10, 5_000, 60_000)), stream=chance.random() < 0.7)
            )
            head = (
                f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
                f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
            )
            raw = (head + payload).encode()
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                if number % 8 and chance.random() < 0.2:
                    writer.write(raw[: chance.randrange(len(raw))])
                else:
                    writer.write(raw)
                    if not number % 8 or chance.random() < 0.8:
                        patience_s = chance.choice((0.0, 0.005, 0.02, 0.1, 0.5)) if number % 8 else 60.0
                        async with asyncio.timeout(patience_s):
                            while await reader.read(chance.choice((1, 300, 65_536))):
                                pass
            except (TimeoutError, ConnectionError):
                pass
            finally:
                if chance.random() < 0.5:
                    writer.transport.abort()
                writer.close()

    await asyncio.gather(*(visit(number) for number in range(requests)))


@pytest.mark.parametrize("requests", [300, pytest.param(2_000, marks=pytest.mark.evidence)])
async def test_clients_that_leave_at_any_moment_leave_nothing_behind(requests: int) -> None:
    """
    Every in-flight figure is back at 0, in Ramjet, in its metrics and in the engines.
    """

    async def moody(connection: Connection, seen: Seen) -> None:
        mood = len(seen.body) % 7
        if mood == 0:
            connection.reset()
            return
        await asyncio.sleep(0.004 * mood)
        if mood == 1:
            await connection.answer(b'{"error":{}}', status=500)
        elif b'"stream": true' in seen.body:
            await connection.start_stream()
            for _ in range(6):
                await connection.chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
                await asyncio.sleep(0.003 * mood)
            await connection.chunk(b"")
        else:
            await connection.answer(b"{}")

    async with scripted_engine(moody) as one, scripted_engine(moody) as two:
        urls = {"a": one.url, "b": two.url, "dead": dead_url()}
        async with ramjet(urls) as front:
            await leave_at_random(front, requests=requests, seed=requests)
            await front.settled()

            assert front.in_flight == {"a": 0, "b": 0, "dead": 0}
            assert [replica.queue_s for replica in front.router.fleet] == [0.0] * 3
            assert front.metric("ramjet_in_flight") == 0
            assert {conversation.running for conversation in front.router.conversations} <= {0}
            outcomes = {record.outcome for record in front.records}
            assert {"ok", "client_disconnect", "http_5xx"} <= outcomes
            assert "internal_error" not in outcomes


# -- rules ----------------------------------------------------------------------------------------------------------------


async def test_the_long_prompt_rule_confines_spills_and_is_off() -> None:
    """
    Off, a 700,000-byte prompt goes anywhere; on, to the named replica only; that one down, elsewhere with the reason.
    """
    long = [body(f"{number} " + "x" * 700_000) for number in range(6)]
    rule = {"long_prompt": {"enabled": True, "replicas": ["b"]}, "spread_long": {"enabled": False}}
    async with quick_engine() as one, quick_engine() as two, httpx.AsyncClient(timeout=20) as client:

        async def placed(front: Front) -> list[tuple[str, str]]:
            answers = [await client.post(front.url + CHAT, json=request) for request in long]
            return [(each.headers["x-ramjet-replica"], each.headers["x-ramjet-reason"]) for each in answers]

        async with ramjet({"a": one.url, "b": two.url}) as front:
            assert {replica for replica, _ in await placed(front)} == {"a", "b"}
        async with ramjet({"a": one.url, "b": two.url}, routing=rule) as front:
            placements = await placed(front)
            assert {replica for replica, _ in placements} == {"b"}
            assert "long_prompt" in {reason for _, reason in placements}
            short = [await client.post(front.url + CHAT, json=body(f"{n} short")) for n in range(20)]
            assert {each.headers["x-ramjet-replica"] for each in short} == {"a", "b"}
        async with ramjet({"a": one.url, "b": dead_url()}, routing=rule) as front:
            placements = await placed(front)
            assert placements[0] == ("a", "retry")
            assert set(placements[1:]) == {("a", "long_prompt_spill")}
            assert front.metric("ramjet_decisions_total", replica="a", reason="long_prompt_spill") == 5


async def test_a_client_that_stops_reading_is_not_the_replicas_fault() -> None:
    """
    After `gap_s` it is cut as `client_stall`, and the engine is released.
    """

    async def flood(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        while not connection.writer.is_closing():
            await connection.chunk(b"data: " + b"x" * 100_000 + b"\n\n")

    async with scripted_engine(flood) as engine, ramjet({"a": engine.url}, limits={"gap_s": 0.4}) as front:
        host, port = front.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1_000)
        payload = json.dumps(body(stream=True))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n{payload}".encode())
        await asyncio.sleep(0.2)
        await front.settled()
        writer.transport.abort()

        assert [record.outcome for record in front.records] == ["client_stall"]
        assert front.in_flight == {"a": 0}


async def test_a_client_that_does_not_take_answers_of_ramjets_own_is_cut_too() -> None:
    """
    Though no replica is kept waiting, it takes up a place.
    """
    models = json.dumps({"data": [{"id": f"{at} {'m' * 1_000}"} for at in range(900)]}).encode()

    async def lists(connection: Connection, seen: Seen) -> None:
        await connection.answer(models)

    async with scripted_engine(lists) as engine, ramjet({"a": engine.url}, limits={"gap_s": 0.4}) as front:
        host, port = front.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1_000)
        writer.write(20 * b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: any(record.outcome != "ok" for record in front.records))
        writer.transport.abort()

        assert front.records[-1].outcome == "client_stall"
        assert len(front.records) < 20


async def test_headers_above_the_limit_are_refused() -> None:
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        many = {f"x-{number}": "y" * 8_000 for number in range(9)}
        answer = await client.post(front.url + CHAT, json=body(), headers=many)

        assert answer.status_code == 431
        assert "limits.header_bytes" in answer.json()["error"]["message"]
        assert not engine.seen


async def test_a_fault_of_ramjets_own_costs_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    500 in OpenAI's shape with the request's id, a record, a place in the code in the log, and no word of the prompt.
    """
    logged: list[str] = []
    prompt = "s3cret prompt"
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError(prompt)

        with monkeypatch.context() as patched:
            patched.setattr(front.router, "place", fail)
            patched.setattr(
                "ramjet.proxy.handler.log", SimpleNamespace(error=lambda _, **said: logged.append(repr(said)))
            )
            answer = await client.post(front.url + CHAT, json=body(prompt))
        fine = await client.post(front.url + CHAT, json=body())

        assert (answer.status_code, fine.status_code) == (500, 200)
        assert answer.json()["error"]["code"] == "internal_error"
        assert [record.outcome for record in front.records] == ["internal_error", "ok"]
        assert front.records[0].status == 500
        assert answer.headers["x-request-id"] in logged[0]
        assert "s3cret" not in logged[0]
