"""What Prometheus is shown of the router, read from it whenever it is scraped: nothing is counted twice, or left standing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ramjet.core.feed import Feed
from ramjet.core.fleet import State
from ramjet.core.membership import Membership
from ramjet.core.policies import long_from
from ramjet.engines.facts import Seen

if TYPE_CHECKING:
    from ramjet.core.router import Router

_PROCESS = {
    "ramjet_held": "Requests waiting in Ramjet because no replica has room.",
    "ramjet_longest_hold_seconds": "How long the request that has waited longest has waited for room; 0 if none waits.",
}
_REPLICA = {
    "ramjet_in_flight": "Requests sent to the replica and unfinished.",
    "ramjet_replica_up": "Whether the replica is believed to serve.",
    "ramjet_resident_tokens": "Tokens the replica is believed to hold.",
    "ramjet_pool_tokens": "Tokens that conversations are believed to get of its token pool; absent while not known.",
    "ramjet_snapshots": "Snapshot slots believed to be taken; absent while their number is not known.",
    "ramjet_snapshot_slots": "Slots of its snapshot pool; absent while their number is not known.",
    "ramjet_conversations": "Living conversations whose last turn went to the replica.",
    "ramjet_long_conversations": "Living long conversations whose last turn went to the replica.",
    "ramjet_long_tokens": "Tokens of those long conversations.",
    "ramjet_engine_running": "Requests that the engine says it runs, whoever sent them; absent while it has not said.",
    "ramjet_engine_waiting": "Requests that the engine says wait in it; absent while it has not said.",
    "ramjet_engine_waiting_tokens": "Tokens that those have to have read, where the engine says so.",
    "ramjet_engine_used_tokens": "Tokens of its pool that the engine says running requests keep.",
    "ramjet_engine_age_seconds": "How long ago the engine said so.",
    "ramjet_others_in_flight": "Requests in the engine that did not come through here.",
    "ramjet_others_queue_seconds": "Seconds of reading that wait in the engine and did not come through here.",
    "ramjet_allowance_seconds": "Seconds that swaps may still cost at the replica; below 0: it has to be saved up first.",
}
_SOURCE = {
    "ramjet_discovery_up": "Whether the source's last word could be believed.",
    "ramjet_discovery_replicas": "Replicas that are there because the source names them.",
    "ramjet_discovery_age_seconds": "How long ago the source last said something; absent while it never has.",
}
_LOOKS = "ramjet_discovery_looks"
_ENGINE = "ramjet_engine_info"
_UNSEEN = Seen()
_FEED = {
    "ramjet_kv_events_up": "Whether the replica's KV events are heard and believed.",
}
_FEED_COUNTS = {
    "ramjet_kv_events": ("KV events taken in, by what has become of blocks.", ["kind"]),
    "ramjet_kv_gaps": ("Gaps in the replica's KV events, and messages nobody could read.", ["filled"]),
    "ramjet_kv_prompts": ("Prompts whose blocks were looked for among the replica's.", ["linked"]),
    "ramjet_kv_evicted_tokens": ("Prompt tokens believed to be there until KV events said they are gone.", []),
}


class Gauges:
    """A collector over one router. A replica has its series for as long as it is in the fleet, those of its KV events for
    as long as they are listened to, and a source of replicas for as long as it is asked."""

    def __init__(
        self,
        router: Router,
        now: Callable[[], float],
        seen: Mapping[str, Seen] | None = None,
        membership: Membership | None = None,
    ) -> None:
        """
        Args:
            router: whose state is shown.
            now: the clock that it is told the time by.
            seen: what has been heard from the replicas' engines, by replica.
            membership: what has been heard from the sources of replicas.
        """
        self._membership = Membership() if membership is None else membership
        self._seen = {} if seen is None else seen
        self._router = router
        self._now = now

    def describe(self) -> Iterable[Metric]:
        """The families, for the registry to know their names."""
        yield from (GaugeMetricFamily(name, text) for name, text in _PROCESS.items())
        yield from (GaugeMetricFamily(name, text, labels=["replica"]) for name, text in (_REPLICA | _FEED).items())
        yield from (GaugeMetricFamily(name, text, labels=["source"]) for name, text in _SOURCE.items())
        yield CounterMetricFamily(_LOOKS, "Words of the source, by what they were worth.", labels=["source", "outcome"])
        yield GaugeMetricFamily(_ENGINE, "1 for what the replica runs.", labels=["replica", "engine", "version"])
        for name, (text, labels) in _FEED_COUNTS.items():
            yield CounterMetricFamily(name, text, labels=["replica", *labels])

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        families: dict[str, Any] = {family.name: family for family in self.describe()}
        admission = self._router.admission
        families["ramjet_held"].add_metric([], len(admission))
        families["ramjet_longest_hold_seconds"].add_metric([], admission.longest_s(self._now()))
        for replica, values in self._of_replicas():
            for name, value in values.items():
                if value is not None:
                    families[name].add_metric([replica], value)
        for each in self._router.fleet:
            facts = self._seen.get(each.name, _UNSEEN).facts
            if facts is not None:
                families[_ENGINE].add_metric([each.name, facts.engine, facts.version or ""], 1)
        for source, heard in self._membership.heard.items():
            age_s = None if heard.good_at is None else self._now() - heard.good_at
            up = heard.error is None and heard.good_at is not None
            for name, value in zip(_SOURCE, (up, self._membership.known(source), age_s), strict=True):
                if value is not None:
                    families[name].add_metric([source], value)
            for outcome, count in heard.looks.items():
                families[_LOOKS].add_metric([source, outcome], count)
        for replica, feed in self._router.feeds.items():
            for name, labels, value in _of_feed(feed):
                families[name].add_metric([replica, *labels], value)
        return families.values()

    def _of_replicas(self) -> Iterable[tuple[str, dict[str, float | None]]]:
        router, now = self._router, self._now()
        least_tokens = long_from(router.policy.long_tokens, [one.pool_tokens for one in router.beliefs.values()])
        long_ones: Counter[str | None] = Counter()
        long_tokens: Counter[str | None] = Counter()
        for each in router.conversations.long(least_tokens):
            long_ones[each.home] += 1
            long_tokens[each.home] += each.tokens
        for replica in router.fleet:
            name, belief = replica.name, router.beliefs[replica.name]
            slots, seen, others = belief.pools.slots, self._seen.get(name, _UNSEEN), replica.others.at(now)
            values = (
                replica.in_flight,
                replica.state is not State.DOWN,
                belief.cache.tokens,
                belief.pool_tokens,
                None if slots is None else belief.cache.used_slots,
                slots,
                router.conversations.living_at[name],
                long_ones[name],
                long_tokens[name],
                seen.of("running"),
                seen.of("waiting"),
                seen.of("waiting_tokens"),
                seen.of("used_tokens"),
                now - seen.loads_at if seen.loads else None,
                others.requests,
                others.queue_s,
                router.admission.allowance_s(name),
            )
            yield name, dict(zip(_REPLICA, values, strict=True))


def _of_feed(feed: Feed) -> Iterable[tuple[str, list[str], int]]:
    yield "ramjet_kv_events_up", [], feed.doubt is None
    yield from (("ramjet_kv_events", [kind], count) for kind, count in feed.events.items())
    yield "ramjet_kv_gaps", ["yes"], feed.filled_gaps
    yield "ramjet_kv_gaps", ["no"], feed.lost_gaps
    yield "ramjet_kv_prompts", ["yes"], feed.linked
    yield "ramjet_kv_prompts", ["no"], feed.unlinked
    yield "ramjet_kv_evicted_tokens", [], feed.cut_tokens
