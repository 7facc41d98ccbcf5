"""Changes to a Ramjet that serves: another configuration, other replicas. What it knows and counts survives them."""

from __future__ import annotations

import contextlib
import hmac
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog
from pydantic import ValidationError

from ramjet.admin.server import is_loopback
from ramjet.build import options_of, policy_of, polling_of, probing_of, publishers_of, replicas_of, sources_of
from ramjet.config import MOST_RANKS, ReplicaSettings, Settings, TemplateSettings, rank_clash
from ramjet.core.fleet import Replica
from ramjet.core.membership import Changes, Found, Membership
from ramjet.core.prompt import endpoint_of
from ramjet.core.router import Router
from ramjet.core.working import explain
from ramjet.discovery.watch import DiscoveryWatch
from ramjet.front.front import Front
from ramjet.http1.client import Client
from ramjet.metrics import Metrics
from ramjet.picture import Picture
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
        handler: Front,
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
        self.membership = Membership()
        """Which of them were found, and by which source."""
        self.membership.listen_to([each.name for each in settings.discovery.sources])
        self.discovery = DiscoveryWatch(sources_of(settings), self)
        self._reported_ranks: dict[str, int] = {}
        """How many ranks there are, by URL, as the engines there say."""

    # -- another configuration --------------------------------------------------------------------------------------

    def apply(self, settings: Settings) -> list[str]:
        """Take over another configuration; returns the changed keys that need a restart.

        Replicas that the old file named and the new one does not are removed; those that were added by hand stay, and
        those that were found, for as long as there is the source.
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
        self.membership.listen_to([each.name for each in settings.discovery.sources])
        self.discovery.change(sources_of(settings))
        self.settle(anew=True)
        return [key for key in ONLY_AT_START if _value(self._started_with, key) != _value(settings, key)]

    # -- the replicas -----------------------------------------------------------------------------------------------

    def add(self, given: dict[str, Any]) -> None:
        """Take a replica in, given as in the config file.

        Raises:
            ValueError: it is given wrongly, or its name or URL is taken.
        """
        each = _checked(given)
        if each.name in self._replicas:
            raise ValueError(f"a replica is already named {each.name}; remove it first, or choose another name")
        if any(other.url == each.url for other in self._replicas.values()):
            raise ValueError(f"a replica already has the url {each.url}")
        if (clash := rank_clash([*self._replicas, each.name])) is not None:
            raise ValueError(clash)
        self._replicas[each.name] = each
        self._arrange()
        log.info("replica_added", replica=each.name, url=each.url, source=None)

    def remove(self, name: str) -> None:
        """Let a replica go, with all of its ranks; what runs there ends there.

        One that was found is taken in again when its source has left it out, and names it anew.

        Raises:
            KeyError: there is no such replica.
            ValueError: it is one of several ranks.
        """
        whole = self._find(name)[0].whole
        if name != whole:
            raise ValueError(f"{name} is a rank of {whole}; remove {whole}, or drain {name}")
        del self._replicas[name]
        self._arrange()
        log.info("replica_removed", replica=name, source=None)
        if name in self.membership.members:
            self.membership.dismiss(name)
        self.settle()

    def drain(self, name: str) -> None:
        """Send a replica, or a rank, nothing new.

        Raises:
            KeyError: there is no such replica.
        """
        for each in self._find(name):
            each.draining = each.drained_by_hand = True
        log.info("replica_draining", replica=name, source=None)

    def enable(self, name: str) -> None:
        """Send a replica, or a rank, requests again.

        Raises:
            KeyError: there is no such replica.
        """
        for each in self._find(name):
            each.draining = each.drained_by_hand = False
        log.info("replica_enabled", replica=name, source=None)

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
                "source": self.membership.source_of(each.whole),
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

    # -- the replicas that are found ----------------------------------------------------------------------------------

    def found(self, source: str, found: Sequence[Found]) -> None:
        """A source has said which replicas there are, all of them.

        Raises:
            ValueError: they cannot be taken in as it says, and nothing has changed.
        """
        heard, template = self.membership.heard.get(source), self._template(source)
        if heard is None or template is None:
            return  # a reload has just dropped it
        checked = [replace(each, url=_filled(template, each).url) for each in found]
        if not found and (heard.found or heard.good_at is None):
            log.warning("discovery_empty", source=source)
        if self.membership.told(source, checked, time.monotonic()):
            log.info("discovery_recovered", source=source)
        self.settle()

    def failed(self, source: str, error: str, *, empty: bool) -> None:
        """A source has said nothing that can be believed: what it has found stays."""
        if self.membership.failed(source, error, empty=empty):
            log.warning("discovery_failed", source=source, error=error, known=self.membership.known(source))

    def passed(self) -> None:
        """Some time has passed: who is gone may be let go."""
        if any(each.gone_at is not None for each in self.membership.members.values()):
            self.settle()

    def settle(self, *, anew: bool = False) -> None:
        """Take in those who were found, drain those who are gone, and let these go when their time has come.

        Args:
            anew: something has changed besides, and the fleet is arranged in any case.
        """
        fleet, membership = self._router.fleet, self.membership
        members, listed = membership.members, {each.name for each in self.settings.replicas}
        changes = membership.settle(
            time.monotonic(),
            drain_s=self.settings.discovery.drain_s,
            others={name: each.url for name, each in self._replicas.items() if name not in members or name in listed},
            is_busy=lambda name: any(each.in_flight for each in fleet.named(name)),
        )
        if changes.removed:
            # Before others are taken in: one of them may have the same name, and must have nothing of what this one had.
            self._replicas = {name: each for name, each in self._replicas.items() if name not in changes.removed}
            self._arrange()
        known, before = set(fleet), dict(self._replicas)
        for name, member in members.items():
            if (template := self._template(member.source)) is not None:
                # What a reload has changed may not go with what the file says of one; its source will be told so.
                with contextlib.suppress(ValueError):
                    self._replicas[name] = _filled(template, member.found)
        if anew or self._replicas != before:
            self._arrange()
        for each in (each for name in changes.added for each in fleet.named(name)):
            if each not in known:  # it has not been listed until now
                each.to_prove()
        for name in (*changes.drained, *changes.enabled):
            for each in fleet.named(name):
                each.draining = name in changes.drained or each.drained_by_hand
        self._say(changes)

    def _say(self, changes: Changes) -> None:
        members = self.membership.members
        for name, source in changes.removed.items():
            log.info("replica_removed", replica=name, source=source)
        for name in changes.added:
            log.info("replica_added", replica=name, url=members[name].found.url, source=members[name].source)
        for name in changes.drained:
            log.info("replica_draining", replica=name, source=members[name].source)
        for name in changes.enabled:
            log.info("replica_enabled", replica=name, source=members[name].source)
        for source, found in changes.left_out:
            log.warning("discovery_name_taken", replica=found.name, url=found.url, source=source,
                        remedy="name one of the two otherwise")  # fmt: skip

    def _template(self, source: str) -> TemplateSettings | None:
        """What is true of all replicas of a source; None where there is no such source any more."""
        return next((each.replica for each in self.settings.discovery.sources if each.name == source), None)

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


def _checked(given: Mapping[str, Any]) -> ReplicaSettings:
    """A replica as somebody gives it.

    Raises:
        ValueError: it is given wrongly.
    """
    try:
        return ReplicaSettings(**given)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in fault["loc"])
        raise ValueError(f"{where}: {fault['msg'].removeprefix('Value error, ')}") from None


def _filled(template: TemplateSettings, found: Found) -> ReplicaSettings:
    """A replica that was found, with what its source's template says of all of them, and what the source says of this one.

    Raises:
        ValueError: the two do not go together.
    """
    of_all = {key: getattr(template, key) for key in template.model_fields_set}
    try:
        return _checked({**of_all, **found.more, "name": found.name, "url": found.url})
    except ValueError as error:
        raise ValueError(f"replica {found.name}: {error}") from None


def _value(settings: Settings, key: str) -> object:
    value: object = settings
    for step in key.split("."):
        value = getattr(value, step)
    return value
