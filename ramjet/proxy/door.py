"""Who may come in, and with how much: what is decided before a request is looked into."""

from __future__ import annotations

import asyncio
import hmac
from itertools import chain

from aiohttp import HttpVersion11, web

from ramjet.core.bodies import Body
from ramjet.core.prompt import ENDPOINTS
from ramjet.proxy import errors
from ramjet.proxy.errors import Refusal
from ramjet.proxy.intake import intake_of
from ramjet.proxy.options import Options
from ramjet.proxy.paths import is_engine_admin

_GO_ON = "100-continue"
"""The one thing that clients expect: to be told that they may send a long body (RFC 9110, section 10.1.1)."""


class Refused(Exception):
    """The request is not let in."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


class Door:
    """Checks requests, reads their bodies, and keeps count of what is inside."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.inside = 0
        self.held_bytes = 0

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
        if options.client_keys and not _is_preflight(request) and not _shows_one_of(request, options.client_keys):
            raise Refused(errors.NO_KEY, "show one of client_keys as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        if request.raw_path not in ENDPOINTS and not options.allow_engine_admin and is_engine_admin(request.raw_path):
            raise Refused(
                errors.FORBIDDEN,
                "this path administers the engine; call the replica itself, or set allow_engine_admin: true",
            )
        if self.inside > options.in_flight:
            raise Refused(errors.SHED, f"limits.in_flight = {options.in_flight:,} requests are under way; try later")
        if request.headers.get("expect", _GO_ON).strip().lower() != _GO_ON:
            raise Refused(errors.BAD_EXPECTATION, "nothing can be expected but 100-continue")
        if (request.content_length or 0) > options.body_bytes:
            raise self._too_large()
        self._check_room(request.content_length or 0)

    async def body(self, request: web.BaseRequest) -> Body:
        """The whole body; what it takes is held until `forget`.

        Raises:
            Refused: it is too long, there is no room for it, or it comes too slowly.
        """
        if request.headers.get("expect") and request.version >= HttpVersion11 and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.content.is_eof():  # it came with its head, as short ones do
            body = request.content.read_nowait()
            if len(body) > self.options.body_bytes:
                raise self._too_large()
            self._check_room(len(body))
            return body
        held = 0

        def takes(size: int) -> None:
            nonlocal held
            if held + size > self.options.body_bytes:
                raise self._too_large()
            self._check_room(size)
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

    def _too_large(self) -> Refused:
        most = f"limits.body_bytes = {self.options.body_bytes:,} bytes"
        return Refused(errors.TOO_LARGE, f"request body exceeds {most}; raise it or send less")

    def _check_room(self, size: int) -> None:
        if self.held_bytes + size > self.options.held_bytes:
            most = f"limits.held_bytes = {self.options.held_bytes:,} bytes"
            raise Refused(errors.SHED, f"request bodies of {most} are under way; try later")


def _is_preflight(request: web.BaseRequest) -> bool:
    """Whether a browser asks if it may ask: it never shows a key with that."""
    return request.method == "OPTIONS" and "access-control-request-method" in request.headers


def _shows_one_of(request: web.BaseRequest, keys: frozenset[str]) -> bool:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    shown = [bearer.strip()] if scheme.lower() == "bearer" else []
    shown += [request.headers[name] for name in ("x-api-key", "api-key") if name in request.headers]
    # Every key is compared in full with every other: how long it takes says nothing about which was nearly right.
    found = False
    for given in shown:
        for key in keys:
            found |= hmac.compare_digest(given.encode(errors="surrogateescape"), key.encode())
    return found
