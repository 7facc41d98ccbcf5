"""An answer on its way to a client, over a connection of aiohttp's server, head and framing written by ourselves.

aiohttp's own responses make a dictionary of headers, a head and its pieces anew, by some twenty calls, from what is
bytes already. Nothing of aiohttp's is used here that it does not show: its requests say how the client wants to be
answered, and its server asks of whatever it is given to prepare itself, to end, and whether the connection stays.
"""

from __future__ import annotations

from aiohttp import HttpVersion11, web

from ramjet.http1.connection import WITHOUT_BODY
from ramjet.proxy.headers import Head

_MOST_UNSENT_BYTES = 64 << 10
"""A client for which more than this waits in the transport is behind."""


class ClientLeft(Exception):
    """The client's connection is gone; there is nobody to answer."""


class Reply:
    """One answer. Its head leaves with the first bytes that follow on it, in one write."""

    __slots__ = ("_has_body", "_head", "_is_chunked", "_protocol", "_writer", "keep_alive", "status")

    def __init__(self, request: web.BaseRequest, head: Head, *, more: bytes = b"", is_last: bool = False) -> None:
        """
        Args:
            request: that it answers.
            head: of the answer.
            more: lines that are to be added to it.
            is_last: whether the connection is closed behind it.
        """
        self._protocol, self._writer = request.protocol, request.writer
        self.status = head.status
        is_old = request.version < HttpVersion11
        self._has_body = head.status not in WITHOUT_BODY and request.method != "HEAD"
        self._is_chunked = self._has_body and not head.is_sized and not is_old
        ends_with_it = is_old and self._has_body and not head.is_sized
        self.keep_alive = request.keep_alive and not is_last and not ends_with_it
        """Whether there may be another request on the connection; aiohttp asks for it."""
        if self._is_chunked:
            more += b"transfer-encoding: chunked\r\n"
        if self.keep_alive == is_old:  # the other way round it goes without saying
            more += b"connection: keep-alive\r\n" if is_old else b"connection: close\r\n"
        self._head = b"HTTP/1.%d %d %b\r\n%b%b\r\n" % (not is_old, head.status, head.reason, head.lines, more)

    def put(self, data: bytes, *, is_end: bool = False) -> bool:
        """Send a piece without waiting; whether the client is behind, and to be waited for by `drain`.

        The first one takes the head along, be it empty.

        Raises:
            ClientLeft: there is nobody to send it to.
        """
        framed = data if self._has_body else b""
        if self._is_chunked:
            framed = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if is_end:
                framed += b"0\r\n\r\n"
        if self._head:
            framed, self._head = self._head + framed, b""
        if not framed:
            return False
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ClientLeft
        transport.write(framed)
        return transport.get_write_buffer_size() > _MOST_UNSENT_BYTES

    async def drain(self) -> None:
        """Wait for a client that is behind.

        Raises:
            ClientLeft: there is nobody to wait for.
        """
        try:
            await self._writer.drain()
        except ConnectionError:
            raise ClientLeft from None

    # -- aiohttp's side: what it would have a response do has been done ----------------------------------------------

    async def prepare(self, _: web.BaseRequest) -> None:
        """Nothing is left to be sent."""

    async def write_eof(self) -> None:
        """Nothing is left to be sent."""


class Nothing(Reply):
    """What a client is answered that is no longer there."""

    def __init__(self) -> None:
        self.status, self.keep_alive = 499, False
