"""Changes to a Ramjet that serves: another configuration, other replicas. What it knows and counts survives them."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterator, Mapping
from typing import Any

import structlog
from pydantic import ValidationError

from ramjet.admin.server import is_loopback
from ramjet.build import options_of, policy_of, polling_of, probing_of, publishers_of, replicas_of
from ramjet.config import MOST_RANKS, ReplicaSettings, Settings, rank_clash
from ramjet.core.fleet import Replica
from ramjet.core.prompt import endpoint_of
from ramjet.core.router import Router
from ramjet.core.working import explain
from ramjet.http1.client import Client
from ramjet.metrics import Metrics
from ramjet.picture import Picture
from ramjet.proxy.handler import Handler
from ramjet.proxy.server import health_body
from ramjet.watch.health import HealthWatch
from ramjet.watch.kv_events import KvWatch
from ramjet.watch.stats import StatsWatch

log = structlog.get_logger()

ONLY_AT_START = (
    "listen", "admin", "secret", "log", "journal", "peers", "tls.certificate", "tls.key",
    "limits.header_bytes", "limits.client_idle_s", "limits.idle_s",
)  # fmt: skip
"""Keys that a running process cannot take over."""


class Control:
    """The one place that changes what serves; the admin API and a reload of the file both go through it."""

    def __init__(
        self,
        settings: Settings,
        *,
        router: Router,
        handler: Handler,
        upstream: Client,
        metrics: Metrics,
        watch: HealthWatch,
        stats: StatsWatch,
        seed: int,
        kv_watch: KvWatch | None = None,
        picture: Picture | None = None,
    ) -> None:
        self.settings = settings
        self._started_with = settings
        self._router = router
        self._handler = handler
        self._upstream = upstream
        self._metrics = metrics
        self._watch = watch
        self._stats = stats
        self._kv_watch = KvWatch(router, {}) if kv_watch is None else kv_watch
        self._seed = seed
        self._picture = Picture(router) if picture is None else picture
        self._started_at = time.monotonic()
        # Where it listens does not change with a reload, whatever the new file says.
        self._on_loopback = is_loopback(settings.admin)
        self._replicas = {each.name: each for each in settings.replicas}
        self._reported_ranks: dict[str, int] = {}
        """How many ranks there are, by URL, as the engines there say."""

    # -- another configuration --------------------------------------------------------------------------------------

    def apply(self, settings: Settings) -> list[str]:
        """Take over another configuration; returns the changed keys that need a restart.

        Replicas that the old file named and the new one does not are removed; those that were added by hand stay.
        One whose URL changed is another replica under the same name, and one of its URL is it under another name.
        """
        old, self.settings = self.settings, settings
        wanted = {each.name: each for each in settings.replicas}
        urls = {each.url for each in settings.replicas}
        listed = {each.name for each in old.replicas}

        def stays(each: ReplicaSettings) -> bool:
            by_hand = each.name not in listed and each.url not in urls and not rank_clash([*wanted, each.name])
            return each.name in wanted or by_hand

        self._replicas = {name: each for name, each in self._replicas.items() if stays(each)} | wanted
        self._router.change_policy(policy_of(settings))
        self._arrange()
        return [key for key in ONLY_AT_START if _value(self._started_with, key) != _value(settings, key)]

    # -- the replicas -----------------------------------------------------------------------------------------------

    def add(self, given: dict[str, Any]) -> None:
        """Take a replica in, given as in the config file.

        Raises:
            ValueError: it is given wrongly, or its name or URL is taken.
        """
        try:
            each = ReplicaSettings(**given)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(str(step) for step in fault["loc"])
            raise ValueError(f"{where}: {fault['msg'].removeprefix('Value error, ')}") from None
        if each.name in self._replicas:
            raise ValueError(f"a replica is already named {each.name}; remove it first, or choose another name")
        if any(other.url == each.url for other in self._replicas.values()):
            raise ValueError(f"a replica already has the url {each.url}")
        if (clash := rank_clash([*self._replicas, each.name])) is not None:
            raise ValueError(clash)
        self._replicas[each.name] = each
        self._arrange()
        log.info("replica_added", replica=each.name, url=each.url)

    def remove(self, name: str) -> None:
        """Let a replica go, with all of its ranks; what runs there ends there.

        Raises:
            KeyError: there is no such replica.
            ValueError: it is one of several ranks.
        """
        whole = self._find(name)[0].whole
        if name != whole:
            raise ValueError(f"{name} is a rank of {whole}; remove {whole}, or drain {name}")
        del self._replicas[name]
        self._arrange()
        log.info("replica_removed", replica=name)

    def drain(self, name: str) -> None:
        """Send a replica, or a rank, nothing new.

        Raises:
            KeyError: there is no such replica.
        """
        for each in self._find(name):
            each.draining = True
        log.info("replica_draining", replica=name)

    def enable(self, name: str) -> None:
        """Send a replica, or a rank, requests again.

        Raises:
            KeyError: there is no such replica.
        """
        for each in self._find(name):
            each.draining = False
        log.info("replica_enabled", replica=name)

    def ranked(self, url: str, ranks: int) -> None:
        """An engine says how many ranks it has: each is a replica from now on, unless the configuration knows better."""
        each = next((each for each in self._replicas.values() if each.url == url), None)
        if each is None or self._reported_ranks.get(url) == ranks or not 1 <= ranks <= MOST_RANKS:
            return
        self._reported_ranks[url] = ranks
        before = list(self._router.fleet)
        self._arrange()
        if list(self._router.fleet) != before:
            log.info("replica_ranks", replica=each.name, ranks=ranks)
        if each.ranks not in {None, ranks}:
            log.warning("replica_ranks_differ", replica=each.name, configured=each.ranks, reported=ranks,
                        remedy="leave out ranks, or give as many as the engine has")  # fmt: skip

    def replicas(self) -> list[dict[str, Any]]:
        """The replicas and their state, each rank by itself."""
        now = time.monotonic()
        return [
            {
                "name": each.name,
                "url": each.url,
                "rank": each.rank,
                "state": each.state.value,
                "draining": each.draining,
                "in_flight": each.in_flight,
                "queue_s": round(each.queue_s, 3),
                "resident_tokens": self._router.resident_tokens(each.name),
                "pool_tokens": each.pools.tokens,
                "conversations": self._router.conversations.living_at[each.name],
                "models": sorted(each.models),
                "error": each.last_error,
                "engine": self._stats.seen[each.name].told(now) if each.name in self._stats.seen else None,
                "peers_in_flight": each.peers_in_flight,
                "others_in_flight": each.others.at(now).requests,
                "others_queue_s": round(each.others.at(now).queue_s, 3),
                "kv_events": self._kv_state(each.name),
            }
            for each in self._router.fleet
        ]

    # -- what the admin port shows ------------------------------------------------------------------------------------

    def scrape(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return self._metrics.render()

    def health(self) -> tuple[int, bytes]:
        """Status and JSON body of the process' health."""
        return health_body(self._router.fleet, draining=self._handler.draining)

    def parts(self) -> Iterator[tuple[str, bytes]]:
        """What the page shows, part by part, each as JSON."""
        status = "draining" if self._handler.draining else self._router.fleet.status
        return self._picture.parts(time.monotonic(), self._started_at, status)

    def decision(self, number: int) -> dict[str, Any]:
        """One of the last decisions with its working.

        Raises:
            ValueError: it is no longer kept.
        """
        return self._picture.decision(number)

    @property
    def most_bytes(self) -> int:
        """Of a request that is to be explained."""
        return self._handler.door.options.body_bytes

    async def explain(self, body: bytes, path: str, given: Mapping[str, str]) -> dict[str, Any]:
        """Where a request with this body would go now, and why; it is read as any other, and changes nothing.

        Raises:
            ValueError: there is no body.
        """
        if not body:
            raise ValueError("the body must be a request's, as a client would send it")
        _, arrival = await self._handler.reader.read(given, body, endpoint_of(path), "explain")
        return explain(self._router, arrival, time.monotonic())

    @property
    def asks_for_token(self) -> bool:
        """Whether a token is set; without one, whoever is on this machine may."""
        return self.settings.admin_token is not None

    def refuses(self, shown: str) -> str | None:
        """Why whoever shows this token may not see or change replicas; None if they may."""
        token = self.settings.admin_token
        if token is None:
            return None if self._on_loopback else "set admin_token, or put admin on a loopback address"
        same = hmac.compare_digest(shown.encode(errors="surrogateescape"), token.get_secret_value().encode())
        return None if same else "show admin_token as 'Authorization: Bearer TOKEN'"

    # -- inside -----------------------------------------------------------------------------------------------------

    def _kv_state(self, name: str) -> str | None:
        """Whether what a replica says of its blocks is heard, and why not; None where nobody listens."""
        feed = self._router.feeds.get(name)
        return None if feed is None else feed.doubt or "up"

    def _find(self, name: str) -> list[Replica]:
        found = self._router.fleet.named(name)
        if not found:
            raise KeyError(name)
        return found

    def _arrange(self) -> None:
        """Make the fleet what the replicas and their ranks are now; who stays keeps what is believed of it."""
        fleet, replicas = self._router.fleet, list(self._replicas.values())
        self._reported_ranks = {each.url: ranks for each in replicas if (ranks := self._reported_ranks.get(each.url))}
        wanted = {
            replica.name: replica
            for each in replicas
            for replica in replicas_of(each, self.settings, self._reported_ranks.get(each.url))
        }
        known = {(replica.whole, replica.url): replica for replica in fleet}
        for replica in list(fleet):
            other = wanted.get(replica.name)
            if other is None or other.identity != replica.identity:
                self._router.remove(replica.name)
                self._metrics.remove(replica.name)
        for name, replica in wanted.items():
            if name in fleet.replicas:
                fleet[name].thresholds = replica.thresholds
                self._router.resize(name, configured=replica.configured)
                continue
            if (same := known.get((replica.whole, replica.url))) is not None:
                replica.take_over(same)
            self._router.add(replica)
            self._metrics.add(name)
        fleet.arrange(list(wanted))
        self._refresh(replicas)

    def _refresh(self, replicas: list[ReplicaSettings]) -> None:
        """Tell the edges which replicas there are, with which keys."""
        self._handler.door.options = options_of(self.settings, replicas, self._seed)
        self._upstream.connect_s = self.settings.limits.connect_s
        self._watch.probing = probing_of(self.settings, replicas)
        self._watch.sync()
        self._stats.polling = polling_of(self.settings, replicas)
        self._stats.sync()
        self._kv_watch.publishers = publishers_of(replicas)
        self._kv_watch.sync()


def _value(settings: Settings, key: str) -> object:
    value: object = settings
    for step in key.split("."):
        value = getattr(value, step)
    return value
