"""The operators' port: a page, metrics, health, and the replicas, which may be changed while Ramjet serves."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from ramjet.admin import page
from ramjet.admin.events import Events


class Operations(Protocol):
    """What an operator can do; whatever is wrong is a ValueError or a KeyError that says so."""

    @property
    def asks_for_token(self) -> bool:
        """Whether a token is set; without one, whoever is on this machine may."""

    def refuses(self, shown: str) -> str | None:
        """Why whoever shows this token may not see or change replicas; None if they may."""

    def scrape(self) -> bytes:
        """All metrics in Prometheus' text format."""

    def health(self) -> tuple[int, bytes]:
        """Status and JSON body of the process' health."""

    def replicas(self) -> list[dict[str, Any]]:
        """The replicas and their state."""

    def add(self, given: dict[str, Any]) -> None:
        """Take a replica in, given as in the config file."""

    def remove(self, name: str) -> None:
        """Let a replica go; what runs there ends there."""

    def drain(self, name: str) -> None:
        """Send a replica nothing new."""

    def enable(self, name: str) -> None:
        """Send a replica requests again."""

    def parts(self) -> Iterator[tuple[str, bytes]]:
        """What the page shows, part by part, each as JSON; between two of them the loop may go on."""

    def decision(self, number: int) -> dict[str, Any]:
        """One of the last decisions with its working."""

    @property
    def most_bytes(self) -> int:
        """Of a request that is to be explained."""

    async def explain(self, body: bytes, path: str, given: Mapping[str, str]) -> dict[str, Any]:
        """Where a request would go now, and why."""


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

_NOT_TOLD = frozenset(("authorization", "cookie", "host", "content-length", "content-type", "connection", "origin"))


def admin_app(operations: Operations) -> web.Application:
    """The application on the admin address; it judges nothing itself."""
    pages, events = _Pages(operations), Events(operations)
    app = web.Application()
    app.router.add_get("/", page.show)
    app.router.add_get("/api/events", pages.guarded(events.stream))
    app.router.add_get("/api/decisions/{number:[0-9]{1,15}}", pages.guarded(pages.decided))
    app.router.add_post("/api/explain", pages.guarded(pages.explained))
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/health", pages.health)
    app.router.add_get("/live", pages.live)
    app.router.add_get("/replicas", pages.guarded(pages.listed))
    app.router.add_post("/replicas", pages.guarded(pages.added))
    app.router.add_delete("/replicas/{name}", pages.guarded(pages.removed))
    app.router.add_post("/replicas/{name}/{change:drain|enable}", pages.guarded(pages.changed))
    return app


class _Pages:
    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def metrics(self, _request: web.Request) -> web.Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=self._operations.scrape(), headers={"content-type": kind})

    async def health(self, _request: web.Request) -> web.Response:
        status, body = self._operations.health()
        return web.Response(status=status, body=body, content_type="application/json")

    async def live(self, _request: web.Request) -> web.Response:
        # For a supervisor that restarts who hangs: whoever answers does not, whatever its health.
        return web.Response(text="ok\n")

    async def listed(self, _request: web.Request) -> web.Response:
        return self._list()

    async def added(self, request: web.Request) -> web.Response:
        try:
            given = msgspec.json.decode(await request.read(), type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f'the body must be a replica as JSON, {{"name": ..., "url": ...}}: {error}') from None
        self._operations.add(given)
        return self._list(status=201)

    async def removed(self, request: web.Request) -> web.Response:
        self._operations.remove(request.match_info["name"])
        return self._list()

    async def changed(self, request: web.Request) -> web.Response:
        drains = request.match_info["change"] == "drain"
        (self._operations.drain if drains else self._operations.enable)(request.match_info["name"])
        return self._list()

    async def decided(self, request: web.Request) -> web.Response:
        return _json(self._operations.decision(int(request.match_info["number"])))

    async def explained(self, request: web.Request) -> web.Response:
        body = await _body(request, self._operations.most_bytes)
        path = request.query.get("path", "/v1/chat/completions")
        return _json(await self._operations.explain(body, path, _told(request)))

    def guarded(self, answer: Answer) -> Answer:
        """The page for those who show the token, its errors as an answer."""

        async def check(request: web.Request) -> web.StreamResponse:
            shown = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
            refusal = self._operations.refuses(shown)
            if refusal is not None:
                return _json({"error": refusal}, status=401)
            if not self._operations.asks_for_token and (_from_another_page(request) or not is_loopback(request.host)):
                return _json({"error": "web pages may not change replicas; set admin_token, and show it"}, status=403)
            try:
                return await answer(request)
            except KeyError as error:
                return _json({"error": f"no replica is named {error.args[0]}"}, status=404)
            except ValueError as error:
                return _json({"error": str(error)}, status=400)

        return check

    def _list(self, status: int = 200) -> web.Response:
        return _json({"replicas": self._operations.replicas()}, status=status)


def _from_another_page(request: web.Request) -> bool:
    """Whether a browser sent it for a page that is not the one served here.

    An operator's browser reaches loopback, and any page can make it ask. A browser says which page it was with everything
    that changes something, and no page can make it lie. That the origin is what the request calls this host is not
    enough: whoever owns a name can let it lead to loopback. So the caller looks at the name as well.
    """
    origin = request.headers.get("origin", f"http://{request.host}")
    site = request.headers.get("sec-fetch-site", "none")
    return origin.lower() != f"http://{request.host}".lower() or site not in {"none", "same-origin"}


async def _body(request: web.Request, most_bytes: int) -> bytes:
    """The whole body.

    Raises:
        ValueError: it is longer than a request may be.
    """
    pieces: list[bytes] = []
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > most_bytes:
            raise ValueError(f"the body exceeds limits.body_bytes = {most_bytes:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _told(request: web.Request) -> dict[str, str]:
    """The headers that may say whose a prompt is; the token, and what is the browser's or this connection's, is not."""
    kept = {name.lower(): value for name, value in request.headers.items()}
    return {name: value for name, value in kept.items() if name not in _NOT_TOLD}


def is_loopback(address: str) -> bool:
    """Whether HOST or HOST:PORT can be reached from this machine only; other names may lead anywhere."""
    host = urlsplit(f"//{address}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
