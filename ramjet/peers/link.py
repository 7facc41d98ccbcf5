"""The store that Ramjets tell one another through: published in batches, read in the background, waited for by nobody.

One stream holds what all have told, for as long as beliefs last and within a bound; one sorted set says who is there.
All times are the store's, so hosts need not agree on a clock. Whatever is wrong with the store, requests are served as
if there were none. Its client is an extra, and loaded when there is a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from ramjet.core.news import Fact, News
from ramjet.core.peers import Peers
from ramjet.peers.wire import VERSION, Batch, Seal

if TYPE_CHECKING:
    from valkey.asyncio import Valkey

log = structlog.get_logger()

_BATCH_S = 0.1
"""Between two batches: what a decision misses of its peers', beside the way there and back."""
_BATCH_BYTES = 64 << 10
_BEAT_S = 1.0
_GONE_S = 5.0
"""Who has not said for so long that it is there is gone; the same when nobody can be heard."""
_OPEN_S = 10.0
"""Between two lists of what is open, for those who missed an end."""
_TIMEOUT_S = 2.0
"""A store that takes longer to answer is lost."""
_WARM_S = 2.0
"""A start waits no longer than this for what peers have told before."""
_BACKOFF_S = 0.1, 2.0
_FIELD = b"b"
_READ_COUNT = 32
_FACTS_AT_ONCE = 4
"""Taken in before requests get their turn again: a millisecond's and a half, where prompts are of a megabyte."""
_DAY_S = 86_400
_CHUNK_BYTES = 256 << 10
_MOST_ROUTERS = 1_000
"""Of which the last batch's number is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the store is, and how much of it may be taken."""

    url: str
    megabytes: int
    keep_s: float
    """How long what was told is kept."""


@dataclass(slots=True)
class Tally:
    """What has been told and heard, for the metrics."""

    published: int = 0
    heard: int = 0
    rejected: int = 0
    """Entries that nobody with the secret has made, or that came twice."""
    losses: int = 0
    age_s: float | None = None
    """How old the last batch of a peer was when it came; None while none has."""


