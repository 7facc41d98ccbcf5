"""Replicas that are found, behind a Ramjet that serves: probed first, drained last, and nothing of theirs stays behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from structlog.testing import capture_logs

from ramjet import logs
from ramjet.config import ReplicaSettings
from ramjet.discovery import file, watch
from tests.discovery.api_server import api_server, endpoint, kubeconfig, slice_of
from tests.discovery.dns_server import dns_server, needs_dnsmasq
from tests.discovery.scaling import HOSTS, replicas
from tests.discovery.support import free_port, until
from tests.operations.support import CHAT, QUICK_HEALTH, Held, Streams, body, config, live, longer
from tests.rig import Front, quick_engine, ramjet, settings_for
from tests.scripted import Connection, Seen, scripted_engine


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The file is looked at fifty times a second, and so is whether who is gone may be let go.
    """
    monkeypatch.setattr(file, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(watch, "_SETTLE_EVERY_S", 0.02)


NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """
    What is logged of the fleet, warnings and news included.
    """
    logs.configure("json", "info")
    monkeypatch.setattr("ramjet.control.log", structlog.get_logger())
    with capture_logs() as logged:
        yield logged
    logs.configure("json", "error")


@pytest.fixture
async def client() -> Any:
    async with httpx.AsyncClient(timeout=20, trust_env=False) as ready:
        yield ready


class Listed:
    """A file that lists replicas, and the configuration that finds them there."""

    def __init__(self, folder: Path, **source: Any) -> None:
        self.path = folder / "replicas.json"
        self.source = {"name": "list", "file": {"path": str(self.path)}, **source}

    def write(self, **urls: str | dict[str, Any]) -> None:
        """Let it list these, and no others, in one go."""
        listed = [{"name": name, **({"url": each} if isinstance(each, str) else each)} for name, each in urls.items()]
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(listed))
        draft.replace(self.path)

    def settings(self, **more: Any) -> dict[str, Any]:
        """What a configuration says of it."""
        return {"discovery": {"sources": [self.source]} | more, "health": QUICK_HEALTH}


def states(front: Front) -> dict[str, str]:
    return {each.name: "draining" if each.draining else each.state.value for each in front.router.fleet}


def _is_at(front: Front, url: str) -> bool:
    return url in front.router.fleet.urls


async def up(front: Front, *names: str) -> None:
    """Wait until these serve, and no others."""
    try:
        await until(lambda: {each.name for each in front.router.fleet.serving} == set(names))
    except TimeoutError:
        raise AssertionError(f"{states(front)} and not {names}") from None


async def test_an_empty_fleet_answers_clearly_until_one_is_found(tmp_path: Path, client: httpx.AsyncClient) -> None:
    """
    503 with what to expect, health that says so, and an empty list of models; then it serves.
    """
    listed = Listed(tmp_path)
    async with quick_engine() as engine, ramjet({}, watch=True, **listed.settings()) as front:
        answer = await client.post(front.url + CHAT, json=body())
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
        assert answer.json()["error"]["message"] == "no replica has been found yet; try again"
        assert int(answer.headers["retry-after"]) > 0
        health = await client.get(f"{front.url}/health")
        assert (health.status_code, health.json()) == (503, {"status": "down", "replicas": {}})
        assert (await client.get(f"{front.url}/v1/models")).json()["data"] == []
        assert front.metric("ramjet_discovery_up", source="list") == 0

        listed.write(a=engine.url)
        await up(front, "a")

        assert (await client.post(front.url + CHAT, json=body())).headers["x-ramjet-replica"] == "a"
        assert (await client.get(f"{front.url}/health")).json()["status"] == "ok"
        (shown,) = (await client.get(f"{front.admin_url}/replicas")).json()["replicas"]
        assert (shown["name"], shown["source"]) == ("a", "list")
        assert front.metric("ramjet_discovery_up", source="list") == 1
        assert front.metric("ramjet_discovery_replicas", source="list") == 1
        assert front.metric("ramjet_discovery_age_seconds", source="list") < 20


async def test_one_that_is_found_is_probed_before_it_serves(tmp_path: Path, client: httpx.AsyncClient) -> None:
    """
    While it is still starting it gets nothing at all, also where there is nobody else; then it gets requests at once.
    """
    starting = True
    chats = 0

    async def engine(connection: Connection, seen: Seen) -> None:
        nonlocal chats
        chats += seen.method == "POST"
        await connection.answer(b"{}", status=503 if starting and seen.target == "/health" else 200)

    listed = Listed(tmp_path)
    async with scripted_engine(engine) as new, quick_engine() as old:
        listed.write(new=new.url)
        async with ramjet({}, watch=True, **listed.settings()) as front:
            await until(lambda: "new" in front.router.fleet.replicas)
            await until(lambda: front.router.fleet["new"].failures > 2)
            assert (await client.post(front.url + CHAT, json=body())).status_code == 503
            front.running.control.add({"name": "old", "url": old.url})
            for number in range(10):
                answer = await client.post(front.url + CHAT, json=body(str(number)))
                assert answer.headers["x-ramjet-replica"] == "old"
            assert chats == 0

            starting = False
            await up(front, "new", "old")
            front.running.control.drain("old")
            answer = await client.post(front.url + CHAT, json=body())
            assert answer.headers["x-ramjet-replica"] == "new"


