"""Several Ramjets and a real store: they agree, whatever becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import valkey
import valkey.asyncio

from ramjet.peers.link import _shown
from ramjet.peers.wire import VERSION, Batch, Seal
from tests.peers.support import (
    SECRET,
    Store,
    Talk,
    connected,
    engines,
    followed,
    link_of,
    needs_store,
    play,
    share_that_stayed,
    sharing,
    until,
)

pytestmark = needs_store

STREAM = f"ramjet:{VERSION}:{Seal(SECRET).deployment}:news"
ROUTERS = f"ramjet:{VERSION}:{Seal(SECRET).deployment}:routers"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.stop()


async def test_turns_stay_whichever_router_they_come_to(store: Store) -> None:
    """
    Two routers behind a balancer that deals requests in turn: 99 % of later turns go where the conversation is, and what
    one has in flight the other counts.
    """
    talks = [Talk(f"talk {number}") for number in range(40)]
    async with engines(4) as replicas, sharing(replicas, store.url) as one, sharing(replicas, store.url) as other:
        await until(lambda: connected(one, other))
        await play(talks, [one.url, other.url], turns=6)

        assert {status for talk in talks for status in talk.statuses} == {200}
        assert share_that_stayed(talks) >= 0.99
        assert len({replica for talk in talks for replica in talk.replicas}) == 4
        await until(lambda: followed(one) == followed(other) == 0)
        for front in (one, other):
            assert [(each.in_flight, each.peers_in_flight, each.queue) for each in front.router.fleet] == [
                (0, 0, {})
            ] * 4
            assert front.router.conversations.living == 40
            assert front.metric("ramjet_peers") == 1
            assert front.metric("ramjet_peers_heard_total") > 200
            assert front.metric("ramjet_peers_rejected_total") == 0


async def test_a_store_that_dies_costs_agreement_for_a_while_and_nothing_else(store: Store) -> None:
    """
    Killed and started anew, empty: no request fails meanwhile, and ten seconds later they agree as before, on what began
    without it too.
    """
    talks = [Talk(f"talk {number}") for number in range(20)]
    later = [Talk(f"later {number}") for number in range(20)]
    async with engines(4) as replicas, sharing(replicas, store.url) as one, sharing(replicas, store.url) as other:
        await until(lambda: connected(one, other))
        await play(talks, [one.url, other.url], turns=2)
        store.stop()
        await play(talks + later, [one.url, other.url], turns=4)
        assert not connected(one, other)
        store.start()
        back_at = time.monotonic()
        await until(lambda: connected(one, other))
        await asyncio.sleep(max(0.0, back_at + 5 - time.monotonic()))
        await play(talks + later, [one.url, other.url], turns=1)
        begun = len(later[0].replicas)
        await play(talks + later, [one.url, other.url], turns=4)

        assert {status for talk in talks + later for status in talk.statuses} == {200}
        assert share_that_stayed(talks, since=6) >= 0.99
        assert share_that_stayed(later, since=begun - 1) >= 0.99
        assert one.metric("ramjet_peers_losses_total") >= 1


async def test_who_starts_again_starts_warm(store: Store) -> None:
    """
    A router that has just begun sends each conversation where another, or its own former self, had put it.
    """
    talks = [Talk(f"talk {number}") for number in range(30)]
    async with engines(4) as replicas:
        async with sharing(replicas, store.url) as before:
            await until(lambda: connected(before))
            await play(talks, [before.url], turns=2)
        async with sharing(replicas, store.url) as again:
            assert again.router.conversations.living == 30
            await play(talks, [again.url], turns=1)

            assert share_that_stayed(talks, since=1) == 1.0
            assert all(each.peers_in_flight == 0 for each in again.router.fleet)


async def test_who_has_to_find_its_replicas_first_starts_warm_too(store: Store, tmp_path: Path) -> None:
    """
    It hears what was told before it has found them, and under other names; conversations are at home all the same.
    """
    talks = [Talk(f"talk {number}") for number in range(20)]
    async with engines(3) as replicas:
        async with sharing(replicas, store.url) as before:
            await until(lambda: connected(before))
            await play(talks, [before.url], turns=2)
        listed = tmp_path / "replicas.yaml"
        listed.write_text("".join(f"- {{name: found-{name}, url: '{url}'}}\n" for name, url in replicas.items()))
        sources = {"sources": [{"name": "list", "file": {"path": str(listed)}}]}
        async with sharing({}, store.url, watch=True, discovery=sources) as again:
            await until(lambda: len(again.router.fleet.serving) == 3 and again.router.conversations.living == 20)
            await play(talks, [again.url], turns=1)

    assert [talk.replicas[-1] for talk in talks] == [f"found-{talk.replicas[-2]}" for talk in talks]


async def test_whatever_answers_in_the_stores_place_nobody_is_harmed() -> None:
    """
    A store that speaks nonsense, and a URL whose options its client does not know: both are a store that is lost.
    """

    async def nonsense(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b":no number\r\n" * 8)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, engines(2) as replicas:
        for url in (f"valkey://127.0.0.1:{port}", f"valkey://127.0.0.1:{port}?no_such_option=1"):
            async with sharing(replicas, url) as alone:
                talks = [Talk(f"talk {number}") for number in range(4)]
                await play(talks, [alone.url], turns=2, think_s=0.05)
                assert {status for talk in talks for status in talk.statuses} == {200}
                assert alone.metric("ramjet_peers_connected") == 0
                assert alone.metric("ramjet_peers_losses_total") == 1


def test_a_store_is_named_without_what_is_secret() -> None:
    """
    Neither a password before the host nor one among the options gets into the log.
    """
    assert _shown("valkeys://user:pass@10.0.0.5:6379/1") == "valkeys://10.0.0.5:6379/1"
    assert _shown("valkey://10.0.0.5?password=secret") == "valkey://10.0.0.5"
    assert _shown("valkey://:a?b#c@[::1]:6379") == "valkey://[::1]:6379"


async def test_what_a_router_had_under_way_when_it_died_is_given_up(store: Store) -> None:
    """
    It cannot tell any more that its requests have ended: who is not there has none.
    """
    async with engines(2) as replicas, sharing(replicas, store.url) as one, sharing(replicas, store.url) as other:
        await until(lambda: connected(one, other))
        talk = Talk("talk")
        await play([talk], [one.url], turns=1)
        link, news = link_of(other.running), other.router.news
        assert news is not None
        news.ended = lambda *_args, **_more: None  # type: ignore[method-assign]
        await play([talk], [other.url], turns=1)
        await until(lambda: followed(one) == 1)
        link._beat = lambda _store: asyncio.sleep(0)  # it hangs, and says nothing any more

        await until(lambda: followed(one) == 0)
        assert sum(each.peers_in_flight for each in one.router.fleet) == 0


async def test_a_store_that_never_answers_delays_nobody(store: Store) -> None:
    """
    Neither a start, but for two seconds, nor any decision; one that hangs and goes on is no harm either.
    """
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        async with engines(2) as replicas:
            began = time.monotonic()
            async with sharing(replicas, f"valkey://127.0.0.1:{silent.getsockname()[1]}") as alone:
                assert time.monotonic() - began < 6
                talks = [Talk(f"talk {number}") for number in range(10)]
                await play(talks, [alone.url], turns=3, think_s=0.1)
                assert {status for talk in talks for status in talk.statuses} == {200}
                assert max(each.duration_s for each in alone.records) < 1.5
                assert share_that_stayed(talks) == 1.0
    async with engines(2) as replicas, sharing(replicas, store.url) as one:
        await until(lambda: connected(one))
        with store.hanging():
            await play(talks, [one.url], turns=3, think_s=0.1)
            await until(lambda: not link_of(one.running).connected)
        await until(lambda: connected(one))
        assert max(each.duration_s for each in one.records) < 1.5
        assert {each.outcome for each in one.records} == {"ok"}


async def test_garbage_in_the_store_harms_nothing(store: Store) -> None:
    """
    Entries that nobody with the secret has made, entries that come twice, other things under the same names, a distant
    time: what is not ours is passed over or put away, and they go on agreeing.
    """
    talks = [Talk(f"talk {number}") for number in range(10)]
    async with (
        engines(4) as replicas,
        sharing(replicas, store.url) as one,
        sharing(replicas, store.url) as other,
        contextlib.aclosing(valkey.asyncio.Valkey.from_url(store.url)) as hand,
    ):
        await until(lambda: connected(one, other))
        await play(talks, [one.url, other.url], turns=2)
        stranger = Seal("another secret").seal(Batch(7, 1, 0.0, []))
        genuine = [fields[b"b"] for _, fields in await hand.xrange(STREAM)]
        assert len(genuine) > 3
        rubbish = [b"", b"x", b"\xff" * 5_000, stranger, genuine[0][:-1], genuine[0][16:], *genuine]
        for each in rubbish:
            await hand.xadd(STREAM, {b"b": each})
        await hand.xadd(STREAM, {b"other": b"field"})
        await hand.zadd(ROUTERS, {b"no number": 1e12, b"\xff\xfe": 1e12})
        await until(lambda: all(each.metric("ramjet_peers_rejected_total") > 10 for each in (one, other)))
        await play(talks, [one.url, other.url], turns=2)

        for key in (STREAM, ROUTERS):
            await hand.delete(key)
            await hand.set(key, "something else")
        await asyncio.sleep(1.5)
        await until(lambda: connected(one, other))
        # Whoever tells something while such an entry is the last is told that nothing comes behind it, and connects anew.
        await until(lambda: all(each.metric("ramjet_peers_heard_total") for each in (one, other)))
        await hand.xadd(STREAM, {b"b": b"x"}, id=f"{(1 << 64) - 1}-{(1 << 64) - 1}")
        await play(talks, [one.url, other.url], turns=2)
        await until(lambda: connected(one, other))
        await asyncio.sleep(3)
        await until(lambda: connected(one, other))
        before = len(talks[0].stayed)
        await play(talks, [one.url, other.url], turns=3)

        assert {status for talk in talks for status in talk.statuses} == {200}
        assert share_that_stayed(talks, since=before) >= 0.99


async def test_who_has_read_an_entry_of_a_distant_time_is_not_deaf_when_it_is_gone(store: Store) -> None:
    """
    Another Ramjet puts such a stream away when it starts, and nothing that comes after has so late a name.
    """
    async with (
        engines(2) as replicas,
        sharing(replicas, store.url) as one,
        sharing(replicas, store.url) as other,
        contextlib.aclosing(valkey.asyncio.Valkey.from_url(store.url)) as hand,
    ):
        await until(lambda: connected(one, other))
        await hand.xadd(STREAM, {b"b": b"x"}, id=f"{(1 << 64) - 1}-{(1 << 64) - 2}")
        await until(lambda: any(each.metric("ramjet_peers_rejected_total") for each in (one, other)))
        await hand.delete(STREAM)
        heard = [each.metric("ramjet_peers_heard_total") for each in (one, other)]

        await play([Talk("talk")], [one.url, other.url], turns=2)

        fronts = list(zip((one, other), heard, strict=True))
        await until(lambda: all(each.metric("ramjet_peers_heard_total") > before for each, before in fronts), 6)


async def test_nothing_in_the_store_is_text_and_all_of_it_goes_by_itself(store: Store) -> None:
    """
    Neither a prompt's words nor a model's or a replica's name; each key ends with what is believed.
    """
    async with (
        engines(2) as replicas,
        sharing(replicas, store.url, beliefs={"horizon_s": 120}) as one,
        contextlib.aclosing(valkey.asyncio.Valkey.from_url(store.url)) as hand,
    ):
        await until(lambda: connected(one))
        await play([Talk("a name of mine")], [one.url], turns=3)
        keys = await hand.keys("*")
        assert sorted(keys) == sorted([STREAM.encode(), ROUTERS.encode()])
        entries = await hand.xrange(STREAM)
        stored = b"".join(fields[b"b"] for _, fields in entries)
        assert len(entries) > 1
        for secret in (b"agent", b"look at", b"a name", b"127.0.0.1", SECRET.encode(), *map(str.encode, replicas)):
            assert secret not in stored
        assert all([0 < await hand.ttl(key) <= 120 for key in keys])


async def test_the_stream_stays_within_its_bound(store: Store) -> None:
    """
    However much is told, it takes no more than it may, and a little for what the store trims at a time.
    """
    async with (
        engines(1) as replicas,
        sharing(replicas, store.url) as one,
        contextlib.aclosing(valkey.asyncio.Valkey.from_url(store.url)) as hand,
    ):
        await until(lambda: connected(one))
        for _ in range(60):
            await hand.xadd(STREAM, {b"b": b"x" * 100_000})
            await asyncio.sleep(0.01)
        link = link_of(one.running)
        link._place = type(link._place)(url=store.url, megabytes=1, keep_s=3_600)
        await until(lambda: one.metric("ramjet_peers_rejected_total") == 60)
        await play([Talk("talk")], [one.url], turns=3)

        assert await hand.memory_usage(STREAM) < 2_500_000


def test_without_a_store_its_client_is_not_loaded() -> None:
    """
    Who does not use it pays neither time nor memory for it.
    """
    told = "import sys, ramjet.cli; print('valkey' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "False"