class Link:
    """One Ramjet's tie to its peers."""

    def __init__(self, place: Place, peers: Peers, news: News, secret: str, on_free: Callable[[], None]) -> None:
        """
        Args:
            place: the store.
            peers: who takes in what they tell.
            news: what is to be told.
            secret: the deployment's.
            on_free: called when a place may have become free at a replica.
        """
        self.tally = Tally()
        self.connected = False
        self.living = 0
        """Peers that are there, as far as anybody can say."""
        self.ready = asyncio.Event()
        """Set when all that was told before has been taken in, or cannot be."""
        self._place = place
        self._keep_s = math.ceil(place.keep_s)
        self._peers = peers
        self._news = news
        self._seal = Seal(secret)
        self._on_free = on_free
        self._id = secrets.randbits(63)
        self._stream = f"ramjet:{VERSION}:{self._seal.deployment}:news"
        self._routers = f"ramjet:{VERSION}:{self._seal.deployment}:routers"
        self._number = 0
        self._unsent: Sequence[Fact] = ()
        """A batch that the store may not have: it is sent again under its number, which is taken once."""
        self._numbers: dict[int, int] = {}
        """The last batch of each router."""
        self._read_upto = b"0-0"
        self._offset_s = 0.0
        """How far the store's clock is ahead of ours."""
        self._heard_at = -math.inf
        """When the store last said who is there."""
        self._chunks: deque[tuple[int, int]] = deque()
        """Of what the stream holds: when a part of it begins, in the store's ms, and its bytes."""

    @property
    def in_flight(self) -> dict[str, int]:
        """Requests of peers that are under way, by replica."""
        return self._peers.in_flight

    @property
    def dropped(self) -> int:
        """Facts that were never told."""
        return self._news.dropped

    async def run(self) -> None:
        """Keep the tie until cancelled."""
        # Loading it takes a tenth of a second: not while requests wait.
        await asyncio.to_thread(import_module, "valkey.asyncio")
        from valkey.exceptions import ValkeyError  # noqa: PLC0415 - an extra

        pause_s = _BACKOFF_S[0]
        error: BaseException
        while True:
            try:
                await self._keep()
            except* Exception as errors:  # noqa: BLE001 - whatever is wrong with the store, or a peer, requests are served
                error = _first(errors)
            if self.connected or not self.tally.losses:
                self.tally.losses += 1
                remedy = "look after the store; requests are served without it"
                told = str(error) if isinstance(error, (ValkeyError, OSError)) else repr(error)
                log.warning("peers_lost", store=_shown(self._place.url), error=told or repr(error), remedy=remedy)
                pause_s = _BACKOFF_S[0]
            self.connected = False
            self.ready.set()
            now = time.monotonic()
            if now - self._heard_at > _GONE_S:
                self._peers.lost(now)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _BACKOFF_S[1])

    # -- one connection -----------------------------------------------------------------------------------------------

    async def warm(self) -> None:
        """Wait until what was told before has been taken in, and no longer than is good for a start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WARM_S):
                await self.ready.wait()

    async def _keep(self) -> None:
        """Tell and hear until something goes wrong."""
        from valkey.asyncio import Valkey  # noqa: PLC0415 - an extra

        url = self._place.url.replace("redis", "valkey", 1) if self._place.url.startswith("redis") else self._place.url
        # One for what waits for news, and one for what does not.
        clients = [Valkey.from_url(url, socket_connect_timeout=_TIMEOUT_S, socket_timeout=None) for _ in range(2)]
        teller, hearer = clients
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._mend(teller)
                await self._beat(teller)
            self._news.again()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._tell(teller), name="peers tell")
                    group.create_task(self._hear(hearer), name="peers hear")
            except asyncio.CancelledError:
                await self._part(teller)
                raise
        finally:
            for client in clients:
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(0.5):
                        await client.aclose()

    async def _part(self, teller: Valkey) -> None:
        """Say that this one ends, so that its peers need not find out."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(0.5):
                while self._news or self._unsent:
                    await self._publish(teller)
                await teller.zrem(self._routers, f"{self._id:x}")

    async def _tell(self, store: Valkey) -> None:
        beat_at = time.monotonic()
        open_at = beat_at + _OPEN_S  # what is open has just been told
        while True:
            async with asyncio.timeout(_TIMEOUT_S):
                if (now := time.monotonic()) >= beat_at:
                    beat_at = now + _BEAT_S
                    await self._beat(store)
                if self._news or self._unsent:
                    await self._publish(store)
            if now >= open_at:
                open_at = now + _OPEN_S
                self._news.open()
            await asyncio.sleep(0 if self._news else _BATCH_S)

    async def _publish(self, store: Valkey) -> None:
        if not self._unsent:
            self._number += 1
            self._unsent = self._news.take(_BATCH_BYTES)
        sealed = self._seal.seal(Batch(self._id, self._number, time.monotonic(), self._unsent))
        async with store.pipeline(transaction=False) as pipe:
            pipe.xadd(self._stream, {_FIELD: sealed}, minid=self._keep_from(), approximate=True)
            pipe.expire(self._stream, self._keep_s)
            await pipe.execute()
        self.tally.published += len(self._unsent)
        self._unsent = ()

    async def _beat(self, store: Valkey) -> None:
        """Say that this one is there, and hear who is; what nobody uses any more goes by itself."""
        asked_at = time.monotonic()
        seconds, micros = await store.time()
        now = time.monotonic()
        at = seconds + micros / 1e6
        self._offset_s = at - (asked_at + now) / 2
        async with store.pipeline(transaction=False) as pipe:
            pipe.zadd(self._routers, {f"{self._id:x}": at})
            pipe.zremrangebyscore(self._routers, "-inf", at - _GONE_S)
            pipe.zrange(self._routers, 0, _MOST_ROUTERS)
            for key in (self._routers, self._stream):
                pipe.expire(key, self._keep_s)
            _, _, members, *_ = await pipe.execute()
        living = {number for each in members if (number := _hex(each)) is not None} - {self._id}
        self.living, self._heard_at = len(living), now
        self._peers.look_again()
        self._peers.only(living, now)

    async def _mend(self, store: Valkey) -> None:
        """Begin anew where what lies under our names is not ours; read all where the store has lost what was read."""
        for key, kind in ((self._stream, b"stream"), (self._routers, b"zset")):
            if await store.type(key) not in {kind, b"none"}:
                await store.delete(key)
        last = await store.xrevrange(self._stream, count=1)
        top = _parts(last[0][0]) if last else (0, 0)
        seconds, _ = await store.time()
        if top[0] > 1_000 * (seconds + _DAY_S):
            # Somebody has named an entry of a distant time, and nothing comes behind it.
            await store.delete(self._stream)
            top = 0, 0
        if top < _parts(self._read_upto):
            self._read_upto = b"0-0"
            self._chunks.clear()

    async def _hear(self, store: Valkey) -> None:
        while True:
            is_new = self.ready.is_set()
            async with asyncio.timeout(_TIMEOUT_S + _BEAT_S):
                block = round(1_000 * _BEAT_S) if is_new else None
                answer = await store.xread({self._stream: self._read_upto}, count=_READ_COUNT, block=block)
            entries = answer[0][1] if answer else []
            for name, fields in entries:
                self._read_upto = name
                await self._take(name, fields or {})
            if not entries and is_new:
                # Quiet, or somebody has put a stream away whose last entry had a later name than any that will come.
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._mend(store)
            await self._catch_up()
            if len(entries) < _READ_COUNT and not is_new:
                self.ready.set()
            if not self.connected and self.ready.is_set():
                self.connected = True
                self._peers.found()
                log.info("peers_connected", store=_shown(self._place.url), peers=self.living)

    async def _take(self, name: bytes, fields: dict[bytes, bytes]) -> None:
        """Take one entry in."""
        stored, at_ms = fields.get(_FIELD, b""), _parts(name)[0]
        self._count(at_ms, len(stored))
        batch = self._seal.open(stored)
        if batch is None:
            self.tally.rejected += 1
            return
        if batch.router == self._id:
            return
        if batch.number <= self._numbers.get(batch.router, 0):
            self.tally.rejected += 1
            return
        self._numbers.pop(batch.router, None)
        self._numbers[batch.router] = batch.number
        if len(self._numbers) > _MOST_ROUTERS:
            del self._numbers[next(iter(self._numbers))]
        told_at = at_ms / 1e3 - self._offset_s
        facts = iter(batch.facts)
        while some := list(islice(facts, _FACTS_AT_ONCE)):
            self._peers.take(batch.router, some, batch.at - told_at, time.monotonic())
            self.tally.heard += len(some)
            await asyncio.sleep(0)
        self.tally.age_s = max(0.0, time.monotonic() - told_at)
        self._on_free()

    async def _catch_up(self) -> None:
        """Take in what was told of replicas before they were known here."""
        met = iter(self._peers.met())
        while some := list(islice(met, _FACTS_AT_ONCE)):
            for peer, fact, ahead_s in some:
                self._peers.take(peer, [fact], ahead_s, time.monotonic())
            await asyncio.sleep(0)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _count(self, at_ms: int, size: int) -> None:
        """An entry of so many bytes is in the stream."""
        size += 64  # its name, its field, its place
        if self._chunks and self._chunks[-1][1] < _CHUNK_BYTES:
            begins, before = self._chunks.pop()
            self._chunks.append((begins, before + size))
        else:
            self._chunks.append((at_ms, size))
            self._keep_from()  # who has nothing to tell forgets all the same

    def _keep_from(self) -> int:
        """The store's time, in ms, of the oldest that is kept: by age, and by size."""
        oldest = round(1_000 * (time.monotonic() + self._offset_s - self._place.keep_s))
        total = sum(size for _, size in self._chunks)
        while self._chunks and (total > self._place.megabytes << 20 or self._chunks[0][0] < oldest):
            total -= self._chunks.popleft()[1]
        return max(0, oldest, self._chunks[0][0] if self._chunks else 0)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _hex(text: bytes) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


def _parts(name: bytes) -> tuple[int, int]:
    """An entry's name: the store's time in ms, and its place in that."""
    at_ms, _, place = name.partition(b"-")
    return int(at_ms), int(place)


def _shown(url: str) -> str:
    """A store's URL without what is secret in it."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[?#]', rest.rpartition('@')[2])[0]}"
