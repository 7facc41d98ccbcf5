"""The composition root: the only place that knows every part, and puts them together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog
from aiohttp import web

from ramjet.admin.server import admin_app
from ramjet.config import Settings
from ramjet.core.fleet import Fleet, Replica, Thresholds
from ramjet.core.policies import (
    CrowdingCost,
    LeaveCost,
    LongPromptRule,
    PrefillCost,
    QueueCost,
    Reading,
    SpreadLongRule,
)
from ramjet.core.record import Record
from ramjet.core.route import Cost, Rule
from ramjet.core.router import Policy, Router
from ramjet.metrics import Metrics
from ramjet.proxy.handler import Handler, Options
from ramjet.proxy.server import health_body, proxy_app, runner
from ramjet.proxy.upstream import Upstream
from ramjet.secret import kept_secret, seed_of
from ramjet.watch.health import Probing, watch_health

log = structlog.get_logger()


class CannotListen(OSError):
    """An address cannot be listened on; the message names it."""


@dataclass(frozen=True, slots=True)
class Running:
    """A Ramjet that serves."""

    url: str
    admin_url: str
    router: Router
    handler: Handler
    metrics: Metrics


def policy_of(settings: Settings) -> Policy:
    """The rules and costs that the configuration asks for."""
    routing = settings.routing
    reading = Reading(routing.prefill.linear_ms / 1e3, routing.prefill.quadratic_ms / 1e3)
    rules: list[Rule] = []
    if routing.long_prompt.enabled:
        rules.append(LongPromptRule(routing.long_prompt.bytes, frozenset(routing.long_prompt.replicas)))
    if routing.spread_long.enabled:
        rules.append(SpreadLongRule(routing.spread_long.tokens))
    costs: list[Cost] = [
        PrefillCost(reading),
        QueueCost(routing.request_s),
        CrowdingCost(routing.request_s),
        LeaveCost(routing.leave_s),
    ]
    return Policy(
        rules=rules,
        costs=costs,
        affinity=routing.affinity.enabled,
        reading=reading,
        long_tokens=routing.spread_long.tokens,
        living_s=routing.living_s,
        horizon_s=settings.beliefs.horizon_s,
        memory_bytes=settings.beliefs.memory_mb << 20,
    )


def fleet_of(settings: Settings) -> Fleet:
    """The replicas that the configuration names."""
    fleet = Fleet()
    for each in settings.replicas:
        fleet.add(Replica(each.name, each.url, pool_tokens=each.pool_tokens))
    return fleet


@contextlib.asynccontextmanager
async def running(
    settings: Settings, *, watch: bool = True, on_record: Callable[[Record], None] | None = None
) -> AsyncIterator[Running]:
    """A Ramjet that serves inside this context, and drains when it is left.

    Args:
        settings: the configuration; port 0 takes any free port.
        watch: whether to probe the replicas.
        on_record: called for every finished request, after it was logged and counted.

    Raises:
        CannotListen: an address is taken, or not ours.
    """
    limits = settings.limits
    router = Router(fleet_of(settings), policy_of(settings))
    metrics = Metrics(replica.name for replica in router.fleet)
    metrics.watch(router)
    upstream = Upstream(connect_s=limits.connect_s, idle_s=limits.idle_s)
    secret = settings.secret.get_secret_value() if settings.secret is not None else kept_secret()
    options = Options(
        body_bytes=limits.body_bytes,
        header_bytes=limits.header_bytes,
        first_byte_s=limits.first_byte_s,
        gap_s=limits.gap_s,
        allow_engine_admin=settings.allow_engine_admin,
        ask_usage=frozenset(each.name for each in settings.replicas if each.ask_usage),
        seed=seed_of(secret),
    )

    def record(finished: Record) -> None:
        log.info("request", **finished.log_fields())
        metrics.observe(finished)
        if on_record is not None:
            on_record(finished)

    handler = Handler(router, upstream, options, record)
    health = settings.health
    probing = Probing(
        path=health.path,
        interval_s=health.interval_s,
        timeout_s=health.timeout_s,
        thresholds=Thresholds(health.failures, health.successes),
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(upstream.close)
        admin = admin_app(metrics.render, lambda: health_body(router.fleet, draining=handler.draining))
        admin_url = await _listen(stack, settings.admin, admin, limits.header_bytes)
        front = proxy_app(handler, router.fleet, upstream)
        url = await _listen(
            stack, settings.listen, front, limits.header_bytes, partial(_drain, handler, limits.drain_s)
        )
        if watch:
            watcher = await stack.enter_async_context(asyncio.TaskGroup())
            task = watcher.create_task(watch_health(router, probing), name="health")
            stack.callback(task.cancel)
        log.info("serving", url=url, admin=admin_url, replicas={each.name: each.url for each in router.fleet})
        yield Running(url, admin_url, router, handler, metrics)


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs; a second signal ends it at once."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings) as ramjet:
        await stop.wait()
        log.info("draining", in_flight=ramjet.handler.active, seconds=settings.limits.drain_s)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
    log.info("stopped")


async def _listen(
    stack: contextlib.AsyncExitStack,
    address: str,
    app: web.Application,
    header_bytes: int,
    before_stop: Callable[[], Awaitable[None]] | None = None,
) -> str:
    """Listen on an address until the stack unwinds; returns the URL with the port that was really taken."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    server = runner(app, header_bytes=header_bytes)
    await server.setup()
    stack.push_async_callback(server.cleanup)
    if before_stop is not None:
        stack.push_async_callback(before_stop)
    site = web.TCPSite(server, host, int(port), backlog=1024)
    try:
        await site.start()
    except OSError as error:
        raise CannotListen(f"cannot listen on {address}: {error.strerror}; is another Ramjet running?") from error
    stack.push_async_callback(site.stop)
    bound = server.addresses[0][1]
    return f"http://{f'[{host}]' if ':' in host else host}:{bound}"


async def _drain(handler: Handler, seconds: float) -> None:
    """Let running answers end, for so long and no longer."""
    handler.draining = True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await handler.idle.wait()
    handler.stopping = True
