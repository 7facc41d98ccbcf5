"""The listener that clients connect to: aiohttp's server, with its defaults undone, and Ramjet's own health.

Left alone it would decode compressed bodies, and let a handler run on after its client left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from aiohttp import web

from ramjet.core.fleet import Fleet
from ramjet.proxy.handler import Handler
from ramjet.proxy.intake import Server
from ramjet.proxy.reply import Reply

_READ_BUFFER_BYTES = 1 << 20
_SHUTDOWN_S = 0.05
"""Running answers had limits.drain_s before; 0 would mean for ever."""


def health_body(fleet: Fleet, *, draining: bool) -> tuple[int, bytes]:
    """Status and body of Ramjet's own health: 200 while some replica can serve, 503 when none can or it is stopping."""
    status = "draining" if draining else fleet.status
    replicas = {
        each.name: {
            "state": "draining" if each.draining else each.state.value,
            "in_flight": each.in_flight,
            "error": each.last_error,
        }
        for each in fleet
    }
    return 503 if status in {"down", "draining"} else 200, msgspec.json.encode({"status": status, "replicas": replicas})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a client's connection may take."""

    header_bytes: int
    """Of the longest line of a request's head."""
    client_idle_s: float
    """Seconds in which a client must have sent a whole head, on a new connection or after an answer."""


def proxy_runner(edge: Handler, fleet: Fleet, bounds: Bounds) -> web.ServerRunner:
    """The server that clients talk to, on no address yet: every request goes to one function.

    An application would look each of them up among its routes, of which there are none.

    Args:
        edge: serves them.
        fleet: what Ramjet's own health tells of.
        bounds: of its connections.
    """

    async def serve(request: web.BaseRequest) -> web.StreamResponse | Reply:
        if request.method == "GET" and request.raw_path.partition("?")[0] == "/health":
            status, body = health_body(fleet, draining=edge.draining)
            return web.Response(status=status, body=body, content_type="application/json")
        return await edge.handle(request)

    # What it asks of a response, a reply can say.
    server = Server(
        cast("Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]", serve),
        handler_cancellation=True,
        **_connections(bounds),
    )
    return web.ServerRunner(server, handle_signals=False, shutdown_timeout=_SHUTDOWN_S)


def runner(app: web.Application, bounds: Bounds) -> web.AppRunner:
    """An application's server, on no address yet, with the same connections."""
    return web.AppRunner(
        app,
        handle_signals=False,
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_S,
        **_connections(bounds),
    )


def _connections(bounds: Bounds) -> dict[str, Any]:
    return {
        "access_log": None,
        "auto_decompress": False,
        "read_bufsize": _READ_BUFFER_BYTES,
        "max_line_size": bounds.header_bytes,
        "max_field_size": bounds.header_bytes,
        "keepalive_timeout": bounds.client_idle_s,
    }
