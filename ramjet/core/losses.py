"""What a replica would lose for the room that somebody needs, priced in seconds.

A cache lets go in an order that is known: runs by their last use where tokens are short, snapshots by theirs where
slots are. So what a need costs is a walk along both, as far as the need goes. The walk is the same for whoever comes
next, until something changes there: it is made once, as far as anybody has asked, and afterwards only looked up.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import islice

from msgspec import Struct

from ramjet.core.cache import EngineCache, Node


class Prices(Struct, frozen=True):
    """What a loss costs, as things stand."""

    worth: Callable[[object], float]
    """The chance that an owner comes back for what is theirs, 0 to 1."""
    read_s: Callable[[int, int], float]
    """Seconds to read from one length in tokens to another, as the formula says."""


class Losses:
    """What goes first in a cache, and what that costs those whose it is. Good as long as the cache does not change."""

    def __init__(
        self,
        cache: EngineCache,
        prices: Prices,
        pace: float,
        *,
        owner: object = None,
        path: Sequence[Node] = (),
        inside: int = 0,
    ) -> None:
        """
        Args:
            cache: what would lose.
            prices: what a loss costs.
            pace: how many times as long as the formula says the replica takes to read.
            owner: who asks, and loses nothing by what is theirs; None for what nobody in particular asks.
            path: what they would use there, deepest run first; it stays...
            inside: ...and of the deepest run the pieces that begin before so many blocks.
        """
        self._prices = prices
        self._pace = pace
        self._owner = owner
        self._path = path
        self._inside = inside
        states = cache.spec.snapshots
        self._free_tokens = None if cache.pool_tokens is None else cache.pool_tokens - cache.used_tokens
        self._free_slots = None if states is None or states.slots is None else states.slots - cache.used_slots
        # A run after the other: tokens up to and with it, the run and where it goes up to, its seconds, and all so far.
        self._runs = iter(cache.least_used())
        self._tokens: list[int] = []
        self._nodes: list[tuple[Node, int]] = []
        self._lost: list[float] = []
        self._total: list[float] = []
        self._used_at = -math.inf
        """When the last of these runs was used: those that were used later come later."""
        # A snapshot after the other: whose loss it is (None where nobody misses it), and how much.
        self._snapshots = iter(cache.snapshots)
        self._states: dict[Node, tuple[object, float]] = {}
        self._worths: dict[object, float] = {}
        self._harms: dict[tuple[int, float, int, float], float] = {}

    def concern(self, owner: object, path: Sequence[Node]) -> bool:
        """Whether something of an owner's, or of a path, may be among what was seen to go: they need a walk of their own."""
        if owner in self._worths:
            return True
        if not path:
            return False
        return path[0].touched_at <= self._used_at or not self._states.keys().isdisjoint(path)

    def harm_s(self, tokens: int, slots: int, most_s: float) -> float:
        """Seconds of reading that others need again when somebody needs so many tokens and slots.

        What comes after the first that makes it more than `most_s` is not counted.
        """
        free_tokens, free_slots = self._free_tokens, self._free_slots
        runs, last_s = 0, 0.0
        if free_tokens is not None and tokens > free_tokens:
            runs, last_s = self._runs_for(tokens - free_tokens, most_s)
        harm_s = last_s + (self._total[runs - 2] if runs > 1 else 0.0)
        if free_slots is None or slots <= free_slots or harm_s > most_s:
            return harm_s
        states = self._states_for(slots - free_slots)
        asked = runs, last_s, states, most_s
        known_s = self._harms.get(asked)
        if known_s is None:
            known_s = self._harms[asked] = self._sum_s(harm_s, runs, last_s, states, most_s)
        return known_s

    # -- inside -----------------------------------------------------------------------------------------------------

    def _sum_s(self, total: float, runs: int, last_s: float, states: int, most_s: float) -> float:
        """What the first so many runs, `last_s` of the last of them, and snapshots are worth to those whose they are."""
        losing = list(islice(self._states.values(), states))
        lost_by = {owner: 0.0 for owner, _ in losing}
        for at in range(runs):
            owner = self._nodes[at][0].owner
            if owner in lost_by:
                lost_by[owner] += self._lost[at] if at < runs - 1 else last_s
        for owner, lost in losing:
            if total > most_s:
                break
            # Whoever loses the snapshot cannot use the tokens before it either: the larger of both is their loss.
            if owner is not None and lost > lost_by[owner]:
                total += lost - lost_by[owner]
                lost_by[owner] = lost
        return total

    def _runs_for(self, short_tokens: int, most_s: float) -> tuple[int, float]:
        """How many runs go for so many tokens, no more than it takes to stop counting; and the seconds of the last of them,
        of which only so many pieces go."""
        tokens = self._tokens[-1] if self._tokens else 0
        total = self._total[-1] if self._total else 0.0
        if tokens < short_tokens and total <= most_s:
            # A long prompt pushes out runs at every replica: nothing is looked up twice in here.
            path, worths, pace, read_s = self._path, self._worths, self._pace, self._prices.read_s
            for node in self._runs:
                if node.holders:
                    continue
                owner, start, end = node.owner, node.start, node.ends[-1]
                if node in path:
                    first = bisect_left(node.cuts, self._inside)
                    if node is not path[0] or first == len(node.cuts):
                        continue
                    start = node.ends[node.cuts[first] - 1]
                lost = 0.0
                if owner is not None:
                    worth = worths.get(owner)
                    lost = (self._worth(owner) if worth is None else worth) * (pace * read_s(start, end))
                tokens += end - start
                total += lost
                self._tokens.append(tokens)
                self._nodes.append((node, start))
                self._lost.append(lost)
                self._total.append(total)
                self._used_at = node.touched_at
                if tokens >= short_tokens or total > most_s:
                    break
        at = min(bisect_left(self._tokens, short_tokens), bisect_right(self._total, most_s))
        if at == len(self._tokens):
            return at, self._lost[-1] if at else 0.0
        return at + 1, self._last_s(at, short_tokens, most_s)

    def _last_s(self, at: int, short_tokens: int, most_s: float) -> float:
        """The seconds of the pieces of a run that go, from its end; with the runs before it they are enough."""
        (node, start), lost = self._nodes[at], self._lost[at]
        if not node.cuts or not lost:
            return lost
        short_tokens -= self._tokens[at - 1] if at else 0
        before_s, worth, end = self._total[at - 1] if at else 0.0, self._worths[node.owner], node.ends[-1]
        for cut in reversed(node.cuts):
            begin = node.ends[cut - 1]
            if begin <= start:
                break
            some_s = worth * (self._pace * self._prices.read_s(begin, end))
            if end - begin >= short_tokens or before_s + some_s > most_s:
                return some_s
        return lost

    def _states_for(self, short_slots: int) -> int:
        """How many snapshots go for so many slots."""
        while len(self._states) < short_slots and (node := next(self._snapshots, None)) is not None:
            if node.locks or node in self._path:
                continue
            owner = node.owner
            if node.children or owner is None:
                # With a deeper one, nobody misses it.
                self._states[node] = None, 0.0
                continue
            before = next((each for each in node.path() if each is not node and each.snapshot), None)
            self._states[node] = owner, self._price_s(owner, 0 if before is None else before.ends[-1], node.ends[-1])
        return min(short_slots, len(self._states))

    def _price_s(self, owner: object, start: int, end: int) -> float:
        worth = self._worths.get(owner)
        return (self._worth(owner) if worth is None else worth) * (self._pace * self._prices.read_s(start, end))

    def _worth(self, owner: object) -> float:
        worth = self._worths[owner] = 0.0 if owner is self._owner else self._prices.worth(owner)
        return worth
