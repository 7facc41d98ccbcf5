"""KV events over real sockets: heard, caught up with, and given up on without harm to anybody."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import structlog
from structlog.testing import LogCapture

from ramjet.core.feed import NOT_CONNECTED, SILENT, UNREADABLE, Feed
from ramjet.replica.server import running_replica
from ramjet.sim.profile import ATTENTION
from ramjet.watch import kv_events
from tests.operations.support import until
from tests.rig import Front, QuickEngine, quick_engine, ramjet
from tests.watch.publisher import PAGE, Publisher, publisher, removed, stored

TEXT = "hello world " * 2_000
PROFILE = replace(ATTENTION.with_flags(pool_tokens=40_000), drops_zero=False)

Said = list[MutableMapping[str, Any]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """What is logged of feeds."""
    capture = LogCapture()
    log = structlog.wrap_logger(None, processors=[capture], wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(kv_events, "log", log)
    return capture.entries


def changes(said: Said) -> list[str]:
    """What is logged of a feed's state, after it came up."""
    return [each["event"] for each in said][2:]


@dataclass(slots=True)
class Rig:
    """A Ramjet in front of one engine that publishes."""

    front: Front
    engine: QuickEngine
    told: Publisher
    client: httpx.AsyncClient
    talks: int = 0

    @property
    def feed(self) -> Feed:
        return self.front.router.feeds["a"]

    @property
    def believed_tokens(self) -> int:
        return self.front.router.resident_tokens("a")

    async def settled(self) -> None:
        """Wait until all that was published has been taken in."""
        await until(lambda: self.feed._next == self.told.number)

    async def up(self) -> None:
        await self.told.subscribed()
        await until(lambda: self.feed.doubt is None)

    async def serve(self) -> list[int]:
        """A prompt that is read whole; its blocks, which are the newest conversation's."""
        self.talks += 1
        body = {"model": "m", "messages": [{"role": "user", "content": f"{self.talks} {TEXT}"}]}
        answer = await self.client.post(f"{self.front.url}/v1/chat/completions", json=body)
        tokens = answer.json()["usage"]["prompt_tokens"]
        return [1_000_000 * self.talks + at for at in range(tokens // PAGE)]

    async def linked(self, *, array: bool = False) -> list[int]:
        """A prompt of which the blocks are known."""
        before = self.feed.linked
        names = await self.serve()
        await self.told.send(stored(names, array=array))
        await until(lambda: self.feed.linked > before)
        return names

    async def gone(self, names: Sequence[int], *, array: bool = False) -> None:
        await self.told.send(removed(list(reversed(names)), array=array))
        await self.settled()


@contextlib.asynccontextmanager
async def rig(*, replays: bool = True, topics: bool = True, early: bool = False, **replica: Any) -> AsyncIterator[Rig]:
    async with publisher(topics=topics) as told, quick_engine() as engine:
        settings = {"url": engine.url, "kv_events": told.events} | (
            {"kv_events_replay": told.replay} if replays else {}
        )
        if early:
            await told.send(stored([1, 2, 3]))
        async with ramjet({"a": settings | replica}, watch=True) as front, httpx.AsyncClient(timeout=30) as client:
            made = Rig(front, engine, told, client)
            await made.up()
            yield made


@pytest.mark.parametrize("array", [False, True], ids=["maps", "arrays"])
async def test_what_an_engine_lets_go_is_not_believed_any_more(array: bool) -> None:
    """
    At once, in both spellings; and metrics say that it was heard.
    """
    async with rig() as world:
        names = await world.linked(array=array)
        all_tokens = world.believed_tokens
        await world.gone(names[100:], array=array)
        left_tokens = world.believed_tokens
        await world.gone(names[:100], array=array)

        assert all_tokens > 5_500
        assert 0 < left_tokens <= 100 * PAGE
        assert world.believed_tokens == 0
        front = world.front
        assert front.metric("ramjet_kv_events_up", replica="a") == 1
        assert front.metric("ramjet_kv_events_total", replica="a", kind="stored") == 1
        assert front.metric("ramjet_kv_events_total", replica="a", kind="removed") == 2
        assert front.metric("ramjet_kv_prompts_total", replica="a", linked="yes") == 1
        assert front.metric("ramjet_kv_evicted_tokens_total", replica="a") == pytest.approx(all_tokens, abs=10)


@pytest.mark.parametrize("topics", [True, False], ids=["with topics", "without"])
async def test_a_gap_is_filled_by_the_replay(topics: bool, said: Said) -> None:
    """
    In the newer protocol and in the older one: what was lost on the way is asked for, and everything still counts.
    """
    async with rig(topics=topics) as world:
        names = await world.linked()
        await world.told.send(removed(names[200:]), loses=True)
        await world.told.send(stored([1]), loses=True)
        await world.told.send(stored([2]))
        await world.settled()

        assert 0 < world.believed_tokens <= 200 * PAGE
        assert world.told.asked == [0, 1]
        assert (world.feed.filled_gaps, world.feed.lost_gaps) == (1, 0)
        assert changes(said) == ["kv_events_gap"]
        assert (said[-1]["messages"], said[-1]["filled"]) == (2, True)
        assert world.front.metric("ramjet_kv_gaps_total", replica="a", filled="yes") == 1


@pytest.mark.parametrize("replays", [True, False], ids=["forgotten", "no replay"])
async def test_a_gap_that_nobody_fills_makes_all_of_it_unknown(replays: bool) -> None:
    """
    The belief stays as reports have taught it, and what is stored from then on counts again.
    """
    async with rig(replays=replays) as world:
        names = await world.linked()
        believed = world.believed_tokens
        await world.told.send(removed(names), loses=True, keeps=False)
        await world.told.send(stored([1]))
        await world.settled()
        await world.gone(names)

        assert world.believed_tokens == believed
        assert (world.feed.filled_gaps, world.feed.lost_gaps) == (0, 1)
        assert world.feed.doubt is None
        again = await world.linked()
        await world.gone(again)
        assert world.believed_tokens == believed


async def test_what_was_there_before_ramjet_came_is_asked_for() -> None:
    """
    Without effect: it is known, and nobody's.
    """
    async with rig(early=True) as world:
        await world.settled()

        assert world.told.asked == [0]
        assert len(world.feed.chains) == 3


async def test_a_clear_clears_the_belief() -> None:
    """
    Whatever was linked or not.
    """
    async with rig() as world:
        await world.linked()
        await world.serve()
        await world.told.send({"type": "AllBlocksCleared"})
        await world.settled()

        assert world.believed_tokens == 0
        assert world.front.metric("ramjet_kv_events_total", replica="a", kind="cleared") == 1


async def test_messages_that_cannot_be_read_are_said_once_and_forgiven(said: Said) -> None:
    """
    Rubbish of any kind: the feed is down, what was known is forgotten, requests go on, and the next message ends it.
    """
    async with rig() as world:
        names = await world.linked()
        believed = world.believed_tokens
        await world.told.send_raw(b"\xc1 rubbish")
        await until(lambda: world.feed.doubt == UNREADABLE)
        assert world.front.metric("ramjet_kv_events_up", replica="a") == 0
        await world.told.send_raw(b"")
        await world.told.send_frames(b"alone")
        await world.told.send_frames(b"topic", b"short", b"message")
        await world.serve()
        await world.told.send(removed(names))
        await until(lambda: world.feed.doubt is None)

        assert changes(said) == ["kv_events_down", "kv_events_up"]
        assert world.believed_tokens > believed
        await world.gone(await world.linked())


async def test_a_feed_that_is_lost_comes_back(said: Said) -> None:
    """
    The connection breaks, so nothing is known; another process is there, and its blocks count.
    """
    async with rig() as world:
        names = await world.linked()
        believed = world.believed_tokens
        world.told.close()
        await until(lambda: world.feed.doubt == NOT_CONNECTED)
        assert world.believed_tokens == believed
        world.told.number, world.told.kept = 0, {}
        world.told.open()
        await world.up()
        await world.gone(names)

        assert world.believed_tokens == believed
        await world.gone(await world.linked())
        assert world.believed_tokens == believed
        assert changes(said) == ["kv_events_down", "kv_events_up"]


async def test_silence_while_prompts_are_read_is_said(said: Said) -> None:
    """
    Connected, and nothing comes though it must: the operator has to know.
    """
    async with rig() as world:
        for _ in range(3):
            await world.serve()
        async with asyncio.timeout(20):
            while world.feed.doubt is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        assert world.feed.doubt == SILENT
        assert changes(said) == ["kv_events_down"]
        assert said[-1]["reason"] == SILENT


async def test_nobody_there_is_nothing_wrong_for_requests() -> None:
    """
    Not connected, and everything else is as ever; so it is where the address cannot be.
    """
    async with quick_engine() as one, quick_engine() as two:
        replicas = {
            "a": {"url": one.url, "kv_events": "tcp://127.0.0.1:9", "kv_events_replay": "tcp://127.0.0.1:9"},
            "b": {"url": two.url, "kv_events": "tcp://name.invalid:5557"},
        }
        async with ramjet(replicas, watch=True) as front, httpx.AsyncClient() as client:
            answers = [
                await client.post(
                    f"{front.url}/v1/chat/completions", json={"messages": [{"role": "user", "content": str(number)}]}
                )
                for number in range(4)
            ]

            assert [answer.status_code for answer in answers] == [200] * 4
            assert front.router.feeds["a"].doubt == NOT_CONNECTED
            assert front.metric("ramjet_kv_events_up", replica="a") == 0
            listed = (await client.get(f"{front.admin_url}/replicas")).json()["replicas"]
            assert listed[0]["kv_events"] == NOT_CONNECTED


async def test_an_address_that_cannot_be_is_said_and_nothing_else_is_wrong(said: Said) -> None:
    """
    Nobody listens there, and the other feeds and all requests go on.
    """
    async with rig() as world, quick_engine() as engine:
        given = {"name": "b", "url": engine.url, "kv_events": "tcp://-:5557"}
        await world.client.post(f"{world.front.admin_url}/replicas", json=given)
        await until(lambda: "kv_events_off" in changes(said))

        assert set(world.front.router.feeds) == {"a"}
        await world.client.delete(f"{world.front.admin_url}/replicas/b")
        await world.gone(await world.linked())


async def test_replicas_come_and_go_with_their_feeds() -> None:
    """
    One that is added by hand is listened to, one that is removed no more, and its series go with it.
    """
    async with rig() as world, publisher() as other, quick_engine() as engine:
        front, client = world.front, world.client
        await client.post(
            f"{front.admin_url}/replicas", json={"name": "b", "url": engine.url, "kv_events": other.events}
        )
        await other.subscribed()
        await until(lambda: front.router.feeds["b"].doubt is None)
        assert front.metric("ramjet_kv_events_up") == 2
        await client.delete(f"{front.admin_url}/replicas/b")
        await until(lambda: "b" not in front.router.feeds)

        assert front.metric("ramjet_kv_events_up") == 1
        await world.gone(await world.linked())


async def test_a_reload_turns_it_off_and_on() -> None:
    """
    The replica stays what it is, with all that is believed of it.
    """
    async with rig() as world:
        await world.linked()
        believed, control, feeds = world.believed_tokens, world.front.running.control, world.front.router.feeds
        on = control.settings
        off = on.replicas[0].model_copy(update={"kv_events": None, "kv_events_replay": None})
        control.apply(on.model_copy(update={"replicas": [off]}))
        await until(lambda: not feeds)
        assert world.believed_tokens == believed

        control.apply(on)
        await until(lambda: "a" in feeds and feeds["a"].doubt is None)
        await world.gone(await world.linked())
        assert world.believed_tokens == believed


async def test_requests_are_not_held_up_by_a_flood() -> None:
    """
    While 400 messages of 1,000 blocks each come as fast as they can, an answer takes no second.
    """
    async with rig() as world:
        flood = [stored([1 << 40 | number << 12 | at for at in range(1_000)]) for number in range(400)]

        async def pour() -> None:
            for event in flood:
                await world.told.send(event, keeps=False)

        async with asyncio.TaskGroup() as tasks:
            pouring = tasks.create_task(pour())
            slowest = 0.0
            while not pouring.done() or world.feed._next != world.told.number:
                began = time.monotonic()
                await world.client.post(
                    f"{world.front.url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "quick"}]}
                )
                slowest = max(slowest, time.monotonic() - began)

        assert slowest < 1.0
        assert len(world.feed.chains) == 400_000


# -- with a simulated engine, from end to end ---------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def simulated(*, listens: bool = True) -> AsyncIterator[tuple[Front, str, httpx.AsyncClient]]:
    """A Ramjet in front of a simulated replica that publishes, and listens or not; and the replica's URL."""
    async with publisher() as spare:
        endpoints = spare.events, spare.replay
    kv = dict(zip(("kv_events", "kv_events_replay"), endpoints, strict=True)) if listens else {}
    async with running_replica(PROFILE, speed=200, kv_events=endpoints) as replica:
        async with (
            ramjet({"a": {"url": replica.url} | kv}, watch=True) as front,
            httpx.AsyncClient(timeout=30) as client,
        ):
            feeds = front.router.feeds
            if listens:
                # It says that it has nothing when it starts.
                await until(lambda: "a" in feeds and feeds["a"].events["cleared"] > 0)
            yield front, replica.url, client


async def ask(client: httpx.AsyncClient, url: str, *messages: str) -> str:
    """The answer to a conversation."""
    roles = [{"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(messages)]
    body = {"model": "m", "messages": roles, "max_tokens": 8, "ignore_eos": True}
    answer = await client.post(f"{url}/v1/chat/completions", json=body)
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("listens", [True, False])
async def test_an_eviction_by_others_is_known_before_the_next_turn(listens: bool) -> None:
    """
    A stranger past Ramjet pushes a conversation out: with events the next turn is not believed to find anything, and what
    made it cold is known; without, it finds out.
    """
    async with simulated(listens=listens) as (front, url, client):
        first = "hello world " * 4_000
        said = await ask(client, front.url, first)
        if listens:
            await until(lambda: front.router.feeds["a"].linked == 1)
        believed = front.router.resident_tokens("a")
        await ask(client, url, "somebody else " * 11_000)
        if listens:
            await until(lambda: front.router.resident_tokens("a") < believed / 2)
        await ask(client, front.url, first, said, "and then?")

        record = front.records[-1]
        assert record.usage.cached_tokens is not None
        assert record.temperature == "cold"
        assert ((record.matched_tokens or 0) > 11_000) is not listens
        assert ((record.matched_tokens or 0) <= record.usage.cached_tokens) is listens
        assert record.cold_cause == ("token_pool" if listens else "unknown")


async def test_a_simulated_replica_that_is_flushed_says_so() -> None:
    """
    And another Ramjet that comes later learns what is there, and what is not.
    """
    async with simulated() as (front, url, client):
        await ask(client, front.url, TEXT)
        await until(lambda: front.router.feeds["a"].linked == 1)
        async with ramjet({"a": front.running.control.settings.replicas[0].model_dump()}, watch=True) as later:
            await until(lambda: "a" in later.router.feeds and len(later.router.feeds["a"].chains) > 0)
            assert len(later.router.feeds["a"].chains) == len(front.router.feeds["a"].chains)

        await client.post(f"{url}/flush_cache")
        await until(lambda: front.router.resident_tokens("a") == 0)


# -- off by default -----------------------------------------------------------------------------------------------------


async def test_nobody_is_listened_to_unless_asked_for() -> None:
    """
    No feed, and no series.
    """
    async with quick_engine() as engine, ramjet({"a": engine.url}, watch=True) as front:
        assert front.router.feeds == {}
        assert b"\nramjet_kv" not in front.running.metrics.render()


def test_serving_without_does_not_load_the_library() -> None:
    """
    It is an extra, and may be absent.
    """
    told = "import sys, ramjet.cli, ramjet.app; print('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout == "False\n"


def ports_in_a_row(count: int) -> int:
    """The first of so many ports that nobody has."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            first = 0
            for number in range(count):
                sock = stack.enter_context(socket.socket())
                sock.bind(("127.0.0.1", first + number if number else 0))
                first = first or sock.getsockname()[1]
            return first


async def test_each_rank_is_listened_to_where_it_publishes() -> None:
    """
    As many ports behind the first one's: what one rank lets go is another's no longer than it ever was.
    """
    port = ports_in_a_row(4)
    events, replay = (f"tcp://127.0.0.1:{port + at}" for at in (0, 2))
    profile = replace(PROFILE, ranks=2)
    async with running_replica(profile, speed=200, kv_events=(events, replay)) as one:
        settings = {"url": one.url, "ranks": 2, "kv_events": events, "kv_events_replay": replay}
        async with ramjet({"a": settings}, watch=True) as front, httpx.AsyncClient(timeout=30) as client:
            await until(lambda: [feed.doubt for feed in front.router.feeds.values()] == [None, None])
            assert set(front.router.feeds) == {"a.0", "a.1"}
            for number in range(8):
                body = {"model": "m", "messages": [{"role": "user", "content": f"{number} {TEXT}"}]}
                await client.post(f"{front.url}/v1/chat/completions", json=body)
            feeds = front.router.feeds

            def told(rank: int) -> bool:
                tokens = one.engines[rank].cache.used_tokens
                return len(feeds[f"a.{rank}"].chains) * one.profile.page_tokens == tokens > 0

            await until(lambda: told(0) and told(1))
            assert all(feed.linked for feed in feeds.values())
