"""Replicas that come, drain and go while Ramjet serves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ramjet.admin.server import is_loopback
from ramjet.config import Settings
from ramjet.control import Control
from ramjet.http1.client import Client
from ramjet.watch import health
from tests.operations.support import CHAT, QUICK_HEALTH, Held, Streams, body, longer, sent, until
from tests.rig import Front, quick_engine, ramjet, settings_for
from tests.scripted import dead_url, scripted_engine

TOKEN = "an-operators-token"  # a test's


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=20, limits=limits) as made:
        yield made


async def listed(client: httpx.AsyncClient, front: Front) -> dict[str, dict[str, Any]]:
    """The replicas as the admin port lists them."""
    answer = await client.get(f"{front.admin_url}/replicas")
    assert answer.status_code == 200
    return {each["name"]: each for each in answer.json()["replicas"]}


async def add(client: httpx.AsyncClient, front: Front, name: str, url: str, **more: Any) -> httpx.Response:
    return await client.post(f"{front.admin_url}/replicas", json={"name": name, "url": url, **more})


async def remove(client: httpx.AsyncClient, front: Front, name: str) -> httpx.Response:
    return await client.delete(f"{front.admin_url}/replicas/{name}")


async def went(client: httpx.AsyncClient, front: Front, request: dict[str, Any]) -> str:
    """The replica that served a request."""
    answer = await client.post(front.url + CHAT, json=request)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-ramjet-replica"]


def probers() -> list[str]:
    """The names of the probing tasks that really run."""
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("health "))


# -- the life of a replica ----------------------------------------------------------------------------------------------


async def test_replicas_come_and_go_while_it_serves(client: httpx.AsyncClient) -> None:
    """
    Each step shows in the list at once, and requests follow.
    """
    async with quick_engine() as one, quick_engine() as two, ramjet({"a": one.url}) as front:
        assert list(await listed(client, front)) == ["a"]

        added = await add(client, front, "b", two.url, pool_tokens=499_968)
        assert (added.status_code, added.json()["replicas"][1]["pool_tokens"]) == (201, 499_968)
        both = {await went(client, front, body(f"{n} " + "x" * 2_000)) for n in range(6)}

        assert (await client.post(f"{front.admin_url}/replicas/b/drain")).json()["replicas"][1]["draining"] is True
        drained = {await went(client, front, body(f"{n} drained " + "x" * 2_000)) for n in range(6)}

        assert (await client.post(f"{front.admin_url}/replicas/b/enable")).json()["replicas"][1]["draining"] is False
        enabled = {await went(client, front, body(f"{n} enabled " + "x" * 2_000)) for n in range(12)}

        assert (await remove(client, front, "b")).status_code == 200
        gone = {await went(client, front, body(f"{n} gone " + "x" * 2_000)) for n in range(6)}

        assert (both, drained, enabled, gone) == ({"a", "b"}, {"a"}, {"a", "b"}, {"a"})
        assert list(await listed(client, front)) == ["a"]


async def test_who_is_not_there_is_named() -> None:
    """
    404 with the name, for each change.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        for method, path in (("DELETE", "x"), ("POST", "x/drain"), ("POST", "x/enable")):
            answer = await client.request(method, f"{front.admin_url}/replicas/{path}")

            assert (answer.status_code, answer.json()) == (404, {"error": "no replica is named x"})


async def test_a_drained_replica_gets_nothing_new_while_its_streams_end(client: httpx.AsyncClient) -> None:
    """
    Not even the next turns of its own conversations; the streams are complete, and health says how it is.
    """
    held = Held()
    async with scripted_engine(held) as one, quick_engine() as two, ramjet({"a": one.url}) as front:
        streams = Streams()
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(streams.take(client, front.url, body(f"{number} " + "x" * 4_000)))
            await until(lambda: held.asked == 4)
            await add(client, front, "b", two.url)
            await client.post(f"{front.admin_url}/replicas/a/drain")

            turns = [longer(body(f"{number} " + "x" * 4_000)) for number in range(4)]
            placed = {await went(client, front, turn) for turn in (*turns, body("a new one"))}
            state = (await listed(client, front))["a"]
            held.let_go.set()

        assert placed == {"b"}
        assert (held.asked, state["in_flight"], state["draining"]) == (4, 4, True)
        assert (streams.ended, {came.count(b"data:") for came in streams.came}) == (4, {2})
        assert (await client.get(f"{front.url}/health")).json()["replicas"]["a"]["state"] == "draining"
        assert front.in_flight == {"a": 0, "b": 0}


