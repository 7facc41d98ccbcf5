"""Health from traffic: what a green probe hides, what a late one invents, and how replicas come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from ramjet.core.fleet import Fleet, Replica, State
from ramjet.core.policies import Policy
from ramjet.core.router import Router
from ramjet.core.visit import Arrival
from tests.operations.support import CHAT, TOKEN, body, longer, until
from tests.rig import Front, ramjet
from tests.scripted import Connection, ScriptedEngine, Seen, dead_url, scripted_engine

HEALTH = {"interval_s": 0.05, "timeout_s": 0.3, "delivering_s": 0.3, "wedged_s": 0.5}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20, limits=httpx.Limits(max_connections=None)) as made:
        yield made


class Ill:
    """An engine that a test makes ill, in one way or another."""

    def __init__(self) -> None:
        self.health: int | None = 200
        """None: no answer at all."""
        self.wedged = False
        """Takes requests, and says nothing."""
        self.streams = 0
        self.asked = 0

    async def __call__(self, connection: Connection, seen: Seen) -> None:
        if seen.target == "/health":
            if self.health is None:
                await connection.gone(within_s=30)
            else:
                await connection.answer(b"", status=self.health)
            return
        if seen.method == "GET":
            await connection.answer(b"{}", status=404)
            return
        self.asked += 1
        if self.wedged:
            await connection.gone(within_s=30)
            return
        if b'"stream":true' in seen.body:
            await connection.start_stream()
            for _ in range(20):
                await connection.chunk(TOKEN)
                await asyncio.sleep(0.1)
            await connection.chunk(b"")
            return
        await connection.answer(b'{"usage":{"prompt_tokens":2000,"completion_tokens":1}}')


def state(front: Front, name: str) -> State:
    return front.router.fleet[name].state


async def went(client: httpx.AsyncClient, front: Front, text: str) -> tuple[str, str]:
    answer = await client.post(front.url + CHAT, json=body(f"{text} " + "x" * 4_000))
    assert answer.status_code == 200, answer.text
    return answer.headers["x-ramjet-replica"], answer.headers["x-ramjet-reason"]


# -- wedged -------------------------------------------------------------------------------------------------------------


async def test_an_engine_that_only_looks_healthy_is_found_by_its_silence(client: httpx.AsyncClient) -> None:
    """
    Green and mute: out after `wedged_s`, and not before; new conversations avoid it; it returns through one request.
    """
    ill, well = Ill(), Ill()
    async with scripted_engine(ill) as one, scripted_engine(well) as two:
        async with ramjet({"a": one.url, "b": two.url}, watch=True, health=HEALTH) as front:
            assert {(await went(client, front, f"before {n}"))[0] for n in range(8)} == {"a", "b"}
            ill.wedged = True
            stuck: list[asyncio.Task[httpx.Response]] = []
            async with asyncio.TaskGroup() as tasks:
                number = 0
                while len(stuck) < 2:
                    task = tasks.create_task(client.post(front.url + CHAT, json=body(f"{number} " + "x" * 4_000)))
                    number, before = number + 1, ill.asked
                    await until(lambda task=task, before=before: task.done() or ill.asked > before)  # type: ignore[misc]
                    if not task.done():
                        stuck.append(task)
                await until(lambda: state(front, "a") is State.DOWN)
                assert "wedged" in (front.router.fleet["a"].last_error or "")
                assert await front.metric("ramjet_replica_up", replica="a") == 0
                assert (await client.get(f"{front.url}/health")).json()["status"] == "degraded"

                asked = ill.asked
                assert {(await went(client, front, f"while {n}"))[0] for n in range(12)} == {"b"}
                await asyncio.sleep(0.5)
                assert (ill.asked, state(front, "a")) == (asked, State.DOWN), "green probes do not bring it back"

                for task in stuck:
                    task.cancel()
            await until(lambda: state(front, "a") is State.TRIAL)
            assert front.in_flight["a"] == 0

            # Still mute: it costs one request, and no more.
            async with asyncio.TaskGroup() as tasks:
                asked = ill.asked
                trials = [
                    tasks.create_task(client.post(front.url + CHAT, json=body(f"trial {n} " + "x" * 4_000)))
                    for n in range(12)
                ]
                await until(lambda: sum(task.done() for task in trials) >= 11)
                await until(lambda: state(front, "a") is State.DOWN)
                assert ill.asked - asked == 1
                for task in trials:
                    if not task.done():
                        task.cancel()

            ill.wedged = False
            await until(lambda: state(front, "a") is State.TRIAL)
            placed = [await went(client, front, f"after {n}") for n in range(24)]
            assert "a" in {replica for replica, _ in placed}
            assert state(front, "a") is State.UP


async def test_a_long_silence_with_other_bytes_is_no_wedge(client: httpx.AsyncClient) -> None:
    """
    One request that reads for long does not count while others at the same replica get their bytes.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        if seen.method == "GET":
            await connection.answer(b"")
        elif b"long" in seen.body:
            await asyncio.sleep(2.0)
            await connection.answer(b"{}")
        else:
            await connection.answer(b"{}")

    async with scripted_engine(script) as engine:
        async with ramjet({"a": engine.url}, watch=True, health={**HEALTH, "wedged_s": 1.0}) as front:
            async with asyncio.TaskGroup() as tasks:
                long = tasks.create_task(client.post(front.url + CHAT, json=body("long")))
                states = set()
                while not long.done():
                    assert (await client.post(front.url + CHAT, json=body("short"))).status_code == 200
                    states.add(state(front, "a"))
                    await asyncio.sleep(0.1)

            assert long.result().status_code == 200
            assert states == {State.UP}


