"""One request and its client: what is known of it so far, and how the client is answered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import HttpVersion11, web
from aiohttp.http import StreamWriter
from multidict import CIMultiDict

from ramjet.core.prompt import Envelope
from ramjet.core.stream import Observer, PlainObserver
from ramjet.core.visit import Visit
from ramjet.proxy import errors, headers
from ramjet.proxy.errors import Refusal

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, on and for no time: closing resets the connection."""
_MOST_UNSENT_BYTES = 64 << 10
"""A client for which more than this waits in the transport is behind."""
_HELD = b": held\n\n"
"""A comment of an event stream, which no client takes for an event."""


class Streamed(web.StreamResponse):
    """A response whose head waits for the first bytes that follow on it: both leave in one write."""

    _send_headers_immediately = False


class ClientLeft(Exception):
    """The client's connection is gone; there is nobody to answer."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A replica's own error, kept to be passed on: a "busy" until it is known whether another replica can serve."""

    status: int
    reason: str | None
    headers: CIMultiDict[str]
    body: bytes
    replica: str
    why: str
    """The decision's reason, as for any answer."""


@dataclass(slots=True, eq=False)
class Exchange:
    """What is known of one request while it is under way."""

    request: web.BaseRequest
    request_id: str
    endpoint: str
    arrived_at: float
    body: bytes | None = None
    """None until it has been read."""
    prompt: Envelope | None = None
    visit: Visit | None = None
    busy: KeptAnswer | None = None
    observer: Observer = field(default_factory=PlainObserver)
    opened: web.StreamResponse | None = None
    """The event stream that was opened while the request was held: the head is out, and comments may be, but nothing of
    an answer, so any replica may still give it."""
    response: web.StreamResponse | None = None
    """Set from the moment on that the client has been sent a byte of an answer."""
    writer: StreamWriter | None = None
    """How its bytes, or those of the stream that was opened, get to the client."""
    head_waits: bool = False
    """Whether the writer keeps the head for the first bytes."""
    writing: bool = False
    """Whether it is the client that is waited for, and not the replica."""
    outcome: str = "internal_error"
    status: int | None = None
    last_answer: bool = False
    """Ramjet is stopping: the connection is closed after this answer."""

    @property
    def asks_for_stream(self) -> bool:
        """Whether a good answer will be an event stream: on each endpoint that has a prompt, if the client says so."""
        return self.request.method == "POST" and self.prompt is not None and self.prompt.stream

    async def comment(self) -> None:
        """Say that the request is held, in the event stream that its answer will be; the first time opens that.

        Raises:
            ClientLeft: there is nobody to say it to.
        """
        if self.opened is None:
            self.opened = Streamed(headers={"content-type": "text/event-stream"})
            await self._send_head(self.opened)
        transport = self.request.transport
        # A client that has not taken what was sent gets no more: to wait for it would be to miss that it is let in.
        if transport is not None and not transport.get_write_buffer_size():
            self._send(_HELD)

    async def start(self, response: web.StreamResponse) -> None:
        """Send the head; from now on the client has seen a byte of the answer.

        Where a stream was opened, its head stands, and the answer must be one that goes on after it.

        Raises:
            ClientLeft: there is nobody to send it to.
        """
        self.status = response.status
        if self.opened is not None:
            self.response = self.opened
        else:
            self.response = response
            await self._send_head(response)

    async def _send_head(self, response: web.StreamResponse) -> None:
        response.headers[headers.REQUEST_ID] = self.request_id
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            # Other proxies on the way buffer unless told not to.
            response.headers.setdefault("cache-control", "no-cache")
            response.headers.setdefault("x-accel-buffering", "no")
        if self.last_answer:
            response.force_close()
        try:
            self.writer = cast("StreamWriter", await response.prepare(self.request))
        except ConnectionError:
            raise ClientLeft from None
        self.head_waits = True

    def put(self, data: bytes) -> bool:
        """Send a piece of the answer without waiting; whether the client is behind, and to be waited for by `drain`.

        The first one takes the head along, be it empty.

        Raises:
            ClientLeft: there is nobody to send it to.
        """
        if not data and not self.head_waits:
            return False
        return self._send(data).get_write_buffer_size() > _MOST_UNSENT_BYTES

    async def drain(self) -> None:
        """Wait for a client that is behind.

        Raises:
            ClientLeft: there is nobody to wait for.
        """
        assert self.writer is not None
        self.writing = True
        try:
            await self.writer.drain()
        except ConnectionError:
            raise ClientLeft from None
        self.writing = False

    def _send(self, data: bytes) -> asyncio.Transport:
        """Give a piece to the transport, framed as the head says. aiohttp's writer takes ten times as long for that."""
        writer = self.writer
        assert writer is not None
        transport = writer.transport
        if transport is None or transport.is_closing():
            raise ClientLeft
        if self.head_waits:
            self.head_waits = False
            with contextlib.suppress(StopIteration):  # it is a coroutine, but waits for nothing
                writer.write(data, drain=False).send(None)
        else:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if writer.chunked else data)
        return transport

    async def end(self, last: bytes = b"") -> web.StreamResponse:
        """Complete the answer with its last bytes, at the client's pace.

        Raises:
            ClientLeft: there is nobody to send it to.
        """
        assert self.response is not None
        self.writing = True
        try:
            await self.response.write_eof(last)
        except ConnectionError:
            raise ClientLeft from None
        return self.response

    def cut(self, outcome: str) -> web.StreamResponse:
        """Close the client's connection in the middle of the answer, so that it does not look complete."""
        self.outcome = outcome
        transport = self.request.transport
        if transport is not None and self.request.version < HttpVersion11:
            # Such a client takes the connection's end for the answer's: only a reset tells it that this is none.
            raw = transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        elif transport is not None and self.writing:
            transport.abort()  # it takes nothing, so what is still to be written would never leave
        elif transport is not None:
            transport.close()
        assert self.response is not None
        return self.response

    async def refuse(self, refusal: Refusal, message: str, retry_after_s: int | None = None) -> web.StreamResponse:
        """Answer in Ramjet's own name.

        Raises:
            ClientLeft: there is nobody to answer.
        """
        self.outcome = refusal.outcome
        if self.opened is not None:
            return await self.tell(refusal.status, errors.error_of(refusal, message), retry_after_s)
        response = web.Response(
            status=refusal.status,
            body=errors.error_body(refusal, message),
            headers=CIMultiDict({"content-type": "application/json"}),
        )
        if retry_after_s is not None:
            response.headers["retry-after"] = str(retry_after_s)
        if refusal.status == 401:
            response.headers["www-authenticate"] = "Bearer"
        if self.body is None:
            # What is left of the body would be taken for the next request.
            response.force_close()
        await self.start(response)
        return await self.end()

    async def tell(self, status: int, error: dict[str, Any], retry_after_s: int | None = None) -> web.StreamResponse:
        """End the stream that was opened with an error event, for its status can no longer say it.

        Args:
            status: what it would have been.
            error: an error object of OpenAI's.
            retry_after_s: in how many seconds it may be worth coming back.

        Raises:
            ClientLeft: there is nobody to tell.
        """
        self.response, self.status = self.opened, status
        return await self.end(errors.error_event(self.endpoint, error, retry_after_s))
