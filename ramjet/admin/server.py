"""The operators' port: metrics for Prometheus, and health."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web


def admin_app(scrape: Callable[[], bytes], health: Callable[[], tuple[int, bytes]]) -> web.Application:
    """The application on the admin address.

    Args:
        scrape: renders all metrics in Prometheus' text format.
        health: status and JSON body of the process' health.
    """

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=scrape(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def healthy(_request: web.Request) -> web.Response:
        status, body = health()
        return web.Response(status=status, body=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/health", healthy)
    return app
