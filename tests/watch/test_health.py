"""Health: it neither flaps nor lies, over real sockets."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest

from ramjet.core.fleet import Replica, State, Thresholds
from tests.rig import Front, ramjet
from tests.scripted import Connection, Seen, dead_url, scripted_engine

QUICK = {"interval_s": 0.05, "timeout_s": 0.2, "delivering_s": 0.1}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Moody:
    """An engine whose health answers what a test says, and which counts what else it is asked."""

    def __init__(self) -> None:
        self.status = 200
        self.probes = 0
        self.models: list[str] = []

    async def __call__(self, connection: Connection, seen: Seen) -> None:
        if seen.target == "/health":
            self.probes += 1
            if self.status:
                await connection.answer(b"", status=self.status)
            else:
                await connection.gone()
        elif seen.target == "/v1/models":
            await connection.answer(json.dumps({"data": [{"id": name} for name in self.models]}).encode())
        else:
            await connection.answer(b"{}")


async def until(front: Front, *states: State, within_s: float = 5.0) -> float:
    """Wait until the only replica is in one of these states; seconds it took."""
    started_at = time.monotonic()
    async with asyncio.timeout(within_s):
        while next(iter(front.router.fleet)).state not in states:  # noqa: ASYNC110 - a belief has no event
            await asyncio.sleep(0.005)
    return time.monotonic() - started_at


def test_one_bad_probe_is_noise_and_so_is_one_good_one() -> None:
    """
    Down after three in a row, and on trial after two good ones in a row.
    """
    replica = Replica("a", "http://a")
    probes = ("x", "x", None, "x", "x", "x", "x", None, "x", None, None, None)
    changes = [replica.probed(now, error=error) for now, error in enumerate(probes)]

    assert [number for number, changed in enumerate(changes) if changed] == [5, 10]
    assert replica.state is State.TRIAL


def test_a_refused_connection_counts_at_once() -> None:
    """
    Nobody listens there: that is no noise, whatever was delivered a moment ago.
    """
    replica = Replica("a", "http://a")
    replica.sent(0)
    replica.delivered(0)

    assert replica.probed(1, error="refused", refused=True)
    assert replica.state is State.DOWN


def test_who_delivers_is_not_taken_out_by_probes() -> None:
    """
    A busy engine answers its health late: bytes of answers outvote any number of probes, until they stop.
    """
    replica = Replica("a", "http://a", thresholds=Thresholds(delivering_s=10))
    replica.sent(0)
    for now in range(20):
        replica.delivered(now)
        assert not replica.probed(now, error="timeout")

    assert not replica.probed(28.9, error="timeout")
    assert replica.probed(29.1, error="timeout")


def test_who_takes_requests_and_does_nothing_is_wedged() -> None:
    """
    Health is green, and no request has seen a byte: out after `wedged_s`, and not before.
    """
    replica = Replica("a", "http://a", thresholds=Thresholds(wedged_s=60))
    replica.sent(0)
    replica.sent(50)

    assert not replica.probed(60, error=None)
    assert replica.probed(60.1, error=None)
    assert replica.state is State.DOWN
    assert "wedged" in (replica.last_error or "")
    assert not replica.probed(70, error=None)


def test_an_idle_replica_is_not_wedged() -> None:
    """
    Silence counts only while something is owed.
    """
    replica = Replica("a", "http://a", thresholds=Thresholds(wedged_s=60))
    replica.sent(0)
    replica.delivered(1)
    replica.done()

    assert not replica.probed(1_000, error=None)
    replica.sent(1_000)
    assert not replica.probed(1_059, error=None)


def test_who_comes_back_gets_one_request_at_a_time_until_a_byte_has_come() -> None:
    """
    A trickle: a replica that only looks healthy costs one request, not a crowd.
    """
    replica = Replica("a", "http://a")
    replica.probed(0, error="refused", refused=True)
    replica.probed(1, error=None)
    seen = [replica.serving]
    replica.probed(2, error=None)
    seen.append(replica.serving)
    replica.sent(3)
    seen.append(replica.serving)

    assert replica.delivered(4)

    seen.append(replica.serving)
    assert seen == [False, True, False, True]
    assert replica.state is State.UP


async def test_a_failing_replica_goes_and_comes_back() -> None:
    """
    After three bad probes it is down, and new conversations reach it again soon after it has recovered.
    """
    engine = Moody()
    async with scripted_engine(engine) as server, ramjet({"a": server.url}, watch=True, health=QUICK) as front:
        await asyncio.sleep(0.2)
        for status in (500, 0):
            engine.status, before = status, engine.probes
            await until(front, State.DOWN)
            assert engine.probes - before >= 3
            assert front.metric("ramjet_replica_up", replica="a") == 0
            engine.status = 200
            assert await until(front, State.UP, State.TRIAL) < 2
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"{front.url}/v1/chat/completions", json=CHAT)
            assert answer.headers["x-ramjet-reason"] == "only"


async def test_when_all_are_down_trying_beats_refusing() -> None:
    """
    Health says no, the engine can: the request is served, and the reason says how.
    """
    engine = Moody()
    engine.status = 503
    async with scripted_engine(engine) as server, ramjet({"a": server.url}, watch=True, health=QUICK) as front:
        await until(front, State.DOWN)
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{front.url}/v1/chat/completions", json=CHAT)
            health = await client.get(f"{front.url}/health")

        assert (answer.status_code, answer.headers["x-ramjet-reason"]) == (200, "fail_open")
        assert (health.status_code, health.json()["replicas"]["a"]["error"]) == (503, "status 503")


async def test_a_hung_replica_delays_nobody_elses_probe() -> None:
    """
    Each replica is probed in a loop of its own.
    """
    hung, fine = Moody(), Moody()
    hung.status = 0
    async with scripted_engine(hung) as one, scripted_engine(fine) as two:
        async with ramjet({"a": one.url, "b": two.url}, watch=True, health={"interval_s": 0.05, "timeout_s": 60}):
            async with asyncio.timeout(30.0):
                while fine.probes < 5:  # noqa: ASYNC110 - an engine has no event
                    await asyncio.sleep(0.01)

    assert hung.probes == 1


async def test_a_model_goes_to_a_replica_that_lists_it() -> None:
    """
    An adapter that one replica has loaded is not looked for on the other.
    """
    base, both = Moody(), Moody()
    base.models, both.models = ["base"], ["base", "lora-a"]
    async with scripted_engine(base) as one, scripted_engine(both) as two:
        async with ramjet({"a": one.url, "b": two.url}, watch=True, health=QUICK) as front:
            await asyncio.sleep(0.2)
            async with httpx.AsyncClient() as client:

                async def went(model: str) -> set[str]:
                    answers = [await client.post(url, json=CHAT | {"model": model, "seed": n}) for n in range(4)]
                    return {each.headers["x-ramjet-replica"] for each in answers}

                url = f"{front.url}/v1/chat/completions"
                assert await went("lora-a") == {"b"}
                assert len(await went("base")) == 1
                assert len(await went("nobody-lists-it")) == 1


@pytest.mark.parametrize(
    ("replica", "error"),
    [
        ("silent", "no answer in time"),
        ("breaks off", "the connection was closed"),
        ("dead", "connection refused"),
        ("http://nowhere.invalid:1", "cannot be reached"),
    ],
)
async def test_what_is_wrong_is_said_in_words(replica: str, error: str) -> None:
    """
    In those of the runbook.
    """
    engine = Moody()
    engine.status = 0

    async def cut(connection: Connection, seen: Seen) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal")
        connection.reset()

    async with scripted_engine(engine) as silent, scripted_engine(cut) as broken:
        url = {"silent": silent.url, "breaks off": broken.url, "dead": dead_url()}.get(replica, replica)
        async with ramjet({"a": url}, watch=True, health=QUICK) as front:
            await until(front, State.DOWN)
            said = next(iter(front.router.fleet)).last_error or ""
            assert said in {error, "ConnectionResetError"} if replica == "breaks off" else said == error


async def test_each_probe_makes_a_connection_of_its_own() -> None:
    """
    That one can be made is a part of what is asked.
    """
    engine = Moody()
    async with scripted_engine(engine) as server, ramjet({"a": server.url}, watch=True, health=QUICK) as front:
        async with asyncio.timeout(10):
            while engine.probes < 5:  # noqa: ASYNC110 - an engine has no event
                await asyncio.sleep(0.01)
        asked = [seen for seen in server.seen if seen.target in {"/health", "/v1/models"}]
        assert server.connections >= len(asked)
        assert next(iter(front.router.fleet)).state is State.UP