@pytest.mark.parametrize("limit", ["idle", "drain_s"])
async def test_one_that_is_gone_finishes_what_it_runs(tmp_path: Path, client: httpx.AsyncClient, limit: str) -> None:
    """
    Nothing new goes there, and it is let go when it is idle, or when its time is over; even then nobody is cut off.
    """
    held, listed, streams = Held(), Listed(tmp_path), Streams()
    drain_s = 60.0 if limit == "idle" else 0.3
    async with scripted_engine(held) as one, quick_engine() as two:
        listed.write(a=one.url)
        async with ramjet({}, watch=True, **listed.settings(drain_s=drain_s)) as front, asyncio.TaskGroup() as tasks:
            await up(front, "a")
            tasks.create_task(streams.take(client, front.url, body("first")))
            await until(lambda: bool(streams.came) and streams.came[0] != b"")
            listed.write(b=two.url)
            await up(front, "b")

            if limit == "idle":
                assert states(front) == {"a": "draining", "b": "up"}
            else:
                await until(lambda: list(front.router.fleet.replicas) == ["b"])
            for number in range(5):
                answer = await client.post(front.url + CHAT, json=body(str(number)))
                assert answer.headers["x-ramjet-replica"] == "b"
            assert held.asked == 1
            held.let_go.set()
            await until(lambda: streams.ended == 1)
            await until(lambda: list(front.router.fleet.replicas) == ["b"])
            await front.settled()

            assert streams.failed == []
            scrape = front.running.control.scrape().decode()
            assert 'replica="b"' in scrape
            assert 'replica="a"' not in scrape
            await until(lambda: front.running.watch.running == front.running.stats.running == 1)


async def test_one_that_returns_keeps_only_what_it_has(tmp_path: Path, client: httpx.AsyncClient) -> None:
    """
    Under its name and another address it is another cache, with counters of its own; in the same place it goes on.
    """
    listed = Listed(tmp_path)
    async with quick_engine() as one, quick_engine() as two, quick_engine() as other:
        listed.write(a=one.url, b=other.url)
        async with ramjet({}, watch=True, **listed.settings()) as front:
            await up(front, "a", "b")
            front.running.control.drain("b")
            talk = body("x" * 40_000)
            await client.post(front.url + CHAT, json=talk)
            await front.settled()
            before = front.router.fleet["a"]
            assert front.router.resident_tokens("a") > 1_000

            listed.write(b=other.url, a=one.url)
            await until(lambda: front.running.control.membership.heard["list"].looks["ok"] > 1)
            assert front.router.fleet["a"] is before
            assert front.router.fleet["b"].draining, "what an operator has drained stays so"

            listed.write(a=one.url)
            await until(lambda: "b" not in front.router.fleet.replicas)
            listed.write(b=other.url, a=two.url)
            await until(lambda: front.router.fleet["a"].url == two.url)
            assert states(front)["b"] != "draining", "another one has never been drained"
            front.running.control.drain("b")
            await up(front, "a")
            assert front.router.resident_tokens("a") == 0
            assert front.metric("ramjet_requests_total", replica="a") == 0
            record = await client.post(front.url + CHAT, json=longer(talk))
            assert record.headers["x-ramjet-replica"] == "a"
            assert front.records[-1].matched_tokens == 0


async def test_templates_and_what_a_source_says_of_one(tmp_path: Path) -> None:
    """
    Keys, engines, sizes and where events are published: of all of a source, and of one; a reload changes them.
    """
    template = {"engine": "vllm", "api_key": "of all", "ask_usage": False, "kv_events": "tcp://{host}:5557"}
    listed = Listed(tmp_path, replica=template)
    listed.write(a="http://127.0.0.1:9", b={"url": "http://[::1]:9/base", "api_key": "of b", "pool_tokens": 1_000})
    async with ramjet({}, watch=True, **listed.settings()) as front:
        control, running = front.running.control, front.running
        await until(lambda: len(front.router.fleet) == 2)

        assert running.handler.door.options.replica_keys == {"a": "of all", "b": "of b"}
        assert running.handler.door.options.ask_usage == frozenset()
        assert running.watch.probing.keys == running.stats.polling.keys == {"a": "of all", "b": "of b"}
        assert running.stats.polling.engines == {"a": "vllm", "b": "vllm"}
        assert front.router.fleet["b"].pools.tokens == 1_000
        assert {name: each.events for name, each in control._kv_watch.publishers.items()} == {
            "a": "tcp://127.0.0.1:5557",
            "b": "tcp://[::1]:5557",
        }

        before = list(front.router.fleet)
        listed.source["replica"] = {"api_key": "another"}
        control.apply(settings_for({}, **listed.settings()))
        assert list(front.router.fleet) == before
        assert running.handler.door.options.replica_keys == {"a": "another", "b": "of b"}
        assert running.handler.door.options.ask_usage == {"a", "b"}


