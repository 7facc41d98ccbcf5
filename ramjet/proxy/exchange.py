"""One request and its client: what is known of it so far, and how the client is answered."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field

from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from ramjet.core.prompt import Prompt
from ramjet.core.stream import Observer, PlainObserver
from ramjet.core.visit import Visit
from ramjet.proxy import errors, headers
from ramjet.proxy.errors import Refusal

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, on and for no time: closing resets the connection."""


class ClientLeft(Exception):
    """The client's connection is gone; there is nobody to answer."""


@dataclass(frozen=True, slots=True)
class BusyAnswer:
    """A replica's own "busy", kept to be passed on when no other can serve either."""

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

    request: web.Request
    request_id: str
    endpoint: str
    arrived_at: float
    body: bytes | None = None
    """None until it has been read."""
    prompt: Prompt | None = None
    visit: Visit | None = None
    busy: BusyAnswer | None = None
    observer: Observer = field(default_factory=PlainObserver)
    response: web.StreamResponse | None = None
    """Set from the moment on that the client has been sent a byte."""
    writing: bool = False
    """Whether it is the client that is waited for, and not the replica."""
    outcome: str = "internal_error"
    status: int | None = None
    last_answer: bool = False
    """Ramjet is stopping: the connection is closed after this answer."""

    async def start(self, response: web.StreamResponse) -> None:
        """Send the head; from now on the client has seen a byte.

        Raises:
            ClientLeft: there is nobody to send it to.
        """
        self.response, self.status = response, response.status
        response.headers[headers.REQUEST_ID] = self.request_id
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            # Other proxies on the way buffer unless told not to.
            response.headers.setdefault("cache-control", "no-cache")
            response.headers.setdefault("x-accel-buffering", "no")
        if self.last_answer:
            response.force_close()
        try:
            await response.prepare(self.request)
        except ConnectionError:
            raise ClientLeft from None

    async def write(self, data: bytes) -> None:
        """Send a piece of the answer, at the client's pace.

        Raises:
            ClientLeft: there is nobody to send it to.
        """
        if data and self.response is not None:
            self.writing = True
            try:
                await self.response.write(data)
            except ConnectionError:
                raise ClientLeft from None
            self.writing = False

    async def end(self) -> web.StreamResponse:
        """Complete the answer.

        Raises:
            ClientLeft: there is nobody to send it to.
        """
        assert self.response is not None
        try:
            await self.response.write_eof()
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
        """Answer in Ramjet's own name."""
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
        self.outcome = refusal.outcome
        await self.start(response)
        return await self.end()
