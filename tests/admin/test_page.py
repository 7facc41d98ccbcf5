"""The page and its stream: who may see it, what it says and when, and what it costs those who do not look."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from aiohttp import web

from ramjet.admin import events
from ramjet.admin.events import Events
from tests.admin.support import CHAT, body, watching
from tests.operations.support import address_of, sent, until
from tests.rig import quick_engine, ramjet
from tests.scripted import dead_url, scripted_engine

TOKEN = "an-operators-token"  # a test's


# -- the page -----------------------------------------------------------------------------------------------------------


async def test_the_page_is_one_answer_that_fetches_nothing() -> None:
    """
    Styles and scripts are inside and the only ones that may run; no address of anybody else's is in it.
    """
    async with ramjet({"a": dead_url()}) as front, httpx.AsyncClient() as client:
        answer = await client.get(front.admin_url + "/")

    page, allowed = answer.text, answer.headers["content-security-policy"]
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert len(inside) > 5_000
        assert f"{tag}-src 'sha256-{digest}'" in allowed
    assert "default-src 'none'" in allowed
    assert "frame-ancestors 'none'" in allowed
    addresses = set(re.findall(r"https?://[\w.]+|\bsrc=|@import|url\(", page))
    assert addresses == {"http://www.w3.org"}, "the name of SVG, which nobody fetches"
    assert "innerHTML" not in page


async def test_page_and_first_picture_come_at_once() -> None:
    """
    Both together in less than 200 ms; the best of three, for a busy machine.
    """
    async with ramjet({"a": dead_url()}) as front:
        took = []
        for _ in range(5):
            began = time.perf_counter()
            page = await _first(front.admin_url, "/", b"</html>")
            picture = await _first(front.admin_url, "/api/events", b"\n\n")
            took.append(time.perf_counter() - began)

        assert min(took) < 0.2
        assert b"<main" in page
        for name in (b"clock", b"replicas", b"held", b"series", b"residents/a"):
            assert b'"%s":' % name in picture


async def _first(admin: str, path: str, end: bytes) -> bytes:
    """An answer up to where something ends."""
    reader, writer = await asyncio.open_connection(*address_of(admin))
    try:
        writer.write(b"GET %s HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % path.encode())
        await reader.readuntil(b"\r\n\r\n")
        return await reader.readuntil(end)
    finally:
        writer.transport.abort()


# -- what it says -------------------------------------------------------------------------------------------------------


async def test_requests_show_while_they_run_and_when_they_have_ended() -> None:
    """
    Who is in flight, where it lives, why it went there, and how it ended, each within a second or so.
    """
    go = asyncio.Event()
    async with quick_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient(timeout=20) as client:
        engine.answer_when = lambda _: _wait(go)
        async with watching(front.admin_url) as watcher, asyncio.TaskGroup() as tasks:
            await watcher.until(lambda parts: parts["replicas"][0]["in_flight"] == 0)
            asked = tasks.create_task(client.post(front.url + CHAT, json=body("s3cret " * 4_000)))
            await watcher.until(lambda parts: parts["replicas"][0]["in_flight"] == 1)
            await watcher.until(lambda parts: parts["residents/a"]["largest"])
            row = watcher.parts["residents/a"]["largest"][0]
            running = watcher.decisions()[0]
            go.set()
            await watcher.until(lambda _: watcher.decisions()[0]["outcome"] == "ok")
            ended = watcher.decisions()[0]
        detail = (await client.get(f"{front.admin_url}/api/decisions/{ended['number']}")).json()

        assert asked.result().status_code == 200
        assert (row[0], row[3], row[5]) == (running["conversation"], 1, True)
        assert (running["replica"], running["reason"], running["outcome"]) == ("a", "only", None)
        assert ended["cached_tokens"] == 0
        assert detail["working"]["replicas"][0]["costs"].keys() >= {"prefill", "queue"}
        assert detail["record"]["outcome"] == "ok"
        assert "s3cret" not in json.dumps([watcher.messages, detail])
        assert watcher.parts["series"]["lately"]["requests"] == 1


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def test_only_what_has_changed_is_sent_and_what_is_gone_is_null() -> None:
    async with scripted_engine() as engine, ramjet({"a": engine.url, "b": dead_url()}) as front:
        async with watching(front.admin_url) as watcher, httpx.AsyncClient() as client:
            await watcher.next()
            quiet = await watcher.next()
            await client.delete(f"{front.admin_url}/replicas/b")
            await watcher.until(lambda parts: "residents/b" not in parts)

        assert quiet.keys() <= {"clock", "series"}
        assert watcher.messages[-1]["residents/b"] is None
        assert [each["name"] for each in watcher.parts["replicas"]] == ["a"]


async def test_a_decision_that_is_no_longer_kept_says_so() -> None:
    async with ramjet({"a": dead_url()}) as front, httpx.AsyncClient() as client:
        answer = await client.get(f"{front.admin_url}/api/decisions/7")

        assert (answer.status_code, answer.json()) == (400, {"error": "decision 7 is not among the last 0"})


# -- who may ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ({}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"origin": "OWN", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "OWN"}, True),
        ({"origin": "http://elsewhere.example", "sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": "null"}, False),
        ({"origin": "OWN", "sec-fetch-site": "cross-site"}, False),
        ({"origin": "http://127.0.0.1:1"}, False),
        ({"origin": "https://127.0.0.1:PORT"}, False),
        # Whoever owns a name can let it lead to loopback: page and host then agree, and are theirs.
        (
            {
                "host": "elsewhere.example:PORT",
                "origin": "http://elsewhere.example:PORT",
                "sec-fetch-site": "same-origin",
            },
            False,
        ),
        ({"host": "elsewhere.example:PORT"}, False),
        ({"host": "localhost.elsewhere.example:PORT", "origin": "http://localhost.elsewhere.example:PORT"}, False),
        ({"host": "localhost:PORT", "origin": "http://localhost:PORT"}, True),
        ({"host": "localhost:PORT", "origin": "http://127.0.0.1:PORT"}, False),
    ],
)
async def test_the_page_of_this_port_may_and_no_other(headers: dict[str, str], may: bool) -> None:
    """
    Without a token: this port's own page, and whoever is no page; other sites, other ports and foreign names not.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        port = str(address_of(front.admin_url)[1])
        headers = {name: value.replace("OWN", front.admin_url).replace("PORT", port) for name, value in headers.items()}
        drained = await client.post(f"{front.admin_url}/replicas/a/drain", headers=headers)
        asked = await client.post(f"{front.admin_url}/api/explain", json=body("hi"), headers=headers)
        looked = await client.get(f"{front.admin_url}/api/decisions/1", headers=headers)
        async with client.stream("GET", f"{front.admin_url}/api/events", headers=headers) as watched:
            pass

        assert {drained.status_code, asked.status_code, watched.status_code} == ({200} if may else {403})
        assert looked.status_code == (400 if may else 403)
        assert front.router.fleet["a"].draining is may


