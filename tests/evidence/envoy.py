"""What Envoy's way of asking adds to answers, and how much of the prompts is cached behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import psutil
from aiohttp import web

from ramjet.sim.profile import ATTENTION
from ramjet.sim.tokens import TOKEN_CHARACTERS
from tests.epp.support import Change, envoy, example
from tests.evidence.clients import Body, noise
from tests.soak.process import Served, lasting_port, served

CHAT = "/v1/chat/completions"
_END = "[DONE]"


@dataclass(frozen=True, slots=True)
class Flow:
    """How the pieces of streams came."""

    late_s: list[float]
    """From when each was sent to when it was there."""
    gaps_s: list[float]
    """Between two of a stream, as they came."""

    def row(self, way: str) -> dict[str, Any]:
        """A line of a table, in milliseconds."""
        late, gaps = sorted(self.late_s), sorted(self.gaps_s)
        return {
            "way": way,
            "pieces": len(late),
            "late, median ms": 1e3 * median(late),
            "late, 95 % ms": 1e3 * late[int(0.95 * len(late))],
            "gap, median ms": 1e3 * median(gaps),
            "gap, 95 % ms": 1e3 * gaps[int(0.95 * len(gaps))],
        }


@contextlib.asynccontextmanager
async def ticking(pieces: int, every_s: float) -> AsyncIterator[str]:
    """An engine that writes when each of its pieces was sent into it; yields its URL."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(_request)
        at = time.monotonic()
        for _ in range(pieces):
            choice = {"index": 0, "delta": {"content": "word"}}
            told = {"sent": time.monotonic(), "choices": [choice]}
            await response.write(b"data: %s\n\n" % json.dumps(told).encode())
            at += every_s
            await asyncio.sleep(at - time.monotonic())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def fine(_request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post(CHAT, answer)
    app.router.add_get("/health", fine)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site.port}"
    finally:
        await runner.cleanup()


async def watch(url: str, streams: int) -> Flow:
    """So many streams at once, and how their pieces come."""
    flow = Flow([], [])

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"stream {number}"}]}
        before: float | None = None
        async with session.post(url + CHAT, json=body) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                now = time.monotonic()
                said = line.removeprefix(b"data: ").strip().decode()
                if not said or said == _END:
                    continue
                flow.late_s.append(now - json.loads(said)["sent"])
                if before is not None:
                    flow.gaps_s.append(now - before)
                before = now

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
        for number in range(streams):
            tasks.create_task(one(session, number))
    return flow


@contextlib.asynccontextmanager
async def asking(
    directory: Path,
    urls: list[str],
    *,
    pickers: int,
    change: Change | None = None,
    settings: dict[str, Any] | None = None,
) -> AsyncIterator[tuple[str, list[Served]]]:
    """An Envoy and so many pickers, each a process of its own, before replicas; none: nobody is asked."""
    names = [f"replica-{number}" for number in range(1, 1 + len(urls))]
    given = {
        "replicas": [{"name": name, "url": url} for name, url in zip(names, urls, strict=True)],
        **(settings or {}),
    }
    async with contextlib.AsyncExitStack() as stack:
        asked = []
        for number in range(pickers):
            (directory / f"picker-{number}").mkdir(parents=True)
            asked.append(await stack.enter_async_context(served(given, directory / f"picker-{number}", command="epp")))
        where = [each.url for each in asked] or ["grpc://127.0.0.1:1"]
        config = example(lasting_port(), urls, where, change, filtered=bool(asked))
        url = await stack.enter_async_context(envoy(directory, config))
        await asyncio.sleep(1.0)  # its health checks
        yield url, asked