# -- late and flapping probes -------------------------------------------------------------------------------------------


async def test_an_engine_whose_health_times_out_while_it_streams_stays_up(client: httpx.AsyncClient) -> None:
    """
    Busy engines answer probes late: bytes outvote them, and once the bytes stop the probes are believed.
    """
    ill = Ill()
    async with scripted_engine(ill) as engine, ramjet({"a": engine.url}, watch=True, health=HEALTH) as front:
        async with client.stream("POST", front.url + CHAT, json=body(stream=True)) as answer:
            ill.health, states, bad = None, set(), 0
            async for _ in answer.aiter_raw():
                states.add(state(front, "a"))
                bad = max(bad, front.router.fleet["a"].failures)

        assert states == {State.UP}
        assert bad >= 3, "it was really failing"
        await until(lambda: state(front, "a") is State.DOWN)


async def test_single_flaps_are_ignored(client: httpx.AsyncClient) -> None:
    """
    Every third probe bad, for a while: never down, and nothing is forgotten.
    """
    probes = 0

    async def script(connection: Connection, seen: Seen) -> None:
        nonlocal probes
        if seen.target == "/health":
            probes += 1
            await connection.answer(b"", status=200 if probes % 3 else 500)
        elif seen.method == "GET":
            await connection.answer(b"{}", status=404)
        else:
            await connection.answer(b'{"usage":{"prompt_tokens":2000,"completion_tokens":1}}')

    async with scripted_engine(script) as engine:
        async with ramjet({"a": engine.url}, watch=True, health={**HEALTH, "interval_s": 0.02}) as front:
            await went(client, front, "one")
            resident, states = front.router.resident_tokens("a"), set()
            while probes < 30:
                states.add(state(front, "a"))
                await asyncio.sleep(0.01)

            assert states == {State.UP}
            assert front.router.resident_tokens("a") == resident > 0


# -- all down -----------------------------------------------------------------------------------------------------------


