"""One kept connection to a replica, for its pages: a GET, its answer, and the next one a second later.

A client for everything takes more time for such a request than the answer is worth: for 64 replicas, asked every second,
httpx took 17 % of a core and aiohttp 4 %, where this takes 2 (`make stats`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from functools import cache
from urllib.parse import urlsplit

from ramjet.http1.client import read_at_most
from ramjet.http1.connection import Broken
from ramjet.http1.connection import Connection as Wire

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
        self._wire: Wire | None = None

    async def get(self, path: str, timeout_s: float) -> Page | None:
        """A page; None where none has come in time.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if self._wire is not None and self._wire.is_reusable:
                    # Engines close connections that were idle: what was sent on one of those was never read.
                    with contextlib.suppress(Broken):
                        return await self._ask(self._wire, path)
                self.close()
                tls = _tls() if self._tls else None
                _, self._wire = await asyncio.get_running_loop().create_connection(
                    Wire, self._host, self._port, ssl=tls, server_hostname=self._host if tls else None
                )
                return await self._ask(self._wire, path)
        except ConnectionRefusedError:
            raise
        except (OSError, ValueError, Broken):
            return None
        finally:
            if self._wire is not None and not self._wire.is_reusable:
                # What has not come by now belongs to no later question.
                self.close()

    def close(self) -> None:
        """Close it; it opens again when it is asked."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def _ask(self, wire: Wire, path: str) -> Page | None:
        answer = await wire.ask("GET", f"{self._before}{path}{self._after}".encode(), None)
        text = await read_at_most(answer, _MOST_BYTES + 1)
        return (answer.status, text.decode(errors="replace")) if len(text) <= _MOST_BYTES else None


@cache
def _tls() -> ssl.SSLContext:
    """What certificates are checked against; reading all authorities takes long, and once."""
    return ssl.create_default_context()