@contextlib.asynccontextmanager
async def observed(directory: Path, engine: str) -> AsyncIterator[tuple[str, int]]:
    """An Envoy that tells of answers in observability mode; its URL, and the process that it tells."""

    def observe(config: dict[str, Any]) -> None:
        config["observability_mode"] = True
        config["processing_mode"]["request_body_mode"] = "NONE"

    program = (sys.executable, "-m", "tests.evidence.observer")
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        config = example(lasting_port(), [engine], [f"grpc://127.0.0.1:{port}"], observe)
        async with envoy(directory, config) as url:
            await asyncio.sleep(1.0)  # its health checks
            yield url, process.pid
    finally:
        process.kill()
        await process.wait()


# -- how much is cached -----------------------------------------------------------------------------------------------

SCALE = 4
"""Prompts and pools are so much smaller than the seed's, in the same proportion."""
PROFILE = ATTENTION.with_flags(pool_tokens=499_968 // SCALE)
SPEED = 20.0
"""Times as fast as the seed's replicas."""
_TURNS = 8
_GROWING = 10
"""Turns in which the long ones of `grow` read 24,000 tokens each: they are cold by nature, and not counted."""
_SHARED_TOKENS, _OWN_TOKENS = 17_000, 5_000


@dataclass(slots=True)
class Cached:
    """What conversations reused after their first turns."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    moves: int = 0
    """Turns that went elsewhere than the one before."""

    @property
    def share(self) -> float:
        """Of the prompts' tokens, those that were cached."""
        return self.cached_tokens / self.prompt_tokens


async def converse(url: str, scene: str, *, sessions: bool) -> Cached:
    """Two conversations of 290,000 tokens and six of 20,000, at once, eight turns each; scaled.

    Args:
        url: to whom.
        scene: `own`, each has a system prompt of its own; `shared`, all have the same of 17,000 tokens; `grow`, as
            shared, and the long ones begin at 20,000 tokens and grow in ten turns.
        sessions: whether clients name their sessions in a header.
    """
    cached, shared, grows = Cached(), scene != "own", scene == "grow"

    def text(name: str, tokens: float) -> str:
        return noise(f"{scene} {name}", int(tokens / SCALE) * TOKEN_CHARACTERS)

    async def one(session: aiohttp.ClientSession, number: int, order: int) -> None:
        await asyncio.sleep(0.1 * order)
        is_long = number < 2
        chance = random.Random(number)
        system_tokens = _SHARED_TOKENS if shared else _OWN_TOKENS
        first_tokens = 290_000 if is_long and not grows else 20_000
        messages = [
            {"role": "system", "content": text("system" if shared else f"system {number}", system_tokens)},
            {"role": "user", "content": text(f"{number}", first_tokens - system_tokens)},
        ]
        head = {"content-type": "application/json"} | ({"x-session-id": f"session {number}"} if sessions else {})
        before = None
        for turn in range(1, 1 + _TURNS + (_GROWING + 1 if grows else 0)):
            if grows and is_long and 1 < turn <= 1 + _GROWING:
                messages[-1]["content"] += text(f"{number} result {turn}", 24_000)
            body = {"model": "any", "messages": messages, "max_tokens": 8}
            async with session.post(url + CHAT, data=Body(json.dumps(body).encode()), headers=head) as answer:
                said = await answer.json()
                assert answer.status == 200, said
            usage, replica = said["usage"], answer.headers["x-ramjet-replica"]
            if turn > (_GROWING + 1 if grows else 1):
                cached.prompt_tokens += usage["prompt_tokens"]
                cached.cached_tokens += (usage["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"]
            cached.moves += before not in {None, replica}
            before = replica
            messages += [
                said["choices"][0]["message"],
                {"role": "user", "content": text(f"{number} turn {turn}", 4_000 if is_long else 600)},
            ]
            await asyncio.sleep(chance.uniform(0.05, 0.3))

    order = random.Random(scene).sample(range(8), 8)
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        for place, number in enumerate(order):
            tasks.create_task(one(session, number, place))
    return cached


def cpu_s(process: int) -> float:
    """Processor time that a process has taken."""
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)
