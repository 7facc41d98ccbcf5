"""Ranks come and go while Ramjet serves: by an engine's word, by the file, and by an operator's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramjet.core.fleet import State
from ramjet.replica.server import running_replica
from tests.operations.support import CHAT, QUICK_HEALTH, Held, Streams, body, config, live, until
from tests.operations.test_admin import add, listed, probers, remove, went
from tests.replica.support import attention
from tests.rig import Front, ramjet, settings_for
from tests.scripted import Connection, Seen, scripted_engine

SPEED = 500
NOWHERE = "http://127.0.0.1:9/a"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20, trust_env=False) as made:
        yield made


def names(front: Front) -> list[str]:
    return [each.name for each in front.router.fleet]


async def filled(client: httpx.AsyncClient, front: Front) -> dict[str, int]:
    """Send conversations until every rank holds some; what each is believed to hold."""
    for number in range(12):
        await went(client, front, body(f"{number} " + "x" * 4_000))
    await front.settled()
    held = {name: front.router.resident_tokens(name) for name in names(front)}
    assert all(held.values())
    return held


# -- by an engine's word ----------------------------------------------------------------------------------------------


async def test_an_engine_that_says_how_many_ranks_it_has_gets_one_replica_for_each(client: httpx.AsyncClient) -> None:
    """
    Without a line of configuration, with the pool of one rank each, one prober, and series under the new names.
    """
    async with running_replica(attention(pool_tokens=40_960, ranks=3), speed=SPEED) as replica:
        async with ramjet({"a": replica.url}, watch=True, health=QUICK_HEALTH) as front:
            await until(lambda: names(front) == ["a.0", "a.1", "a.2"])
            await until(lambda: all(each.pools.tokens == 40_960 and each.models for each in front.router.fleet))
            await until(lambda: probers() == ["health a"])

            where = {await went(client, front, body(f"{number} " + "x" * 4_000)) for number in range(9)}

            assert where == {"a.0", "a.1", "a.2"}
            assert {each["rank"] for each in (await listed(client, front)).values()} == {0, 1, 2}
            metrics = (await client.get(f"{front.admin_url}/metrics")).text
            assert 'replica="a.2"' in metrics
            assert 'replica="a"' not in metrics


async def test_what_runs_while_ranks_are_found_is_not_lost(client: httpx.AsyncClient) -> None:
    """
    A stream that was begun at the whole ends there; what was believed of the whole is dropped, as no rank holds it.
    """
    held = Held()
    async with scripted_engine(held) as engine, ramjet({"a": engine.url}) as front:
        streams = Streams()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(streams.take(client, front.url, body("x" * 4_000)))
            await until(lambda: held.asked == 1)
            front.running.control.drain("a")
            front.running.control.ranked(engine.url, 2)

            assert names(front) == ["a.0", "a.1"]
            assert all(each.draining for each in front.router.fleet)
            front.running.control.enable("a")
            assert await went(client, front, body("another")) in names(front)
            held.let_go.set()
        await front.settled()

        assert (streams.ended, streams.failed) == (1, [])
        assert {each.outcome for each in front.records} == {"ok"}
        assert set(front.in_flight.values()) == {0}
        front.running.control.ranked(engine.url, 1)
        assert names(front) == ["a"]


async def test_a_page_that_fails_joins_no_ranks(client: httpx.AsyncClient) -> None:
    """
    An engine too busy to say how many it has has as many as before, and nobody has as many as no engine could.
    """
    says: dict[str, Any] = {"ranks": 2, "status": 200}

    async def engine(connection: Connection, seen: Seen) -> None:
        if seen.target == "/server_info":
            page = {"max_total_num_tokens": 1 << 20, "dp_size": says["ranks"]}
            await connection.answer(json.dumps(page).encode(), status=says["status"])
        elif seen.method == "GET" and seen.target != "/health":
            await connection.answer(b"", status=404)
        else:
            await connection.answer(b"{}")

    def asked() -> int:
        return sum(seen.target == "/server_info" for seen in server.seen)

    stats = {"interval_s": 0.02, "facts_s": 0.05}
    async with scripted_engine(engine) as server, ramjet({"a": server.url}, watch=True, stats=stats) as front:
        await until(lambda: names(front) == ["a.0", "a.1"])
        before = await filled(client, front)
        for ranks, status in ((2, 500), (0, 200), (None, 200), (10**9, 200)):
            says.update(ranks=ranks, status=status)
            times = asked()
            await until(lambda: asked() > times + 2)  # noqa: B023

            assert {name: front.router.resident_tokens(name) for name in names(front)} == before
        says.update(ranks=3, status=200)
        await until(lambda: len(names(front)) == 3)


async def test_what_others_have_at_a_rank_is_that_ranks(client: httpx.AsyncClient) -> None:
    """
    An engine tells the load of each: who comes goes to the one where nobody else is.
    """
    stats = {"interval_s": 0.02, "timeout_s": 0.5}
    async with running_replica(attention(ranks=2), speed=1) as replica:
        async with ramjet({"a": replica.url}, watch=True, stats=stats) as front:
            await until(lambda: names(front) == ["a.0", "a.1"])
            async with asyncio.TaskGroup() as tasks:
                past = client.post(
                    replica.url + CHAT,
                    json={**body("x" * 400), "max_tokens": 100, "ignore_eos": True},
                    headers={"x-data-parallel-rank": "1"},
                )
                waits = tasks.create_task(past)
                await until(lambda: front.router.fleet["a.1"].others.at(time.monotonic()).requests == 1)
                assert front.router.fleet["a.0"].others.at(time.monotonic()).requests == 0
                told = [each["engine"] for each in (await listed(client, front)).values()]
                assert [each["running"] + each["waiting"] for each in told] == [0, 1]

                assert await went(client, front, {**body("y" * 400), "max_tokens": 1}) == "a.0"
                assert not waits.done()


async def test_an_engine_that_restarts_has_lost_all_caches(client: httpx.AsyncClient) -> None:
    """
    One probe finds nobody there: all ranks are down and hold nothing, and each comes back by its own first answer.
    """
    profile = attention(ranks=2)
    async with contextlib.AsyncExitStack() as dies:
        replica = await dies.enter_async_context(running_replica(profile, speed=SPEED))
        port = int(replica.url.rpartition(":")[2])
        async with ramjet({"a": {"url": replica.url, "ranks": 2}}, watch=True, health=QUICK_HEALTH) as front:
            await filled(client, front)
            await dies.aclose()
            await until(lambda: all(each.state is State.DOWN for each in front.router.fleet))
            assert [front.router.resident_tokens(name) for name in names(front)] == [0, 0]

            async with running_replica(profile, speed=SPEED, port=port):
                await until(lambda: all(each.state is State.TRIAL for each in front.router.fleet))
                served = await went(client, front, body("first"))
                states = {each.name: each.state for each in front.router.fleet}
                assert states.pop(served) is State.UP
                assert list(states.values()) == [State.TRIAL]
                await filled(client, front)
                assert {each.state for each in front.router.fleet} == {State.UP}


@pytest.mark.parametrize("ranks", [2, 4])
async def test_what_the_configuration_says_counts_and_what_differs_is_told(
    client: httpx.AsyncClient, tmp_path: Path, ranks: int
) -> None:
    """
    An operator may know better; but an engine refuses what is meant for a rank that it has not.
    """
    path = tmp_path / "ramjet.yaml"
    async with running_replica(attention(ranks=3), speed=SPEED) as replica:
        config(path, {"a": {"url": replica.url, "ranks": ranks}})
        async with live(path) as served:
            told = await served.said("replica_ranks_differ")
            listed = (await client.get(f"{served.admin}/replicas")).json()["replicas"]

    assert (told["replica"], told["configured"], told["reported"]) == ("a", ranks, 3)
    assert len(listed) == ranks


# -- by the file ------------------------------------------------------------------------------------------------------


async def test_a_reload_keeps_what_is_believed_of_the_ranks_that_stay(client: httpx.AsyncClient) -> None:
    """
    More of them, or fewer: the others go on; one of another URL is another.
    """

    def given(ranks: int | None, url: str) -> Any:
        return settings_for({"a": {"url": url, "ranks": ranks}})

    async with running_replica(attention(ranks=4), speed=SPEED) as replica:
        async with ramjet({"a": {"url": replica.url, "ranks": 2}}) as front:
            control = front.running.control
            held = await filled(client, front)
            control.drain("a")

            control.apply(given(4, replica.url))
            assert names(front) == ["a.0", "a.1", "a.2", "a.3"]
            assert {name: front.router.resident_tokens(name) for name in names(front)} == {**held, "a.2": 0, "a.3": 0}
            assert all(each.draining for each in front.router.fleet)

            control.apply(given(2, replica.url))
            assert {name: front.router.resident_tokens(name) for name in names(front)} == held

            control.apply(given(2, f"{replica.url}/elsewhere"))
            assert {front.router.resident_tokens(name) for name in names(front)} == {0}
            assert not any(each.draining for each in front.router.fleet)

            control.apply(given(None, replica.url))
            assert names(front) == ["a"]
            control.ranked(replica.url, 3)
            control.apply(given(None, replica.url))
            assert names(front) == ["a.0", "a.1", "a.2"]


async def test_a_name_that_would_be_a_ranks_is_refused(client: httpx.AsyncClient) -> None:
    """
    By hand with a reason; and where the file claims such a name, what was added by hand makes room.
    """
    async with ramjet({"a": NOWHERE}) as front:
        answer = await add(client, front, "a.1", "http://127.0.0.1:9/other")
        assert (answer.status_code, names(front)) == (400, ["a"])
        assert answer.json()["error"] == "the name a.1 is that of a rank of a; name one of the two otherwise"

        assert (await add(client, front, "b.1", "http://127.0.0.1:9/other")).status_code == 201
        front.running.control.apply(settings_for({"a": NOWHERE, "b": {"url": "http://127.0.0.1:9/b", "ranks": 2}}))
        assert names(front) == ["a", "b.0", "b.1"]
        assert front.router.fleet["b.1"].url == "http://127.0.0.1:9/b"


# -- by an operator ---------------------------------------------------------------------------------------------------


async def test_what_is_done_to_a_replica_is_done_to_all_of_its_ranks(client: httpx.AsyncClient) -> None:
    """
    A rank can be drained by itself; it cannot be removed, for the engine would go on reading there.
    """
    async with ramjet({"a": {"url": NOWHERE, "ranks": 2}, "b": "http://127.0.0.1:9/b"}) as front:

        async def draining(path: str) -> set[str]:
            answer = await client.post(f"{front.admin_url}/replicas/{path}")
            return {each["name"] for each in answer.json()["replicas"] if each["draining"]}

        assert await draining("a/drain") == {"a.0", "a.1"}
        assert await draining("a.1/enable") == {"a.0"}
        assert await draining("a/enable") == set()
        assert await draining("a.1/drain") == {"a.1"}

        refused = await remove(client, front, "a.1")
        assert (refused.status_code, refused.json()["error"]) == (
            400, "a.1 is a rank of a; remove a, or drain a.1",
        )  # fmt: skip
        assert (await remove(client, front, "a.2")).status_code == 404
        assert (await remove(client, front, "a")).status_code == 200
        assert names(front) == ["b"]
        assert 'replica="a.' not in (await client.get(f"{front.admin_url}/metrics")).text

        answer = await add(client, front, "c", "http://127.0.0.1:9/c", ranks=3)
        assert [each["name"] for each in answer.json()["replicas"]] == ["b", "c.0", "c.1", "c.2"]


async def test_a_request_for_a_drained_rank_goes_to_another(client: httpx.AsyncClient) -> None:
    """
    A rank that is drained gets nothing new, whoever lives there.
    """
    async with running_replica(attention(ranks=2), speed=SPEED) as replica:
        async with ramjet({"a": {"url": replica.url, "ranks": 2}}) as front:
            await filled(client, front)
            front.running.control.drain("a.0")

            where = {await went(client, front, body(f"{number} " + "x" * 4_000)) for number in range(6)}

            assert where == {"a.1"}
            answer = await client.post(front.url + CHAT, json=body("new"))
            assert answer.headers["x-ramjet-replica"] == "a.1"
