"""Send a request to a replica and read its answer: a pool of connections, kept for less long than engines keep them.

The bytes go out as they came, in one piece, and the answer's come in as they are: nothing is followed, decoded, added or
cut after so many minutes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit
from weakref import WeakSet

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


@dataclass(slots=True)
class _Pool:
    """Where a replica is, from its URL, and the connections to it that nobody uses."""

    host: str
    port: int
    is_secure: bool
    named: bytes
    """The host as the Host header has it."""
    base: str
    """What its paths begin with."""
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
        self._pools: dict[str, _Pool] = {}
        self._connections: WeakSet[Connection] = WeakSet()
        """All that are open: the event loop keeps those, and nobody the others."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in tuple(self._connections):
            connection.close()
        self._pools.clear()
        await asyncio.sleep(0)  # the transports close in the loop's next step

    async def send(self, method: str, url: str, path: str, fields: bytes, body: Buffers | None) -> Answer:
        """Send a request, and give its answer once the answer's head has come; it is to be used as a context.

        An unused connection that the engine has closed meanwhile, or on which it says what is no answer, is no failure
        of the replica: the request is sent again, once, on a fresh one.

        Args:
            method: of the request.
            url: the replica's.
            path: and query, as the client sent them; it follows the path of the replica's URL.
            fields: all headers but Host and Content-Length, each with the end of its line.
            body: what follows them, in pieces; None for none.

        Raises:
            ReplicaFailed: before the head had come.
        """
        pool = self._pool(url)
        head = _head(method, pool, path, fields, None if body is None else sum(map(len, body)))
        if (unused := self._unused(pool)) is not None:
            try:
                return await unused.ask(method, head, body)
            except Broken:
                pass  # another unused one may be as stale
        fresh = await self._connect(url)
        try:
            return await fresh.ask(method, head, body)
        except Broken as error:
            raise ReplicaFailed(Failure.RESET, str(error)) from error

    # -- inside -----------------------------------------------------------------------------------------------------

    def _pool(self, url: str) -> _Pool:
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = _pool_of(url)
        return pool

    def _give_back(self, url: str, connection: Connection) -> None:
        if not connection.is_reusable:
            connection.close()
            return
        connection.unused_since = time.monotonic()
        self._pool(url).unused.append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._idle_s, self._sweep)

    def _unused(self, pool: _Pool) -> Connection | None:
        oldest_at = time.monotonic() - self._idle_s
        while pool.unused:
            connection = pool.unused.pop()
            if connection.is_reusable and connection.unused_since > oldest_at:
                return connection
            connection.close()
        return None

    def _sweep(self) -> None:
        """Close what has been unused for too long."""
        now = time.monotonic()
        oldest_at, left = now - self._idle_s, False
        for url, pool in list(self._pools.items()):
            for connection in pool.unused:
                if connection.unused_since <= oldest_at:
                    connection.close()
            pool.unused = [each for each in pool.unused if each.unused_since > oldest_at and each.is_reusable]
            left = left or bool(pool.unused)
            if not pool.unused and now - pool.asked_at > _KNOWN_S:
                del self._pools[url]
        self._sweeping = asyncio.get_running_loop().call_later(self._idle_s / 4, self._sweep) if left else None

    async def _connect(self, url: str) -> Connection:
        """A new connection, to the first address that takes one.

        Raises:
            ReplicaFailed: there is none, and why. Without the address: clients may read it, and where a replica is is no
                business of theirs.
        """
        loop, pool, errors = asyncio.get_running_loop(), self._pool(url), []
        try:
            async with asyncio.timeout(self.connect_s):
                for address in await self._addresses(pool):
                    try:
                        _, connection = await loop.create_connection(
                            partial(Connection, partial(self._give_back, url)),
                            address,
                            pool.port,
                            ssl=self._context() if pool.is_secure else None,
                            server_hostname=pool.host if pool.is_secure else None,
                        )
                    except OSError as error:
                        errors.append(error)
                    else:
                        self._connections.add(connection)
                        return connection
        except TimeoutError:
            raise ReplicaFailed(Failure.UNREACHABLE, "no connection in time") from None
        except OSError as error:
            errors.append(error)
        if errors and all(isinstance(error, ConnectionRefusedError) for error in errors):
            raise ReplicaFailed(Failure.REFUSED, "connection refused")
        raise ReplicaFailed(Failure.UNREACHABLE, "cannot be reached") from errors[0] if errors else None

    async def _addresses(self, pool: _Pool) -> list[str]:
        now = time.monotonic()
        if not pool.addresses or now - pool.asked_at > _KNOWN_S:
            found = await asyncio.get_running_loop().getaddrinfo(pool.host, pool.port, type=socket.SOCK_STREAM)
            pool.addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
            pool.asked_at = now
        return pool.addresses

    def _context(self) -> ssl.SSLContext:
        self._tls = self._tls or ssl.create_default_context()
        return self._tls


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


def _pool_of(url: str) -> _Pool:
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    host = parts.hostname or ""
    return _Pool(
        host, parts.port or (443 if is_secure else 80), is_secure, parts.netloc.encode("ascii" if parts.netloc.isascii() else "idna"),
        parts.path.rstrip("/"),
    )  # fmt: skip


def _head(method: str, pool: _Pool, path: str, fields: bytes, body_bytes: int | None) -> bytes:
    """The request line and all headers; a fragment is no part of what is asked for."""
    line = f"{method} {pool.base}{path.partition('#')[0]} HTTP/1.1".encode(errors="surrogateescape")
    length = b"" if body_bytes is None and method not in _WITH_BODY else b"Content-Length: %d\r\n" % (body_bytes or 0)
    return b"%b\r\n%b%bHost: %b\r\n\r\n" % (line, fields, length, pool.named)
