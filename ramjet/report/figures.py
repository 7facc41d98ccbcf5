"""The figures of a report, as values; their names are those of `--json`, a contract that docs/report.md explains.

Seconds end in `_s`, moments in `_at` (seconds since 1970, UTC), shares from 0 to 1 in `_ratio`. None is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Figure = int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Turns of one size class; `all` of all together."""

    size_class: str
    turns: int
    first: int
    warm: int
    partial: int
    cold: int
    unknown: int
    cold_ratio: float | None
    """Of warm, partial and cold together."""
    timed_turns: int
    """Whose first token was seen."""
    over_10_s: int
    over_30_s: int
    wait_s: float
    """Seconds to the first token, of all those together..."""
    cold_wait_s: float
    """...and of the cold ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds to the first token, of turns of one temperature; `all` of all together."""

    temperature: str
    turns: int
    p50_s: float | None
    p90_s: float | None
    p95_s: float | None
    p99_s: float | None
    most_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """The share of prompts that came from the cache, where engines said it."""

    reported_turns: int
    unreported_turns: int
    prompt_tokens: int
    cached_tokens: int
    cached_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Reachable against achieved reuse, in tokens. The last five are of `compared_turns`, and add up."""

    turns: int
    prompt_tokens: int
    reachable_tokens: int
    """By a cache that forgets nothing."""
    reachable_ratio: float | None
    """Of the prompts."""
    cached_tokens: int
    cached_ratio: float | None
    """Of the prompts."""
    achieved_ratio: float | None
    """Of what was reachable."""
    compared_turns: int
    """Turns of which it is known what the best replica was believed to hold."""
    compared_reachable_tokens: int
    compared_cached_tokens: int
    lost_tokens: int
    """Believed to be where the turn went, and not there."""
    elsewhere_tokens: int
    """Held by another replica alone."""
    forgotten_tokens: int
    """Held by no replica any more."""
    any_replica_ratio: float | None
    """Of what was reachable: what the best replica was believed to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Cold turns of one cause."""

    cause: str
    turns: int
    by_size: Mapping[str, int]
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCalls:
    """The first prompt of 8,000 tokens and more of each conversation whose beginning was seen: what was served from cache."""

    conversations: int
    mean_ratio: float | None
    median_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Requests that waited in Ramjet for room."""

    requests: int
    total_s: float
    p50_s: float | None
    p95_s: float | None
    most_s: float | None
    over_30_s: int
    shed: int
    """Requests that were turned away: held for too long, or no place for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Requests whose client went away before the first token; no other figure has them."""

    requests: int
    over_10_s: int
    over_30_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A stretch of time: `all`, `before` or `after`."""

    name: str
    first_at: float | None
    last_at: float | None
    requests: int
    turns: int
    outcomes: Mapping[str, int]
    sizes: Sequence[SizeClass]
    cached: Cached
    ttft: Sequence[Waits]
    reuse: Reach
    causes: Sequence[Cause]
    first_calls: FirstCalls
    held: Held
    left: Left
    confined_turns: int
    """Turns that `routing.long_prompt` put beside long conversations with which they do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Minutes in which long conversations, of 150,000 tokens and more, were alive."""

    minutes: int
    """At least one."""
    shared_minutes: int
    """Two or more."""
    same_replica_minutes: int
    """Two or more at one replica."""
    overfull_minutes: int | None
    """The same, and together they had more tokens than its pool; None where no pool is known."""
    most_tokens: int
    """The most that long conversations at one replica had together, where there were two or more."""
    most_replica: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """One replica: what it served, how large its pools are said to be, and what was believed to be in them."""

    replica: str
    turns: int
    judged_turns: int
    cold: int
    cold_ratio: float | None
    cold_wait_s: float
    cached_ratio: float | None
    unreported_turns: int
    failures: int
    samples: int
    pool_tokens: int | None
    pool_slots: int | None
    per_path: int | None
    host: bool | None
    tokens_ratio_mean: float | None
    tokens_ratio_most: float | None
    slots_ratio_mean: float | None
    slots_ratio_most: float | None
    living_most: int | None
    down_samples: int
    pace: float | None
    over_time: Sequence[tuple[float, float | None, float | None]]
    """When, and the parts of the token pool and of the snapshot pool that were taken: the most in that stretch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Cold turns whose prompts were pushed out of a pool by one conversation."""

    by: str
    cause: str
    turns: int
    long_turns: int
    conversations: int
    """How many others lost something; 0 where it pushed out its own."""
    victims: Mapping[str, int]
    """Those that lost most, and how many turns of theirs were cold for it; itself too, where that is so."""
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One turn of the conversation that is shown."""

    at: float
    turn: int
    prompt_tokens: int
    cached_tokens: int | None
    ttft_s: float | None
    temperature: str
    cold_cause: str | None
    replica: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One conversation."""

    conversation: str
    turns: int
    cold: int
    wait_s: float
    cold_wait_s: float
    warm_p50_s: float | None
    most_tokens: int
    replicas: Mapping[str, int]
    """Turns by replica."""
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of the time, for what changes with it."""

    at: float
    judged_turns: int
    cold: int
    cached_ratio: float | None
    over_10_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What would help.

    `changes` are for whoever can replay it: names of `core.pools.Pools`, or `replicas` for how many more.
    """

    text: str
    changes: Mapping[str, int | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of replaying the traffic under what a remedy changes."""

    settings: str
    """What was changed, in words."""
    text: str
    trusted: bool | None
    """Whether the replay of what happened is within 10 %; None where nothing could be replayed."""
    figures: Mapping[str, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something worth saying; `severity` is `good`, `info`, `warn` or `bad`."""

    id: str
    severity: str
    text: str
    figures: Mapping[str, Figure]
    remedy: Remedy | None = None
    replayed: Replayed | None = None
    """None: nobody asked, or there is nothing that could be replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it."""

    journal: str
    version: int
    dropped: int
    """Requests that the journal could not take, ever."""
    probes: int | None
    """Requests marked as probes that were left out; None where they are counted."""
    split_at: float | None
    bucket_s: float
    periods: Sequence[Period]
    """`all`, and with a split `before` and `after`."""
    long_together: Together
    moved_reasons: Mapping[str, int]
    """Cold turns that Ramjet had moved, by why."""
    replicas: Sequence[Occupancy]
    evictions: Sequence[Eviction]
    timeline: Timeline | None
    over_time: Sequence[Stretch]
    findings: Sequence[Finding]

    @property
    def whole(self) -> Period:
        """The whole time."""
        return self.periods[0]
