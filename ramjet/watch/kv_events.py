"""Listen to the KV events of replicas, one loop each: messages in, to the router; what is missing is asked for again.

The engines' own protocol over ZeroMQ, the same for SGLang and vLLM: a PUB socket sends topic, number and message, and a
ROUTER sends again what it still has from a number on. pyzmq is an extra, and loaded when somebody is to be listened to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import structlog

from ramjet.core.feed import Feed, Source
from ramjet.core.fleet import Replica
from ramjet.core.router import Router
from ramjet.engines.kv_events import decode, of_rank
from ramjet.watch.loops import Loops

if TYPE_CHECKING:
    import zmq.asyncio

log = structlog.get_logger()

_LOOK_EVERY_MS = 1_000
_REPLAY_S = 5.0
"""Longest pause in a replay: engines look for such requests every 0.1 s."""
_BEAT_MS, _BEATS_MS = 5_000, 15_000
"""An idle engine says nothing, so the connection is asked for signs of life, and given up where there is none for so long."""
_RECONNECT_MS = 2_000
_MOST_MESSAGES = 100_000
"""Messages that wait to be read, the engines' own limit on their side."""
_MOST_BYTES = 64 << 20
_NUMBER_BYTES = 8
_END = (1 << 64) - 1
"""The number that ends a replay: -1."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """Where a replica's events are published, as ZeroMQ's endpoints."""

    events: str
    replay: str | None = None
    """Where they are sent again; None: nowhere, and what is missed is missed."""

    def of_rank(self, rank: int) -> Publisher:
        """Where a data-parallel rank publishes its own."""
        return Publisher(of_rank(self.events, rank), None if self.replay is None else of_rank(self.replay, rank))


class KvWatch(Loops):
    """Listens to the replicas that have a publisher; `sync` after the fleet or the publishers have changed."""

    name = "kv events"

    def __init__(self, router: Router, publishers: Mapping[str, Publisher]) -> None:
        super().__init__(router)
        self.publishers = publishers
        """By the names of the configuration."""

    def _places(self) -> Iterable[Sequence[Replica]]:
        # Each rank publishes what its own cache does.
        return ([each] for each in self._router.fleet)

    def _about(self, there: Sequence[Replica]) -> Publisher | None:
        (replica,) = there
        publisher = self.publishers.get(replica.whole)
        return None if publisher is None else publisher.of_rank(replica.rank or 0)

    async def _watch(self, there: Sequence[Replica]) -> None:
        name, publisher = there[0].name, self._about(there)
        if publisher is None:
            return  # it has lost it in this very moment
        # Loading it takes a tenth of a second or more: not while requests wait.
        await asyncio.to_thread(import_module, "zmq.asyncio")
        import zmq.asyncio  # noqa: PLC0415 - an extra

        feed = self._router.feeds[name] = Feed()
        log.info("kv_events_listening", replica=name, events=publisher.events, replay=publisher.replay)
        try:
            with zmq.asyncio.Context() as context:
                await _Listener(self._router, name, feed, publisher, context).run()
        except zmq.ZMQError as error:
            log.error("kv_events_off", replica=name, events=publisher.events, error=str(error))  # noqa: TRY400 - it says all
        finally:
            if self._router.feeds.get(name) is feed:
                del self._router.feeds[name]


class _Listener:
    """Listens to one replica."""

    def __init__(
        self, router: Router, name: str, feed: Feed, publisher: Publisher, context: zmq.asyncio.Context
    ) -> None:
        self._router = router
        self._name = name
        self._feed = feed
        self._publisher = publisher
        self._context = context

    async def run(self) -> None:
        """Listen until cancelled.

        Raises:
            zmq.ZMQError: there can be no such endpoint.
        """
        import zmq.asyncio  # noqa: PLC0415 - an extra
        from zmq.utils.monitor import parse_monitor_message  # noqa: PLC0415

        feed, poller = self._feed, zmq.asyncio.Poller()
        with self._socket(zmq.SUB) as events:
            monitor = events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            try:
                poller.register(events, zmq.POLLIN)
                poller.register(monitor, zmq.POLLIN)
                events.subscribe(b"")
                events.connect(self._publisher.events)
                while True:
                    doubt, ready = feed.doubt, dict(await poller.poll(_LOOK_EVERY_MS))
                    if monitor in ready:
                        # Before any message: it tells whose they are.
                        told = parse_monitor_message(await monitor.recv_multipart())["event"]
                        await self._connected(is_up=told != zmq.EVENT_DISCONNECTED)
                    elif events in ready:
                        await self._take(await events.recv_multipart())
                    feed.look(time.monotonic())
                    if feed.doubt != doubt:
                        self._say()
                    # What is there already is not waited for: requests get their turn after each message.
                    await asyncio.sleep(0)
            finally:
                events.disable_monitor()
                monitor.close(linger=0)

    async def _connected(self, *, is_up: bool) -> None:
        if is_up:
            self._feed.connected()
            await self._catch_up(0, "past")
        else:
            self._feed.disconnected()

    async def _take(self, frames: Sequence[bytes]) -> None:
        """Take in one message, and before it those that are missing."""
        number = _number(frames)
        missing = None if number is None else self._feed.missing(number)
        if number is not None and missing is not None:
            lost = self._feed.lost_gaps
            await self._catch_up(missing, "gap")
            is_filled = self._feed.missing(number) is None and self._feed.lost_gaps == lost
            self._feed.filled_gaps += is_filled
            log.warning("kv_events_gap", replica=self._name, messages=number - missing, filled=is_filled)
        self._heard(number, frames[-1], "live")

    async def _catch_up(self, start: int, source: Source) -> None:
        """Take in what the replay still has from a message on; nothing where there is none, or it does not answer."""
        import zmq  # noqa: PLC0415 - an extra

        if self._publisher.replay is None:
            return
        with self._socket(zmq.DEALER) as socket:
            socket.connect(self._publisher.replay)
            # As a REQ socket would send it, which takes a single answer: an empty frame, and where to begin.
            await socket.send_multipart((b"", start.to_bytes(_NUMBER_BYTES, "big")))
            while True:
                try:
                    async with asyncio.timeout(_REPLAY_S):
                        frames = await socket.recv_multipart()
                except TimeoutError:
                    return
                number = _number(frames)
                if number is None or number == _END:
                    return
                self._heard(number, frames[-1], source)
                await asyncio.sleep(0)

    def _heard(self, number: int | None, message: bytes, source: Source) -> None:
        if self._router.feeds.get(self._name) is self._feed:
            self._router.heard(self._name, number, decode(message), time.monotonic(), source=source)

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.linger, socket.ipv6 = 0, 1
        socket.maxmsgsize, socket.rcvhwm = _MOST_BYTES, _MOST_MESSAGES
        socket.heartbeat_ivl, socket.heartbeat_timeout = _BEAT_MS, _BEATS_MS
        socket.reconnect_ivl_max = _RECONNECT_MS
        return socket

    def _say(self) -> None:
        if self._feed.doubt is None:
            log.info("kv_events_up", replica=self._name)
        else:
            log.warning("kv_events_down", replica=self._name, reason=self._feed.doubt)


def _number(frames: Sequence[bytes]) -> int | None:
    """A message's number; None where it is not one of an engine's. Newer versions send a topic before it in a replay too."""
    if len(frames) < 2 or len(frames[-2]) != _NUMBER_BYTES:
        return None
    return int.from_bytes(frames[-2], "big")