async def test_with_a_token_everything_but_the_empty_page_asks_for_it() -> None:
    async with scripted_engine() as engine, ramjet({"a": engine.url}, admin_token=TOKEN) as front:
        async with httpx.AsyncClient(base_url=front.admin_url) as client:
            right = {"authorization": f"Bearer {TOKEN}", "origin": front.admin_url, "sec-fetch-site": "same-origin"}
            for method, path in (("GET", "/api/events"), ("GET", "/api/decisions/1"), ("POST", "/api/explain")):
                for shown in ({}, {"authorization": "Bearer wrong"}, {"origin": front.admin_url}):
                    answer = await client.request(method, path, headers=shown)
                    assert (answer.status_code, "admin_token" in answer.json()["error"]) == (401, True)

            page = await client.get("/")
            assert (page.status_code, engine.url in page.text) == (200, False)
            assert (await client.post("/replicas/a/drain", headers=right)).status_code == 200
            async with watching(front.admin_url, **right) as watcher:
                assert "replicas" in await watcher.next()
            assert TOKEN not in json.dumps(watcher.messages)


# -- what watching costs ------------------------------------------------------------------------------------------------


class Heavy:
    """A picture that is large, and all new each time."""

    def __init__(self) -> None:
        self.looks = 0

    def parts(self) -> Iterator[tuple[str, bytes]]:
        self.looks += 1
        yield "a", b'"%d%s"' % (self.looks, b"x" * 400_000)


