"""`ramjet serve` as people run it: a process of its own, signals, exit codes, log lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.scripted import Connection, Seen, dead_url, scripted_engine

CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
RAMJET = (sys.executable, "-m", "ramjet")


async def stream(connection: Connection, seen: Seen) -> None:
    """One token every 100 ms, for a second."""
    if seen.target != "/v1/chat/completions":
        await connection.answer(b"{}")
        return
    await connection.start_stream()
    for _ in range(10):
        await connection.chunk(TOKEN)
        await asyncio.sleep(0.1)
    await connection.chunk(b"")


@dataclass(slots=True)
class Served:
    """A running `ramjet serve`."""

    process: Process
    url: str
    admin: str
    said: list[dict[str, Any]]

    async def ended(self) -> int:
        """Wait for its end; everything it logged is in `said` then."""
        assert self.process.stderr is not None
        async with asyncio.timeout(20):
            async for line in self.process.stderr:
                self.said.append(json.loads(line))
            return await self.process.wait()


@contextlib.asynccontextmanager
async def serving(url: str, *more: str, **environ: str) -> AsyncIterator[Served]:
    command = (*RAMJET, "serve", "--replica", f"a={url}", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *more)
    env = {**os.environ, "RAMJET_SECRET": "a test's", **environ}
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=env)
    assert process.stderr is not None
    said: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(20):
            while not said or said[-1]["event"] != "serving":
                line = await process.stderr.readline()
                assert line, f"it did not start: {said}"
                said.append(json.loads(line))
        yield Served(process, said[-1]["url"], said[-1]["admin"], said)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _drained(pieces: AsyncIterator[bytes]) -> None:
    async for _ in pieces:
        pass


async def test_sigterm_lets_running_streams_end() -> None:
    """
    The stream is complete, its log line is there, nothing else is let in, and the exit is clean.

    Whoever asks whether it lives is told so meanwhile, or a supervisor would cut what runs.
    """
    async with scripted_engine(stream) as engine, serving(engine.url) as served:
        async with httpx.AsyncClient() as client, httpx.AsyncClient() as late:
            async with client.stream("POST", f"{served.url}/v1/chat/completions", json=CHAT) as answer:
                pieces: list[bytes] = []
                async for piece in answer.aiter_raw():
                    pieces.append(piece)
                    if len(pieces) == 1:
                        served.process.send_signal(signal.SIGTERM)
                    if len(pieces) == 4:
                        with pytest.raises(httpx.ConnectError):
                            await late.get(f"{served.url}/health")
                        for path, status in (("health", 503), ("live", 200)):
                            assert (await late.get(f"{served.admin}/{path}")).status_code == status

        assert await served.ended() == 0
        assert b"".join(pieces) == TOKEN * 10
        # What engines are found to be may be said at any moment.
        events = [line["event"] for line in served.said if line["event"] != "replica_pools"]
        assert events[-3:] == ["draining", "request", "stopped"]
        assert [line["outcome"] for line in served.said if line["event"] == "request"] == ["ok"]


async def test_a_second_signal_ends_it_at_once() -> None:
    async with scripted_engine(stream) as engine, serving(engine.url) as served:
        async with httpx.AsyncClient() as client:
            async with client.stream("POST", f"{served.url}/v1/chat/completions", json=CHAT) as answer:
                pieces = answer.aiter_raw()
                await anext(pieces)
                served.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.2)
                served.process.send_signal(signal.SIGTERM)

                assert await served.ended() == -signal.SIGTERM


async def test_streams_that_outlast_the_drain_are_cut_and_logged() -> None:
    """
    After `drain_s` the answer is cut, as `shutdown`, and the process still exits cleanly.
    """
    async with scripted_engine(stream) as engine:
        async with serving(engine.url, RAMJET_LIMITS__DRAIN_S="0.2") as served, httpx.AsyncClient() as client:
            async with client.stream("POST", f"{served.url}/v1/chat/completions", json=CHAT) as answer:
                pieces = answer.aiter_raw()
                await anext(pieces)
                served.process.send_signal(signal.SIGTERM)
                with pytest.raises(httpx.RemoteProtocolError):
                    await _drained(pieces)

            assert await served.ended() == 0
            assert [line["outcome"] for line in served.said if line["event"] == "request"] == ["shutdown"]


async def test_one_line_for_each_request_with_the_promised_names() -> None:
    """
    JSON on standard error, nothing on standard output; a probe is marked, keys and prompts are nowhere.
    """
    names = {
        "event", "request_id", "conversation", "turn", "endpoint", "model", "stream", "replica", "reason", "costs",
        "prompt_bytes", "prompt_tokens", "matched_tokens", "best_matched_tokens", "cached_tokens", "cold", "cold_cause", "cold_evidence",
        "slices", "held_s", "ttft_s", "duration_s", "completion_tokens", "attempts", "outcome", "status", "probe", "level", "timestamp",
    }  # fmt: skip
    async with scripted_engine(stream) as engine, serving(engine.url, "--log-level", "debug") as served:
        async with httpx.AsyncClient() as client:
            keys = {"authorization": "Bearer s3cret-key", "x-api-key": "s3cret-key", "x-ramjet-probe": "1"}
            content = {**CHAT, "messages": [{"role": "user", "content": "s3cret-prompt"}]}
            url = f"{served.url}/v1/chat/completions?api_key=s3cret-key"
            assert (await client.post(url, json=content, headers=keys)).status_code == 200
            scrape = (await client.get(f"{served.admin}/metrics")).text
        served.process.send_signal(signal.SIGTERM)
        assert await served.ended() == 0

        line = next(line for line in served.said if line["event"] == "request")
        assert set(line) == names
        assert (line["probe"], line["outcome"], line["turn"], line["cached_tokens"]) == (True, "ok", 1, None)
        assert "s3cret" not in json.dumps(served.said) + scrape
        assert served.process.stdout is not None
        assert await served.process.stdout.read() == b""


async def test_a_port_that_is_taken_is_said_so() -> None:
    async with scripted_engine() as engine:
        taken = engine.url.removeprefix("http://")
        command = (*RAMJET, "serve", "--replica", "a=http://127.0.0.1:9", "--listen", taken, "--admin", "127.0.0.1:0")
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        _, said = await process.communicate()

        assert process.returncode == 1
        assert f"cannot listen on {taken}" in said.decode()
        assert "Traceback" not in said.decode()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no replicas: name one with --replica NAME=URL"),
        (("--replica", "a"), "write it as NAME=URL"),
        (("--replica", "a=ftp://x"), "write it as http://HOST:PORT"),
        (("--config", "/nonexistent/ramjet.yaml"), "/nonexistent/ramjet.yaml: cannot be read"),
    ],
)
async def test_a_wrong_command_line_says_what_would_be_right(arguments: tuple[str, ...], says: str) -> None:
    process = await asyncio.create_subprocess_exec(*RAMJET, "serve", *arguments, stdout=PIPE, stderr=PIPE)
    out, said = await process.communicate()

    assert process.returncode in {1, 2}
    assert says in said.decode()
    assert out == b""


async def test_a_replica_that_is_dead_at_start_stops_nothing() -> None:
    """
    Ramjet starts, says so, and serves health.
    """
    async with serving(dead_url()) as served, httpx.AsyncClient() as client:
        async with asyncio.timeout(20):
            while (await client.get(f"{served.url}/health")).status_code != 503:  # noqa: ASYNC110 - until the first probe
                await asyncio.sleep(0.02)

        assert (await client.get(f"{served.admin}/health")).json()["replicas"]["a"]["state"] == "down"
