"""Connections to replicas, retries, health, limits: who is blamed, who is asked again, and who is left waiting."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest

from ramjet.core.fleet import Replica, State, Thresholds
from tests.bugs import case
from tests.bugs.test_behaviours import EVENT, stall
from tests.bugs.wire import WITH_PROMPT, Reply, ask, body_for, chunked, request, wire
from tests.rig import ramjet, settings_for
from tests.scripted import Connection, Script, Seen, answer_ok, dead_url, scripted_engine
from tests.test_serve import serving

CHAT = "/v1/chat/completions"


def chat(*texts: str, stream: bool = False) -> bytes:
    return request(CHAT, body_for(CHAT, *texts, stream=stream))


def saying(status: int, content: bytes = b'{"error":{"message":"the engine\'s"}}', **headers: str) -> Script:
    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(content, status=status, **headers)

    return script


async def until(true: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - a belief has no event
            await asyncio.sleep(0.005)


# -- stale connections ----------------------------------------------------------------------------------------------------


@case(42)
@pytest.mark.parametrize("size", [10, 300_000])
async def test_an_engine_that_closes_as_the_next_request_comes_costs_nothing(size: int) -> None:
    """
    Each second request on a connection is met by a close: the client sees none of it, and nobody else is asked.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        if connection.requests == 1:
            await connection.answer(b"{}")
        elif len(seen.body) % 2:
            connection.reset()
        else:
            connection.writer.close()

    async with scripted_engine(script) as engine, ramjet({"a": engine.url, "b": f"{engine.url}/b"}) as front:
        for number in range(30):
            assert (await ask(front.url, chat("x" * (size + number)))).status == 200

        assert {record.attempts for record in front.records} == {1}
        assert len(engine.seen) <= 60
        assert all(replica.state is State.UP for replica in front.router.fleet)


@case(42)
async def test_an_engine_that_closes_idle_connections_costs_nothing() -> None:
    """
    Requests around the very moment at which it does.
    """
    async with scripted_engine(idle_s=0.05) as engine, ramjet({"a": engine.url}) as front:
        for pause_s in (0.045, 0.049, 0.05, 0.051, 0.055) * 8:
            assert (await ask(front.url, chat("x"))).status == 200
            await asyncio.sleep(pause_s)

        assert {record.attempts for record in front.records} == {1}


@case(42)
def test_connections_are_kept_less_long_than_engines_keep_them() -> None:
    """
    uvicorn closes after 5 s.
    """
    assert settings_for({"a": "http://a:1"}).limits.idle_s < 5


