"""The listener that clients connect to: aiohttp's server, with its defaults undone, and Ramjet's own health.

Left alone it would refuse bodies above 1 MiB, decode compressed ones, and let a handler run on after its client left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from ramjet.core.fleet import Fleet
from ramjet.proxy.handler import Handler

_READ_BUFFER_BYTES = 1 << 20

Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]


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


def proxy_app(edge: Handler, fleet: Fleet) -> web.Application:
    """The application that clients talk to."""

    @web.middleware
    async def everything(request: web.Request, handler: Serve) -> web.StreamResponse:  # noqa: ARG001
        if request.method == "GET" and request.raw_path.partition("?")[0] == "/health":
            status, body = health_body(fleet, draining=edge.draining)
            return web.Response(status=status, body=body, content_type="application/json")
        return await edge.handle(request)

    # A middleware sees every request, whatever its target is made of; there is no route that could be forgotten.
    return web.Application(client_max_size=0, middlewares=[everything])


def runner(app: web.Application, *, header_bytes: int, client_idle_s: float) -> web.AppRunner:
    """The application's server, on no address yet.

    Args:
        app: what it serves.
        header_bytes: of the longest line of a request's head.
        client_idle_s: seconds in which a client must have sent a whole head, on a new connection or after an answer.
    """
    return web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,
        auto_decompress=False,
        read_bufsize=_READ_BUFFER_BYTES,
        max_line_size=header_bytes,
        max_field_size=header_bytes,
        keepalive_timeout=client_idle_s,
        shutdown_timeout=0.05,  # running answers had limits.drain_s before; 0 would mean for ever
    )