async def test_when_all_are_drained_the_client_is_told_to_come_back(client: httpx.AsyncClient) -> None:
    async with quick_engine() as one, ramjet({"a": one.url}) as front:
        await client.post(f"{front.admin_url}/replicas/a/drain")

        answer = await client.post(front.url + CHAT, json=body())
        told = await client.get(f"{front.url}/health")

        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert (told.status_code, told.json()["status"]) == (503, "down")
        assert (await client.get(f"{front.admin_url}/live")).status_code == 200, "a restart would help nobody"


async def test_what_runs_at_a_removed_replica_ends_there(client: httpx.AsyncClient) -> None:
    """
    Its streams are complete and recorded, nothing raises, and not one series of it is left.
    """
    held = Held()
    async with scripted_engine(held) as one, quick_engine() as two, ramjet({"a": one.url}) as front:
        streams = Streams()
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(streams.take(client, front.url, body(f"{number} " + "x" * 4_000)))
            await until(lambda: held.asked == 4)
            await add(client, front, "b", two.url)
            assert (await remove(client, front, "a")).status_code == 200
            placed = {await went(client, front, longer(body(f"{n} " + "x" * 4_000))) for n in range(4)}
            held.let_go.set()
        await front.settled()
        scrape = (await client.get(f"{front.admin_url}/metrics")).text

        assert placed == {"b"}
        assert (streams.ended, {came.count(b"data:") for came in streams.came}) == (4, {2})
        assert {record.outcome for record in front.records} == {"ok"}
        assert [record.replica for record in front.records].count("a") == 4
        assert 'replica="a"' not in scrape
        assert front.metric("ramjet_requests_total", replica="none", outcome="ok") == 4
        assert front.metric("ramjet_requests_total", replica="b", outcome="ok") == 4


async def test_a_removed_replica_may_come_back_under_its_name(client: httpx.AsyncClient) -> None:
    """
    Nothing is believed of it, what runs at the old one is not counted for the new one, and it counts from zero.
    """
    held = Held()
    async with scripted_engine(held) as one, quick_engine() as two, ramjet({"a": one.url}) as front:
        streams = Streams()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(streams.take(client, front.url, body("x" * 40_000)))
            await until(lambda: held.asked == 1)
            await remove(client, front, "a")
            assert (await add(client, front, "a", two.url)).status_code == 201

            fresh = (await listed(client, front))["a"]
            assert (fresh["in_flight"], fresh["resident_tokens"], fresh["queue_s"]) == (0, 0, 0)
            held.let_go.set()
        await front.settled()

        assert streams.ended == 1
        assert front.in_flight == {"a": 0}
        assert front.router.fleet["a"].queue_s == 0
        assert (await listed(client, front))["a"]["resident_tokens"] == 0


async def test_a_replica_that_fails_after_it_was_removed_is_nobodys_fault(client: httpx.AsyncClient) -> None:
    """
    The request goes to another one, as if it were still there.
    """
    go = asyncio.Event()

    async def reset(connection: Any, seen: Any) -> None:
        await go.wait()
        connection.reset()

    async with scripted_engine(reset) as one, quick_engine() as two, ramjet({"a": one.url}) as front:
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(client.post(front.url + CHAT, json=body()))
            await until(lambda: bool(one.seen))
            await add(client, front, "b", two.url)
            await remove(client, front, "a")
            go.set()

        assert (asked.result().status_code, asked.result().headers["x-ramjet-replica"]) == (200, "b")
        assert [record.outcome for record in front.records] == ["ok"]


