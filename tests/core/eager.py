"""What a prompt would cost others at a replica, by definition: what `core.losses` looks up is worked out anew."""

from __future__ import annotations

from collections import defaultdict

from ramjet.core.beliefs import Belief, Outlook
from ramjet.core.losses import Prices


def harm_s(  # noqa: C901, PLR0917 - all of it in one place, and as the method's
    belief: Belief, outlook: Outlook, prompt_tokens: int, owner: object, prices: Prices, most_s: float
) -> float:
    """Walk both orders of eviction, as far as the prompt needs room, and add up what others lose."""
    cache, losses = belief.cache, defaultdict[object, float](float)
    path = set(outlook.path)
    total = 0.0
    unread = prompt_tokens - outlook.hit.tokens
    pace = belief.pace.factor
    if cache.pool_tokens is not None:
        short = cache.used_tokens + unread - cache.pool_tokens
        for node in cache.least_used():
            if short <= 0 or total > most_s:
                break
            pieces = [] if node.holders else node.pieces()
            if node in path:
                # Those that the prompt meets stay.
                inside = outlook.found.depth - outlook.found.above if node is outlook.found.node else len(node.hashes)
                pieces = [piece for piece in pieces if piece >= inside]
            worth = 0.0 if node.owner is owner or node.owner is None else prices.worth(node.owner)
            freed, lost = 0, 0.0
            # From its end, piece by piece; what they cost together is what reading them together takes.
            for piece in pieces:
                start = node.ends[piece - 1] if piece else node.start
                freed, lost = node.ends[-1] - start, worth * (pace * prices.read_s(start, node.ends[-1]))
                if freed >= short or total + lost > most_s:
                    break
            short -= freed
            losses[node.owner] += lost
            total += lost
    if belief.pools.slots is not None:
        short = cache.used_slots + belief._new_slots(outlook, unread) - belief.pools.slots
        for node in cache.snapshots:
            if short <= 0 or total > most_s:
                break
            if node.locks or node in path:
                continue
            short -= 1
            if node.children or node.owner is owner or node.owner is None:
                continue
            before = next((each for each in node.path() if each is not node and each.snapshot), None)
            start = 0 if before is None else before.ends[-1]
            lost = prices.worth(node.owner) * (pace * prices.read_s(start, node.ends[-1]))
            if lost > losses[node.owner]:
                total += lost - losses[node.owner]
                losses[node.owner] = lost
    return total
