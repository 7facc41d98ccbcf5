"""Long bodies, received straight into the buffer that they stay in.

On its way through aiohttp a body is copied four times: out of the loop's buffer, out of the parser's, out of the stream,
and out of pieces into one. So where the length of a long body is known, a protocol of ours takes the place of aiohttp's
at the client's connection until the body is there. Then aiohttp reads on with a new parser, for the old one still waits
for that body; where a body is not taken in to its end, the old one is shown what has come, and is where it would be.

Only this module leans on what aiohttp does not promise: that its server makes a connection when it is called; that
`_messages` has what was parsed and is not served yet, `_request_in_progress` says whether something is, `_parser` parses,
`_reading_paused` says whether a body is not to go on for now, and `finish_response` is called for each request. Tests hold
it to that, and its release is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import StreamReader, hdrs, web
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.web_protocol import MAX_MSG_QUEUE_SIZE, RequestHandler, RequestPayloadError

from ramjet import allocator

LEAST_BYTES = 256 << 10
"""A body of which less is still to come is read as aiohttp reads it: it is mostly there already."""
FIRST_BYTES = 2 << 20
"""Whoever only announces a body takes no more room than this..."""
MOST_TIMES = 8
"""...and then so many times what has come."""


class Intake(asyncio.BufferedProtocol):
    """A body on its way in, in the place of aiohttp's protocol."""

    def __init__(self, connection: Connection, transport: asyncio.Transport, content: StreamReader, size: int) -> None:
        """
        Args:
            connection: in whose place it is while `body` runs.
            transport: of both.
            content: of the request, as far as it has come.
            size: of the whole body.
        """
        self._connection = connection
        self._transport = transport
        self._content = content
        self._size = size
        self._data = bytearray()
        self._filled = self._shown = 0
        """What has come, and how much of it aiohttp has seen."""
        self._heard_at = 0.0
        self._takes: Callable[[int], None]
        self._whole: asyncio.Future[None]
        self._timer: asyncio.TimerHandle
        self._is_here = False

    async def body(self, gap_s: float, takes: Callable[[int], None]) -> bytearray:
        """The whole body.

        Args:
            gap_s: seconds in which something of it must come.
            takes: told of the room that is taken before it is, in bytes; what it raises ends this.

        Raises:
            TimeoutError: nothing came for so long.
            Exception: what `takes` raised.
        """
        self._takes = takes
        self._make_room(b"".join(iter(self._content.read_nowait, b"")))
        self._shown = self._filled
        loop = asyncio.get_running_loop()
        self._whole, self._heard_at = loop.create_future(), loop.time()
        self._timer = loop.call_at(self._heard_at + gap_s, self._look, gap_s)
        self._is_here = True
        self._transport.set_protocol(self)
        self._transport.resume_reading()
        try:
            await self._whole
            return self._data
        finally:
            self._timer.cancel()
            self._end()
            # uvloop remembers whom it read into last: that is to keep nothing.
            del self._data, self._connection, self._transport, self._content, self._takes

    # -- called by the loop -------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002, D102
        return memoryview(self._data)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:  # noqa: D102
        self._filled += nbytes
        self._heard_at = self._whole.get_loop().time()
        if self._filled == self._size:
            self._end()
        elif self._filled == len(self._data):
            try:
                self._make_room(self._data)
            except Exception as error:  # noqa: BLE001 - it is raised again, where the body is waited for
                self._end(error)

    def eof_received(self) -> None:  # noqa: D102
        self._connection.eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: D102
        self._is_here = False
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:  # noqa: D102
        self._connection.pause_writing()

    def resume_writing(self) -> None:  # noqa: D102
        self._connection.resume_writing()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _make_room(self, came: bytes | bytearray) -> None:
        """Have a larger buffer, with what has come at its beginning."""
        size = min(self._size, max(FIRST_BYTES, MOST_TIMES * len(came)))
        self._takes(size - len(self._data))
        data = allocator.room(size)
        data[: len(came)] = came
        self._data, self._filled = data, len(came)

    def _look(self, gap_s: float) -> None:
        """Look whether anything has come in so long."""
        loop, until = self._whole.get_loop(), self._heard_at + gap_s
        if loop.time() < until:
            self._timer = loop.call_at(until, self._look, gap_s)
        else:
            self._end(TimeoutError())

    def _end(self, error: Exception | None = None) -> None:
        """Let aiohttp read on behind what has come."""
        if self._is_here:
            self._is_here = False
            if self._filled == self._size:
                self._connection.parse_anew()
                self._content.feed_eof()
            else:
                self._connection.data_received(bytes(memoryview(self._data)[self._shown : self._filled]))
            self._transport.set_protocol(self._connection)
        if self._whole.done():
            return
        if error is None:
            self._whole.set_result(None)
        else:
            self._whole.set_exception(error)


class Connection(RequestHandler):
    """A client's connection, which reads no more of a long body than has come with its head until it is asked for."""

    __slots__ = ("_waits",)

    def __init__(self, manager: web.Server, *, loop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        super().__init__(manager, loop=loop, **kwargs)
        self._waits: StreamReader | None = None
        """The long body that has begun."""

    def data_received(self, data: bytes) -> None:
        """As aiohttp does, and then look whether a long body has begun."""
        super().data_received(data)
        if len(self._messages) == 1 and not self._request_in_progress:
            message, content = self._messages[0]
            if isinstance(message, RawRequestMessage) and _size(message.headers, content):
                self._waits = content
                self._pause_transport_reading()

    def intake(self, request: web.BaseRequest) -> Intake | None:
        """What takes in a request's body; None where that is read as aiohttp does."""
        size, transport = _size(request.headers, request.content), self.transport
        if not size or transport is None or transport.is_closing():
            return None
        return Intake(self, transport, request.content, size)

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 - as it is called
        """As aiohttp does, where reading was paused: it asks for this with every piece of a body that is read."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """As aiohttp does, which then reads the rest of a body that nobody has taken in."""
        if self._waits is not None and self._waits is request.content:
            self._waits = None
            self._resume_transport_reading()
        return await super().finish_response(request, resp, start_time)

    def parse_anew(self) -> None:
        """The body that the parser waits for has come."""
        self._parser = HttpRequestParser(
            self,
            self._loop,
            self._read_bufsize,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            max_headers=self.max_headers,
            payload_exception=RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=MAX_MSG_QUEUE_SIZE,
        )


def _size(headers: Mapping[str, str], content: StreamReader) -> int:
    """How long a body is of which much is still to come; 0 for any other."""
    if content.is_eof():
        return 0  # as nearly always
    # The parser has seen to it that it is a number.
    size = int(headers.get(hdrs.CONTENT_LENGTH, 0))
    return size if size - content.total_bytes >= LEAST_BYTES else 0


class Server(web.Server):
    """aiohttp's, with such connections."""

    def __call__(self) -> RequestHandler:
        """A new connection."""
        return Connection(self, loop=self._loop, **self._kwargs)


def intake_of(request: web.BaseRequest) -> Intake | None:
    """What takes in a request's body; None where that is read as aiohttp does."""
    connection = request.protocol
    return connection.intake(request) if isinstance(connection, Connection) else None
