"""Figures of the last half hour by fifteen seconds: TTFT, cached share, cold turns by cause. Bounded, whatever comes.

For whoever watches now; what must outlive the process is in the metrics and in the journal.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramjet.core.causes import CAUSES
from ramjet.core.record import SIZE_CLASSES, Record

BUCKET_S = 15.0
BUCKETS = 120
LATELY = 20
"""Buckets that the figures of the last minutes are taken from: five minutes."""

# Times are counted in bins that are a tenth wider each: a median is then off by five parts in a hundred at most.
_FIRST_S, _GROWTH, _BINS = 0.01, 1.1, 120
_EDGES = [_FIRST_S * _GROWTH**at for at in range(_BINS)]
"""Where each bin but the first begins, in seconds; the last holds what took longer than 14 minutes."""


class Times:
    """How often something took how long, in bins."""

    def __init__(self) -> None:
        self.count = 0
        self._bins = array("L", bytes(array("L").itemsize * (_BINS + 1)))

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        self._bins[bisect_right(_EDGES, seconds)] += 1

    def take(self, other: Times) -> None:
        """All those of another."""
        self.count += other.count
        for at, more in enumerate(other._bins):
            if more:
                self._bins[at] += more

    def quantile(self, ratio: float) -> float | None:
        """Seconds in which that part of them were done; None where there are none."""
        rank = max(1, math.ceil(ratio * self.count))
        seen = 0
        for at, here in enumerate(self._bins):
            if here and seen + here >= rank:
                begin = _EDGES[at - 1] if at else 0.0
                end = _EDGES[at] if at < _BINS else begin
                return begin + (end - begin) * (rank - seen - 0.5) / here
            seen += here
        return None


@dataclass(slots=True)
class _Figures:
    """What is counted of one size class in one bucket."""

    ttft: Times = field(default_factory=Times)
    turns: int = 0
    prompt_tokens: int = 0
    """Of those whose cached tokens were reported..."""
    cached_tokens: int = 0
    """...and how many those were."""


@dataclass(slots=True)
class _Bucket:
    number: int
    requests: int = 0
    later: int = 0
    """Later turns, of which it is known whether they were cold."""
    held: int = 0
    classes: dict[str, _Figures] = field(default_factory=dict)
    cold: Counter[str] = field(default_factory=Counter)


class Series:
    """The buckets; a record is counted where its request ended."""

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque(maxlen=BUCKETS)

    def add(self, record: Record, now: float) -> None:
        """Count one finished request, by the rules of the metrics: probes and what was not answered well count as little."""
        if record.probe:
            return
        bucket = self._bucket(int(now // BUCKET_S))
        bucket.requests += 1
        bucket.held += record.held_s > 0
        if record.turn is None or record.outcome != "ok" or record.replica is None:
            return
        if record.turn > 1 and (cold := record.cold) is not None:
            bucket.later += 1
            if cold:
                bucket.cold[record.cold_cause or ""] += 1
        size, usage = record.size_class, record.usage
        figures = bucket.classes.get(size)
        if figures is None:
            figures = bucket.classes[size] = _Figures()
        figures.turns += 1
        if record.ttft_s is not None:
            figures.ttft.add(record.ttft_s)
        if usage.prompt_tokens is not None and usage.cached_tokens is not None:
            figures.prompt_tokens += usage.prompt_tokens
            figures.cached_tokens += usage.cached_tokens

    def rows(self, now: float) -> dict[str, Any]:
        """All of it in plain values: lists of `BUCKETS` figures, the last of the bucket that is filling now."""
        first = int(now // BUCKET_S) - BUCKETS + 1
        by_number = {each.number: each for each in self._buckets}
        buckets = [by_number.get(first + at) for at in range(BUCKETS)]
        return {
            "bucket_s": BUCKET_S,
            "requests": [0 if each is None else each.requests for each in buckets],
            "classes": {name: _class_rows(name, buckets) for name in SIZE_CLASSES},
            "cold": {cause: row for cause in CAUSES if any(row := _cold_row(cause, buckets))},
            "lately": self._lately([each for each in buckets[-LATELY:] if each is not None]),
        }

    def _bucket(self, number: int) -> _Bucket:
        if not self._buckets or self._buckets[-1].number != number:
            self._buckets.append(_Bucket(number))
        return self._buckets[-1]

    @staticmethod
    def _lately(buckets: Sequence[_Bucket]) -> dict[str, Any]:
        cold: Counter[str] = sum((each.cold for each in buckets), Counter())
        classes = {name: [each.classes[name] for each in buckets if name in each.classes] for name in SIZE_CLASSES}
        return {
            "seconds": LATELY * BUCKET_S,
            "requests": sum(each.requests for each in buckets),
            "held": sum(each.held for each in buckets),
            "cached": _cached(figures for those in classes.values() for figures in those),
            "later_turns": sum(each.later for each in buckets),
            "cold": dict(cold.most_common()),
            "classes": {
                name: {"turns": sum(each.turns for each in those), "cached": _cached(those), **_quantiles(those)}
                for name, those in classes.items()
            },
        }


def _class_rows(name: str, buckets: Sequence[_Bucket | None]) -> dict[str, Any]:
    figures = [None if each is None else each.classes.get(name) for each in buckets]
    return {
        "turns": [0 if each is None else each.turns for each in figures],
        "p50": [None if each is None else _short(each.ttft.quantile(0.5)) for each in figures],
        "p95": [None if each is None else _short(each.ttft.quantile(0.95)) for each in figures],
        "cached": [None if each is None else _cached([each]) for each in figures],
    }


def _cold_row(cause: str, buckets: Sequence[_Bucket | None]) -> list[int]:
    return [0 if each is None else each.cold[cause] for each in buckets]


def _quantiles(those: Iterable[_Figures]) -> dict[str, float | None]:
    times = Times()
    for each in those:
        times.take(each.ttft)
    return {"p50": _short(times.quantile(0.5)), "p95": _short(times.quantile(0.95))}


def _cached(those: Iterable[_Figures]) -> float | None:
    """The part of the prompt tokens that was reused, each request weighted by its length; None where nobody said."""
    prompt = cached = 0
    for each in those:
        prompt += each.prompt_tokens
        cached += each.cached_tokens
    return round(cached / prompt, 4) if prompt else None


def _short(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