# -- probers ------------------------------------------------------------------------------------------------------------


async def test_there_is_one_prober_for_each_replica_after_many_swaps(client: httpx.AsyncClient) -> None:
    """
    However often replicas are swapped: exactly one each, and nobody is probed who is gone.
    """
    held = Held()
    async with scripted_engine(held) as engine:
        async with ramjet({"a": engine.url}, watch=True, health=QUICK_HEALTH) as front:
            for number in range(25):
                assert (await add(client, front, "b", f"{engine.url}/{number}")).status_code == 201
                assert (await add(client, front, "dead", dead_url())).status_code == 201
                if number % 3:
                    await asyncio.sleep(0.01)
                for name in ("b", "dead"):
                    assert (await remove(client, front, name)).status_code == 200
            await add(client, front, "b", f"{engine.url}/last")
            await asyncio.sleep(0.1)
            assert front.running.watch.running == 2
            assert probers() == ["health a", "health b"]

            engine.seen.clear()
            await asyncio.sleep(0.5)

            assert {seen.target for seen in engine.seen} <= {
                "/health", "/v1/models", "/server_info", "/v1/loads", "/last/health", "/last/v1/models", "/last/server_info", "/last/v1/loads",
            }  # fmt: skip
            assert {seen.target for seen in engine.seen} >= {"/health", "/last/health"}


