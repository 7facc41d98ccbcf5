"""The door of the proxy: what it asks of HTTP itself, and how bodies come in through it."""

from __future__ import annotations

import asyncio
from itertools import chain

from aiohttp import HttpVersion11, web

from ramjet.core.bodies import Body
from ramjet.front import door, errors
from ramjet.front.door import Refused
from ramjet.proxy.intake import intake_of

_GO_ON = "100-continue"
"""The one thing that clients expect: to be told that they may send a long body (RFC 9110, section 10.1.1)."""


class Door(door.Door):
    """Checks requests, and reads their bodies."""

    def check(self, request: web.BaseRequest) -> None:
        """Look at a request's head.

        Raises:
            Refused: it is not let in.
        """
        options = self.options
        if sum(map(len, chain.from_iterable(request.raw_headers))) > options.header_bytes:
            raise Refused(
                errors.HEADERS_TOO_LARGE,
                f"request headers exceed limits.header_bytes = {options.header_bytes:,} bytes",
            )
        if request.method == "CONNECT":
            raise Refused(errors.NO_TUNNEL, "Ramjet is no tunnel; send the request itself")
        if request.headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
            # What it does to the body would be lost with the header, which belongs to this connection alone.
            raise Refused(errors.BAD_FRAMING, "no transfer encoding but chunked is understood; use content-encoding")
        self.check_head(request.method, request.raw_path, request.headers)
        if request.headers.get("expect", _GO_ON).strip().lower() != _GO_ON:
            raise Refused(errors.BAD_EXPECTATION, "nothing can be expected but 100-continue")
        self.check_size(request.content_length or 0)
        self.check_room(request.content_length or 0)

    async def body(self, request: web.BaseRequest) -> Body:
        """The whole body; what it takes is held while it comes.

        Raises:
            Refused: it is too long, there is no room for it, or it comes too slowly.
        """
        if request.headers.get("expect") and request.version >= HttpVersion11 and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.content.is_eof():  # it came with its head, as short ones do
            body = request.content.read_nowait()
            self.check_size(len(body))
            self.check_room(len(body))
            return body
        held = 0

        def takes(size: int) -> None:
            nonlocal held
            self.check_size(held + size)
            self.check_room(size)
            held += size
            self.held_bytes += size

        try:
            if (intake := intake_of(request)) is not None:
                return await intake.body(self.options.body_gap_s, takes)
            pieces: list[bytes] = []
            while True:
                async with asyncio.timeout(self.options.body_gap_s):
                    piece = await request.content.readany()
                if not piece:
                    return b"".join(pieces)
                takes(len(piece))
                pieces.append(piece)
        except TimeoutError:
            gap = f"limits.body_gap_s = {self.options.body_gap_s:g} s"
            raise Refused(errors.TOO_SLOW, f"nothing of the request body came for {gap}") from None
        finally:
            # Given back here, and taken again by whoever keeps the body: an error must not leave it counted.
            self.held_bytes -= held
