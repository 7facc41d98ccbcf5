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

from ramjet.watch.answer import Answer

Page = tuple[int, str]
"""Status and text."""


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
        finally:
            # Whatever has not come by now belongs to no later question.
            if self._wire is not None and not self._wire.is_open:
                self._wire = None

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
        answer = await self._wire.ask(f"{self._before}{path}{self._after}".encode())
        return None if answer is None else (answer.status, (answer.body or b"").decode(errors="replace"))


class _Wire(asyncio.Protocol):
    """The connection itself: one question at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._asked: asyncio.Future[Answer | None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether something can be asked."""
        return self._transport is not None

    async def ask(self, question: bytes) -> Answer | None:
        """The answer; None where the connection ends without one."""
        if self._transport is None:
            return None
        self._answer, self._asked = Answer(), asyncio.get_running_loop().create_future()
        self._transport.write(question)
        try:
            answer = await self._asked
        except BaseException:
            self.close()
            raise
        finally:
            self._asked = None
        if answer is None or not answer.keeps:
            self.close()
        return answer

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop says so."""
        # uvloop's are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """The loop says so."""
        if self._answer is None or self._asked is None or self._asked.done():
            self.close()  # nobody asked for that
            return
        try:
            self._answer.feed(data)
        except ValueError as error:
            self._asked.set_exception(error)
            return
        if self._answer.body is not None:
            self._asked.set_result(self._answer)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        """The loop says so."""
        self._transport = None
        if self._asked is not None and not self._asked.done():
            assert self._answer is not None
            self._answer.end()
            self._asked.set_result(self._answer if self._answer.body is not None else None)


@cache
def _tls() -> ssl.SSLContext:
    """What certificates are checked against; reading all authorities takes long, and once."""
    return ssl.create_default_context()
