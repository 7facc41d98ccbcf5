"""How large a replica's cache is, as far as anybody has said."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ramjet.core.cache import CacheSpec, Snapshots

CHUNK_TOKENS = 6_144
_FACTS = ("tokens", "slots", "per_path", "chunk_tokens", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """What a replica's cache is said to be; None is unknown."""

    tokens: int | None = None
    slots: int | None = None
    """Snapshot slots of a hybrid model; None for a model without, or where nobody knows."""
    per_path: int | None = None
    private: int = 3
    """Slots of a running request."""
    chunk_tokens: int | None = None
    """What one forward reads; the seed's 6,144 where nobody says."""
    grid_tokens: int = 256
    host: bool | None = None
    """Whether it has a host tier, by its own word."""

    def over(self, other: Pools) -> Pools:
        """What is known here, and where nothing is, what is known there."""
        return replace(
            other,
            **{name: value for name in _FACTS if (value := getattr(self, name)) is not None},
            private=self.private,
            grid_tokens=self.grid_tokens,
        )

    def spec(self, *, has_snapshots: bool = False) -> CacheSpec:
        """The cache that such a replica has; with snapshots where their number is known, or they are known to be there."""
        return CacheSpec(
            pool_tokens=self.tokens,
            page_tokens=1,
            reads_last=False,
            chunk_tokens=self.chunk_tokens or CHUNK_TOKENS,
            snapshots=None
            if self.slots is None and not has_snapshots
            else Snapshots(
                slots=self.slots, per_path=self.per_path, private=self.private, grid_tokens=self.grid_tokens
            ),
        )

    @property
    def most_running(self) -> int | None:
        """Requests that may run before they take the room of the conversations that are cached; None for no limit.

        Each takes the slots of one and a half conversations, so a third of the pool is theirs.
        """
        return None if self.slots is None else max(1, round(self.slots / (3 * max(1, self.private))))
