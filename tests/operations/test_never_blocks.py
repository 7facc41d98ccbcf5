"""However large or hostile a body is, streams and health checks beside it go on."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.operations.support import CHAT, Live, Timed, address_of, body, config, live
from tests.scripted import Connection, Seen, scripted_engine

pytestmark = pytest.mark.alone

MOST_S = 0.5
"""Generous: the machine may be doing other things. What is meant is that nobody waits for a body to be read."""

MIB = 1 << 20


def agents(megabytes: int, messages: int) -> bytes:
    """A long conversation of ordinary messages."""
    text = "x" * (megabytes * MIB // messages - 40)
    roles = ("user", "assistant")
    listed = [{"role": roles[number % 2], "content": f"{number} {text}"} for number in range(messages)]
    return json.dumps({"model": "m", "messages": listed}).encode()


def tiny(messages: int) -> bytes:
    return b'{"model":"m","messages":[' + b",".join([b'{"role":"user","content":"x"}'] * messages) + b"]}"


def one_string(megabytes: int) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"' + b"y" * (megabytes * MIB) + b'"}]}'


def nested(depth: int) -> bytes:
    return b'{"model":"m","messages":' + b"[" * depth + b"]" * depth + b"}"


def volatile(megabytes: int) -> bytes:
    """A system prompt of lines that look as if they changed."""
    line = "Today's date: 2026-01-01 12:00:00, nonce 0123456789abcdef\\n"
    text = line * (megabytes * MIB // len(line))
    return f'{{"model":"m","messages":[{{"role":"system","content":"{text}"}}]}}'.encode()


def streaming(megabytes: int) -> bytes:
    """A stream with the key that is looked for all over its text."""
    decoy = '\\"stream_options\\" : {} '
    text = decoy * (megabytes * MIB // len(decoy))
    return f'{{"stream":true,"messages":[{{"role":"user","content":"{text}"}}],"stream_options":{{}}}}'.encode()


def lists(megabytes: int) -> bytes:
    """Nothing but empty lists, each of which takes twenty times its bytes."""
    return b'{"model":"m","messages":[' + b"[]," * (megabytes * MIB // 3) + b"[]]}"


def numbers(megabytes: int) -> bytes:
    """A message whose content is a list of numbers."""
    return b'{"model":"m","messages":[{"role":"user","content":[' + b"7," * (megabytes * MIB // 2) + b"7]}]}"


def strings(megabytes: int) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":[' + b'"z",' * (megabytes * MIB // 4) + b'"z"]}]}'


HOSTILE: dict[str, tuple[Callable[[], bytes], int]] = {
    "32 MB in 5,000 messages": (lambda: agents(32, 5_000), 2),
    "100,000 nested brackets": (lambda: nested(100_000), 3),
    "one string of 30 MB": (lambda: one_string(30), 2),
    "1,000,000 tiny messages": (lambda: tiny(1_000_000), 1),
    "30 MB of empty lists": (lambda: lists(30), 1),
    "30 MB of numbers": (lambda: numbers(30), 1),
    "30 MB of strings of a letter": (lambda: strings(30), 1),
    "a system prompt of 8 MB of volatile lines": (lambda: volatile(8), 1),
    "8 MB of keys to look for": (lambda: streaming(8), 2),
    "just below what is read in a thread": (lambda: tiny(33_000), 3),
}


class Beside(Timed):
    """Streams timed tokens for one model, and takes anything else without looking at it."""

    async def __call__(self, connection: Connection, seen: Seen) -> None:
        if b"the stream beside" in seen.body[:200]:
            await super().__call__(connection, seen)
            return
        seen.body = b""
        await connection.answer(b"{}")


def post_all(url: str, content: bytes, times: int) -> list[int]:
    """From a thread, so that sending does not disturb what is measured here."""
    statuses = []
    for _ in range(times):
        client = http.client.HTTPConnection(*address_of(url), timeout=60)
        client.request("POST", CHAT, content, {"content-type": "application/json"})
        answer = client.getresponse()
        answer.read()
        statuses.append(answer.status)
        client.close()
    return statuses


async def measured(served: Live, content: bytes, times: int) -> tuple[list[float], list[float], list[int], float]:
    """Latencies of the stream's tokens and of health while bodies arrive, their statuses, and this loop's own worst."""
    tokens: list[float] = []
    health: list[float] = []
    own = 0.0
    over = asyncio.Event()

    async def stream(client: httpx.AsyncClient) -> None:
        request = body("the stream beside", stream=True)
        async with client.stream("POST", served.url + CHAT, json=request) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    tokens.append(time.monotonic() - float(line.removeprefix("data: ")))
                if over.is_set():
                    return

    async def check(client: httpx.AsyncClient) -> None:
        while not over.is_set():
            started_at = time.monotonic()
            assert (await client.get(f"{served.url}/health")).status_code == 200
            health.append(time.monotonic() - started_at)
            await asyncio.sleep(0.02)

    async def watch_itself() -> None:
        nonlocal own
        while not over.is_set():
            started_at = time.monotonic()
            await asyncio.sleep(0.01)
            own = max(own, time.monotonic() - started_at - 0.01)

    async with httpx.AsyncClient(timeout=60) as one, httpx.AsyncClient(timeout=60) as two:
        async with asyncio.TaskGroup() as tasks:
            for work in (stream(one), check(two), watch_itself()):
                tasks.create_task(work)
            while len(tokens) < 5:  # noqa: ASYNC110 - until it runs
                await asyncio.sleep(0.01)
            tokens.clear()
            health.clear()
            statuses = await asyncio.to_thread(post_all, served.url, content, times)
            await asyncio.sleep(0.1)
            over.set()
    return tokens, health, statuses, own


@pytest.mark.parametrize("what", HOSTILE)
async def test_large_and_hostile_bodies_hold_nobody_up(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    They are forwarded for the engine to judge, while a stream and the health page beside them stay quick.
    """
    make, times = HOSTILE[what]
    content = await asyncio.to_thread(make)
    async with scripted_engine(Beside(0.02, 3_000)) as engine:
        async with live(config(tmp_path / "ramjet.yaml", {"a": engine.url})) as served:
            tokens, health, statuses, own = await measured(served, content, times)

            worst = {"stream": max(tokens, default=0.0), "health": max(health, default=0.0), "test": own}
            said = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in worst.items())
            with capsys.disabled():
                sys.stdout.write(f"\n{what}: worst {said} ")
            assert statuses == [200] * times
            assert max(worst["stream"], worst["health"]) < MOST_S + own, f"{what}: worst {said}"
            assert served.events("internal_error") == []
