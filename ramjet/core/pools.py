"""How large a replica's cache is, as far as anybody has said."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ramjet.core.cache import CacheSpec, Snapshots

USUAL_CHUNK_TOKENS = 6_144
USUAL_GRID_TOKENS = 256
_WHOLE_TOKENS = 1 << 40
"""Longer than any prompt."""
USUAL_PRIVATE_SLOTS = 3
"""What the seed's replicas have, taken for those of whom nobody says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """What a replica's cache is said to be; None is unknown."""

    tokens: int | None = None
    slots: int | None = None
    """Snapshot slots of a hybrid model; None for a model without, or where nobody knows."""
    per_path: int | None = None
    private: int | None = None
    """Slots of a running request."""
    chunk_tokens: int | None = None
    """What one forward reads."""
    grid_tokens: int | None = None
    """Snapshots lie at multiples of it."""
    page_tokens: int | None = None
    """What it reuses is counted in multiples of it."""
    states_in_pool: bool | None = None
    """Whether a hybrid model's states lie in blocks of the token pool, at places that only the engine knows."""
    host: bool | None = None
    """Whether it has a host tier, by its own word."""
    reports_cached: bool | None = None
    """Whether its usage says how much it reused, so that none is 0 where it leaves that out."""

    def over(self, other: Pools) -> Pools:
        """What is known here, and where nothing is, what is known there."""
        known = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}
        return replace(other, **known)

    @property
    def private_slots(self) -> int:
        """Slots of a running request; the usual number where nobody says it."""
        return USUAL_PRIVATE_SLOTS if self.private is None else self.private

    @property
    def chunk(self) -> int:
        """Tokens that one forward reads; the usual number where nobody says it."""
        return self.chunk_tokens or USUAL_CHUNK_TOKENS

    @property
    def grid(self) -> int:
        """Tokens between two places where snapshots may lie; the usual number where nobody says it."""
        return self.grid_tokens or USUAL_GRID_TOKENS

    @property
    def page(self) -> int:
        """Tokens by which reuse is counted; 1 where nobody says it."""
        return self.page_tokens or 1

    def spec(self, *, has_snapshots: bool = False) -> CacheSpec:
        """The cache that such a replica has; with snapshots where their number is known, or they are known to be there."""
        states = None
        if self.slots is not None or has_snapshots:
            states = Snapshots(
                slots=self.slots, per_path=self.per_path, private=self.private_slots, grid_tokens=self.grid
            )
        # What is read at once is let go of at once; without snapshots, nobody having said how much that is, all of it.
        whole = states is None and self.chunk_tokens is None
        return CacheSpec(
            pool_tokens=self.tokens,
            page_tokens=self.page,
            reads_last=False,
            chunk_tokens=_WHOLE_TOKENS if whole else self.chunk,
            snapshots=states,
        )

    def snapshots_of(self, tokens: int) -> int:
        """Snapshots that reading so many tokens writes: one a forward, the tail's the last of them (seed: 51 of 313,000)."""
        # Asked of every replica for each request, so not by way of `grid` and `chunk`.
        if tokens < (self.grid_tokens or USUAL_GRID_TOKENS):
            return 0
        return -(-tokens // (self.chunk_tokens or USUAL_CHUNK_TOKENS))

    def kept_of(self, tokens: int) -> int:
        """Of these, those that a conversation may keep."""
        written = self.snapshots_of(tokens)
        return written if self.per_path is None else min(written, self.per_path)

    @property
    def held(self) -> int:
        """Slots of a running request with the snapshot of the tree that it has resumed at: the seed's "about four"."""
        return self.private_slots + 1

    @property
    def most_running(self) -> int | None:
        """Requests that may run before they take the room of the conversations that are cached; None for no limit.

        Each takes the slots of one and a half conversations, so a third of the pool is theirs.
        """
        return None if self.slots is None else max(1, round(self.slots / (3 * max(1, self.private_slots))))
