"""Counters and histograms as plain dictionaries, which Prometheus is shown when it asks.

All requests are counted by the event loop, so nothing has to be locked, and a request counts in a dozen of them: what
costs a look-up and an addition here costs ten times as much in a library that has to serve threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

Labels = str | tuple[str, ...]
"""The values of a series' labels in their order; a single one may stand alone."""


class Counts(dict[Labels, float]):
    """A counter by its labels: `counts["glm-1", "ok"] += 1`. A series that is not there begins at 0."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        super().__init__()
        self._described = name, text, tuple(labels)
        registry.register(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __missing__(self, labels: Labels) -> float:
        return 0

    def drop(self, replica: str) -> None:
        """Forget the series of a replica, whose name is the first of their labels."""
        _drop(self, replica)

    def describe(self) -> Iterable[Metric]:
        """The family without series, for the registry to know its names."""
        name, text, labels = self._described
        yield CounterMetricFamily(name, text, labels=labels)

    def collect(self) -> Iterable[Metric]:
        """The family as it is now."""
        name, text, labels = self._described
        family = CounterMetricFamily(name, text, labels=labels)
        for values, count in self.items():
            family.add_metric(_listed(values), count)
        yield family


class Spread:
    """A histogram by its labels."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._described = name, text, tuple(labels)
        self._buckets = buckets
        self._names = [*map(floatToGoString, buckets), "+Inf"]
        # In each bucket, those beyond the last, and the sum of all.
        self._series: dict[Labels, list[float]] = {}
        registry.register(self)

    def make(self, labels: Labels = ()) -> list[float]:
        """Have a series there before anything is observed, so that 0 and "not exported" differ."""
        return self._series.setdefault(labels, [0] * (len(self._buckets) + 2))

    def observe(self, value: float, labels: Labels = ()) -> None:
        """Count a value in the first bucket that reaches to it."""
        series = self._series.get(labels) or self.make(labels)
        series[bisect_left(self._buckets, value)] += 1
        series[-1] += value

    def drop(self, replica: str) -> None:
        """Forget the series of a replica, whose name is the first of their labels."""
        _drop(self._series, replica)

    def describe(self) -> Iterable[Metric]:
        """The family without series, for the registry to know its names."""
        name, text, labels = self._described
        yield HistogramMetricFamily(name, text, labels=labels)

    def collect(self) -> Iterable[Metric]:
        """The family as it is now."""
        name, text, labels = self._described
        family = HistogramMetricFamily(name, text, labels=labels)
        for values, (*counts, total) in self._series.items():
            family.add_metric(_listed(values), [*zip(self._names, accumulate(counts), strict=True)], total)
        yield family


def _listed(labels: Labels) -> tuple[str, ...]:
    return (labels,) if isinstance(labels, str) else labels


def _drop(series: dict[Labels, float] | dict[Labels, list[float]], replica: str) -> None:
    for labels in [each for each in series if _listed(each)[0] == replica]:
        del series[labels]
