"""What the replicas were at a moment: how large their caches are said to be, and what was believed to be in them."""

from __future__ import annotations

from dataclasses import dataclass

from ramjet.core.router import Router


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One replica; None is unknown."""

    replica: str
    state: str
    """`up`, `trial` or `down`; `draining` where it gets nothing new, whatever its health."""
    pool_tokens: int | None = None
    """Its token pool, as the configuration or the engine says..."""
    usable_tokens: int | None = None
    """...and the part of it that conversations were seen to get."""
    pool_slots: int | None = None
    """Its snapshot pool."""
    per_path: int | None = None
    """Snapshots that are kept of one conversation."""
    private_slots: int = 0
    """Slots of a running request."""
    chunk_tokens: int | None = None
    grid_tokens: int = 0
    """Snapshots lie on multiples of it."""
    host: bool | None = None
    """Whether it has a host tier."""
    resident_tokens: int = 0
    """What of the token pool is believed to be taken, by requests that run too."""
    resident_slots: int | None = None
    """The same of the snapshot pool; None where that is not known."""
    living: int = 0
    """Living conversations whose home it is."""
    in_flight: int = 0
    held: int = 0
    """Requests that wait in Ramjet for room, at whatever replica: the same for all of a moment."""
    queue_s: float = 0.0
    """Seconds of reading that were sent there and are not done."""
    pace: float = 1.0
    """How many times as long as the formula says it takes to read, as far as that was learned."""


def samples(router: Router, now: float) -> list[Sample]:
    """All replicas, in the order of the fleet."""
    found: list[Sample] = []
    for replica in router.fleet:
        belief, pools = router.beliefs[replica.name], replica.pools
        found.append(
            Sample(
                replica=replica.name,
                state="draining" if replica.draining else replica.state.value,
                pool_tokens=pools.tokens,
                usable_tokens=belief.pool_tokens,
                pool_slots=pools.slots,
                per_path=pools.per_path,
                private_slots=pools.private_slots,
                chunk_tokens=pools.chunk_tokens,
                grid_tokens=pools.grid,
                host=pools.host,
                resident_tokens=belief.cache.used_tokens,
                resident_slots=None if pools.slots is None else belief.cache.used_slots,
                living=router.conversations.living_at[replica.name],
                in_flight=replica.in_flight,
                held=len(router.admission),
                queue_s=round(replica.queue_at(now), 3),
                pace=round(belief.pace.factor, 4),
            )
        )
    return found
