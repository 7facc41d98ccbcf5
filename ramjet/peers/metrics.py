"""What Prometheus is shown of the tie to peers, read from it whenever it is scraped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from ramjet.peers.link import Link

GAUGES = {
    "ramjet_peers": "Other Ramjets that are there, as the store last said.",
    "ramjet_peers_connected": "Whether the store is reached, and what peers tell is heard.",
    "ramjet_peers_age_seconds": "How old the last batch of a peer was when it came; absent while none has.",
}
IN_FLIGHT = "ramjet_peers_in_flight"
COUNTS = {
    "ramjet_peers_published": "Facts told to peers.",
    "ramjet_peers_heard": "Facts of peers taken in.",
    "ramjet_peers_rejected": "Entries in the store that no peer with the same secret has made.",
    "ramjet_peers_dropped": "Facts that were never told, for the store was lost for too long.",
    "ramjet_peers_losses": "Times that the store was lost.",
}


class PeerMetrics:
    """A collector over one tie."""

    def __init__(self, link: Link) -> None:
        """
        Args:
            link: whose state is shown.
        """
        self._link = link

    def describe(self) -> Iterable[Metric]:
        """The families, for the registry to know their names."""
        yield from (GaugeMetricFamily(name, text) for name, text in GAUGES.items())
        yield GaugeMetricFamily(IN_FLIGHT, "Requests of peers at the replica.", labels=["replica"])
        yield from (CounterMetricFamily(name, text) for name, text in COUNTS.items())

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        link, tally = self._link, self._link.tally
        values = {
            "ramjet_peers": link.living,
            "ramjet_peers_connected": link.connected,
            "ramjet_peers_age_seconds": tally.age_s,
            "ramjet_peers_published": tally.published,
            "ramjet_peers_heard": tally.heard,
            "ramjet_peers_rejected": tally.rejected,
            "ramjet_peers_dropped": link.dropped,
            "ramjet_peers_losses": tally.losses,
        }
        for name, text in GAUGES.items():
            value = values[name]
            gauge = GaugeMetricFamily(name, text)
            if value is not None:
                gauge.add_metric([], value)
            yield gauge
        at_replicas = GaugeMetricFamily(IN_FLIGHT, "Requests of peers at the replica.", labels=["replica"])
        for replica, requests in link.in_flight.items():
            at_replicas.add_metric([replica], requests)
        yield at_replicas
        for name, text in COUNTS.items():
            yield CounterMetricFamily(name, text, value=values[name])