async def test_when_all_are_down_requests_are_tried_and_said_to_be(client: httpx.AsyncClient) -> None:
    """
    Served if an engine can, with the reason in the header, the metric and the request's log line.
    """
    ill, worse = Ill(), Ill()
    async with scripted_engine(ill) as one, scripted_engine(worse) as two:
        async with ramjet({"a": one.url, "b": two.url}, watch=True, health=HEALTH) as front:
            ill.health = worse.health = 500
            await until(lambda: {state(front, "a"), state(front, "b")} == {State.DOWN})
            placed = [await went(client, front, str(n)) for n in range(6)]
            await front.settled()

            assert {reason for _, reason in placed} == {"fail_open"}
            assert await front.metric("ramjet_decisions_total", reason="fail_open") == 6
            assert {record.log_fields()["reason"] for record in front.records} == {"fail_open"}
            health = await client.get(f"{front.url}/health")
            assert (health.status_code, health.json()["status"]) == (503, "down")


def test_a_request_goes_to_no_replica_that_is_down_while_one_is_on_trial() -> None:
    """
    Its one request is under way, so nothing may be placed by the book: who is coming back is still the better bet.
    """
    trial, down = Replica("trial", "http://trial"), Replica("down", "http://down")
    router = Router(Fleet({"trial": trial, "down": down}), Policy())
    for replica in (trial, down):
        replica.probed(0, error="refused", refused=True)
    trial.probed(1, error=None)
    trial.probed(2, error=None)
    assert (trial.state, down.state) == (State.TRIAL, State.DOWN)

    placed = []
    for number in range(12):
        visit = router.arrive(Arrival(request_id=str(number), endpoint="chat", body_bytes=1_000), 3)
        lease = router.place(visit, 3)
        assert lease is not None
        placed.append(lease.replica.name)

    assert set(placed) == {"trial"}


# -- restarts -----------------------------------------------------------------------------------------------------------


async def test_who_restarts_has_lost_its_cache_and_is_chosen_by_cost(client: httpx.AsyncClient) -> None:
    """
    Refused probes clear what was believed, and its conversations go where they are read soonest.
    """
    ill, well = Ill(), Ill()
    async with scripted_engine(well) as two:
        async with _Restartable(ill) as one:
            async with ramjet({"a": one.url, "b": two.url}, watch=True, health=HEALTH) as front:
                talks = [body(f"{number} " + "x" * 8_000) for number in range(10)]
                answers = [await client.post(front.url + CHAT, json=talk) for talk in talks]
                at_a = [
                    talk for talk, each in zip(talks, answers, strict=True) if each.headers["x-ramjet-replica"] == "a"
                ]
                assert at_a
                assert front.router.resident_tokens("a") > 0

                await one.stop()
                await until(lambda: state(front, "a") is State.DOWN)
                assert front.router.resident_tokens("a") == 0
                turn = await client.post(front.url + CHAT, json=longer(at_a[0]))
                assert (turn.status_code, turn.headers["x-ramjet-replica"]) == (200, "b")

                await one.start()
                await until(lambda: state(front, "a") is State.TRIAL)
                # At home there is nothing left: whoever has less to do may have it, and nothing ties it there.
                again = await client.post(front.url + CHAT, json=longer(longer(at_a[0])))
                assert (again.headers["x-ramjet-replica"], again.headers["x-ramjet-reason"]) == ("b", "affinity")
                if len(at_a) > 1:
                    other = await client.post(front.url + CHAT, json=longer(at_a[1]))
                    assert other.status_code == 200
                    record = front.record(other.headers["x-request-id"])
                    assert record.matched_tokens == 0
                    assert "leave" not in {name for name, seconds in record.costs.items() if seconds}


class _Restartable:
    """A scripted engine that stops listening and comes back on its port."""

    def __init__(self, script: Ill) -> None:
        self.engine = ScriptedEngine(script)
        self.server: asyncio.Server | None = None
        self.url = dead_url()

    async def start(self) -> None:
        host, port = self.url.removeprefix("http://").split(":")
        self.server = await asyncio.start_server(self.engine._serve, host, int(port), limit=1 << 22)

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
            await self.engine.close()
        self.server = None

    async def __aenter__(self) -> _Restartable:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