@case(42)
async def test_a_fresh_connection_that_is_closed_is_a_failure() -> None:
    """
    One other replica is asked, once; then 502.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        connection.writer.close()

    async with scripted_engine(script) as engine:
        async with ramjet({name: f"{engine.url}/{name}" for name in "abc"}) as front:
            reply = await ask(front.url, chat("x"))

            assert (reply.status, len({seen.target for seen in engine.seen}), len(engine.seen)) == (502, 2, 2)


# -- retries ----------------------------------------------------------------------------------------------------------------


@case(44)
async def test_a_conversation_whose_home_is_dead_is_served_elsewhere_at_once() -> None:
    """
    The second attempt never goes to the first replica again.
    """
    async with scripted_engine() as one, contextlib.AsyncExitStack() as stack:
        async with scripted_engine() as two:
            front = await stack.enter_async_context(ramjet({"a": one.url, "b": two.url}))
            texts = [f"{number} " + "x" * 3_000 for number in range(20)]
            for text in texts:
                await ask(front.url, chat(text))
        replies = [await ask(front.url, chat(text, "go on")) for text in texts]

        assert {reply.status for reply in replies} == {200}
        assert {reply.header("x-ramjet-replica") for reply in replies} == {"a"}
        assert max(record.attempts for record in front.records) == 2


@case(44)
async def test_a_fleet_that_refuses_gets_no_more_than_two_requests_for_one() -> None:
    """
    A hundred of 2 MB, all answered 503: one 503 each, two attempts, and no memory kept.
    """
    async with scripted_engine(saying(503, retry_after="3")) as engine:
        async with ramjet({name: f"{engine.url}/{name}" for name in "abc"}) as front:
            raw = chat("x" * 2_000_000)
            await ask(front.url, raw)
            engine.seen.clear()
            before = psutil.Process().memory_info().rss
            for _ in range(10):
                replies = await asyncio.gather(*(ask(front.url, raw) for _ in range(10)))
                assert {(reply.status, reply.header("retry-after")) for reply in replies} == {(503, "3")}
                assert len(engine.seen) == 20
                engine.seen.clear()

            assert psutil.Process().memory_info().rss - before < 150 << 20
            assert front.running.handler.door.held_bytes == 0


# -- clients that leave -----------------------------------------------------------------------------------------------------


@case(45)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("moment", ["before the head", "before the head, streaming", "in the middle"])
async def test_an_engine_learns_that_nobody_waits(moment: str, half: bool) -> None:
    """
    Within a second, and it is not blamed.

    A client that closes only its sending half is treated alike: a FIN is all that tells a client that has left, and a
    long prefill for nobody must end. That is a limit of Ramjet's, and no client of these APIs is known to meet it.
    """
    gone: list[bool] = []
    begun = asyncio.Event()

    async def script(connection: Connection, seen: Seen) -> None:
        if moment == "in the middle":
            await connection.start_stream()
            await connection.chunk(EVENT)
        begun.set()
        gone.append(await connection.gone(within_s=3.0))

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        async with wire(front.url) as line:
            line.send(chat("x", stream=moment != "before the head"))
            await begun.wait()
            left_at = time.perf_counter()
            line.writer.write_eof() if half else line.writer.transport.abort()
            await front.settled()
            await until(lambda: bool(gone))

        assert time.perf_counter() - left_at < 1
        assert gone == [True]
        assert [record.outcome for record in front.records] == ["client_disconnect"]
        assert (front.in_flight, front.router.fleet["a"].state) == ({"a": 0}, State.UP)


@case(45)
async def test_who_leaves_before_the_body_is_there_never_reaches_an_engine() -> None:
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front:
        async with wire(front.url) as line:
            line.send(chat("x" * 10_000)[:5_000])
            await until(lambda: front.running.handler.door.inside == 1)
        await front.settled()

        assert not engine.seen
        assert [record.outcome for record in front.records] == ["client_disconnect"]


@case(45)
async def test_usage_that_was_seen_before_the_client_left_is_kept() -> None:
    usage = b'data: {"type":"message_start","message":{"usage":{"input_tokens":9,"cache_read_input_tokens":90}}}\n\n'

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        await connection.chunk(usage)
        await connection.gone()

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        async with wire(front.url) as line:
            line.send(request("/v1/messages", body_for("/v1/messages", "x", stream=True)))
            await line.reader.readuntil(b"\n\n")
        await front.settled()

        assert (front.records[0].outcome, front.records[0].usage.cached_tokens) == ("client_disconnect", 90)


# -- blame ------------------------------------------------------------------------------------------------------------------


@case(46)
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500])
async def test_what_clients_get_wrong_takes_nobody_out(status: int) -> None:
    """
    Fifty in a row, and the next good request goes there as ever. Engines answer 500 to some prompts too.
    """
    async with scripted_engine(saying(status)) as engine, ramjet({"a": engine.url}) as front:
        for number in range(50):
            assert (await ask(front.url, chat(str(number)))).status == status
        engine.script = answer_ok
        reply = await ask(front.url, chat("good"))

        assert (reply.status, reply.header("x-ramjet-reason")) == (200, "only")
        assert front.router.fleet["a"].state is State.UP


@case(46)
async def test_fifty_clients_that_leave_take_nobody_out() -> None:
    async with scripted_engine(stall) as engine, ramjet({"a": engine.url}) as front:
        for number in range(50):
            async with wire(front.url) as line:
                line.send(chat(str(number)))
                await until(lambda want=number: len(engine.seen) > want)  # type: ignore[misc]
        await front.settled()

        assert Counter(record.outcome for record in front.records) == {"client_disconnect": 50}
        assert (front.router.fleet["a"].state, front.in_flight) == (State.UP, {"a": 0})


@case(46)
@pytest.mark.parametrize("status", [400, 404, 422, 500, 503])
async def test_an_error_is_no_proof_of_health(status: int) -> None:
    """
    A replica on trial that refuses a request has shown nothing: it stays on trial until it has served one.
    """
    async with scripted_engine(saying(status)) as engine, ramjet({"a": engine.url}) as front:
        replica = front.router.fleet["a"]
        replica.probed(0, error="refused", refused=True)
        replica.probed(1, error=None)
        replica.probed(2, error=None)
        assert replica.state is State.TRIAL
        await ask(front.url, chat("x"))
        assert replica.state is State.TRIAL
        engine.script = answer_ok
        await ask(front.url, chat("x"))

        assert replica.state is State.UP  # type: ignore[comparison-overlap]


@case(47)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_replica_is_up_and_its_words_are_kept(status: int) -> None:
    """
    One spill; where all are busy, status, body and Retry-After reach the client, in whatever pieces they came.
    """
    content = b'{"error":{"message":"queue is full"}}'

    async def full(connection: Connection, seen: Seen) -> None:
        head = f"HTTP/1.1 {status} Busy\r\nretry-after: 7\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        await connection.send(head.encode(), content[:9], content[9:], pause_s=0.02)

    async with scripted_engine(full) as one, scripted_engine() as two:
        async with ramjet({"a": one.url, "b": two.url}) as front:
            replies = [await ask(front.url, chat(f"{number} " + "x" * 3_000)) for number in range(8)]
            assert {reply.status for reply in replies} == {200}
            assert len(one.seen) >= 1
            two.script = full
            reply = await ask(front.url, chat("another"))

            assert (reply.status, reply.body, reply.header("retry-after")) == (status, content, "7")
            assert all(replica.state is State.UP for replica in front.router.fleet)
            assert front.records[-1].attempts == 2


@case(47)
async def test_ramjets_own_refusal_says_when_to_come_back() -> None:
    """
    429 with Retry-After, and not 408, which clients repeat at once.
    """
    go = asyncio.Event()

    async def hold(connection: Connection, seen: Seen) -> None:
        await go.wait()
        await connection.answer(b"{}")

    async with scripted_engine(hold) as engine, ramjet({"a": engine.url}, limits={"in_flight": 2}) as front:
        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(ask(front.url, chat(str(number))))
            await until(lambda: len(engine.seen) == 2)
            reply = await ask(front.url, chat("too many"))
            go.set()

        assert reply.status == 429
        assert int(reply.header("retry-after") or 0) >= 1
        assert Counter(record.outcome for record in front.records) == {"ok": 2, "shed": 1}


# -- health ---------------------------------------------------------------------------------------------------------------

QUICK = {"interval_s": 0.03, "timeout_s": 0.1, "delivering_s": 0.3}
Answer = Callable[[Connection], Awaitable[None]]


def healthy_or(health: Answer, models: bytes = b'{"data":[]}', work: Script = answer_ok) -> Script:
    """An engine whose health does as a test says."""

    async def script(connection: Connection, seen: Seen) -> None:
        if seen.target == "/health":
            await health(connection)
        elif seen.target == "/v1/models":
            await connection.answer(models)
        else:
            await work(connection, seen)

    return script


async def fine(connection: Connection) -> None:
    await connection.answer(b"")


async def hangs(connection: Connection) -> None:
    await connection.gone()


@case(48)
async def test_who_delivers_is_not_taken_out_by_its_health() -> None:
    """
    Its probes time out for a second while a stream flows: the stream is whole, and the replica up; then it goes.
    """

    async def work(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        for _ in range(20):
            await connection.chunk(EVENT)
            await asyncio.sleep(0.05)
        await connection.chunk(b"")

    async with scripted_engine(healthy_or(hangs, work=work)) as engine:
        async with ramjet({"a": engine.url}, watch=True, health=QUICK) as front:
            replica = front.router.fleet["a"]
            reply = await ask(front.url, chat("x", stream=True))

            assert (reply.complete, replica.state) == (True, State.UP)
            assert replica.failures >= 3
            await until(lambda: replica.state is State.DOWN)
            assert (await ask(front.url, chat("x", stream=True))).header("x-ramjet-reason") == "fail_open"


@case(48)
def test_one_failure_is_none_and_a_refused_connection_is_one() -> None:
    replica = Replica("a", "http://a")

    assert not replica.probed(0, error="timeout")
    assert not replica.probed(1, error=None)
    assert replica.probed(2, error="refused", refused=True)


@case(49)
async def test_who_is_healthy_and_answers_nothing_goes_and_returns_by_a_trickle() -> None:
    """
    After `wedged_s` without a byte for anybody; and back once a request of its has got one.
    """
    async with scripted_engine(healthy_or(fine, work=stall)) as engine:
        async with ramjet(
            {"a": engine.url}, watch=True, health={**QUICK, "wedged_s": 0.3}, limits={"first_byte_s": 0.6}
        ) as front:
            replica = front.router.fleet["a"]
            assert (await ask(front.url, chat("x"))).status == 504
            assert not replica.serving
            await until(lambda: replica.state is State.TRIAL)
            engine.script = healthy_or(fine)
            assert (await ask(front.url, chat("x"))).status == 200
            assert replica.state is State.UP


def dribbling(stopped: asyncio.Event) -> Answer:
    async def health(connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while not stopped.is_set() and not connection.writer.is_closing():
            await connection.send(b"x", pause_s=0.02)

    return health


@case(48, 49)
async def test_a_health_answer_that_never_ends_is_a_bad_one() -> None:
    """
    `health.timeout_s` is for the whole probe: a byte now and then does not keep it alive.
    """
    stopped = asyncio.Event()
    async with scripted_engine(healthy_or(dribbling(stopped))) as engine:
        async with ramjet({"a": engine.url}, watch=True, health=QUICK) as front:
            try:
                await until(lambda: front.router.fleet["a"].failures >= 2, within_s=2)
            finally:
                stopped.set()


@case(49)
@pytest.mark.parametrize(
    "models",
    [b"[" * 100_000 + b"]" * 100_000, b"\xff\xfe", b'{"data":[{"id":{}}]}', b'{"data":7}', b"null", b""],
    ids=["nested", "bytes", "odd id", "number", "null", "nothing"],
)
async def test_whatever_a_replica_lists_the_watch_goes_on(models: bytes) -> None:
    """
    Its probes go on, and so does Ramjet.
    """
    probes = 0

    async def health(connection: Connection) -> None:
        nonlocal probes
        probes += 1
        await connection.answer(b"")

    async with scripted_engine(healthy_or(health, models)) as engine:
        async with ramjet({"a": engine.url}, watch=True, health=QUICK) as front:
            await until(lambda: probes >= 3, within_s=3)

            assert (await ask(front.url, chat("x"))).status == 200


@case(55)
async def test_a_replica_that_is_removed_while_it_is_probed_takes_nobody_along() -> None:
    """
    The probe finds nobody at the moment at which the replica is let go: the others are watched as before.
    """
    probes = 0

    async def health(connection: Connection) -> None:
        nonlocal probes
        probes += 1
        await connection.answer(b"")

    async with scripted_engine(healthy_or(health)) as engine:
        async with ramjet({"a": engine.url, "b": dead_url()}, watch=True, health={"interval_s": 0.005}) as front:
            gone = front.router.fleet["b"]
            said = Replica.probed

            def remove_meanwhile(replica: Replica, now: float, **more: Any) -> bool:
                if replica is gone and "b" in front.router.fleet.replicas:
                    front.running.control.remove("b")
                return said(replica, now, **more)

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Replica, "probed", remove_meanwhile)
                await until(lambda: "b" not in front.router.fleet.replicas)
                before = probes
                await until(lambda: probes >= before + 5, within_s=3)


@case(55)
async def test_after_three_reloads_only_the_new_replicas_are_watched() -> None:
    """
    One prober for each, none for those before, and no series of theirs.
    """
    async with contextlib.AsyncExitStack() as stack:
        probed: Counter[str] = Counter()

        def counting(name: str) -> Answer:
            async def health(connection: Connection) -> None:
                probed[name] += 1
                await connection.answer(b"")

            return health

        urls = {
            name: (await stack.enter_async_context(scripted_engine(healthy_or(counting(name))))).url for name in "abcd"
        }
        front = await stack.enter_async_context(ramjet({"a": urls["a"]}, watch=True, health=QUICK))
        for name in "bcd":
            front.running.control.apply(settings_for({name: urls[name]}, health=QUICK))
            await until(lambda name=name: probed[name] >= 2)  # type: ignore[misc]
        before = dict(probed)
        await asyncio.sleep(0.3)

        assert [name for name in probed if probed[name] > before[name]] == ["d"]
        assert front.running.watch.running == 1
        scrape = (await ask(front.admin_url, request("/metrics", None, method="GET"))).body.decode()
        assert 'replica="d"' in scrape
        assert not [name for name in "abc" if f'replica="{name}"' in scrape]


@case(48)
def test_a_wedge_is_measured_from_the_first_request_that_waits() -> None:
    replica = Replica("a", "http://a", thresholds=Thresholds(wedged_s=60))
    replica.sent(0)
    replica.delivered(50)

    assert not replica.probed(100, error=None)
    assert replica.probed(111, error=None)


# -- the event loop, the ceiling, the end -------------------------------------------------------------------------------------

HEAVY = {
    "one text": b'{"messages":[{"role":"user","content":"' + b"x" * 30_000_000 + b'"}]}',
    "5,000 messages": json.dumps({"messages": [{"role": "user", "content": f"{n}" + "x" * 6_000} for n in range(5_000)]}).encode(),
    "no JSON": b"x" * 30_000_000,
    "nested": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a million messages": b'{"messages":[' + b",".join([b'{"role":"user","content":"x"}'] * 1_000_000) + b"]}",
    "lists": b'{"messages":[{"role":"user","content":[' + b",".join([b"[1]"] * 7_000_000) + b"]}]}",
    "numbers": b'{"messages":[' + b",".join([b"1"] * 14_000_000) + b"]}",
}  # fmt: skip


@case(50)
@pytest.mark.alone
@pytest.mark.parametrize("what", HEAVY)
async def test_a_large_body_does_not_hold_up_the_others(what: str) -> None:
    """
    30 MB, honest or hostile: health is answered meanwhile, and the request is served, with or without a prompt.

    0.4 s is four times what the list asks for, since the client and the engine run on the same loop here.
    """
    worst_s = 0.0
    raw = request(CHAT, HEAVY[what])
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front, wire(front.url) as line:
        async with asyncio.TaskGroup() as tasks:
            served = tasks.create_task(ask(front.url, raw, within_s=60))
            while not served.done():
                started_at = time.perf_counter()
                await asyncio.sleep(0.005)  # in which the loop may be held up too
                line.send(request("/health", None, method="GET"))
                assert (await line.reply()).status == 200
                worst_s = max(worst_s, time.perf_counter() - started_at)

        assert served.result().status == 200
        assert worst_s < 0.4


@case(51)
async def test_three_hundred_at_once_reach_the_engines() -> None:
    """
    None waits for another's answer.
    """
    everybody = asyncio.Event()

    async def hold(connection: Connection, seen: Seen) -> None:
        if len(engine.seen) == 300:
            everybody.set()
        await everybody.wait()
        await connection.answer(b"{}")

    async with scripted_engine(hold) as engine, ramjet({"a": engine.url}) as front:
        replies = await asyncio.gather(*(ask(front.url, chat(str(number))) for number in range(300)))

        assert {reply.status for reply in replies} == {200}
        assert engine.connections == 300


@case(53)
async def test_a_restart_lets_answers_end_and_nobody_else_in() -> None:
    """
    Twenty streams run to their end; an idle connection is told that this is over, and a new one is refused.
    """

    async def slow(connection: Connection, seen: Seen) -> None:
        if seen.target != CHAT:
            await connection.answer(b"{}")
            return
        await connection.start_stream()
        for _ in range(12):
            await connection.chunk(EVENT)
            await asyncio.sleep(0.1)
        await connection.chunk(b"")

    async with scripted_engine(slow) as engine, serving(engine.url) as served, wire(served.url) as idle:
        idle.send(request("/x"))
        assert (await idle.reply()).status == 200
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(ask(served.url, chat(str(number), stream=True))) for number in range(20)]
            await until(lambda: sum(seen.target == CHAT for seen in engine.seen) == 20)
            served.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            idle.send(request("/health", None, method="GET"))
            ready = await idle.reply("GET")
            idle.send(request("/y"))
            last = await idle.reply()
            with pytest.raises(ConnectionError):
                await ask(served.url, request("/z"))
        assert await served.ended() == 0

        assert ready.status in {0, 503}
        assert last.status == 0 or last.header("connection") == "close"
        assert all(task.result().complete for task in running)
        ended = [line["outcome"] for line in served.said if line["event"] == "request"]
        assert ended.count("ok") >= 21


@case(53)
async def test_a_replica_that_drains_keeps_its_streams_and_gets_no_new_ones() -> None:
    go = asyncio.Event()

    async def hold(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        await connection.chunk(EVENT)
        await go.wait()
        await connection.chunk(b"")

    async with scripted_engine(hold) as one, scripted_engine() as two:
        async with ramjet({"a": one.url, "b": two.url}) as front, asyncio.TaskGroup() as tasks:
            front.running.control.drain("b")
            running = tasks.create_task(ask(front.url, chat("x" * 3_000, stream=True)))
            await until(lambda: len(one.seen) == 1)
            front.running.control.enable("b")
            front.running.control.drain("a")
            later: list[Reply] = [await ask(front.url, chat("x" * 3_000, "go on")) for _ in range(3)]
            go.set()

        assert {reply.header("x-ramjet-replica") for reply in later} == {"b"}
        assert running.result().complete


@case(56)
async def test_a_slow_body_is_read_and_a_silent_one_given_up() -> None:
    """
    The limit is for the silence between two pieces, and is said readably.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, limits={"body_gap_s": 0.3}) as front:
        async with wire(front.url) as line:
            line.send(request(CHAT, b"", "Transfer-Encoding: chunked"))
            for _ in range(6):
                line.send(chunked(b"x")[:-5])
                await asyncio.sleep(0.1)
            line.send(b"0\r\n\r\n")
            assert (await line.reply()).status == 200
        async with wire(front.url) as line:
            line.send(request(CHAT, b"x", "Content-Length: 9"))
            reply = await line.reply()

        assert (reply.status, reply.json()["error"]["code"]) == (408, "request_too_slow")
        assert len(engine.seen) == 1


@case(44, 47)
@pytest.mark.parametrize("path", WITH_PROMPT)
async def test_a_retry_is_the_same_request_again(path: str) -> None:
    """
    Body, path and key, byte for byte.
    """
    async with scripted_engine(saying(503)) as engine, ramjet({"a": engine.url, "b": f"{engine.url}/b"}) as front:
        await ask(front.url, request(f"{path}?x=%2F", body_for(path, "hello"), "Authorization: Bearer mine"))

        first, second = engine.seen
        assert {seen.target.removeprefix("/b") for seen in engine.seen} == {f"{path}?x=%2F"}
        assert (first.body, first.method) == (second.body, second.method)
        assert first.header("authorization") == second.header("authorization") == "Bearer mine"
