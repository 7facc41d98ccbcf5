"""Whose prompts a replica is believed to hold, and how much of each: the largest by name, the others as a sum."""

from __future__ import annotations

import heapq
from collections import defaultdict
from operator import itemgetter
from typing import NamedTuple

from ramjet.core.cache import EngineCache, Node
from ramjet.core.conversations import Conversation


class Residents(NamedTuple):
    """What a replica holds, in tokens."""

    largest: list[tuple[Conversation, int]]
    """Conversations with what is held for them alone, the largest first."""
    others: int
    """Conversations beyond those."""
    others_tokens: int
    shared_tokens: int
    """Prefixes that more than one conversation grew from."""


def residents(cache: EngineCache, most: int) -> Residents:
    """Look through a belief. Changes nothing.

    Args:
        cache: the belief's.
        most: how many conversations to name.
    """
    tokens: defaultdict[object, int] = defaultdict(int)
    above: set[Node] = set()
    shared_tokens = 0
    # A run never stands before what grew from it, so whoever is below has been seen.
    for node in cache.least_used():
        children, size = node.children, node.ends[-1] - node.start
        if (children is not None and len(children) > 1) or node in above:
            shared_tokens += size
            if node.parent is not None:
                above.add(node.parent)
        else:
            tokens[node.owner] += size
    largest = [
        (owner, held)
        for owner, held in heapq.nlargest(most, tokens.items(), key=itemgetter(1))
        if isinstance(owner, Conversation)
    ]
    others_tokens = sum(tokens.values()) - sum(held for _, held in largest)
    return Residents(largest, len(tokens) - len(largest), others_tokens, shared_tokens)
