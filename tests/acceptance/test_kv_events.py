"""Real engines say what they let go: Ramjet knows of an eviction that others caused before the next turn does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache

import httpx
import pytest

from ramjet.core.feed import Feed
from tests.acceptance.engines import HYBRID, LLAMA, MODEL, SGLANG, VLLM, Engine, Engines, Start
from tests.operations.support import until
from tests.rig import Front, ramjet
from tests.soak.process import lasting_port

pytestmark = pytest.mark.acceptance

POOL = 20_480
SIZES = {
    SGLANG: ("--max-total-tokens", str(POOL), "--context-length", "16384"),
    VLLM: ("--max-model-len", "16384", "--num-gpu-blocks-override", str(POOL // 128)),
}
EXTRA: dict[str, dict[str, bool]] = {SGLANG: {"bind": True}, VLLM: {"enable_kv_cache_events": True}}
HOST = {SGLANG: "127.0.0.1", VLLM: "*"}
"""vLLM listens where it is told to listen on every address, and connects to any other."""


@dataclass(slots=True)
class Listening:
    """A Ramjet that listens to one engine."""

    front: Front
    engine: Engine
    client: httpx.AsyncClient
    feed: Feed
    said: dict[int, list[str]] = field(default_factory=dict)
    """What was said in each conversation, by its number."""

    async def ask(self, url: str, *messages: str, tokens: int = 20) -> str:
        roles = [{"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(messages)]
        body = {"model": MODEL, "messages": roles, "max_tokens": tokens, "temperature": 0}
        answer = await self.client.post(f"{url}/v1/chat/completions", json=body)
        return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])

    async def turn(self, talk: int, says: str) -> None:
        """One more turn of a conversation, through Ramjet."""
        said = self.said.setdefault(talk, [])
        said.append(says)
        said.append(await self.ask(self.front.url, *said))

    @property
    def believed_tokens(self) -> int:
        return self.front.router.resident_tokens("a")


@cache
def ports(_kind: str, _model: str) -> tuple[int, int]:
    """Where an engine publishes, the same for all who ask for it, so that it is started once."""
    return lasting_port(), lasting_port()


@asynccontextmanager
async def listening(engines: Engines, kind: str, model: str) -> AsyncIterator[Listening]:
    published_at = ports(kind, model)
    events, replay = (f"tcp://{HOST[kind]}:{port}" for port in published_at)
    config = {"publisher": "zmq", "endpoint": events, "replay_endpoint": replay} | EXTRA[kind]
    (engine,) = engines.take(Start(kind, model, (*SIZES[kind], "--kv-events-config", json.dumps(config))))
    heard_at = (f"tcp://127.0.0.1:{port}" for port in published_at)
    kv = dict(zip(("kv_events", "kv_events_replay"), heard_at, strict=True))
    replica = {"url": engine.url, "pool_tokens": POOL} | kv
    async with ramjet({"a": replica}, watch=True) as front, httpx.AsyncClient(timeout=120) as client:
        feeds = front.router.feeds
        await until(lambda: "a" in feeds and feeds["a"].doubt is None)
        yield Listening(front, engine, client, feeds["a"])


@pytest.mark.parametrize("kind", [SGLANG, VLLM])
async def test_an_eviction_by_others_is_known_before_the_next_turn(engines: Engines, kind: str) -> None:
    """
    All turns of three conversations are linked to their blocks, and so are all but a few of four that are read at once;
    then a stranger past Ramjet takes the room of them all. Nothing is believed of them, their next turns are cold, and
    why is known.
    """
    async with listening(engines, kind, LLAMA) as world:
        for number in range(3):
            await world.turn(number, f"talk {number} of three " + "abc def " * (300 + 50 * number))
        for number in range(3):
            await world.turn(number, "next please " * 30)
        await until(lambda: world.feed.linked + world.feed.unlinked == 6)
        assert world.feed.linked == 6
        parallel = [f"{number} in parallel " + "xyz " * (200 + 40 * number) for number in range(4)]
        await asyncio.gather(*(world.ask(world.front.url, each, tokens=60) for each in parallel))
        await until(lambda: world.feed.linked + world.feed.unlinked == 10)
        assert world.feed.linked >= 8
        assert world.believed_tokens > 12_000

        await world.ask(world.engine.url, "past ramjet " * 1_250)
        await until(lambda: world.believed_tokens < 6_000)
        for number in range(3):
            await world.turn(number, "are you still there?")

        last = world.front.records[-3:]
        assert [each.matched_tokens for each in last] == [0, 0, 0]
        assert all((each.usage.cached_tokens or 0) < 20 for each in last)
        assert [each.cold_cause for each in last] == ["token_pool"] * 3


async def test_a_part_that_is_left_is_believed_to_be_there(engines: Engines) -> None:
    """
    vLLM lets go block by block, from the end: what the next turn finds is what was believed, within a block of both.
    """
    async with listening(engines, VLLM, LLAMA) as world:
        await world.turn(0, "the first of all " + "abc def " * 1_000)
        await until(lambda: world.feed.linked == 1)
        await world.ask(world.engine.url, "past ramjet " * 1_250)
        await until(lambda: world.feed.cut_tokens > 0)
        await asyncio.sleep(1.0)

        await world.turn(0, "how much is left?")

        record = world.front.records[-1]
        assert record.usage.cached_tokens
        assert 0 <= record.usage.cached_tokens - (record.matched_tokens or 0) < 128 + 4_096


async def test_a_cache_that_is_flushed_is_not_believed_to_hold_anything(engines: Engines) -> None:
    """
    SGLang says so; the next turn is cold for that.
    """
    async with listening(engines, SGLANG, LLAMA) as world:
        await world.turn(0, "to be flushed " + "abc def " * 300)
        world.engine.flush()
        await until(lambda: world.believed_tokens == 0)
        await world.turn(0, "are you still there?")

        assert world.front.records[-1].cold_cause == "restart"


async def test_a_ramjet_that_comes_later_catches_up(engines: Engines) -> None:
    """
    By the replay: it knows the blocks, and links the next turn of a conversation that it has never seen.
    """
    async with listening(engines, SGLANG, LLAMA) as world:
        await world.turn(0, "seen before " + "abc def " * 300)
        await until(lambda: world.feed.linked == 1)
        settings = world.front.running.control.settings.replicas[0].model_dump()
        async with ramjet({"a": settings}, watch=True) as later:
            feeds = later.router.feeds
            await until(lambda: "a" in feeds and len(feeds["a"].chains) == len(world.feed.chains))
            await world.ask(later.url, *world.said[0], "and who are you?")
            await until(lambda: feeds["a"].linked == 1)


async def test_a_hybrid_model_is_not_listened_to(engines: Engines) -> None:
    """
    vLLM's blocks are then of several groups: the feed says so, and beliefs are left to reports.
    """
    async with listening(engines, VLLM, HYBRID) as world:
        await world.turn(0, "conversation " + "abc def " * 300)
        await until(lambda: world.feed.doubt is not None)

        assert "only of plain attention models" in (world.feed.doubt or "")
        assert world.believed_tokens > 0