async def test_a_reload_leaves_alone_what_was_found(tmp_path: Path, client: httpx.AsyncClient) -> None:
    """
    Static replicas come and go beside them. Who lists one takes it over with its cache; a source that is dropped has
    nobody any more, and one that is new is asked.
    """
    listed = Listed(tmp_path)
    async with quick_engine() as one, quick_engine() as two, quick_engine() as three:
        listed.write(a=one.url, b=two.url)
        async with ramjet({"c": three.url}, watch=True, **listed.settings()) as front:
            control = front.running.control
            await up(front, "a", "b", "c")
            assert control.replicas()[0]["source"] is None
            await client.post(front.url + CHAT, json=body("x" * 8_000))
            before = {each.name: each for each in front.router.fleet}

            control.apply(settings_for({}, **listed.settings()))
            assert list(front.router.fleet.replicas) == ["a", "b"]
            control.apply(settings_for({"a": one.url}, **listed.settings()))
            assert {each.name: each for each in front.router.fleet} == {name: before[name] for name in "ab"}
            assert {each["name"]: each["source"] for each in control.replicas()} == {"a": None, "b": "list"}
            listed.write(b=two.url)
            await asyncio.sleep(0.2)
            assert set(front.router.fleet.replicas) == {"a", "b"}, "the configuration lists it"

            listed.write(a=one.url, b=two.url)
            await until(lambda: len(control.membership.heard["list"].found) == 2)
            control.apply(settings_for({}, **listed.settings()))
            assert front.router.fleet["a"] is before["a"], "it was found all the time"
            control.apply(settings_for({"c": three.url}))
            assert list(front.router.fleet.replicas) == ["c"]
            control.apply(settings_for({"c": three.url}, **listed.settings()))
            await up(front, "a", "b", "c")


async def test_an_operator_has_the_last_word(tmp_path: Path) -> None:
    """
    One that was removed by hand stays away until its source names it anew, and one that was drained is drained.
    """
    listed = Listed(tmp_path)
    listed.write(a=f"{NOWHERE}/a", b=f"{NOWHERE}/b")
    async with ramjet({}, watch=True, **listed.settings()) as front:
        control = front.running.control
        await until(lambda: len(front.router.fleet) == 2)
        control.remove("a")
        listed.write(a=f"{NOWHERE}/a", b=f"{NOWHERE}/b2")
        await until(lambda: front.router.fleet["b"].url.endswith("b2"))
        assert "a" not in front.router.fleet.replicas
        with pytest.raises(ValueError, match="a replica is already named b"):
            control.add({"name": "b", "url": "http://127.0.0.1:9"})
        control.add({"name": "a", "url": "http://127.0.0.1:9/mine"})
        listed.write(b=f"{NOWHERE}/b2")
        listed.write(a=f"{NOWHERE}/a")
        await until(lambda: list(front.router.fleet.replicas) == ["a"])
        assert front.router.fleet["a"].url == "http://127.0.0.1:9/mine"
        control.remove("a")
        await until(lambda: "a" in front.router.fleet.replicas)
        assert front.router.fleet["a"].unproven


async def test_a_source_that_fails_takes_nobody_away_and_says_so_once(
    tmp_path: Path, client: httpx.AsyncClient, said: list[Any]
) -> None:
    """
    What it found serves on; the log says it when it begins and when it is over, and the metrics count.
    """
    listed = Listed(tmp_path)
    async with quick_engine() as engine:
        listed.write(a=engine.url)
        async with ramjet({}, watch=True, **listed.settings()) as front:
            await up(front, "a")
            listed.path.write_text("")
            await until(lambda: front.metric("ramjet_discovery_looks_total", source="list", outcome="failed") > 3)
            listed.path.write_text('[{"name": "b c", "url": "http://127.0.0.1:9"}]')
            await asyncio.sleep(0.2)
            assert front.metric("ramjet_discovery_up", source="list") == 0
            assert front.metric("ramjet_discovery_replicas", source="list") == 1
            assert (await client.post(front.url + CHAT, json=body())).status_code == 200
            listed.write(a=engine.url)
            await until(lambda: front.metric("ramjet_discovery_up", source="list") == 1)

    told = [each for each in said if each["event"].startswith("discovery")]
    assert [each["event"] for each in told] == ["discovery_failed", "discovery_recovered"]
    assert (told[0]["source"], told[0]["known"]) == ("list", 1)
    assert "lists no replicas" in told[0]["error"]


