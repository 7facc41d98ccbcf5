"""Who may come in, and with how much: what is decided before a request is looked into."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from ramjet.core.prompt import ENDPOINTS
from ramjet.front import errors
from ramjet.front.errors import Refusal
from ramjet.front.options import Options
from ramjet.front.paths import is_engine_admin


class Refused(Exception):
    """The request is not let in."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


class Door:
    """Checks requests, and keeps count of what is inside."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.inside = 0
        self.held_bytes = 0

    def check_head(self, method: str, path: str, given: Mapping[str, str]) -> None:
        """Look at a request's head.

        Args:
            method: its method.
            path: path and query, as they came.
            given: its headers, found by names in lower case.

        Raises:
            Refused: it is not let in.
        """
        options = self.options
        if options.client_keys and not _is_preflight(method, given) and not _shows_one_of(given, options.client_keys):
            raise Refused(errors.NO_KEY, "show one of client_keys as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        if path not in ENDPOINTS and not options.allow_engine_admin and is_engine_admin(path):
            raise Refused(
                errors.FORBIDDEN,
                "this path administers the engine; call the replica itself, or set allow_engine_admin: true",
            )
        if self.inside > options.in_flight:
            raise Refused(errors.SHED, f"limits.in_flight = {options.in_flight:,} requests are under way; try later")

    def check_size(self, size: int) -> None:
        """Look at the size of a whole body, or of what has come of it.

        Raises:
            Refused: no body may be so long.
        """
        if size > self.options.body_bytes:
            most = f"limits.body_bytes = {self.options.body_bytes:,} bytes"
            raise Refused(errors.TOO_LARGE, f"request body exceeds {most}; raise it or send less")

    def check_room(self, size: int) -> None:
        """Ask whether there is room for more bytes of bodies.

        Raises:
            Refused: there is none.
        """
        if self.held_bytes + size > self.options.held_bytes:
            most = f"limits.held_bytes = {self.options.held_bytes:,} bytes"
            raise Refused(errors.SHED, f"request bodies of {most} are under way; try later")


def _is_preflight(method: str, given: Mapping[str, str]) -> bool:
    """Whether a browser asks if it may ask: it never shows a key with that."""
    return method == "OPTIONS" and "access-control-request-method" in given


def _shows_one_of(given: Mapping[str, str], keys: frozenset[str]) -> bool:
    scheme, _, bearer = given.get("authorization", "").partition(" ")
    shown = [bearer.strip()] if scheme.lower() == "bearer" else []
    shown += [given[name] for name in ("x-api-key", "api-key") if name in given]
    # Every key is compared in full with every other: how long it takes says nothing about which was nearly right.
    found = False
    for each in shown:
        for key in keys:
            found |= hmac.compare_digest(each.encode(errors="surrogateescape"), key.encode())
    return found
