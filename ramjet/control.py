"""Changes to a Ramjet that serves: another configuration, other replicas. What it knows and counts survives them."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterator, Mapping
from typing import Any

import structlog
from pydantic import ValidationError

from ramjet.admin.server import is_loopback
from ramjet.build import (
    options_of,
    policy_of,
    polling_of,
    pools_of,
    probing_of,
    publishers_of,
    replica_of,
    thresholds_of,
)
from ramjet.config import ReplicaSettings, Settings
from ramjet.core.fleet import Replica
from ramjet.core.prompt import endpoint_of
from ramjet.core.router import Router
from ramjet.core.working import explain
from ramjet.metrics import Metrics
from ramjet.picture import Picture
from ramjet.proxy.handler import Handler
from ramjet.proxy.server import health_body
from ramjet.proxy.upstream import Upstream
from ramjet.watch.health import HealthWatch
from ramjet.watch.kv_events import KvWatch
from ramjet.watch.stats import StatsWatch

log = structlog.get_logger()

ONLY_AT_START = (
    "listen", "admin", "secret", "log", "journal", "tls.certificate", "tls.key",
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
        upstream: Upstream,
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

    # -- another configuration --------------------------------------------------------------------------------------

    def apply(self, settings: Settings) -> list[str]:
        """Take over another configuration; returns the changed keys that need a restart.

        Replicas that the old file named and the new one does not are removed; those that were added by hand stay.
        One whose URL changed is another replica under the same name, and one of its URL is it under another name.
        """
        old, self.settings = self.settings, settings
        wanted = {each.name: each for each in settings.replicas}
        names = {each.url: each.name for each in settings.replicas}
        listed = {each.name for each in old.replicas}
        for name, each in list(self._replicas.items()):
            is_gone = name in listed and name not in wanted
            if is_gone or names.get(each.url, name) != name or (name in wanted and wanted[name].url != each.url):
                self._remove(name)
        for name, each in wanted.items():
            if name not in self._replicas:
                self._add(each)
            else:
                self._replicas[name] = each
                self._router.resize(name, configured=pools_of(each))
        self._router.change_policy(policy_of(settings))
        for replica in self._router.fleet:
            replica.thresholds = thresholds_of(settings)
        self._refresh()
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
        self._add(each)
        self._refresh()
        log.info("replica_added", replica=each.name, url=each.url)

    def remove(self, name: str) -> None:
        """Let a replica go; what runs there ends there.

        Raises:
            KeyError: there is no such replica.
        """
        self._find(name)
        self._remove(name)
        self._refresh()
        log.info("replica_removed", replica=name)

    def drain(self, name: str) -> None:
        """Send a replica nothing new.

        Raises:
            KeyError: there is no such replica.
        """
        self._find(name).draining = True
        log.info("replica_draining", replica=name)

    def enable(self, name: str) -> None:
        """Send a replica requests again.

        Raises:
            KeyError: there is no such replica.
        """
        self._find(name).draining = False
        log.info("replica_enabled", replica=name)

    def replicas(self) -> list[dict[str, Any]]:
        """The replicas and their state."""
        now = time.monotonic()
        return [
            {
                "name": each.name,
                "url": each.url,
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
        arrival = await self._handler.look(given, body, endpoint_of(path), "explain")
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

    def _find(self, name: str) -> Replica:
        return self._router.fleet[name]

    def _add(self, each: ReplicaSettings) -> None:
        replica = replica_of(each, self.settings)
        self._replicas[each.name] = each
        self._router.add(replica)
        self._metrics.add(replica.name)

    def _remove(self, name: str) -> None:
        del self._replicas[name]
        self._router.remove(name)
        self._metrics.remove(name)

    def _refresh(self) -> None:
        """Tell the edges which replicas there are, with which keys."""
        replicas = list(self._replicas.values())
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