async def test_a_name_that_is_taken_is_said_once(tmp_path: Path, said: list[Any]) -> None:
    """
    Who is listed keeps it; one whose URL is listed is the same replica, and no news.
    """
    listed = Listed(tmp_path)
    listed.write(a=f"{NOWHERE}/other", same=f"{NOWHERE}/a", b=f"{NOWHERE}/b")
    async with ramjet({"a": f"{NOWHERE}/a"}, watch=True, **listed.settings()) as front:
        await until(lambda: "b" in front.router.fleet.replicas)
        front.running.control.settle()
        assert list(front.router.fleet.replicas) == ["a", "b"]

    taken = [each for each in said if each["event"] == "discovery_name_taken"]
    assert [(each["replica"], each["source"]) for each in taken] == [("a", "list")]


@needs_dnsmasq
async def test_a_ramjet_of_its_own_process_finds_replicas_by_dns(tmp_path: Path, client: httpx.AsyncClient) -> None:
    """
    `ramjet serve` with nothing but a source, and a reload that keeps what was found.
    """
    port = free_port(HOSTS)
    async with replicas(port), dns_server(tmp_path, ttl_s=0) as server:
        await server.write(glm=HOSTS[:2])
        dns = {"host": "glm.test", "port": port, "resolver": "{}:{}".format(*server.resolver), "least_s": 0.1}
        found = {"discovery": {"sources": [{"name": "glm", "dns": dns}]}, "health": QUICK_HEALTH}
        path = config(tmp_path / "ramjet.yaml", {}, **found)
        async with live(path) as served:
            await served.said("replica_up", 2)
            config(path, {}, **found, limits={"drain_s": 2})
            await served.reload()
            assert (await client.post(served.url + CHAT, json=body())).status_code == 200
            shown = (await client.get(f"{served.admin}/replicas")).json()["replicas"]
            assert [(each["name"], each["source"]) for each in shown] == [
                (f"{host}-{port}", "glm") for host in HOSTS[:2]
            ]
            path.write_text("")
            assert "is empty" in (await served.reload("config_rejected"))["error"]
            assert await served.stop() == 0


async def test_a_rollout_in_kubernetes(
    tmp_path: Path, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Pods are replaced one by one, under their names and at other addresses: somebody always serves.
    """
    pytest.importorskip("kubernetes_asyncio", reason="the extra kubernetes is not installed")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    port = free_port(HOSTS)
    async with replicas(port), api_server() as server:
        await server.put(
            slice_of("glm-x", *(endpoint(HOSTS[n], f"glm-{n}", uid="1") for n in range(2)), ports={"http": port})
        )
        given = {
            "kubeconfig": str(kubeconfig(tmp_path / "kubeconfig", server.url)),
            "namespace": "llm",
            "service": "glm",
        }
        discovery = {"sources": [{"name": "glm", "kubernetes": given}]}
        async with ramjet({}, watch=True, discovery=discovery, health=QUICK_HEALTH) as front:
            await up(front, "glm-0", "glm-1")
            for n in range(2):
                others = endpoint(HOSTS[(2 if n else 0) + 1 - n], f"glm-{1 - n}", uid="2" if n else "1")
                leaving = endpoint(HOSTS[n], f"glm-{n}", uid="1", ready=False, serving=True, terminating=True)
                await server.put(slice_of("glm-x", leaving, others, ports={"http": port}))
                await up(front, f"glm-{1 - n}")
                new = endpoint(HOSTS[n + 2], f"glm-{n}", uid="2")
                await server.put(slice_of("glm-x", new, others, ports={"http": port}))
                await until(partial(_is_at, front, f"http://{HOSTS[n + 2]}:{port}"))
                for number in range(3):
                    answer = await client.post(front.url + CHAT, json=body(f"{n} {number}"))
                    assert answer.status_code == 200
            await up(front, "glm-0", "glm-1")
            assert {each.url for each in front.router.fleet} == {f"http://{host}:{port}" for host in HOSTS[2:4]}


def test_a_found_replica_has_the_keys_of_a_listed_one() -> None:
    """
    But for its name and its URL, which its source says.
    """
    settings = settings_for({}, discovery={"sources": [{"name": "s", "file": {"path": "f"}}]})

    template = settings.discovery.sources[0].replica
    assert {"name", "url", *type(template).model_fields} == set(ReplicaSettings.model_fields)
