"""EndpointSlices by list and watch, with the real client against a small API server: nobody is lost or doubled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramjet.discovery import kubernetes
from ramjet.discovery.kubernetes import Kubernetes
from tests.discovery.api_server import ApiServer, api_server, endpoint, kubeconfig, slice_of
from tests.discovery.support import heard, until

pytest.importorskip("kubernetes_asyncio", reason="the extra kubernetes is not installed")


@pytest.fixture(autouse=True)
def _directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What proxy the shell of whoever runs the tests has set is no part of them.
    """
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(kubernetes, "_PAUSE_S", 0.05)
    monkeypatch.setattr("ramjet.discovery.watch._LEAST_PAUSE_S", 0.05)
    monkeypatch.setattr("ramjet.discovery.watch._MOST_PAUSE_S", 0.1)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server() as ready:
        yield ready


def source(tmp_path: Path, server: ApiServer, **more: Any) -> Kubernetes:
    given: dict[str, Any] = {
        "name": "glm", "namespace": "llm", "service": "glm", "selector": None, "port": "http",
        "url": "http://{host}:{port}", "timeout_s": 5.0,
    }  # fmt: skip
    return Kubernetes(kubeconfig=kubeconfig(tmp_path / "kubeconfig", server.url), **given | more)


def at(*numbers: int) -> dict[str, str]:
    return {f"glm-{number}": f"http://10.0.0.{number}:30000" for number in numbers}


def pods(*numbers: int, ready: bool = True) -> list[dict[str, Any]]:
    return [endpoint(f"10.0.0.{number}", f"glm-{number}", ready=ready) for number in numbers]


async def test_what_is_listed_and_what_changes_is_found(tmp_path: Path, server: ApiServer) -> None:
    """
    By one list and one watch: pods come and go, slices too, and those of other Services are not looked at.
    """
    await server.put(slice_of("glm-x", *pods(1, 2)), slice_of("other", *pods(9), service="other"))
    async with heard(source(tmp_path, server)) as ear:
        await ear.says(at(1, 2))
        await server.put(slice_of("glm-x", *pods(1, 2, 3)))
        await ear.says(at(1, 2, 3))
        await server.put(slice_of("glm-y", *pods(4)), slice_of("other", *pods(8), service="other"))
        await ear.says(at(1, 2, 3, 4))
        await server.put(slice_of("glm-x", *pods(3)))
        await ear.says(at(3, 4))
        await server.delete("glm-y")
        await ear.says(at(3))

    assert (server.lists, server.watches) == (1, 1)
    assert ear.failures == []


async def test_a_selector_and_a_port_by_number(tmp_path: Path, server: ApiServer) -> None:
    """
    Slices have their Service's labels; a number need not be one of its ports.
    """
    await server.put(slice_of("a", *pods(1), app="glm"), slice_of("b", *pods(2), app="other"))
    async with heard(source(tmp_path, server, service=None, selector="app=glm", port=8080)) as ear:
        await ear.says({"glm-1": "http://10.0.0.1:8080"})


async def test_a_list_of_many_pages_is_one_list(tmp_path: Path, server: ApiServer) -> None:
    """
    Nobody is lost between two pages.
    """
    server.page = 2
    await server.put(*(slice_of(f"glm-{number}", *pods(number)) for number in range(1, 8)))
    async with heard(source(tmp_path, server)) as ear:
        await ear.says(at(*range(1, 8)))

    assert len(ear.words) == 1


async def test_an_empty_service_is_a_word(tmp_path: Path, server: ApiServer) -> None:
    """
    The API server knows: a Service that was scaled to nothing has no replicas.
    """
    await server.put(slice_of("glm-x", *pods(1)))
    async with heard(source(tmp_path, server)) as ear:
        await ear.says(at(1))
        await server.put(slice_of("glm-x"))
        await ear.says({})
    assert ear.failures == []


async def test_a_watch_that_ends_goes_on_from_where_it_was(tmp_path: Path, server: ApiServer) -> None:
    """
    At its end, or cut off: nothing is listed again, and what happened between two watches is not missed.
    """
    await server.put(slice_of("glm-x", *pods(1)))
    server.watch_s = 0.2
    async with heard(source(tmp_path, server)) as ear:
        await ear.says(at(1))
        for number in range(2, 6):
            await server.put(slice_of(f"glm-{number}", *pods(number)))
            server.cut()
            await ear.says(at(*range(1, number + 1)))
        await until(lambda: server.watches >= 6)

    assert server.lists == 1
    assert server.versions == sorted(server.versions)
    assert ear.failures == []


async def test_a_bookmark_moves_a_quiet_watch_on(tmp_path: Path, server: ApiServer) -> None:
    """
    Without it, one that hears nothing for long would go on from a version that nobody knows any more.
    """
    await server.put(slice_of("glm-x", *pods(1)))
    async with heard(source(tmp_path, server)) as ear:
        await ear.says(at(1))
        await until(lambda: server.watches > 0)
        await server.put(*(slice_of("other", *pods(number), service="other") for number in range(9)))
        await server.bookmark()
        await until(lambda: len(ear.words) > 1)
        server.forget()
        server.cut()
        await server.put(slice_of("glm-x", *pods(1, 2)))
        await ear.says(at(1, 2))

    assert server.lists == 1


