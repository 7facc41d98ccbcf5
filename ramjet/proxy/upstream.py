"""Send a request to a replica and read its answer: aiohttp's client, with its defaults undone.

Left alone it would follow redirects, decode bodies, add headers, share 100 connections, keep them longer than engines
do, and cut every answer after five minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import hdrs
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict
from yarl import URL

from ramjet.core.retry import Failure

_READ_BUFFER_BYTES = 1 << 20


class ReplicaFailed(Exception):
    """The replica failed before the first byte of its answer."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Upstream:
    """Connections to all replicas.

    Args:
        connect_s: seconds to connect.
        idle_s: seconds an unused connection is kept. Engines close theirs after 5 (uvicorn's default), and a request
            sent at that moment is lost.
    """

    def __init__(self, *, connect_s: float, idle_s: float) -> None:
        reused = aiohttp.TraceConfig()
        reused.on_connection_reuseconn.append(_mark_reused)
        self.connect_s = connect_s
        self._pooled = _session(_Connector(limit=0, keepalive_timeout=idle_s, ttl_dns_cache=10), reused)
        # For the second try after a pooled connection turned out to be stale: never a pooled one again.
        self._fresh = _session(aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=10))

    async def close(self) -> None:
        """Close all connections."""
        await self._pooled.close()
        await self._fresh.close()

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: CIMultiDict[str], body: bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and hand out the answer once its head has come; the connection goes with the context.

        An unused connection that the engine has closed meanwhile, or on which it says what is no answer, is no failure
        of the replica: the request is sent again, once, on a fresh one.

        Raises:
            ReplicaFailed: before the head had come.
        """
        response = await self._head(method, URL(url, encoded=True), headers, body)
        try:
            yield response
        finally:
            # Gives the connection back where the answer has been read to its end, closes it at once where not:
            # that is how an engine learns that nobody waits for the rest.
            response.close() if not response.content.is_eof() else response.release()

    async def _head(
        self, method: str, url: URL, headers: CIMultiDict[str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        seen = SimpleNamespace(reused=False)
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self.connect_s)
        try:
            return await _request(self._pooled, method, url, headers, body, timeout=limit, trace_request_ctx=seen)
        except (
            aiohttp.ServerDisconnectedError,
            aiohttp.ClientOSError,
            aiohttp.ClientResponseError,  # what stood there was no answer: left over from an earlier one
            ConnectionError,
        ) as error:
            if isinstance(error, aiohttp.ClientConnectorError) or not seen.reused:
                raise _failed(error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _failed(error) from error
        try:
            return await _request(self._fresh, method, url, headers, body, timeout=limit)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise _failed(error) from error


async def read_at_most(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """An answer's body, or its beginning where it is longer."""
    pieces, size = [], 0
    while size < most_bytes and (piece := await answer.content.readany()):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)[:most_bytes]


class _Connector(aiohttp.TCPConnector):
    """Never hands out a pooled connection on which something came that nobody had asked for.

    aiohttp's own would give it to the next request as its answer. `_get` is private to aiohttp: tests/fuzz/test_stray.py
    sends such bytes, and tells when a version of aiohttp no longer asks it.
    """

    async def _get(self, key: Any, traces: Any) -> Any:
        while (connection := await super()._get(key, traces)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                return connection
            connection.close()
        return None


def _session(connector: aiohttp.TCPConnector, *traces: aiohttp.TraceConfig) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=(hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE),
        read_bufsize=_READ_BUFFER_BYTES,
        max_line_size=64 << 10,
        max_field_size=64 << 10,
        trust_env=False,
        trace_configs=list(traces),
    )


async def _request(
    session: aiohttp.ClientSession, method: str, url: URL, headers: CIMultiDict[str], body: bytes | None, **more: Any
) -> aiohttp.ClientResponse:
    data = None if body is None else _Body(body)
    return await session.request(method, url, headers=headers, data=data, allow_redirects=False, **more)


async def _mark_reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.reused = True


def _failed(error: Exception) -> ReplicaFailed:
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = isinstance(error.os_error, ConnectionRefusedError)
        # Without the address: clients may read this, and where a replica is is no business of theirs.
        if refused:
            return ReplicaFailed(Failure.REFUSED, "connection refused")
        return ReplicaFailed(Failure.UNREACHABLE, "cannot be reached")
    if isinstance(error, (aiohttp.ConnectionTimeoutError, TimeoutError, asyncio.TimeoutError)):
        return ReplicaFailed(Failure.UNREACHABLE, "no connection in time")
    return ReplicaFailed(Failure.RESET, type(error).__name__)


class _Body(aiohttp.Payload):
    """Bytes as they are: aiohttp's own payload for bytes warns above 1 MiB, and long prompts are the normal case."""

    _autoclose = True

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self._size = len(value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text; part of aiohttp's interface."""
        return bytes(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the whole body; the transport takes it in one piece and the loop is not held up."""
        await writer.write(self._value)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write the whole body, whose length is the announced one."""
        del content_length
        await writer.write(self._value)