async def test_a_replica_removed_while_its_probe_comes_back_refused_harms_nobody(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The prober may be a step ahead of its own end: the probes of the others go on, and so does Ramjet.
    """
    real, dead = health._probe, dead_url()

    async def probe(url: str, *rest: Any) -> tuple[str | None, bool]:
        answer = await real(url, *rest)
        if url.startswith(dead) and "dead" in front.router.fleet.replicas:
            front.running.control.remove("dead")  # as the admin port does, in the same turn of the loop
        return answer

    monkeypatch.setattr(health, "_probe", probe)
    async with scripted_engine() as engine:
        async with ramjet({"a": engine.url, "dead": dead}, watch=True, health=QUICK_HEALTH) as front:
            await until(lambda: "dead" not in front.router.fleet.replicas)
            await asyncio.sleep(0.1)

            assert probers() == ["health a"]
            assert await went(client, front, body()) == "a"


# -- validation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "b", "url": "ftp://x"}, "url: write it as http://HOST:PORT"),
        ({"name": "b", "url": "http://u:s3cret@x"}, "url: leave out user, password"),
        ({"name": "b"}, "url: Field required"),
        ({"name": "b b", "url": "http://127.0.0.1:9"}, "name: "),
        ({"name": "a", "url": "http://127.0.0.1:9"}, "a replica is already named a"),
        ({"name": "b", "url": "SAME"}, "a replica already has the url http://"),
        ({"name": "b", "url": "SAME/v1/"}, "a replica already has the url http://"),
        ({"name": "b", "url": "http://127.0.0.1:9", "weight": 1}, "weight: "),
        ({"name": "b", "url": "http://127.0.0.1:9", "pool_tokens": 0}, "pool_tokens: "),
        ({"name": "b", "url": "http://127.0.0.1:9", "api_key": {"s3cret": 1}}, "api_key: "),
        (["b", "http://127.0.0.1:9"], "the body must be a replica as JSON"),
        ("NOT JSON", "the body must be a replica as JSON"),
    ],
)
async def test_a_wrong_replica_is_refused_readably(given: Any, says: str) -> None:
    """
    400 that names the field and the remedy, no secret in it, and nothing has changed.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        if isinstance(given, dict) and "url" in given:
            given = {**given, "url": given["url"].replace("SAME", engine.url)}
        raw = {"content": b"{"} if given == "NOT JSON" else {"json": given}
        answer = await client.post(f"{front.admin_url}/replicas", **raw)

        assert answer.status_code == 400
        assert says in answer.json()["error"]
        assert "s3cret" not in answer.text
        assert list(await listed(client, front)) == ["a"]


async def test_a_hostile_replica_is_refused_without_harm() -> None:
    """
    Nested without end, not UTF-8, a megabyte: an answer that says no, and the port goes on.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        nested = b'{"name":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        for content in (nested, b'{"name":"\xff"}', b"[" + b"1," * (1 << 20)):
            answer = await client.post(f"{front.admin_url}/replicas", content=content)

            assert 400 <= answer.status_code < 500
        assert list(await listed(client, front)) == ["a"]


# -- who may ------------------------------------------------------------------------------------------------------------


def control_of(front: Front, settings: Settings) -> Control:
    """A Control for another configuration, with nothing bound anywhere."""
    running = front.running
    return Control(
        settings,
        router=front.router,
        handler=running.handler,
        upstream=Client(connect_s=1.0, idle_s=1.0),
        metrics=running.metrics,
        watch=running.watch,
        stats=running.stats,
        seed=1,
    )


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:9090", True), ("127.8.8.8:1", True), ("[::1]:9090", True), ("localhost:9090", True),
        ("0.0.0.0:9090", False), ("[::]:9090", False), ("10.0.0.7:9090", False), ("ramjet.example:9090", False),
        ("[::ffff:10.0.0.7]:9090", False), ("localhost.example:9090", False),
    ],
)  # fmt: skip
def test_loopback_is_told_from_the_rest(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


async def test_changes_need_a_token_unless_the_port_is_on_loopback() -> None:
    """
    Without a token, an address that others reach may only be read; with one, it is asked for everywhere.
    """
    replicas = {"a": dead_url()}
    async with ramjet(replicas) as front:
        assert control_of(front, settings_for(replicas, admin="127.0.0.1:9090")).refuses("") is None
        assert "admin_token" in (control_of(front, settings_for(replicas, admin="0.0.0.0:9090")).refuses("") or "")
        for admin in ("127.0.0.1:9090", "0.0.0.0:9090"):
            guarded = control_of(front, settings_for(replicas, admin=admin, admin_token=TOKEN))
            assert guarded.refuses(TOKEN) is None
            assert "admin_token" in (guarded.refuses("") or "")
            assert "admin_token" in (guarded.refuses(TOKEN + "x") or "")


async def test_a_reload_cannot_open_a_port_that_others_reach() -> None:
    """
    The address is taken over at a restart only, so what it asks for is judged by where it is bound now.
    """
    replicas = {"a": dead_url()}
    async with ramjet(replicas) as front:
        control = control_of(front, settings_for(replicas, admin="0.0.0.0:9090"))
        assert control.refuses("") is not None

        assert "admin" in control.apply(settings_for(replicas, admin="127.0.0.1:9090"))

        assert control.refuses("") is not None


async def test_the_token_is_asked_for_over_http() -> None:
    """
    401 with the remedy on every page of the replicas, metrics and health stay open, and nothing changes without it.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, admin_token=TOKEN) as front:
        async with httpx.AsyncClient(base_url=front.admin_url) as client:
            right = {"authorization": f"Bearer {TOKEN}"}
            asked = (
                ("GET", "/replicas"), ("POST", "/replicas"), ("DELETE", "/replicas/a"),
                ("POST", "/replicas/a/drain"), ("POST", "/replicas/a/enable"), ("DELETE", "/replicas/nobody"),
            )  # fmt: skip
            for method, path in asked:
                for shown in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN[:-1]}):
                    answer = await client.request(method, path, headers=shown)
                    assert answer.status_code == 401
                    assert "admin_token" in answer.json()["error"]
                    assert TOKEN not in answer.text

            assert (await client.get("/metrics")).status_code == 200
            assert (await client.get("/health")).status_code == 200
            assert not front.router.fleet["a"].draining
            assert (await client.post("/replicas/a/drain", headers=right)).status_code == 200
            assert front.router.fleet["a"].draining


