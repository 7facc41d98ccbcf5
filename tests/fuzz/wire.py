"""The two ends of the wire: an engine that reads strictly and answers as told, and a client's connection."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import socket
import struct
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import cast

from ramjet.engines.known import PATHS
from tests.fuzz import http1

_CASE = re.compile(rb"x-case: ([0-9]+)\r\n")
BYTE_PAUSE_S = 0.002
"""Between pieces: long enough for each to be read alone, most of the time."""

_WATCHED = frozenset((b"/health", b"/v1/models", *(path.encode() for path in PATHS)))
"""What Ramjet asks for by itself."""


@dataclass(slots=True)
class Reply:
    """What the engine sends, and what it does then; see `cases.AnswerCase`."""

    pieces: tuple[bytes, ...]
    ending: str = "keep"


def good_reply(head: http1.Head, body: bytes) -> Reply:
    """An answer to anything: the case's number, and a digest of what arrived."""
    said = b'{"case":"%s","digest":"%s"}' % (head.get(b"x-case"), digest(body))
    fields = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(said)
    return Reply((b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n" + (b"" if head.first[0] == b"HEAD" else said),))


def digest(body: bytes) -> bytes:
    """Of a body as it arrived."""
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode()


class Engine:
    """Reads requests as strictly as it can, and keeps count of them."""

    def __init__(self) -> None:
        self.reply: Callable[[http1.Head, bytes], Reply] = good_reply
        self.faults: list[str] = []
        """What arrived that no proxy may send."""
        self.seen: Counter[bytes] = Counter()
        """Requests by the id that Ramjet gave them."""
        self.by_case: Counter[tuple[bytes, bytes]] = Counter()
        """Requests by case and id: one of them alone may have been mutated into another case's."""
        self.history: dict[int, list[bytes]] = defaultdict(list)
        """Cases by the connection that carried them, to replay one that spoils the next."""
        self.carried: dict[bytes, int] = {}
        self.connections = 0
        self.url = ""

    def arrived(self, head: http1.Head, body: bytes) -> Reply | None:
        """A whole request."""
        method, target = head.first
        if target in _WATCHED and method == b"GET" and not head.get(b"x-case"):
            return Reply((b'HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{"data":[]}',))
        case = head.get(b"x-case")
        self.seen[head.get(b"x-request-id")] += 1
        self.by_case[case, head.get(b"x-request-id")] += 1
        return self.reply(head, body)

    def before(self, case: bytes) -> list[str]:
        """The last cases on the connection that carried this one, itself included."""
        return [each.decode("latin-1") for each in self.history[self.carried.get(case, -1)][-4:]]

    def forget(self) -> None:
        """Start counting anew."""
        self.seen.clear()
        self.by_case.clear()
        self.history.clear()
        self.carried.clear()


class _Upstream(asyncio.Protocol):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._busy = False
        engine.connections += 1
        self._number = engine.connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        # Noted before anything is understood: what spoils a connection may keep this engine from reading the next.
        for found in _CASE.finditer(data):
            self._engine.history[self._number].append(found[1])
            self._engine.carried[found[1]] = self._number
        while not self._busy and self._transport is not None and self._take():
            pass

    def _take(self) -> bool:
        before, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return False
        try:
            head = http1.head(before, answer=False)
            size = http1.length(head)
        except http1.Malformed as reason:
            return self._refuse(f"{reason}: {before[:300]!r}")
        if size is None:
            return self._refuse(f"chunked to an engine: {before[:300]!r}")
        if len(rest) < max(0, size):
            return False
        self._buffer = rest[max(0, size) :]
        reply = self._engine.arrived(head, rest[: max(0, size)])
        if self._buffer:
            self._engine.faults.append(f"more than one request at once: {before[:200]!r} then {self._buffer[:200]!r}")
        if reply is not None:
            self._busy = True
            self._send(list(reply.pieces), reply.ending)
        return True

    def _refuse(self, fault: str) -> bool:
        self._engine.faults.append(fault)
        assert self._transport is not None
        self._transport.abort()
        return False

    def _send(self, pieces: list[bytes], ending: str) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if pieces:
            transport.write(pieces.pop(0))
        if pieces:
            asyncio.get_running_loop().call_later(BYTE_PAUSE_S, self._send, pieces, ending)
        elif ending == "close":
            transport.close()
        elif ending == "reset":
            reset(transport)
        elif ending == "keep":
            self._busy = False
            if self._buffer:
                self._take()


def reset(transport: asyncio.BaseTransport) -> None:
    """Close with a reset: at once, without lingering in the system's tables."""
    raw = transport.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cast("asyncio.Transport", transport).abort()


@contextlib.asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[Engine]:
    """The engine, on a free loopback port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Upstream(engine), "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()


@dataclass(slots=True)
class Got:
    """What a client has read so far."""

    data: bytearray = field(default_factory=bytearray)
    closed: bool = False


class Line(asyncio.Protocol):
    """A client's connection: what comes is kept, and whoever waits is woken."""

    def __init__(self) -> None:
        self.got = Got()
        self.transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.cases: list[int] = []
        """Cases that went over it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.got.data += data
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.got.closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def more(self, within_s: float) -> bool:
        """Wait for more, or for the end; False when nothing happened in time."""
        if self.got.closed:
            return True
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(within_s):
                await self._waiter
        except TimeoutError:
            return False
        return True

    async def write(self, pieces: tuple[bytes, ...]) -> None:
        """Write pieces, each in a packet of its own."""
        for place, piece in enumerate(pieces):
            if place:
                await asyncio.sleep(BYTE_PAUSE_S)
            if self.transport is None or self.got.closed or self.transport.is_closing():
                return
            self.transport.write(piece)

    def close(self) -> None:
        """Leave at once."""
        if self.transport is not None and not self.got.closed:
            reset(self.transport)
        self.got.closed = True


async def connect(address: tuple[str, int]) -> Line:
    """A new connection."""
    _, line = await asyncio.get_running_loop().create_connection(Line, *address)
    return line
