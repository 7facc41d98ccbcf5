"""What an engine says of itself, in words that are the same for all engines: `Facts` seldom change, `Loads` always do.

None is unknown throughout: engines and versions differ in what they publish, and a replica is never refused for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ramjet.core.pools import Pools

Pages = Mapping[str, str]
"""The text of the pages that a replica answered with 200, by path; one that is not in it was refused, failed or absent."""


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
    """Tokens that its token pool holds, all data-parallel ranks together."""
    page_tokens: int | None = None
    """Reuse is a multiple of this: SGLang's page, vLLM's block."""
    chunk_tokens: int | None = None
    """What one forward reads."""
    has_snapshots: bool | None = None
    """Whether its model is hybrid and its states are saved in slots."""
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
    ranks: int = 1
    """Data-parallel ranks, each with pools of its own."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each of the above was read, by its name here: `/server_info max_total_num_tokens`."""
    missing: tuple[str, ...] = ()
    """Names of facts that this engine publishes in other versions, or with other flags, and not here."""

    @property
    def pools(self) -> Pools:
        """What routing needs of it."""
        return Pools(
            tokens=self.pool_tokens,
            slots=self.snapshot_slots,
            per_path=self.snapshots_per_path,
            chunk_tokens=self.chunk_tokens,
            host=self.host_tier,
        )


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
