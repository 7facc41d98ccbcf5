"""The configuration changed while Ramjet serves: by the file, by SIGHUP, by a hand that slips."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramjet.config import ConfigError, Settings, load
from ramjet.reload import Reloader
from tests.operations.support import CHAT, Held, Live, Streams, body, config, live, longer, until
from tests.rig import quick_engine, ramjet, settings_for
from tests.scripted import Connection, Seen, dead_url, scripted_engine


async def names(client: httpx.AsyncClient, served: Live) -> list[str]:
    answer = await client.get(f"{served.admin}/replicas")
    return [each["name"] for each in answer.json()["replicas"]]


# -- the file -----------------------------------------------------------------------------------------------------------


async def test_a_changed_file_is_taken_over_and_a_bad_one_is_not(tmp_path: Path) -> None:
    """
    By looking at it and on SIGHUP; what is wrong is logged with its place, and the old configuration serves on.
    """
    path = tmp_path / "ramjet.yaml"
    async with quick_engine() as one, quick_engine() as two, httpx.AsyncClient(timeout=20) as client:
        async with live(config(path, {"a": one.url})) as served:
            config(path, {"a": one.url, "b": two.url})
            assert (await served.said("config_reloaded"))["replicas"] == ["a", "b"]
            assert await names(client, served) == ["a", "b"]

            bad = {
                "limits: {in_flight: none}": "limits.in_flight: 'none' given",
                "listen: 127.0.0.1:0\nrouting:\n  affinty: {enabled: false}": "routing.affinty: no such key",
                "listen: 127.0.0.1:0\n  admin: [": "line 2",
                "replicas: [{name: a, url: 'http://x'}, {name: a, url: 'http://y'}]": "the name a is given twice",
            }
            for text, place in bad.items():
                path.write_text(text)
                said = (await served.reload("config_rejected"))["error"]
                assert str(path) in said
                assert place in said
                assert await names(client, served) == ["a", "b"]
                assert (await client.post(served.url + CHAT, json=body(text))).status_code == 200

            path.unlink()
            assert "cannot be read" in (await served.reload("config_rejected"))["error"]
            rejected = len(served.events("config_rejected"))
            await asyncio.sleep(1.5)
            assert len(served.events("config_rejected")) == rejected, "gone for a moment is no fault of the file"
            config(path, {"b": two.url})
            await until(lambda: served.events("config_reloaded")[-1]["replicas"] == ["b"])
            assert await names(client, served) == ["b"]
            assert await served.stop() == 0


@contextlib.asynccontextmanager
async def reloading(path: Path, applied: list[list[str]]) -> AsyncIterator[Reloader]:
    """A reloader of a file, which ends with the context; what it raises comes out here."""

    def apply(settings: Settings) -> list[str]:
        applied.append([each.name for each in settings.replicas])
        return []

    reloader = Reloader(path, partial(load, path, {}), apply)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(reloader.run())
        yield reloader
        task.cancel()


@pytest.mark.parametrize(
    "text",
    [
        "limits: {in_flight: 2026-13-45}", "replicas: !!timestamp soon", "replicas: !!int many",
        "limits: {in_flight: " + "9" * 5_000 + "}", "limits: &a [*a]", "? [a]\n: b", "limits: !!python/name:os.system",
        "\x00", "[" * 2_000, "a: &a {b: *a}", "replicas: {a: http://127.0.0.1:9}", "limits: {in_flight: .nan}",
    ],
    ids=lambda text: text[:24],
)  # fmt: skip
async def test_no_file_is_so_bad_that_it_ends_the_process(tmp_path: Path, text: str) -> None:
    """
    Whatever stands in it: it is refused, and the next good one is taken over.
    """
    path = tmp_path / "ramjet.yaml"
    applied: list[list[str]] = []
    async with reloading(path, applied) as reloader:
        path.write_text(text)
        reloader.ask()
        await asyncio.sleep(0.05)
        assert applied == []

        config(path, {"a": "http://127.0.0.1:9"})
        reloader.ask()
        await until(lambda: bool(applied), within_s=5)

    assert applied == [["a"]]


async def test_a_file_that_is_being_written_takes_no_replica_away(tmp_path: Path) -> None:
    """
    An editor empties a file before it writes it; a configuration without replicas, which would not start, changes nothing.
    """
    path = tmp_path / "ramjet.yaml"
    async with quick_engine() as engine, httpx.AsyncClient(timeout=20) as client:
        async with live(config(path, {"a": engine.url})) as served:
            path.write_text("")
            await served.reload("config_rejected")

            assert await names(client, served) == ["a"]
            assert (await client.post(served.url + CHAT, json=body())).status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        'admin_token: "s3cret-token\n',
        "admin_token: s3cret-token\nadmin_token: s3cret-token\n",
        "replicas:\n- {name: a, url: 'http://127.0.0.1:9', api_key: s3cret-key\nlisten: x\n",
        "replicas:\n  a: {url: 'http://127.0.0.1:9', api_key: s3cret-key}\n",
        "replicas:\n- [a, s3cret-key]\n",
        "client_keys: s3cret-key-0\n",
        "client_keys: [[s3cret-key-0]]\n",
        "client_keys: {s3cret-key-0: alice}\n",
        "secret: [s3cret-secret]\n",
        "secret: s3cret\n",
        "replicas:\n- {name: a, url: 'http://127.0.0.1:9', api_key: s3cret-key, apikey: s3cret-key}\n",
        "replicas:\n- {name: a, url: 'http://u:s3cret@127.0.0.1:9'}\n",
    ],
    ids=lambda text: text[:48],
)  # fmt: skip
def test_no_fault_of_a_file_quotes_a_secret(tmp_path: Path, text: str) -> None:
    """
    The message goes to the log: it names the place and never the key that stands there.
    """
    path = tmp_path / "ramjet.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError) as raised:
        load(path, {})

    assert "s3cret" not in str(raised.value)


# -- what acts at once, and what does not -------------------------------------------------------------------------------


async def test_rules_are_toggled_by_a_reload() -> None:
    """
    long_prompt confines from one request to the next, affinity off forgets nothing and follows nothing, and back.
    """
    async with quick_engine() as one, quick_engine() as two, httpx.AsyncClient(timeout=20) as client:
        urls: dict[str, str | dict[str, Any]] = {"a": one.url, "b": two.url}
        plain = {"spread_long": {"enabled": False}}
        async with ramjet(urls, routing=plain) as front:
            control = front.running.control

            async def placed(text: str, count: int = 8) -> set[tuple[str, str]]:
                found = [
                    await client.post(front.url + CHAT, json=body(f"{text} {number} " + "x" * 20_000))
                    for number in range(count)
                ]
                return {(each.headers["x-ramjet-replica"], each.headers["x-ramjet-reason"]) for each in found}

            assert {replica for replica, _ in await placed("before")} == {"a", "b"}
            rule = {"enabled": True, "bytes": 10_000, "replicas": ["b"]}
            assert control.apply(settings_for(urls, routing={**plain, "long_prompt": rule})) == []
            confined = await placed("on")
            assert {replica for replica, _ in confined} == {"b"}
            assert "long_prompt" in {reason for _, reason in confined}
            control.apply(settings_for(urls, routing=plain))
            assert "a" in {replica for replica, _ in await placed("off")}

            talk = body("talk " + "x" * 20_000)
            home = (await client.post(front.url + CHAT, json=talk)).headers["x-ramjet-replica"]
            control.apply(settings_for(urls, routing={**plain, "affinity": {"enabled": False}}))
            answer = await client.post(front.url + CHAT, json=longer(talk))
            assert answer.headers["x-ramjet-reason"] == "new"
            assert front.records[-1].matched_tokens == 0
            control.apply(settings_for(urls, routing=plain))
            answer = await client.post(front.url + CHAT, json=longer(longer(talk)))
            assert answer.headers["x-ramjet-reason"] == "affinity"
            assert (front.records[-1].matched_tokens or 0) > 4_000
            assert home in {"a", "b"}


async def test_limits_keys_and_token_act_at_once(tmp_path: Path) -> None:
    async with quick_engine() as one, httpx.AsyncClient(timeout=20) as client, ramjet({"a": one.url}) as front:
        front.running.control.apply(
            settings_for(
                {"a": one.url}, client_keys=["a-client-key"], admin_token="an-admin-token", limits={"body_bytes": 1_000}
            )
        )
        keyless = await client.post(front.url + CHAT, json=body())
        right = {"authorization": "Bearer a-client-key"}
        large = await client.post(front.url + CHAT, json=body("x" * 2_000), headers=right)
        fine = await client.post(front.url + CHAT, json=body(), headers=right)

        assert (keyless.status_code, large.status_code, fine.status_code) == (401, 413, 200)
        assert (await client.get(f"{front.admin_url}/replicas")).status_code == 401


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("listen", {"listen": "127.0.0.1:1"}), ("admin", {"admin": "127.0.0.1:1"}), ("secret", {"secret": "another's"}),
        ("log", {"log": {"level": "warning"}}), ("limits.idle_s", {"limits": {"idle_s": 1}}),
        ("limits.client_idle_s", {"limits": {"client_idle_s": 1}}),
        ("limits.header_bytes", {"limits": {"header_bytes": 131_072}}),
    ],
)  # fmt: skip
async def test_what_needs_a_restart_is_named(key: str, change: dict[str, Any]) -> None:
    """
    What was handed out once, at the start, is said to be so: addresses, the listener's sizes and times.
    """
    async with ramjet({"a": dead_url()}) as front:
        assert front.running.control.apply(settings_for({"a": dead_url()})) == []

        assert front.running.control.apply(settings_for({"a": dead_url()}, **change)) == [key]


async def test_the_time_to_connect_acts_at_once() -> None:
    """
    For the next request, and also on connections to replicas that were there before.
    """
    with socket.socket() as deaf, contextlib.ExitStack() as stack:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        # Whoever comes once its queue is full hears nothing, as from a machine that is off.
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        async with ramjet({"a": url}, limits={"connect_s": 60}) as front, httpx.AsyncClient(timeout=20) as client:
            assert front.running.control.apply(settings_for({"a": url}, limits={"connect_s": 0.3})) == []
            answer = await client.post(front.url + CHAT, json=body())

            assert answer.status_code == 502


async def test_the_time_to_drain_is_the_one_of_the_last_reload(tmp_path: Path) -> None:
    path, held = tmp_path / "ramjet.yaml", Held()
    async with scripted_engine(held) as engine, httpx.AsyncClient(timeout=20) as client:
        async with live(config(path, {"a": engine.url}, limits={"drain_s": 600})) as served:
            config(path, {"a": engine.url}, limits={"drain_s": 0.3})
            assert (await served.reload())["needs_restart"] == []
            streams = Streams()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(streams.take(client, served.url, body()))
                await until(lambda: held.asked == 1)

                assert await served.stop() == 0
            assert [line["outcome"] for line in served.events("request")] == ["shutdown"]


async def test_the_log_names_the_keys_that_need_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "ramjet.yaml"
    async with live(config(path, {"a": dead_url()})) as served:
        config(path, {"a": dead_url()}, log={"level": "warning"}, limits={"drain_s": 1, "idle_s": 2})

        assert (await served.reload())["needs_restart"] == ["log", "limits.idle_s"]


# -- what survives ------------------------------------------------------------------------------------------------------


async def test_what_ramjet_knows_and_counts_survives_reloads(tmp_path: Path) -> None:
    """
    Pinned conversations stay pinned and warm, connections on both sides stay open, and no counter falls.
    """
    path = tmp_path / "ramjet.yaml"
    connections = 0

    async def engine(connection: Connection, seen: Seen) -> None:
        nonlocal connections
        connections += connection.requests == 1 and seen.method == "POST"
        await connection.answer(b'{"usage":{"prompt_tokens":2500,"completion_tokens":1}}')

    async with scripted_engine(engine) as one, scripted_engine(engine) as two:
        urls: dict[str, str | dict[str, Any]] = {"a": one.url, "b": two.url}
        # Kept for long, so that only a reload could close them.
        patient = {"drain_s": 1, "idle_s": 60}
        async with live(config(path, urls, limits=patient)) as served, httpx.AsyncClient(timeout=20) as client:
            talks = [body(f"{number} " + "x" * 10_000) for number in range(8)]

            async def turns() -> list[tuple[str, str]]:
                answers = [await client.post(served.url + CHAT, json=talk) for talk in talks]
                talks[:] = [longer(talk) for talk in talks]
                return [(each.headers["x-ramjet-replica"], each.headers["x-ramjet-reason"]) for each in answers]

            async def counters() -> dict[str, float]:
                lines = (await client.get(f"{served.admin}/metrics")).text.splitlines()
                pairs = [line.rpartition(" ") for line in lines if "_total" in line and not line.startswith("#")]
                return {name: float(value) for name, _, value in pairs}

            first = await turns()
            opened, counted = connections, await counters()
            for number in range(6):
                config(path, urls, limits=patient, routing={"request_s": 0.1 + number / 100})
                await served.reload()
                again = await turns()
                now = await counters()

                assert [replica for replica, _ in again] == [replica for replica, _ in first]
                assert {reason for _, reason in again} == {"affinity"}
                assert all(now[name] >= value for name, value in counted.items())
                counted = now
            await served.said("request", 7 * len(talks))
            requests = served.events("request")
            by_talk = {line["conversation"] for line in requests}

            assert connections == opened == 2
            assert len(by_talk) == 8
            assert max(line["turn"] for line in requests) == 7


async def test_a_running_stream_survives_reloads_of_its_own_replica(tmp_path: Path) -> None:
    """
    Renamed, moved to another URL, taken out: the stream that runs there is complete.
    """
    path, held = tmp_path / "ramjet.yaml", Held()
    async with scripted_engine(held) as one, quick_engine() as two, httpx.AsyncClient(timeout=20) as client:
        async with live(config(path, {"a": one.url})) as served:
            streams = Streams()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(streams.take(client, served.url, body()))
                await until(lambda: held.asked == 1)
                for replicas in ({"a": two.url}, {"b": two.url}, {"a": one.url, "b": two.url}, {"b": two.url}):
                    config(path, dict(replicas))
                    await served.reload()
                moved = await client.post(served.url + CHAT, json=body("another"))
                held.let_go.set()

            assert moved.headers["x-ramjet-replica"] == "b"
            assert (streams.ended, streams.failed) == (1, [])
            assert served.events("internal_error") == []


# -- replicas by the file -----------------------------------------------------------------------------------------------


async def test_the_file_adds_removes_and_moves_replicas() -> None:
    """
    One whose URL changed is another one: nothing is believed of it, and requests go to the new place.
    """
    async with quick_engine() as one, quick_engine() as two, quick_engine() as three:
        async with ramjet({"a": one.url, "b": two.url}) as front, httpx.AsyncClient(timeout=20) as client:
            for number in range(8):
                await client.post(front.url + CHAT, json=body(f"{number} " + "x" * 8_000))
            assert front.router.resident_tokens("a") > 0
            kept = front.router.resident_tokens("b")

            front.running.control.apply(settings_for({"a": three.url, "b": two.url, "c": f"{two.url}/c"}))

            assert {each.name: each.url for each in front.router.fleet} == {
                "a": three.url, "b": two.url, "c": f"{two.url}/c",
            }  # fmt: skip
            assert (front.router.resident_tokens("a"), front.router.resident_tokens("b")) == (0, kept)
            front.running.control.apply(settings_for({"b": two.url}))
            assert [each.name for each in front.router.fleet] == ["b"]


async def test_two_replicas_may_swap_their_urls() -> None:
    async with ramjet({"a": "http://127.0.0.1:9/a", "b": "http://127.0.0.1:9/b"}) as front:
        front.running.control.apply(settings_for({"a": "http://127.0.0.1:9/b", "b": "http://127.0.0.1:9/a"}))

        assert {each.name: each.url[-1] for each in front.router.fleet} == {"a": "b", "b": "a"}


async def test_a_replica_added_by_hand_stays_and_a_drain_holds() -> None:
    """
    The file has no say over what an operator did beside it.
    """
    async with ramjet({"a": "http://127.0.0.1:9/a"}) as front:
        front.running.control.add({"name": "mine", "url": "http://127.0.0.1:9/mine"})
        front.running.control.drain("a")

        front.running.control.apply(settings_for({"a": "http://127.0.0.1:9/a", "b": "http://127.0.0.1:9/b"}))

        assert [each.name for each in front.router.fleet] == ["a", "mine", "b"]
        assert front.router.fleet["a"].draining


@pytest.mark.parametrize("name", ["mine", "theirs"])
async def test_a_file_that_meets_a_replica_added_by_hand_agrees_with_it(name: str) -> None:
    """
    The file names it too, by the name with another URL, or the URL by another name: never two at one place, and what
    the file says of a name is what serves.
    """
    by_hand = "http://127.0.0.1:9/mine"
    url = "http://127.0.0.1:9/new" if name == "mine" else by_hand
    async with ramjet({"a": "http://127.0.0.1:9/a"}) as front:
        front.running.control.add({"name": "mine", "url": by_hand})

        front.running.control.apply(settings_for({"a": "http://127.0.0.1:9/a", name: url}))

        urls = {each.name: each.url for each in front.router.fleet}
        assert urls[name] == url
        assert len(set(urls.values())) == len(urls)


# -- under load ---------------------------------------------------------------------------------------------------------


async def test_twenty_reloads_under_load_fail_no_request(tmp_path: Path) -> None:
    """
    Replicas come, go and move, five of the files are broken, the file is replaced and missing for a moment.
    """
    path = tmp_path / "ramjet.yaml"
    async with quick_engine(0.02) as one, quick_engine(0.02) as two, quick_engine(0.02) as three:
        urls: list[dict[str, str | dict[str, Any]]] = [
            {"a": one.url, "b": two.url}, {"a": one.url}, {"a": one.url, "b": three.url},
            {"b": two.url, "c": three.url}, {"c": one.url, "a": three.url},
        ]  # fmt: skip
        async with live(config(path, urls[0])) as served, httpx.AsyncClient(timeout=20) as client:
            statuses: list[int] = []
            over = asyncio.Event()

            async def load_it(number: int) -> None:
                talk, turn = body(f"{number} " + "x" * 4_000), 0
                while not over.is_set():
                    answer = await client.post(served.url + CHAT, json=talk)
                    statuses.append(answer.status_code)
                    turn += 1
                    talk = longer(talk) if turn % 6 else body(f"{number} {turn} " + "x" * 4_000)

            async with asyncio.TaskGroup() as tasks:
                for number in range(6):
                    tasks.create_task(load_it(number))
                for number in range(20):
                    if number % 4 == 2:
                        path.write_text("replicas: [\n" * (number % 3 + 1))
                        await served.reload("config_rejected")
                    elif number % 4 == 3:
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(path)
                        config(path, urls[number % 5])
                        await served.reload()
                    else:
                        config(path, urls[number % 5], routing={"request_s": 0.1 + number / 100})
                        await served.reload()
                    await asyncio.sleep(0.05)
                over.set()

            assert len(statuses) > 100
            assert set(statuses) == {200}
            assert len(served.events("config_rejected")) >= 5
            assert {line["outcome"] for line in served.events("request")} == {"ok"}
            assert await served.stop() == 0
