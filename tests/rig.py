"""What tests of the edges stand on: a Ramjet on free loopback ports, and an engine that takes no time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ramjet.app import Running, running
from ramjet.config import Settings, load
from ramjet.core.feed import Feed
from ramjet.core.fleet import Fleet, Replica
from ramjet.core.membership import Membership
from ramjet.core.news import News, naming
from ramjet.core.peers import Peers
from ramjet.core.policies import Policy
from ramjet.core.pools import Pools
from ramjet.core.record import Record
from ramjet.core.router import Router
from ramjet.engines.facts import Facts, Loads, Seen
from ramjet.gauges import Gauges
from ramjet.metrics import Metrics
from ramjet.peers.link import Link, Place
from ramjet.peers.metrics import PeerMetrics


@dataclass(slots=True, eq=False)
class Front:
    """A Ramjet under test, and the records of what it served."""

    url: str
    admin_url: str
    running: Running
    records: list[Record] = field(default_factory=list)

    @property
    def router(self) -> Router:
        """The router itself, to look into its ledger."""
        return self.running.router

    @property
    def in_flight(self) -> dict[str, int]:
        """Requests in flight by replica."""
        return {each.name: each.in_flight for each in self.router.fleet}

    def record(self, request_id: str) -> Record:
        """The record of one request."""
        return next(record for record in self.records if record.request_id == request_id)

    async def settled(self) -> None:
        """Wait until nothing is under way any more."""
        async with asyncio.timeout(20):
            await self.running.handler.idle.wait()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels, as a scrape of this metric alone would show them."""
        families = list(self.running.metrics.registry.restricted_registry([name]).collect())
        assert families, f"no metric {name}"
        samples = [sample for family in families for sample in family.samples]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


@contextlib.asynccontextmanager
async def ramjet(
    replicas: Mapping[str, str | dict[str, Any]], *, watch: bool = False, picking: bool = False, **overrides: Any
) -> AsyncIterator[Front]:
    """A Ramjet in front of replicas, given by name and URL (or settings); `overrides` are sections of the config."""
    settings = settings_for(replicas, **overrides)
    records: list[Record] = []
    async with running(settings, watch=watch, picking=picking, on_record=records.append) as ready:
        yield Front(ready.url, ready.admin_url, ready, records)


def settings_for(replicas: Mapping[str, str | dict[str, Any]], **overrides: Any) -> Settings:
    """A configuration on free loopback ports, with a secret of its own and little patience when it stops."""
    listed = [{"name": name, **({"url": each} if isinstance(each, str) else each)} for name, each in replicas.items()]
    limits = {"drain_s": 0.5, **overrides.pop("limits", {})}
    base = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "secret": "a test's", "replicas": listed, "limits": limits}
    return load(None, {**base, **overrides})


def router_of(*replicas: str, **policy: Any) -> Router:
    """The router of a Ramjet that has served nothing yet, in front of replicas that publish, with pools of known sizes."""
    pools = Pools(tokens=499_968, slots=24)
    fleet = Fleet()
    for name in replicas:
        fleet.add(Replica(name, f"http://{name}:30000", configured=pools))
    router = Router(fleet, Policy(**policy))
    router.feeds |= {name: Feed() for name in replicas}
    return router


def metrics_of(*replicas: str) -> Metrics:
    """The metrics of that Ramjet."""
    return watched(router_of(*replicas))


def watched(router: Router, now: Callable[[], float] = lambda: 0.0) -> Metrics:
    """Metrics with the gauges of a router whose engines have said what they do."""
    loads = (Loads(running=1, waiting=0, waiting_tokens=0, used_tokens=0),)
    seen = {each.name: Seen(facts=Facts(engine="sglang", version="0.5.23"), loads=loads) for each in router.fleet}
    membership = Membership()
    membership.listen_to(["a source"])
    membership.told("a source", (), 0.0)
    metrics = Metrics(router.fleet.replicas)
    metrics.registry.register(Gauges(router, now, seen, membership))
    named, place = naming(0), Place(url="valkey://127.0.0.1", megabytes=1, keep_s=1.0)
    link = Link(place, Peers(router, named), News(named), "a test's", lambda: None)
    link.tally.age_s = 0.1
    metrics.registry.register(PeerMetrics(link))
    return metrics


@contextlib.asynccontextmanager
async def quick_engine(answer_s: float = 0.001, *, counts: bool = True) -> AsyncIterator[QuickEngine]:
    """An engine without a model: it answers after `answer_s` and remembers every prompt it has seen.

    Without `counts` it says nothing of what it has read or reused.
    """
    engine = QuickEngine(answer_s, counts=counts)
    runner = web.AppRunner(engine.app(), access_log=None, shutdown_timeout=0.05, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()


class QuickEngine:
    """Four characters are a token; what a prompt shares with an earlier one, message by message, is cached."""

    def __init__(self, answer_s: float, *, counts: bool) -> None:
        self._counts = counts
        self.answer_when: Callable[[QuickEngine], Awaitable[None]] = lambda _: asyncio.sleep(answer_s)
        self.url = ""
        self.bodies: list[bytes] = []
        self.keep_bodies = False
        self.in_flight = 0
        self.most_in_flight = 0
        self._seen: set[int] = set()

    def app(self) -> web.Application:
        """Its HTTP server."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/health", self._health)
        return app

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _chat(self, request: web.Request) -> web.Response:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            raw = await request.read()
            if self.keep_bodies:
                self.bodies.append(raw)
            body = json.loads(raw)
            pieces = [json.dumps(body.get("tools")), *(json.dumps(message) for message in body["messages"])]
            cached = total = chain = 0
            for piece in pieces:
                chain = hash((chain, piece))
                total += len(piece) // 4
                cached = total if chain in self._seen else cached
                self._seen.add(chain)
            await self.answer_when(self)
        finally:
            self.in_flight -= 1
        usage = {"prompt_tokens": total, "completion_tokens": 1, "total_tokens": total + 1,
                 "prompt_tokens_details": {"cached_tokens": cached}}  # fmt: skip
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return web.json_response({**answer, "usage": usage} if self._counts else answer)
