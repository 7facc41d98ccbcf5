"""One request and its client: what is known of it so far, and how the client is answered."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from aiohttp import HttpVersion11, web
from msgspec import Struct, field

from ramjet.core.bodies import Body
from ramjet.core.prompt import Envelope
from ramjet.core.stream import Observer, PlainObserver
from ramjet.core.visit import Visit
from ramjet.front import errors, marks
from ramjet.front.errors import Refusal
from ramjet.proxy import headers
from ramjet.proxy.headers import Head
from ramjet.proxy.reply import Reply

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, on and for no time: closing resets the connection."""
_HELD = b": held\n\n"
"""A comment of an event stream, which no client takes for an event."""


class KeptAnswer(Struct, frozen=True):
    """A replica's own error, kept to be passed on: a "busy" until it is known whether another replica can serve."""

    head: Head
    body: bytes
    retry_after: str


class Exchange(Struct, eq=False):
    """What is known of one request while it is under way."""

    request: web.BaseRequest
    request_id: str
    endpoint: str
    arrived_at: float
    gap_s: float
    """Seconds in which the client must take something of the end of its answer."""
    body: Body | None = None
    """None until it has been read."""
    prompt: Envelope | None = None
    visit: Visit | None = None
    busy: KeptAnswer | None = None
    observer: Observer = field(default_factory=PlainObserver)
    opened: Reply | None = None
    """The event stream that was opened while the request was held: the head is out, and comments may be, but nothing of
    an answer, so any replica may still give it."""
    reply: Reply | None = None
    """Set from the moment on that the client is being sent an answer."""
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

    def comment(self) -> None:
        """Say that the request is held, in the event stream that its answer will be; the first time opens that.

        Raises:
            ClientLeft: there is nobody to say it to.
        """
        if self.opened is None:
            self.opened = self._reply(headers.of_held())
        transport = self.request.transport
        # A client that has not taken what was sent gets no more: to wait for it would be to miss that it is let in.
        if transport is None or not transport.get_write_buffer_size():
            self.opened.put(_HELD)

    def start(self, head: Head) -> Reply:
        """The answer begins: from now on no other can.

        Where a stream was opened, its head stands, and the answer must be one that goes on after it.
        """
        self.status = head.status
        self.reply = self.opened or self._reply(head)
        return self.reply

    def _reply(self, head: Head, *, is_last: bool = False) -> Reply:
        more = b"%b: %b\r\n" % (marks.REQUEST_ID.encode(), self.request_id.encode())
        return Reply(self.request, head, more=more, is_last=is_last or self.last_answer)

    async def drain(self) -> None:
        """Wait for a client that is behind.

        Raises:
            ClientLeft: there is nobody to wait for.
        """
        assert self.reply is not None
        self.writing = True
        await self.reply.drain()
        self.writing = False

    async def end(self, last: bytes = b"") -> Reply:
        """Complete the answer with its last bytes, at the client's pace; who takes nothing for too long is cut off.

        Raises:
            ClientLeft: there is nobody to send it to.
        """
        assert self.reply is not None
        if self.reply.put(last, is_end=True):
            try:
                async with asyncio.timeout(self.gap_s):
                    await self.drain()
            except TimeoutError:
                return self.cut("client_stall")
        return self.reply

    def cut(self, outcome: str) -> Reply:
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
        assert self.reply is not None
        self.reply.keep_alive = False
        return self.reply

    async def refuse(self, refusal: Refusal, message: str, retry_after_s: int | None = None) -> Reply:
        """Answer in Ramjet's own name.

        Raises:
            ClientLeft: there is nobody to answer.
        """
        self.outcome = refusal.outcome
        if self.opened is not None:
            return await self.tell(refusal.status, errors.error_of(refusal, message), retry_after_s)
        body = errors.error_body(refusal, message)
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        if retry_after_s is not None:
            fields["retry-after"] = str(retry_after_s)
        if refusal.status == 401:
            fields["www-authenticate"] = "Bearer"
        self.status = refusal.status
        # What is left of a body that has not been read would be taken for the next request.
        self.reply = self._reply(headers.of_ours(refusal.status, fields), is_last=self.body is None)
        return await self.end(body)

    async def tell(self, status: int, error: dict[str, Any], retry_after_s: int | None = None) -> Reply:
        """End the stream that was opened with an error event, for its status can no longer say it.

        Args:
            status: what it would have been.
            error: an error object of OpenAI's.
            retry_after_s: in how many seconds it may be worth coming back.

        Raises:
            ClientLeft: there is nobody to tell.
        """
        self.reply, self.status = self.opened, status
        return await self.end(errors.error_event(self.endpoint, error, retry_after_s))