async def test_what_is_no_longer_known_is_listed_anew(tmp_path: Path, server: ApiServer) -> None:
    """
    410: what happened meanwhile nobody tells, and a slice that was deleted meanwhile is in no event.
    """
    await server.put(slice_of("glm-x", *pods(1)), slice_of("glm-y", *pods(2)))
    async with heard(source(tmp_path, server)) as ear:
        await ear.says(at(1, 2))
        server.stalled.clear()
        server.cut()
        await server.delete("glm-y")
        await server.put(slice_of("glm-z", *pods(3)))
        server.forget()
        server.stalled.set()
        await ear.says(at(1, 3))

    assert server.lists == 2
    assert ear.failures == []


async def test_a_slow_server_and_one_that_refuses_are_waited_for(tmp_path: Path, server: ApiServer) -> None:
    """
    That is a failure and no word: what was found stays, and is listed anew when the server is well.
    """
    await server.put(slice_of("glm-x", *pods(1)))
    async with heard(source(tmp_path, server, timeout_s=0.3)) as ear:
        await ear.says(at(1))
        words = len(ear.words)
        for status, remedy in ((403, "needs list and watch of endpointslices"), (500, "answers 500")):
            server.refuses = status
            server.cut()
            assert await ear.fails(remedy) is False
        server.refuses = None
        server.stalled.clear()
        server.cut()
        await ear.fails("TimeoutError")
        assert {len(word) for word in ear.words[words:]} <= {1}
        await server.put(slice_of("glm-x", *pods(2)))
        server.stalled.set()
        await ear.says(at(2))


async def test_who_may_list_and_not_watch_asks_less_and_less_often(
    tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A Role that lacks one verb: each list is good and each watch fails, which is no reason to list every second for ever.
    """
    monkeypatch.setattr("ramjet.discovery.watch._MOST_PAUSE_S", 30.0)
    server.refuses_watches = 403
    await server.put(slice_of("glm-x", *pods(1)))
    async with heard(source(tmp_path, server)) as ear:
        await ear.says(at(1))
        await asyncio.sleep(1.5)
        assert 2 <= server.lists <= 6
        assert "needs list and watch" in ear.failures[-1][0]

        server.refuses_watches = None
        await server.put(slice_of("glm-x", *pods(1, 2)))
        await ear.says(at(1, 2))


async def test_a_server_that_is_gone_is_asked_until_it_is_back(tmp_path: Path) -> None:
    """
    On the same port, knowing nothing of before.
    """
    async with api_server() as server:
        port = int(server.url.rpartition(":")[2])
        await server.put(slice_of("glm-x", *pods(1)))
        asked = source(tmp_path, server)
        watching = heard(asked)
        ear = await watching.__aenter__()
        await ear.says(at(1))
        server.cut()
    try:
        await ear.fails("Cannot connect")
        assert ear.ready == at(1)
        async with api_server(port) as server:
            await server.put(slice_of("glm-x", *pods(1, 2)))
            await ear.says(at(1, 2))
    finally:
        await watching.__aexit__(None, None, None)


async def test_outside_of_a_pod_somebody_has_to_say_where_the_server_is(
    tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The message says what to give.
    """
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with heard(replace(source(tmp_path, server), kubeconfig=None)) as ear:
        await ear.fails("the service account cannot be used: Service host/port is not set.; outside of a pod give")


async def test_a_word_that_cannot_be_is_a_failure(tmp_path: Path, server: ApiServer) -> None:
    """
    It is counted and asked for again; nothing ends.
    """
    await server.put(slice_of("glm-x", *pods(1), ports={"http": 1, "metrics": 2}))
    async with heard(source(tmp_path, server, port=None)) as ear:
        await ear.fails("the Service's are http, metrics; name one of them")
        await server.put(slice_of("glm-x", *pods(1)))
        await ear.says(at(1))


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_the_server_does_its_truth_is_what_is_known_in_the_end(
    tmp_path: Path, server: ApiServer, seed: int
) -> None:
    """
    Random writes, deletions, bookmarks, cuts, oblivion, refusals and stalls: no word names anybody twice, and the last
    one is the truth.
    """
    lots = random.Random(seed)
    server.page, server.watch_s = 3, 0.3
    async with heard(source(tmp_path, server, timeout_s=0.2)) as ear:
        for _ in range(60):
            name = f"glm-{lots.choice('abcde')}"
            match lots.choices(
                ("put", "delete", "bookmark", "cut", "forget", "refuse", "stall", "well"), (6, 2, 1, 2, 1, 1, 1, 3)
            )[0]:
                case "put":
                    chosen = lots.sample(range(1, 9), lots.randrange(4))
                    await server.put(slice_of(name, *pods(*chosen, ready=lots.random() < 0.9)))
                case "delete" if name in server.slices:
                    await server.delete(name)
                case "bookmark":
                    await server.bookmark()
                case "cut":
                    server.cut()
                case "forget":
                    server.forget()
                case "refuse":
                    server.refuses = lots.choice((401, 403, 410, 429, 500, 503))
                case "stall":
                    server.stalled.clear()
                case _:
                    server.refuses = None
                    server.stalled.set()
            await asyncio.sleep(lots.choice((0, 0, 0.01, 0.05)))
        server.refuses = None
        server.stalled.set()

        truth = {
            each["targetRef"]["name"]
            for one in server.slices.values()
            for each in one["endpoints"] or ()
            if each["conditions"]["ready"]
        }
        await ear.says(at(*(int(name.removeprefix("glm-")) for name in truth)))

    for word in ear.words:
        assert len({each.name for each in word}) == len({each.url for each in word}) == len(word)
