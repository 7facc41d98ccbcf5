"""Prometheus metrics made from records; labels are bounded whatever clients send."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Metric, disable_created_metrics, generate_latest

from ramjet.core.causes import CAUSES
from ramjet.core.prompt import ENDPOINTS
from ramjet.core.record import OUTCOMES, SIZE_CLASSES, TEMPERATURES, Record
from ramjet.core.route import REASONS
from ramjet.counts import Counts, Spread

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
        self.requests = Counts(
            "ramjet_requests", "Requests by how they ended.", ["replica", "endpoint", "outcome"], own
        )
        self.ttft = Spread(
            "ramjet_ttft_seconds",
            "Request received to first generated token, streams only.",
            ["replica", "size_class", "temperature"],
            buckets=_TTFT_BUCKETS,
            registry=own,
        )
        self.duration = Spread(
            "ramjet_duration_seconds",
            "Request received to the end of its answer.",
            ["replica", "endpoint"],
            buckets=_DURATION_BUCKETS,
            registry=own,
        )
        of_replica = ["replica"]
        self.prompt_tokens = Counts("ramjet_prompt_tokens", "Prompt tokens that engines reported.", of_replica, own)
        self.cached_tokens = Counts("ramjet_cached_tokens", "Prompt tokens that engines reused.", of_replica, own)
        self.matched_tokens = Counts(
            "ramjet_matched_tokens", "Prompt tokens believed reusable when sent.", of_replica, own
        )
        self.drift_tokens = Counts(
            "ramjet_drift_tokens",
            "Prompt tokens of which belief and report differ: missing was believed and not reused, unexpected reused.",
            ["replica", "kind"],
            own,
        )
        self.completion_tokens = Counts("ramjet_completion_tokens", "Tokens that engines generated.", of_replica, own)
        self.usage_unknown = Counts(
            "ramjet_usage_unknown", "Answered prompts whose cached tokens were not reported.", of_replica, own
        )
        self.turns = Counts(
            "ramjet_turns",
            "Answered turns by how much of what could be reused was.",
            ["size_class", "temperature"],
            own,
        )
        self.cold_turns = Counts(
            "ramjet_cold_turns", "Answered turns that were cold, by what made them so.", ["replica", "cause"], own
        )
        self.decisions = Counts("ramjet_decisions", "Placements by why they went there.", ["replica", "reason"], own)
        self.confined = Counts(
            "ramjet_long_confined",
            "Long prompts that the long_prompt rule put beside other long conversations which do not fit with them.",
            of_replica,
            own,
        )
        self.slices = Counts("ramjet_slices", "Starts of long prompts that were read ahead of them.", of_replica, own)
        self.held_s = Spread(
            "ramjet_held_seconds",
            "How long requests waited in Ramjet for room, those that did.",
            [],
            buckets=_DURATION_BUCKETS,
            registry=own,
        )
        self.would_hold = Counts(
            "ramjet_would_hold", "Requests that admission would have held, had it been enforced.", [], own
        )
        # These are counted by the journal's thread.
        self.journal_written = Counter("ramjet_journal_written", "Requests that are in the journal.", registry=own)
        self.journal_dropped = Counter(
            "ramjet_journal_dropped", "Requests that could not be written into the journal.", registry=own
        )
        # To the registry it has the name of the counter `ramjet_prompt_tokens`, which the text format tells apart.
        apart = CollectorRegistry()
        self.prompt_size = Spread(
            "ramjet_prompt_tokens", "Prompts by their tokens.", [], buckets=(*_TOKEN_BUCKETS, 1_000_000), registry=apart
        )
        own.register(_Undescribed(self.prompt_size))
        self._totals = (
            self.prompt_tokens, self.cached_tokens, self.matched_tokens, self.completion_tokens, self.usage_unknown,
            self.confined, self.slices,
        )  # fmt: skip
        self._by_replica = (
            *self._totals, self.requests, self.ttft, self.duration, self.decisions, self.drift_tokens, self.cold_turns,
        )  # fmt: skip
        for name in replicas:
            self.add(name)
        for endpoint, outcome in product(ENDPOINT_NAMES, OUTCOMES):
            self.requests[NO_REPLICA, endpoint, outcome] = 0
        for size, temperature in product(SIZE_CLASSES, TEMPERATURES):
            self.turns[size, temperature] = 0
        self.would_hold[()] = 0
        for spread in (self.held_s, self.prompt_size):
            spread.make()

    def add(self, replica: str) -> None:
        """Make every series of a replica, so that 0 and "not exported" differ from the first scrape on."""
        self._known.add(replica)
        for endpoint in ENDPOINT_NAMES:
            self.duration.make((replica, endpoint))
            for outcome in OUTCOMES:
                self.requests[replica, endpoint, outcome] += 0
        for size, temperature in product(SIZE_CLASSES, TEMPERATURES):
            self.ttft.make((replica, size, temperature))
        for counts, values in ((self.decisions, REASONS), (self.cold_turns, CAUSES), (self.drift_tokens, DRIFTS)):
            for value in values:
                counts[replica, value] += 0
        for total in self._totals:
            total[replica] += 0

    def remove(self, replica: str) -> None:
        """Drop a replica's series; what still ends there is counted as no replica's."""
        self._known.discard(replica)
        for family in self._by_replica:
            family.drop(replica)

    def observe(self, record: Record) -> None:
        """Count one finished request."""
        usage = record.usage
        if record.held_s:
            self.held_s.observe(record.held_s)
        if record.would_hold:
            self.would_hold[()] += 1
        replica = record.replica if record.replica in self._known else NO_REPLICA
        self.requests[replica, record.endpoint, record.outcome] += 1
        if replica is NO_REPLICA or record.probe:
            return
        self.decisions[replica, record.reason or ""] += 1
        self.slices[replica] += record.slices
        if record.confined_tokens:
            self.confined[replica] += 1
        self.duration.observe(record.duration_s, (replica, record.endpoint))
        if record.turn is None or record.outcome != "ok":
            return
        size, temperature = record.size_class, record.temperature
        self.turns[size, temperature] += 1
        if temperature == "cold":
            self.cold_turns[replica, record.cold_cause or ""] += 1
        if record.ttft_s is not None:
            self.ttft.observe(record.ttft_s, (replica, size, temperature))
        if record.matched_tokens:
            self.matched_tokens[replica] += record.matched_tokens
        if usage.completion_tokens:
            self.completion_tokens[replica] += usage.completion_tokens
        if usage.prompt_tokens is not None:
            self.prompt_tokens[replica] += usage.prompt_tokens
            self.prompt_size.observe(usage.prompt_tokens)
        if usage.cached_tokens is None:
            self.usage_unknown[replica] += 1
        else:
            self.cached_tokens[replica] += usage.cached_tokens
            drift = usage.cached_tokens - (record.matched_tokens or 0)
            self.drift_tokens[replica, DRIFTS[drift > 0]] += abs(drift)

    def render(self) -> bytes:
        """The scrape, in Prometheus' text format."""
        return generate_latest(self.registry)


class _Undescribed:
    """A metric that does not tell the registry its name.

    The counter `ramjet_prompt_tokens_total` and the histogram `ramjet_prompt_tokens` are two names in the text format,
    and one to the registry, which would refuse the second.
    """

    def __init__(self, metric: Spread) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        """The metric's samples."""
        return self._metric.collect()
