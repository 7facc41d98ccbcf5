"""What an engine says of itself, in words that are the same for all engines: `Facts` seldom change, `Loads` always do.

None is unknown throughout: engines and versions differ in what they publish, and a replica is never refused for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ramjet.core.others import Load
from ramjet.core.pools import Pools

Pages = Mapping[str, str]
"""The text of the pages that a replica answered with 200, by path; one that is not in it was refused, failed or absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a replica answered for one page."""

    path: str
    status: int | None = None
    """Of HTTP; None where no answer came."""
    error: str | None = None
    """Why none came: `connection refused`, `cannot be reached`, or what went wrong by its class."""
    text: str = ""
    took_s: float | None = None

    @property
    def good(self) -> bool:
        """Whether it is a 2xx."""
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a replica is, as far as it says so."""

    engine: str
    """`sglang`, `vllm`, `llamacpp` or `openai`, which is any other."""
    version: str | None = None
    model: str | None = None
    """The model's path or name, by the engine's own word."""
    started_at: float | None = None
    """When its process started, in seconds since 1970."""
    pool_tokens: int | None = None
    """Tokens that its token pool holds. This and all sizes below are those of one data-parallel rank, as each has its own."""
    page_tokens: int | None = None
    """Reuse is a multiple of this: SGLang's page, vLLM's block."""
    chunk_tokens: int | None = None
    """What one forward reads."""
    has_snapshots: bool | None = None
    """Whether its model is hybrid and its states are saved in slots."""
    states_in_pool: bool | None = None
    """Whether its model is hybrid and its states lie in blocks of the token pool: there are no slots then."""
    snapshot_slots: int | None = None
    snapshots_per_path: int | None = None
    """The cap of a conversation's snapshots; None with `snapshot_slots` known is no cap."""
    slots_per_request: int | None = None
    """Slots that a running request takes beside the tree's."""
    grid_tokens: int | None = None
    """Snapshots lie at multiples of this."""
    host_tier: bool | None = None
    max_running: int | None = None
    max_prompt_tokens: int | None = None
    reports_cached: bool | None = None
    """Whether usage says how many tokens were cached."""
    caches: bool | None = None
    """Whether it keeps prompts for those that go on from them."""
    ranks: int | None = None
    """Data-parallel ranks, each with pools of its own. Unknown is not 1: a page that fails once must not join them."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each of the above was read, by its name here: `/server_info max_total_num_tokens`."""
    missing: tuple[str, ...] = ()
    """Names of facts that this engine publishes in other versions, or with other flags, and not here."""

    def over(self, older: Facts) -> Facts:
        """What is known here, and where nothing is, what was known before."""
        names = [each.name for each in fields(self) if each.name not in _ABOUT and getattr(self, each.name) is None]
        kept = {name: value for name in names if (value := getattr(older, name)) is not None}
        return replace(
            self,
            sources={**{name: older.sources[name] for name in kept if name in older.sources}, **self.sources},
            missing=tuple(name for name in self.missing if name not in kept),
            **kept,
        )

    @property
    def pools(self) -> Pools:
        """What routing needs of it."""
        return Pools(
            tokens=self.pool_tokens,
            slots=self.snapshot_slots,
            per_path=self.snapshots_per_path,
            private=self.slots_per_request,
            chunk_tokens=self.chunk_tokens,
            grid_tokens=self.grid_tokens,
            page_tokens=self.page_tokens,
            states_in_pool=self.states_in_pool,
            host=self.host_tier,
            reports_cached=self.reports_cached,
        )


_ABOUT = frozenset(("engine", "sources", "missing"))
"""Of the facts, those that are always there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """What a replica, or one of its data-parallel ranks, is doing."""

    rank: int = 0
    running: int | None = None
    """Requests."""
    waiting: int | None = None
    """Requests that it has taken and not begun."""
    waiting_tokens: int | None = None
    """Of their prompts, those that must be read."""
    used_tokens: int | None = None
    """Tokens of the pool that running requests hold."""
    evictable_tokens: int | None = None
    """Tokens of the pool that are cached and would be let go for others."""
    used_slots: int | None = None
    evictable_slots: int | None = None
    counted: float | None = None
    """A counter that never falls while the process lives: prompt tokens read so far."""


@dataclass(slots=True)
class Seen:
    """What has been heard from one replica's engine; times are those of the loop that asked."""

    facts: Facts | None = None
    """None: it has not been asked, or has not answered since it was gone."""
    facts_at: float = 0.0
    loads: tuple[Loads, ...] = ()
    """By data-parallel rank."""
    loads_at: float = 0.0

    def of(self, name: str) -> int | None:
        """One of the last loads, all ranks of the replica together; None where nobody says it."""
        known = [value for each in self.loads if (value := getattr(each, name)) is not None]
        return sum(known) if known else None

    def load(self) -> Load:
        """What the core wants to know of them."""
        known = [each for each in (self.of("running"), self.of("waiting")) if each is not None]
        return Load(sum(known) if known else None, self.of("waiting_tokens"), self.of("used_tokens"))

    def told(self, now: float) -> dict[str, Any] | None:
        """All of it in plain values, ages in seconds; None where nothing has been heard."""
        facts = self.facts
        if facts is None:
            return None
        known = {each.name: getattr(facts, each.name) for each in fields(facts) if each.name in facts.sources}
        return {
            "name": facts.engine,
            "ranks": facts.ranks,
            "facts": {name: {"value": value, "source": facts.sources[name]} for name, value in known.items()},
            "missing": list(facts.missing),
            "facts_age_s": round(now - self.facts_at, 1),
            "running": self.of("running"),
            "waiting": self.of("waiting"),
            "waiting_tokens": self.of("waiting_tokens"),
            "used_tokens": self.of("used_tokens"),
            "loads_age_s": round(now - self.loads_at, 1) if self.loads else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How one kind of engine is asked, and how its answers are read; every function takes pages and raises nothing."""

    name: str
    fact_paths: tuple[str, ...]
    """Pages from which `facts` reads, those that tell this engine from others first."""
    load_paths: tuple[str, ...]
    """Pages from which `loads` reads, each of which will do alone, the best first: one is asked for every second."""
    speaks: Callable[[Pages], bool]
    """Whether these pages are this engine's."""
    facts: Callable[[Pages], Facts]
    loads: Callable[[Pages], tuple[Loads, ...]]
    """One for each data-parallel rank, in their order; nothing where the pages say nothing."""
    old_paths: Mapping[str, str] = field(default_factory=dict)
    """What pages were once called: asked for only where the new name was not answered, for engines complain of it."""
    work: str | None = None
    """A counter on `/metrics` of tokens that the model has worked through, for whatever reason."""
