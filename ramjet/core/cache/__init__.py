"""What replicas hold: the same model is the truth in the simulator and the belief in the router."""

from ramjet.core.cache.engine import NO_HIT, EngineCache, Hit, Lost, Seat
from ramjet.core.cache.slots import SlotCache
from ramjet.core.cache.spec import CacheSpec, HostTier, SlotSpec, Snapshots
from ramjet.core.cache.tree import BLOCK_BYTES, NODE_BYTES, NOTHING, Blocks, Match, Node, PrefixCache

__all__ = [
    "BLOCK_BYTES",
    "NODE_BYTES",
    "NOTHING",
    "NO_HIT",
    "Blocks",
    "CacheSpec",
    "EngineCache",
    "Hit",
    "HostTier",
    "Lost",
    "Match",
    "Node",
    "PrefixCache",
    "Seat",
    "SlotCache",
    "SlotSpec",
    "Snapshots",
]