async def test_a_token_in_odd_bytes_is_a_wrong_token() -> None:
    """
    401 as for any other, and no failure of Ramjet's.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, admin_token=TOKEN) as front:
        raw = b"GET /replicas HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \xff\xfe\r\nconnection: close\r\n\r\n"

        assert (await sent(front.admin_url, raw)).startswith(b"HTTP/1.1 401")


async def test_a_web_page_in_the_operators_browser_cannot_change_replicas() -> None:
    """
    Loopback keeps other machines out, and not other sites: what a page may send unasked is refused.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        page = {"origin": "http://elsewhere.example", "content-type": "text/plain"}
        content = b'{"name": "theirs", "url": "http://127.0.0.1:9"}'
        answer = await client.post(f"{front.admin_url}/replicas", content=content, headers=page)
        drained = await client.post(f"{front.admin_url}/replicas/a/drain", headers=page)

        assert {answer.status_code, drained.status_code} <= {400, 401, 403, 415}
        assert list(front.router.fleet.replicas) == ["a"]
        assert not front.router.fleet["a"].draining


# -- conversations ------------------------------------------------------------------------------------------------------


async def test_conversations_of_untouched_replicas_stay(client: httpx.AsyncClient) -> None:
    """
    While others come, drain and go, nobody moves who has no reason to.
    """
    async with quick_engine() as one, quick_engine() as two, quick_engine() as three, quick_engine() as four:
        async with ramjet({"a": one.url, "b": two.url, "c": three.url}) as front:
            talks = [body(f"{number} " + "x" * 8_000) for number in range(18)]
            homes = [await went(client, front, talk) for talk in talks]
            assert set(homes) == {"a", "b", "c"}

            async def next_turns() -> list[str]:
                talks[:] = [longer(talk) for talk in talks]
                return [await went(client, front, talk) for talk in talks]

            await add(client, front, "d", four.url)
            assert await next_turns() == homes
            await client.post(f"{front.admin_url}/replicas/c/drain")
            drained = await next_turns()
            await remove(client, front, "c")
            removed = await next_turns()
            await add(client, front, "c", three.url)
            back = await next_turns()

            for turns in (drained, removed, back):
                assert [now for now, home in zip(turns, homes, strict=True) if home != "c"] == [
                    home for home in homes if home != "c"
                ]
            assert "c" not in drained + removed
            assert removed == drained, "who had to move has a new home, and stays there"
            assert back == removed


async def test_the_conversations_of_a_removed_replica_do_not_all_go_to_one(client: httpx.AsyncClient) -> None:
    """
    They are placed like new ones: where fewer are.
    """
    async with quick_engine() as one, quick_engine() as two, quick_engine() as three:
        async with ramjet({"a": one.url, "b": two.url, "c": three.url}) as front:
            talks = [body(f"{number} " + "x" * 8_000) for number in range(45)]
            for talk in talks:
                await went(client, front, talk)
            await remove(client, front, "c")
            for talk in talks:
                await went(client, front, longer(talk))

            living = front.router.conversations.living_at
            assert living["a"] + living["b"] == 45
            assert max(living["a"], living["b"]) <= math.ceil(1.05 * 45 / 2)


async def test_a_replica_added_gets_new_conversations_without_getting_all(client: httpx.AsyncClient) -> None:
    """
    At most what levels the loads, at every moment; the others get their share again once it has caught up.
    """
    async with quick_engine() as one, quick_engine() as two, quick_engine() as three:
        async with ramjet({"a": one.url, "b": two.url}) as front:
            for number in range(16):
                await went(client, front, body(f"{number} " + "x" * 8_000))
            await add(client, front, "c", three.url)
            living = front.router.conversations.living_at
            placed = []
            for number in range(30):
                placed.append(await went(client, front, body(f"new {number} " + "x" * 8_000)))
                assert living["c"] <= math.ceil(1.05 * (17 + number) / 3)

            assert placed.count("c") >= 10
            assert {"a", "b"} <= set(placed)