async def test_nothing_is_worked_out_unless_somebody_watches_and_then_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Five who watch for a second cost as much as one.
    """
    async with ramjet({"a": dead_url()}) as front, httpx.AsyncClient() as client:
        looks, real = [], front.running.control._picture.parts

        def parts(*told: Any) -> Iterator[tuple[str, bytes]]:
            looks.append(time.monotonic())
            return real(*told)

        monkeypatch.setattr(front.running.control._picture, "parts", parts)
        await client.get(front.admin_url + "/")
        await client.get(front.admin_url + "/replicas")
        assert looks == []

        async def watch() -> None:
            async with watching(front.admin_url) as watcher:
                await watcher.next()
                await watcher.next()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(watch())
        assert len(looks) <= 3
        before = len(looks)
        await asyncio.sleep(1.2)
        assert len(looks) == before


async def _served(watched: Heavy) -> tuple[web.AppRunner, Events, str]:
    told = Events(watched)
    app = web.Application()
    app.router.add_get("/api/events", told.stream)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, told, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_one_who_does_not_read_costs_a_message_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Nothing is worked out or kept for them while their last message is not taken, and after a while they are let go.
    """
    monkeypatch.setattr(events, "EVERY_S", 0.005)
    monkeypatch.setattr(events, "STALLED_S", 0.7)
    heavy = Heavy()
    runner, told, url = await _served(heavy)
    try:
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            stalled.connect(address_of(url))
            stalled.sendall(b"GET /api/events HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: told.watchers == 1)
            await asyncio.sleep(0.3)
            looks = heavy.looks
            await asyncio.sleep(0.2)

            assert heavy.looks == looks, "a hundred times five milliseconds have passed"
            assert looks * 400_000 < 16 << 20, "what the kernel takes, and one more"
            await until(lambda: told.watchers == 0)
    finally:
        await runner.cleanup()


async def test_there_is_a_bound_on_who_may_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    One too many is told so, and who leaves makes room.
    """
    monkeypatch.setattr(events, "MOST_WATCHERS", 2)
    async with ramjet({"a": dead_url()}) as front, httpx.AsyncClient() as client:
        async with watching(front.admin_url) as one:
            await one.next()
            async with watching(front.admin_url) as two:
                await two.next()
                answer = await client.get(f"{front.admin_url}/api/events")
                assert (answer.status_code, "close one" in answer.json()["error"]) == (503, True)
        async with asyncio.timeout(10):
            while (await _status(front.admin_url)) != 200:  # noqa: ASYNC110 - who has left is seen when they have
                await asyncio.sleep(0.02)


async def _status(admin: str) -> int:
    raw = b"GET /api/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    reader, writer = await asyncio.open_connection(*address_of(admin))
    try:
        writer.write(raw)
        return int((await reader.readline()).split()[1])
    finally:
        writer.transport.abort()


async def test_ramjet_ends_while_somebody_watches() -> None:
    """
    The stream ends with it; nobody is waited for.
    """
    async with ramjet({"a": dead_url()}) as front:
        watching_on = asyncio.create_task(  # noqa: TID251 - outlives the block on purpose
            sent(front.admin_url, b"GET /api/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", within_s=20)
        )
        await asyncio.sleep(0.1)
        began = time.monotonic()

    assert time.monotonic() - began < 3
    assert b"data: {" in await watching_on


# -- explain ------------------------------------------------------------------------------------------------------------


async def test_what_is_explained_is_what_happens_and_no_engine_is_asked() -> None:
    """
    A conversation, as far as it has come, is recognised; where it would go is where it then goes.
    """
    async with quick_engine() as one, quick_engine() as two, ramjet({"a": one.url, "b": two.url}) as front:
        async with httpx.AsyncClient(timeout=20) as client:
            for number in range(6):
                talk = body(f"{number} " + "x " * 3_000)
                home = (await client.post(front.url + CHAT, json=talk)).headers["x-ramjet-replica"]
                talk["messages"] += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "and then?"}]
                one.most_in_flight = two.most_in_flight = 0
                told = (await client.post(f"{front.admin_url}/api/explain", json=talk)).json()
                assert (one.most_in_flight, two.most_in_flight) == (0, 0)
                went = await client.post(front.url + CHAT, json=talk)

                assert told["decision"]["replica"] == home == went.headers["x-ramjet-replica"]
                assert told["decision"]["reason"] == went.headers["x-ramjet-reason"] == "affinity"
                assert (told["conversation"]["turn"], told["conversation"]["home"]) == (2, home)
                assert (told["admission"]["way"], told["endpoint"]) == ("free", "chat")
            assert len(front.records) == 12


async def test_explain_reads_paths_and_hints_and_refuses_readably() -> None:
    """
    The path says which endpoint, a session header tells two alike apart, and what is no request is no error of ours.
    """
    async with quick_engine() as engine, ramjet({"a": engine.url}, limits={"body_bytes": 10_000}) as front:
        async with httpx.AsyncClient(base_url=front.admin_url) as client:
            hinted = {"x-session-id": "one"}
            talk = body("x " * 3_000)
            assert (await client.post(front.url + CHAT, json=talk, headers=hinted)).status_code == 200

            again = (await client.post("/api/explain", json=talk, headers=hinted)).json()
            other = (await client.post("/api/explain", json=talk, headers={"x-session-id": "two"})).json()
            messages = {"model": "m", "system": "s", "messages": talk["messages"], "max_tokens": 5}
            asked = (await client.post("/api/explain", params={"path": "/v1/messages"}, json=messages)).json()
            broken = (await client.post("/api/explain", content=b'{"messages": ')).json()
            empty = await client.post("/api/explain")
            large = await client.post("/api/explain", content=b"x" * 10_001)

        assert (again["conversation"]["known"], other["conversation"]["known"]) == (True, False)
        assert asked["endpoint"] == "messages"
        assert (broken["conversation"], broken["decision"]["replica"]) == (None, "a")
        assert (empty.status_code, "body" in empty.json()["error"]) == (400, True)
        assert (large.status_code, "limits.body_bytes = 10,000" in large.json()["error"]) == (400, True)
