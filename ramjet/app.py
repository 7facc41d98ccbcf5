"""The composition root: the only place that knows every part, and puts them together."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from ramjet.admin.server import admin_app, is_loopback
from ramjet.build import fleet_of, options_of, place_of, policy_of, polling_of, probing_of, publishers_of, tls_of
from ramjet.certificate import Certificate
from ramjet.config import Settings
from ramjet.control import Control
from ramjet.core.news import News, naming
from ramjet.core.peers import Peers
from ramjet.core.record import Record
from ramjet.core.router import Router
from ramjet.core.visit import Arrival
from ramjet.front.front import Front, OnRecord
from ramjet.front.options import Options
from ramjet.gauges import Gauges
from ramjet.http1.client import Client
from ramjet.journal.sampling import keep_sampling
from ramjet.journal.schema import JournalError
from ramjet.journal.store import Store
from ramjet.journal.writer import Journal
from ramjet.logs import say_request
from ramjet.metrics import Metrics
from ramjet.peers.link import Link
from ramjet.peers.metrics import PeerMetrics
from ramjet.picture import Picture
from ramjet.proxy.handler import Handler
from ramjet.proxy.server import Bounds, proxy_runner, runner
from ramjet.reload import Reloader
from ramjet.secret import kept_secret, seed_of, state_dir
from ramjet.watch.health import HealthWatch
from ramjet.watch.kv_events import KvWatch
from ramjet.watch.stats import StatsWatch

if TYPE_CHECKING:
    from ramjet.epp.picker import Picker

log = structlog.get_logger()

_COLLECTED_EVERY = (10_000, 20, 100)
"""Objects made, and collections of the younger ones: hardly anything here refers back to itself, so there is little to
collect, and each look through all that is known of 50,000 conversations stops everybody for a third of a second."""


class CannotStart(OSError):
    """An address cannot be listened on, or a certificate not be used; the message names it."""


@dataclass(frozen=True, slots=True)
class Running:
    """A Ramjet that serves."""

    url: str
    admin_url: str
    router: Router
    handler: Front
    metrics: Metrics
    control: Control
    watch: HealthWatch
    stats: StatsWatch
    link: Link | None


@contextlib.asynccontextmanager
async def running(
    settings: Settings,
    *,
    watch: bool = True,
    journal: bool = False,
    picking: bool = False,
    on_record: Callable[[Record], None] | None = None,
) -> AsyncIterator[Running]:
    """A Ramjet that serves inside this context, and drains when it is left.

    Args:
        settings: the configuration; port 0 takes any free port.
        watch: whether to probe the replicas, and to listen to those that publish.
        journal: whether to keep a journal, where the settings want one.
        picking: whether it is Envoy that listens to clients, and asks here where requests are to go.
        on_record: called for every finished request, after it was logged and counted.

    Raises:
        CannotStart: an address is taken, or not ours; or a certificate cannot be used.
    """
    if settings.admin_token is None and not is_loopback(settings.admin):
        log.warning("admin_read_only", admin=settings.admin, remedy="set admin_token to change replicas at run time")
    tls = _tls(settings)
    router = Router(fleet_of(settings), policy_of(settings))
    stats = StatsWatch(router, polling_of(settings, settings.replicas))
    picture = Picture(router, stats.seen)
    router.on_placed = picture.placed
    metrics = Metrics(router.fleet.replicas)
    upstream = Client(connect_s=settings.limits.connect_s, idle_s=settings.limits.idle_s)
    secret = settings.secret.get_secret_value() if settings.secret is not None else kept_secret()
    seed = seed_of(secret)
    kept = _journal(settings, secret, metrics) if journal and settings.journal.enabled else None

    def record(finished: Record, arrival: Arrival | None) -> None:
        say_request(finished.log_fields())
        metrics.observe(finished)
        picture.finished(finished, time.monotonic())
        if kept is not None:
            kept.put(finished, arrival)
        _warn_of_confined(finished)
        if on_record is not None:
            on_record(finished)

    options = options_of(settings, settings.replicas, seed)
    handler = _picker(router, options, record) if picking else Handler(router, upstream, options, record)
    health = HealthWatch(router, probing_of(settings, settings.replicas))
    kv_watch = KvWatch(router, publishers_of(settings.replicas))
    control = Control(
        settings,
        router=router,
        handler=handler,
        upstream=upstream,
        metrics=metrics,
        watch=health,
        stats=stats,
        kv_watch=kv_watch,
        seed=seed,
        picture=picture,
    )
    stats.on_ranks = control.ranked
    metrics.registry.register(Gauges(router, time.monotonic, stats.seen, control.membership))
    async with contextlib.AsyncExitStack() as stack:
        if kept is not None:
            # The first to be there and the last to go: all records are in it.
            stack.push_async_callback(asyncio.to_thread, kept.close)
            stack.callback(keep_sampling(kept, router))
        stack.push_async_callback(upstream.close)
        # Before the listeners, and so ended after them: who is held when Ramjet stops is still let in.
        stack.callback(handler.room.keep_admitting())
        # Before the listeners too: who starts knows what its peers do, and they hear the end of all that ends.
        link = await stack.enter_async_context(_linked(settings, secret, router, handler, metrics))
        bounds = _bounds(settings)
        admin_url = await _listen(stack, settings.admin, runner(admin_app(control), bounds))
        drain = partial(_drain, handler, control)
        if isinstance(handler, Handler):
            front, context = proxy_runner(handler, router.fleet, bounds), None if tls is None else tls.context
            url = await _listen(stack, settings.listen, front, tls=context, before_stop=drain)
        else:
            url = await _listen_to_envoy(stack, settings, handler, before_stop=drain)
        watches = (
            {"health": health.run, "stats": stats.run, "kv events": kv_watch.run, "discovery": control.discovery.run}
            if watch
            else {}
        )
        await stack.enter_async_context(_in_background(watches if tls is None else {**watches, "certificate": tls.run}))
        log.info("serving", url=url, admin=admin_url, replicas={each.name: each.url for each in router.fleet})
        yield Running(url, admin_url, router, handler, metrics, control, health, stats, link)


async def serve(settings: Settings, path: Path | None, read: Callable[[], Settings], *, picking: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs; a second signal ends it at once.

    Args:
        settings: the configuration.
        path: the file it came from, which is watched; None for none.
        read: reads the configuration again, command line and environment included.
        picking: whether for Envoy, as an endpoint picker.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(settings, journal=True, picking=picking) as ramjet, asyncio.TaskGroup() as tasks:
        # What is there now stays: the collector need not look through it, for tens of milliseconds, again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECTED_EVERY)
        reloader = Reloader(path, read, ramjet.control.apply)
        loop.add_signal_handler(signal.SIGHUP, reloader.ask)
        reloading = tasks.create_task(reloader.run(), name="reload")
        await stop.wait()
        log.info("draining", in_flight=ramjet.handler.door.inside, seconds=ramjet.control.settings.limits.drain_s)
        reloading.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
    log.info("stopped")


def _tls(settings: Settings) -> Certificate | None:
    try:
        return tls_of(settings)
    except OSError as error:
        raise CannotStart(f"tls.certificate {settings.tls.certificate} cannot be used: {error}") from error


def _bounds(settings: Settings) -> Bounds:
    return Bounds(header_bytes=settings.limits.header_bytes, client_idle_s=settings.limits.client_idle_s)


def _warn_of_confined(finished: Record) -> None:
    if finished.confined_tokens:
        log.warning(
            "long_conversations_confined",
            replica=finished.replica,
            conversation=finished.conversation,
            prompt_tokens=finished.usage.prompt_tokens or finished.estimated_tokens,
            others_tokens=finished.confined_tokens,
            remedy="switch routing.long_prompt off, or give it more replicas",
        )


def _journal(settings: Settings, secret: str, metrics: Metrics) -> Journal | None:
    """The journal that the settings ask for; None, and a warning, where its file cannot be used."""
    path = settings.journal.path or state_dir() / "journal.db"
    try:
        store = Store(path, secret, days=settings.journal.days, megabytes=settings.journal.megabytes)
    except JournalError as error:
        log.warning("journal_off", path=str(path), error=str(error), remedy="set journal.path, or use --no-journal")
        return None
    return Journal(store, on_written=metrics.journal_written.inc, on_dropped=metrics.journal_dropped.inc)


@contextlib.asynccontextmanager
async def _linked(
    settings: Settings, secret: str, router: Router, front: Front, metrics: Metrics
) -> AsyncIterator[Link | None]:
    """The tie to peers, once they have had a moment to say what they know; None where the settings name no store."""
    place = place_of(settings)
    if place is None:
        yield None
        return
    named = naming(seed_of(secret))
    router.news = News(named)
    link = Link(place, Peers(router, named), router.news, secret, front.room.admit_soon)
    metrics.registry.register(PeerMetrics(link))
    async with _in_background({"peers": link.run}):
        await link.warm()
        yield link


async def _listen(
    stack: contextlib.AsyncExitStack,
    address: str,
    server: web.BaseRunner,
    *,
    tls: ssl.SSLContext | None = None,
    before_stop: Callable[[], Awaitable[None]] | None = None,
) -> str:
    """Listen on an address until the stack unwinds; returns the URL with the port that was really taken."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    await server.setup()
    stack.push_async_callback(server.cleanup)
    if before_stop is not None:
        stack.push_async_callback(before_stop)
    site = web.TCPSite(server, host, int(port), backlog=1024, ssl_context=tls)
    try:
        await site.start()
    except OSError as error:
        raise CannotStart(f"cannot listen on {address}: {error.strerror}; is another Ramjet running?") from error
    stack.push_async_callback(site.stop)
    bound = server.addresses[0][1]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{bound}"


