"""Prometheus metrics made from records; labels are bounded whatever clients send."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
)

from ramjet.core.causes import CAUSES
from ramjet.core.prompt import ENDPOINTS
from ramjet.core.record import OUTCOMES, SIZE_CLASSES, TEMPERATURES, Record
from ramjet.core.route import REASONS

ENDPOINT_NAMES = (*ENDPOINTS.values(), "other")
DRIFTS = ("missing", "unexpected")
"""How what an engine reused may differ from what was believed: it was less, or more."""
NO_REPLICA = "none"
"""The label of requests that no replica got."""

# A warm turn takes a second, a cold one a minute, a held one longer: 300 s is where patience ends.
_TTFT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300)
_DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1_800)
_TOKEN_BUCKETS = (256, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 100_000, 150_000, 200_000, 300_000, 500_000)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """All metrics of one process, in a registry of their own. Probes count as requests and as nothing else."""

    def __init__(self, replicas: Iterable[str] = ()) -> None:
        self._known: set[str] = set()
        self.registry = CollectorRegistry()
        own = self.registry
        self.requests = Counter(
            "ramjet_requests", "Requests by how they ended.", ["replica", "endpoint", "outcome"], registry=own
        )
        self.ttft = Histogram(
            "ramjet_ttft_seconds",
            "Request received to first generated token, streams only.",
            ["replica", "size_class", "temperature"],
            buckets=_TTFT_BUCKETS,
            registry=own,
        )
        self.duration = Histogram(
            "ramjet_duration_seconds",
            "Request received to the end of its answer.",
            ["replica", "endpoint"],
            buckets=_DURATION_BUCKETS,
            registry=own,
        )
        self.prompt_tokens = Counter(
            "ramjet_prompt_tokens", "Prompt tokens that engines reported.", ["replica"], registry=own
        )
        self.cached_tokens = Counter(
            "ramjet_cached_tokens", "Prompt tokens that engines reused.", ["replica"], registry=own
        )
        self.matched_tokens = Counter(
            "ramjet_matched_tokens", "Prompt tokens believed reusable when sent.", ["replica"], registry=own
        )
        self.drift_tokens = Counter(
            "ramjet_drift_tokens",
            "Prompt tokens of which belief and report differ: missing was believed and not reused, unexpected reused.",
            ["replica", "kind"],
            registry=own,
        )
        self.completion_tokens = Counter(
            "ramjet_completion_tokens", "Tokens that engines generated.", ["replica"], registry=own
        )
        self.usage_unknown = Counter(
            "ramjet_usage_unknown", "Answered prompts whose cached tokens were not reported.", ["replica"], registry=own
        )
        self.turns = Counter(
            "ramjet_turns",
            "Answered turns by how much of what could be reused was.",
            ["size_class", "temperature"],
            registry=own,
        )
        self.cold_turns = Counter(
            "ramjet_cold_turns",
            "Answered turns that were cold, by what made them so.",
            ["replica", "cause"],
            registry=own,
        )
        self.decisions = Counter(
            "ramjet_decisions", "Placements by why they went there.", ["replica", "reason"], registry=own
        )
        self.confined = Counter(
            "ramjet_long_confined",
            "Long prompts that the long_prompt rule put beside other long conversations which do not fit with them.",
            ["replica"],
            registry=own,
        )
        self.slices = Counter(
            "ramjet_slices", "Starts of long prompts that were read ahead of them.", ["replica"], registry=own
        )
        self.held_s = Histogram(
            "ramjet_held_seconds",
            "How long requests waited in Ramjet for room, those that did.",
            buckets=_DURATION_BUCKETS,
            registry=own,
        )
        self.would_hold = Counter(
            "ramjet_would_hold", "Requests that admission would have held, had it been enforced.", registry=own
        )
        self.journal_written = Counter("ramjet_journal_written", "Requests that are in the journal.", registry=own)
        self.journal_dropped = Counter(
            "ramjet_journal_dropped", "Requests that could not be written into the journal.", registry=own
        )
        self.prompt_size = Histogram(
            "ramjet_prompt_tokens", "Prompts by their tokens.", buckets=(*_TOKEN_BUCKETS, 1_000_000), registry=None
        )
        self.registry.register(_Undescribed(self.prompt_size))
        self._by_replica = (
            self.requests, self.ttft, self.duration, self.decisions, self.prompt_tokens, self.cached_tokens,
            self.matched_tokens, self.drift_tokens, self.completion_tokens, self.usage_unknown, self.confined, self.slices,
            self.cold_turns,
        )  # fmt: skip
        for name in replicas:
            self.add(name)
        for endpoint in ENDPOINT_NAMES:
            for outcome in OUTCOMES:
                self.requests.labels(NO_REPLICA, endpoint, outcome)
        for size in SIZE_CLASSES:
            for temperature in TEMPERATURES:
                self.turns.labels(size, temperature)

    def add(self, replica: str) -> None:
        """Make every series of a replica, so that 0 and "not exported" differ from the first scrape on."""
        self._known.add(replica)
        for endpoint in ENDPOINT_NAMES:
            self.duration.labels(replica, endpoint)
            for outcome in OUTCOMES:
                self.requests.labels(replica, endpoint, outcome)
        for size in SIZE_CLASSES:
            for temperature in TEMPERATURES:
                self.ttft.labels(replica, size, temperature)
        for reason in REASONS:
            self.decisions.labels(replica, reason)
        for cause in CAUSES:
            self.cold_turns.labels(replica, cause)
        for family in (
            self.prompt_tokens, self.cached_tokens, self.matched_tokens, self.completion_tokens, self.usage_unknown,
            self.confined, self.slices,
        ):  # fmt: skip
            family.labels(replica)
        for kind in DRIFTS:
            self.drift_tokens.labels(replica, kind)

    def remove(self, replica: str) -> None:
        """Drop a replica's series; what still ends there is counted as no replica's."""
        self._known.discard(replica)
        for family in self._by_replica:
            family.remove_by_labels({"replica": replica})

    def observe(self, record: Record) -> None:
        """Count one finished request."""
        usage = record.usage
        if record.held_s:
            self.held_s.observe(record.held_s)
        if record.would_hold:
            self.would_hold.inc()
        replica = record.replica if record.replica in self._known else NO_REPLICA
        self.requests.labels(replica, record.endpoint, record.outcome).inc()
        if replica is NO_REPLICA or record.probe:
            return
        self.decisions.labels(replica, record.reason).inc()
        self.slices.labels(replica).inc(record.slices)
        if record.confined_tokens:
            self.confined.labels(replica).inc()
        self.duration.labels(replica, record.endpoint).observe(record.duration_s)
        if record.turn is None or record.outcome != "ok":
            return
        self.turns.labels(record.size_class, record.temperature).inc()
        if (cause := record.cold_cause) is not None:
            self.cold_turns.labels(replica, cause).inc()
        if record.ttft_s is not None:
            self.ttft.labels(replica, record.size_class, record.temperature).observe(record.ttft_s)
        if record.matched_tokens:
            self.matched_tokens.labels(replica).inc(record.matched_tokens)
        if usage.completion_tokens:
            self.completion_tokens.labels(replica).inc(usage.completion_tokens)
        if usage.prompt_tokens is not None:
            self.prompt_tokens.labels(replica).inc(usage.prompt_tokens)
            self.prompt_size.observe(usage.prompt_tokens)
        if usage.cached_tokens is None:
            self.usage_unknown.labels(replica).inc()
        else:
            self.cached_tokens.labels(replica).inc(usage.cached_tokens)
            drift = usage.cached_tokens - (record.matched_tokens or 0)
            self.drift_tokens.labels(replica, DRIFTS[drift > 0]).inc(abs(drift))

    def render(self) -> bytes:
        """The scrape, in Prometheus' text format."""
        return generate_latest(self.registry)


class _Undescribed:
    """A metric that does not tell the registry its name.

    The counter `ramjet_prompt_tokens_total` and the histogram `ramjet_prompt_tokens` are two names in the text format,
    and one to the registry, which would refuse the second.
    """

    def __init__(self, metric: Histogram) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        """The metric's samples."""
        return self._metric.collect()
