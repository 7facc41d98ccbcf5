"""Two Ramjets that pick for one Envoy, each a process of its own, and what is left when they go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramjet.replica.server import Replica
from tests.epp.support import asked, binary, client, envoy, example
from tests.replica.support import ask, frames, prompt, quick
from tests.scripted import Connection, Seen, scripted_engine
from tests.soak.process import Served, lasting_port, served

CHAT = "/v1/chat/completions"


@contextlib.asynccontextmanager
async def two_pickers(
    directory: Path, urls: list[str], **more: Any
) -> AsyncIterator[tuple[list[Served], httpx.AsyncClient]]:
    """Two pickers, and a client of the Envoy that asks them."""
    binary()
    settings = {"replicas": [{"name": name, "url": url} for name, url in zip("abcd", urls, strict=False)], **more}
    async with contextlib.AsyncExitStack() as stack:
        pickers = []
        for name in ("one", "two"):
            (directory / name).mkdir()
            pickers.append(await stack.enter_async_context(served(settings, directory / name, command="epp")))
        config = example(lasting_port(), urls, [each.url for each in pickers])
        http = await stack.enter_async_context(client(await stack.enter_async_context(envoy(directory, config))))
        await asked(http)
        yield pickers, http


@contextlib.asynccontextmanager
async def fleet(count: int) -> AsyncIterator[list[Replica]]:
    """So many quick replicas."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(quick()) for _ in range(count)]


async def kill(picker: Served) -> None:
    """Without a goodbye."""
    picker.process.kill()
    await picker.process.wait()


def count(picker: Served) -> int:
    """Chats that a picker has seen the end of."""
    return sum(said.get("event") == "request" and said.get("endpoint") == "chat" for said in picker.lines())


async def test_requests_survive_the_pickers(tmp_path: Path) -> None:
    """
    With one of two killed, the other picks for all; with both gone, Envoy takes the replicas in turn; and none fails.
    """
    async with fleet(3) as replicas, two_pickers(tmp_path, [each.url for each in replicas]) as (pickers, http):

        async def send(number: int) -> httpx.Response:
            return await http.post(CHAT, json=ask(prompt(500, str(number)), max_tokens=4))

        answers = [await send(number) for number in range(8)]
        assert {each.status_code for each in answers} == {200}
        assert all("x-ramjet-replica" in each.headers for each in answers)

        await kill(pickers[0])
        answers = [await send(number) for number in range(8, 24)]
        assert {each.status_code for each in answers} == {200}
        assert sum("x-ramjet-replica" in each.headers for each in answers) >= 15  # one may see its connection break

        await kill(pickers[1])
        before = [each.requests for each in replicas]
        answers = [await send(number) for number in range(24, 36)]
        assert {each.status_code for each in answers} == {200}
        assert not any("x-ramjet-replica" in each.headers for each in answers)
        assert all(each.requests > was for each, was in zip(replicas, before, strict=True))


async def test_answers_that_run_survive_their_picker(tmp_path: Path) -> None:
    """
    Envoy keeps each piece until it has been looked at: what it has not let go when the picker dies it lets go then.
    """
    go_on = asyncio.Event()

    async def slow(connection: Connection, seen: Seen) -> None:
        if seen.target != CHAT:
            await connection.answer(b"{}")
            return
        await connection.start_stream()
        for number in range(6):
            choice = {"index": 0, "delta": {"content": f"word {number}"}}
            await connection.chunk(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())
            if number == 2:
                await go_on.wait()
        await connection.chunk(b"data: [DONE]\n\n")
        await connection.chunk(b"")

    async with scripted_engine(slow) as engine, two_pickers(tmp_path, [engine.url]) as (pickers, http):
        request = ask(prompt(100), stream=True, stream_options={"include_usage": False})
        async with asyncio.timeout(30), http.stream("POST", CHAT, json=request) as answer:
            lines = (line async for line in answer.aiter_lines() if line)
            for number in range(3):
                assert f"word {number}" in await anext(lines)
            for picker in pickers:
                await kill(picker)
            go_on.set()
            rest = [line async for line in lines]

        assert [f"word {number}" in line for number, line in enumerate(rest[:3], 3)] == [True] * 3
        assert rest[3:] == ["data: [DONE]"]


async def test_a_picker_that_stands_still_is_not_waited_for_long(tmp_path: Path) -> None:
    """
    After message_timeout the request goes on without it.
    """
    async with fleet(2) as replicas, two_pickers(tmp_path, [each.url for each in replicas]) as (pickers, http):
        for picker in pickers:
            picker.process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            answer = await http.post(CHAT, json=ask(prompt(500), max_tokens=4))

            assert answer.status_code == 200
            assert time.monotonic() - began < 8.0  # two of its messages, and a busy machine
        finally:
            for picker in pickers:
                picker.process.send_signal(signal.SIGCONT)


async def test_a_session_has_one_picker_and_sessions_have_both(tmp_path: Path) -> None:
    """
    By the header that the example names: later turns come to who knows where the first went, and are warm.
    """
    async with fleet(3) as replicas, two_pickers(tmp_path, [each.url for each in replicas]) as (pickers, http):
        for number in range(8):
            said = [{"role": "user", "content": prompt(3_000, str(number))}]
            replicas_of = set()
            for _ in range(3):
                request = {"model": "demo", "messages": said, "max_tokens": 4, "stream": True}
                answer = await http.post(CHAT, json=request, headers={"x-session-id": f"session {number}"})
                chunks = frames(answer.text)
                text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
                replicas_of.add(answer.headers["x-ramjet-replica"])
                said += [{"role": "assistant", "content": text}, {"role": "user", "content": prompt(300, "more")}]
            assert len(replicas_of) == 1
        await asyncio.sleep(1.0)  # their logs

        seen = [count(each) for each in pickers]
        assert sum(seen) == 24
        assert all(each and not each % 3 for each in seen)
        turns = [said["turn"] for each in pickers for said in each.lines() if said.get("endpoint") == "chat"]
        assert sorted(turns) == sorted([1, 2, 3] * 8)


async def test_a_picker_that_is_told_to_stop_hands_over(tmp_path: Path) -> None:
    """
    Its health says so, Envoy goes to the other, what runs there ends there, and its exit is clean.
    """
    async with (
        fleet(2) as replicas,
        two_pickers(tmp_path, [each.url for each in replicas], limits={"drain_s": 5}) as (
            pickers,
            http,
        ),
    ):
        stopping = asyncio.create_task(pickers[0].stop())  # noqa: TID251 - it is awaited below
        answers = []
        for number in range(20):
            answers.append(await http.post(CHAT, json=ask(prompt(500, str(number)), max_tokens=4)))
            await asyncio.sleep(0.05)

        assert await stopping == 0
        assert {each.status_code for each in answers} == {200}
        assert sum("x-ramjet-replica" in each.headers for each in answers) >= 19  # one may see its connection close


@pytest.mark.parametrize(
    ("replica", "said"),
    [
        (
            "a=http://glm-1:30000",
            "replica a: http://glm-1:30000: glm-1 is a name; Envoy is told of replicas by IP address",
        ),
        ("a=http://10.0.0.7:30000/glm", "has a base path"),
    ],
)
async def test_replicas_that_envoy_could_not_be_sent_to_are_told_at_the_start(replica: str, said: str) -> None:
    """
    In one line, with the remedy; nothing is served.
    """
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "ramjet",
            "epp",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--no-journal",
            "--replica",
            replica,
        ),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        _, told = await process.communicate()

    assert process.returncode == 1
    assert said in told.decode()
    assert "Traceback" not in told.decode()