@contextlib.asynccontextmanager
async def _in_background(tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]) -> AsyncIterator[None]:
    """Run these, by name, while inside. What is raised inside is raised as it is: a group of tasks would wrap it."""
    raised: Exception | None = None
    async with asyncio.TaskGroup() as group:
        started = [group.create_task(run(), name=name) for name, run in tasks.items()]
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is raised again
            raised = error
        for each in started:
            each.cancel()
    if raised is not None:
        raise raised


def _picker(router: Router, options: Options, on_record: OnRecord) -> Picker:
    """What picks replicas for Envoy.

    Raises:
        CannotStart: it lacks what it needs, or Envoy could not be sent to a replica.
    """
    try:
        from ramjet.epp.endpoints import endpoint_at  # noqa: PLC0415 - an extra, which only this needs
        from ramjet.epp.picker import Picker  # noqa: PLC0415
    except ImportError as error:
        raise CannotStart(
            f"{error.name} is not installed, which Envoy's messages need: pip install 'ramjet-lb[envoy]'"
        ) from None
    for replica in router.fleet:
        try:
            endpoint_at(replica.url)
        except ValueError as error:
            raise CannotStart(f"replica {replica.name}: {error}") from None
    return Picker(router, options, on_record)


async def _listen_to_envoy(
    stack: contextlib.AsyncExitStack, settings: Settings, picker: Picker, before_stop: Callable[[], Awaitable[None]]
) -> str:
    """Listen for Envoy until the stack unwinds; returns the URL with the port that was really taken."""
    from ramjet.epp.server import Server  # noqa: PLC0415 - an extra

    tls, server = settings.tls, Server(picker)
    files = None if tls.certificate is None or tls.key is None else (tls.key, tls.certificate)
    try:
        port = await server.start(settings.listen, files)
    except OSError as error:
        raise CannotStart(f"cannot listen on {settings.listen}: {error.strerror}; is another Ramjet running?") from None
    stack.push_async_callback(server.stop)
    stack.push_async_callback(before_stop)
    stack.push_async_callback(server.drain)
    return f"{'grpcs' if files else 'grpc'}://{settings.listen.rpartition(':')[0]}:{port}"


async def _drain(handler: Front, control: Control) -> None:
    """Let running answers end, for so long and no longer."""
    handler.draining = True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(control.settings.limits.drain_s):
            await handler.idle.wait()
    handler.stopping = True
