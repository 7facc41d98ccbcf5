"""Gauges for Prometheus, read from the router whenever they are scraped: nothing is counted twice, or left standing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily

from ramjet.core.fleet import State
from ramjet.core.policies import long_from

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
    "ramjet_allowance_seconds": "Seconds that swaps may still cost at the replica; below 0: it has to be saved up first.",
}


class Gauges:
    """A collector over one router. A replica has its series for as long as it is in the fleet."""

    def __init__(self, router: Router, now: Callable[[], float]) -> None:
        """
        Args:
            router: whose state is shown.
            now: the clock that it is told the time by.
        """
        self._router = router
        self._now = now

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The families, for the registry to know their names."""
        yield from (GaugeMetricFamily(name, text) for name, text in _PROCESS.items())
        yield from (GaugeMetricFamily(name, text, labels=["replica"]) for name, text in _REPLICA.items())

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The families as they are now."""
        families = {family.name: family for family in self.describe()}
        admission = self._router.admission
        families["ramjet_held"].add_metric([], len(admission))
        families["ramjet_longest_hold_seconds"].add_metric([], admission.longest_s(self._now()))
        for replica, values in self._of_replicas():
            for name, value in values.items():
                if value is not None:
                    families[name].add_metric([replica], value)
        return families.values()

    def _of_replicas(self) -> Iterable[tuple[str, dict[str, float | None]]]:
        router = self._router
        least_tokens = long_from(router.policy.long_tokens, [one.pool_tokens for one in router.beliefs.values()])
        long_ones: Counter[str | None] = Counter()
        long_tokens: Counter[str | None] = Counter()
        for each in router.conversations.long(least_tokens):
            long_ones[each.home] += 1
            long_tokens[each.home] += each.tokens
        for replica in router.fleet:
            name, belief = replica.name, router.beliefs[replica.name]
            slots = belief.pools.slots
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
                router.admission.allowance_s(name),
            )
            yield name, dict(zip(_REPLICA, values, strict=True))
