"""What a look at a replica has seen, and what is said of it. None is unknown throughout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ramjet.core.pools import Pools
from ramjet.engines.facts import Answer, Facts, Loads

Severity = Literal["fault", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("fault", "warning", "note")
"""The worst first: it cannot serve; it serves worse than it could, or something will surprise; good to know."""

NO_CAP = "none"
SIZES = ("pool_tokens", "snapshot_slots")
"""Facts that an engine works out from the memory that it finds, so that a little difference is none."""

NAMES = {
    "engine": "engine",
    "version": "version",
    "model": "model",
    "pool_tokens": "token pool",
    "snapshot_slots": "snapshot slots",
    "snapshots_per_path": "cap per path",
    "slots_per_request": "slots of a request's own",
    "chunk_tokens": "tokens in a forward",
    "page_tokens": "page",
    "grid_tokens": "grid of snapshots",
    "states_in_pool": "states in the token pool",
    "caches": "keeps prompts",
    "host_tier": "host tier",
    "max_running": "most running",
    "max_prompt_tokens": "longest prompt",
    "reports_cached": "reports cached tokens",
    "ranks": "data-parallel ranks",
}
"""Every fact, and its name for people."""

GIVEN = {
    "pool_tokens": "tokens",
    "snapshot_slots": "slots",
    "snapshots_per_path": "per_path",
    "slots_per_request": "private",
    "chunk_tokens": "chunk_tokens",
    "page_tokens": "page_tokens",
    "grid_tokens": "grid_tokens",
    "states_in_pool": "states_in_pool",
    "host_tier": "host",
    "reports_cached": "reports_cached",
}
"""Facts that the configuration may give, by their names there as pools."""


def shown(value: object) -> str:
    """A fact's value for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


Figure = int | float | str | bool | None | Sequence["Figure"] | Mapping[str, "Figure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What became of a connection that nothing was sent on."""

    waited_s: float
    closed_after_s: float | None = None
    """When the engine closed it; 0 where it said `Connection: close` at once, None where it was open to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What became of a prompt that was sent twice."""

    prompt_tokens: int
    cached_tokens: int | None = None
    """Of the second, by its usage; None where that says nothing of it."""
    error: str | None = None
    """Why there was no answer, and so nothing was learned."""


def busy(loads: Sequence[Loads]) -> bool:
    """Whether anybody is at work."""
    return any(each.running or each.waiting for each in loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One replica as it was found."""

    name: str
    url: str
    configured: Pools = Pools()
    """How large its cache is by the configuration, which goes before its own word."""
    health: Answer
    listing: Answer
    """Of `/v1/models`."""
    models: tuple[str, ...] | None = None
    """Names that it lists."""
    metrics: bool = True
    """Whether it answers `/metrics`."""
    facts: Facts | None = None
    """None where it was not reached."""
    read_at: float = 0.0
    """When they were asked for; monotonic."""
    loads: tuple[Loads, ...] = ()
    health_tokens: int | None = None
    """What its counters of tokens moved by while its health was asked for; None where that could not be told."""
    health_asked: int = 0
    """How often it was, for that."""
    reuse: Reuse | None = None
    """None where it was not tried."""
    idle: Idle | None = None

    @property
    def reached(self) -> bool:
        """Whether it has answered at all, whatever it said."""
        return self.health.status is not None or self.listing.status is not None

    @property
    def pools(self) -> Pools:
        """How large its cache is, or that of one of its data-parallel ranks, as Ramjet takes it."""
        if self.facts is None:
            return self.configured
        return self.configured.over(self.facts.pools)

    @property
    def reports_cached(self) -> bool | None:
        """Whether its usage says how much of a prompt was reused, by its own word or by trying."""
        if self.facts is not None and self.facts.reports_cached is not None:
            return self.facts.reports_cached
        if self.reuse is None or self.reuse.error is not None:
            return None
        return self.reuse.cached_tokens is not None

    @property
    def longest_tokens(self) -> int | None:
        """The longest prompt that it takes and has room for."""
        told = None if self.facts is None else self.facts.max_prompt_tokens
        return min((each for each in (told, self.pools.tokens) if each is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """What of Ramjet's own settings meets the replicas."""

    idle_s: float = 4.0
    health_path: str = "/health"
    health_interval_s: float = 3.0
    health_timeout_s: float = 5.0
    spread_long: bool = True
    long_tokens: int = 150_000
    """From which length on conversations are spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that an operator would want to be told."""

    id: str
    severity: Severity
    text: str
    """Without the replicas' names, unless what is said is who differs from whom."""
    replicas: tuple[str, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    remedy: str | None = None
