"""One kept connection to a replica, for its pages: a GET, its answer, and the next one a second later.

A client for everything takes more time for such a request than the answer is worth: for 64 replicas, asked every second,
httpx took 17 % of a core and aiohttp 4 %, where this takes 2 (`make stats`).
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from typing import cast
from urllib.parse import urlsplit

import httptools

Page = tuple[int, str]
"""Status and text."""

_MOST_BYTES = 16 << 20
"""Of one answer: the metrics of an engine with many labels have some hundred kilobytes."""


class Connection:
    """To one replica; it connects when it is asked for something, and again when it has to."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """
        Args:
            url: where the replica is, without a trailing slash.
            key: what it asks for.
        """
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = parts.scheme == "https"
        shown = f"authorization: Bearer {key}\r\n" if key is not None else ""
        # Packing a page costs an engine more than sending it as it is.
        self._before = f"GET {parts.path}"
        self._after = f" HTTP/1.1\r\nhost: {parts.netloc}\r\naccept-encoding: identity\r\n{shown}\r\n"
        self._wire: _Wire | None = None

    async def get(self, path: str, timeout_s: float) -> Page | None:
        """A page; None where none has come in time.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        kept = self._wire is not None and self._wire.is_open
        try:
            async with asyncio.timeout(timeout_s):
                page = await self._ask(path)
                # Engines close connections that were idle: what was sent on one of those was never read.
                return await self._ask(path) if page is None and kept else page
        except ConnectionRefusedError:
            raise
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close it; it opens again when it is asked."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def _ask(self, path: str) -> Page | None:
        if self._wire is None or not self._wire.is_open:
            tls = _tls() if self._tls else None
            _, self._wire = await asyncio.get_running_loop().create_connection(
                _Wire, self._host, self._port, ssl=tls, server_hostname=self._host if tls else None
            )
        return await self._wire.ask(f"{self._before}{path}{self._after}".encode())


class _Wire(asyncio.Protocol):
    """The connection itself: one question at a time. The loop calls what it has for that, and llhttp what begins with on_."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._asked: asyncio.Future[Page | None] | None = None
        self._status, self._bytes, self._has_length = 0, bytearray(), False

    @property
    def is_open(self) -> bool:
        """Whether something can be asked."""
        return self._transport is not None

    async def ask(self, question: bytes) -> Page | None:
        """The answer; None where the connection ends without one, or brings something else."""
        if self._transport is None:
            return None
        self._asked = asyncio.get_running_loop().create_future()
        self._status, self._bytes, self._has_length = 0, bytearray(), False
        self._transport.write(question)
        try:
            page = await self._asked
        except BaseException:
            # What has not come by now belongs to no later question.
            self.close()
            raise
        finally:
            self._asked = None
        if page is None:
            self.close()
        return page

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._asked is None or self._asked.done():
            self.close()  # nobody asked for that
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._answer(None)
        if len(self._bytes) > _MOST_BYTES:
            self._answer(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's
        self._transport = None
        # Where nobody said how long the answer is, this is its end.
        self._answer((self._status, self._text()) if self._status and not self._has_length else None)

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 - llhttp's
        self._has_length = self._has_length or name.lower() in {b"content-length", b"transfer-encoding"}

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._status = status if status >= 200 else 0

    def on_body(self, body: bytes) -> None:
        self._bytes += body

    def on_message_complete(self) -> None:
        if self._status:  # not what comes before the answer proper
            if not self._parser.should_keep_alive():
                self.close()
            self._answer((self._status, self._text()))

    def _text(self) -> str:
        return self._bytes.decode(errors="replace")

    def _answer(self, page: Page | None) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(page)


@cache
def _tls() -> ssl.SSLContext:
    """What certificates are checked against; reading all authorities takes long, and once."""
    return ssl.create_default_context()
