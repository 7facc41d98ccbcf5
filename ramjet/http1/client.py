"""Send a request to a replica and read its answer: a pool of connections, kept for less long than engines keep them.

The bytes go out as they came, in one piece, and the answer's come in as they are: nothing is followed, decoded, added or
cut after so many minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from multidict import CIMultiDict

from ramjet.core.retry import Failure
from ramjet.http1.connection import Answer, Broken, Buffers, Connection

_KNOWN_S = 10.0
"""For so long a name's addresses are not asked for again."""
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class ReplicaFailed(Exception):
    """The replica failed before the first byte of its answer."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a replica is, from its URL."""

    host: str
    port: int
    is_secure: bool
    named: bytes
    """The host as the Host header has it."""
    base: str
    """What its paths begin with."""


@dataclass(slots=True)
class _Pool:
    """The connections to one place that nobody uses, and where it is."""

    unused: list[Connection] = field(default_factory=list)
    """The one that was used last is the last, and the first to be used again: the others are closed in time."""
    addresses: list[str] = field(default_factory=list)
    asked_at: float = 0.0


class Client:
    """Connections to all replicas.

    Args:
        connect_s: seconds to connect.
        idle_s: seconds an unused connection is kept. Engines close theirs after 5 (uvicorn's default), and a request
            sent at that moment is lost.
    """

    def __init__(self, *, connect_s: float, idle_s: float) -> None:
        self.connect_s = connect_s
        self._idle_s = idle_s
        self._pools: defaultdict[_Place, _Pool] = defaultdict(_Pool)
        self._open: set[Connection] = set()
        """Those that carry something."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in (*self._open, *(each for pool in self._pools.values() for each in pool.unused)):
            connection.close()
        self._pools.clear()
        await asyncio.sleep(0)  # the transports close in the loop's next step

    def send(self, method: str, url: str, path: str, headers: CIMultiDict[str], body: Buffers | None) -> Sending:
        """Send a request and hand out the answer once its head has come; the connection goes with the context.

        An unused connection that the engine has closed meanwhile, or on which it says what is no answer, is no failure
        of the replica: the request is sent again, once, on a fresh one.

        Args:
            method: of the request.
            url: the replica's.
            path: and query, as the client sent them; it follows the path of the replica's URL.
            headers: all but Host and Content-Length.
            body: what follows them, in pieces; None for none.

        Raises:
            ReplicaFailed: before the head had come.
        """
        place = _place(url)
        head = _head(method, place, path, headers, None if body is None else sum(map(len, body)))
        return Sending(self, place, method, head, body)

    # -- a request's side -------------------------------------------------------------------------------------------

    async def answered(
        self, place: _Place, method: str, head: bytes, body: Buffers | None
    ) -> tuple[Connection, Answer]:
        """The head of an answer, on an unused connection or on a fresh one."""
        if (unused := self._unused(place)) is not None:
            with contextlib.suppress(Broken):
                return unused, await self._ask(unused, method, head, body)
        # Another unused one may be as stale.
        fresh = await self._connect(place)
        try:
            return fresh, await self._ask(fresh, method, head, body)
        except Broken as error:
            raise ReplicaFailed(Failure.RESET, str(error)) from error

    def give_back(self, place: _Place, connection: Connection) -> None:
        """An answer has been read, or nobody wants the rest of it."""
        self._open.discard(connection)
        if not connection.is_reusable:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.unused_since = loop.time()
        self._pools[place].unused.append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._idle_s, self._sweep)

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _ask(self, connection: Connection, method: str, head: bytes, body: Buffers | None) -> Answer:
        self._open.add(connection)
        try:
            return await connection.ask(method, head, body)
        except BaseException:
            self._open.discard(connection)
            connection.close()
            raise

    def _unused(self, place: _Place) -> Connection | None:
        unused, now = self._pools[place].unused, asyncio.get_running_loop().time()
        while unused:
            connection = unused.pop()
            if connection.is_reusable and now - connection.unused_since < self._idle_s:
                return connection
            connection.close()
        return None

    def _sweep(self) -> None:
        """Close what has been unused for too long."""
        loop = asyncio.get_running_loop()
        oldest_at, left = loop.time() - self._idle_s, False
        for place, pool in list(self._pools.items()):
            for connection in pool.unused:
                if connection.unused_since <= oldest_at:
                    connection.close()
            pool.unused = [each for each in pool.unused if each.unused_since > oldest_at and each.is_reusable]
            left = left or bool(pool.unused)
            if not pool.unused and loop.time() - pool.asked_at > _KNOWN_S:
                del self._pools[place]
        self._sweeping = loop.call_later(self._idle_s / 4, self._sweep) if left else None

    async def _connect(self, place: _Place) -> Connection:
        """A new connection, to the first address that takes one.

        Raises:
            ReplicaFailed: there is none, and why. Without the address: clients may read it, and where a replica is is no
                business of theirs.
        """
        loop, errors = asyncio.get_running_loop(), []
        try:
            async with asyncio.timeout(self.connect_s):
                for address in await self._addresses(place):
                    try:
                        _, connection = await loop.create_connection(
                            Connection,
                            address,
                            place.port,
                            ssl=self._context() if place.is_secure else None,
                            server_hostname=place.host if place.is_secure else None,
                        )
                    except OSError as error:
                        errors.append(error)
                    else:
                        return connection
        except TimeoutError:
            raise ReplicaFailed(Failure.UNREACHABLE, "no connection in time") from None
        except OSError as error:
            errors.append(error)
        if errors and all(isinstance(error, ConnectionRefusedError) for error in errors):
            raise ReplicaFailed(Failure.REFUSED, "connection refused")
        raise ReplicaFailed(Failure.UNREACHABLE, "cannot be reached") from errors[0] if errors else None

    async def _addresses(self, place: _Place) -> list[str]:
        loop, pool = asyncio.get_running_loop(), self._pools[place]
        if not pool.addresses or loop.time() - pool.asked_at > _KNOWN_S:
            found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
            pool.addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
            pool.asked_at = loop.time()
        return pool.addresses

    def _context(self) -> ssl.SSLContext:
        self._tls = self._tls or ssl.create_default_context()
        return self._tls


class Sending:
    """A request on its way, as a context: its answer inside, its connection given back behind it."""

    def __init__(self, client: Client, place: _Place, method: str, head: bytes, body: Buffers | None) -> None:
        self._client = client
        self._place = place
        self._request = method, head, body
        self._connection: Connection | None = None

    async def __aenter__(self) -> Answer:
        self._connection, answer = await self._client.answered(self._place, *self._request)
        return answer

    async def __aexit__(self, *_: object) -> None:
        assert self._connection is not None
        self._client.give_back(self._place, self._connection)


async def read_at_most(answer: Answer, most_bytes: int) -> bytes:
    """An answer's body, or its beginning where it is longer.

    Raises:
        Broken: the rest will never come.
    """
    pieces: list[bytes] = []
    size = 0

    def take(piece: bytes) -> bool:
        nonlocal size
        pieces.append(piece)
        size += len(piece)
        return size >= most_bytes

    while size < most_bytes and not await answer.pour(take):
        pass
    return b"".join(pieces)[:most_bytes]


@lru_cache(maxsize=4_096)
def _place(url: str) -> _Place:
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    host = parts.hostname or ""
    return _Place(
        host, parts.port or (443 if is_secure else 80), is_secure, parts.netloc.encode("ascii" if parts.netloc.isascii() else "idna"),
        parts.path.rstrip("/"),
    )  # fmt: skip


def _head(method: str, place: _Place, path: str, headers: CIMultiDict[str], body_bytes: int | None) -> bytes:
    """The request line and all headers; a fragment is no part of what is asked for."""
    target = f"{place.base}{path.partition('#')[0]}"
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body_bytes is not None or method in _WITH_BODY:
        lines.append(f"Content-Length: {body_bytes or 0}")
    text = "\r\n".join(lines).encode(errors="surrogateescape")
    return b"%b\r\nHost: %b\r\n\r\n" % (text, place.named)
