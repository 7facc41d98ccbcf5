"""What a replica would lose for the room that somebody needs, priced in seconds.

A cache lets go in an order that is known: runs by their last use where tokens are short, snapshots by theirs where
slots are. So what a need costs is a walk along both, as far as the need goes. The walk is the same for whoever comes
next, until something changes there: it is made once, as far as anybody has asked, and afterwards only looked up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ramjet.core.cache import EngineCache, Node


@dataclass(frozen=True, slots=True)
class Prices:
    """What a loss costs, as things stand."""

    worth: Callable[[object], float]
    """The chance that an owner comes back for what is theirs, 0 to 1."""
    read_s: Callable[[int, int], float]
    """Seconds to read from one length in tokens to another, as the formula says."""
    most_s: float
    """When to stop counting."""


class Losses:
    """What goes first in a cache, and what that costs those whose it is. Good as long as the cache does not change."""

    def __init__(
        self,
        cache: EngineCache,
        prices: Prices,
        pace: float,
        *,
        owner: object = None,
        spared: Collection[Node] = (),
    ) -> None:
        """
        Args:
            cache: what would lose.
            prices: what a loss costs.
            pace: how many times as long as the formula says the replica takes to read.
            owner: what is theirs costs nothing; None for what nobody in particular asks.
            spared: what does not go, because whoever asks would use it.
        """
        self._prices = prices
        self._pace = pace
        self._owner = owner
        self._spared = spared
        states = cache.spec.snapshots
        self._free_tokens = None if cache.pool_tokens is None else cache.pool_tokens - cache.used_tokens
        self._free_slots = None if states is None or states.slots is None else states.slots - cache.used_slots
        # A run after the other: tokens and seconds up to and with it, and the seconds of each owner.
        self._runs = iter(cache.least_used())
        self._tokens: list[int] = []
        self._lost: list[float] = []
        self._lost_by: dict[object, list[tuple[int, float]]] = {}
        # A snapshot after the other: whose loss it is (None where nobody misses it), and how much.
        self._states = iter(cache.snapshots)
        self._state_losses: list[tuple[object, float]] = []
        # Where a node, or something of an owner's, comes first in either row.
        self._first_run: dict[object, int] = {}
        self._first_state: dict[object, int] = {}
        self._worths: dict[object, float] = {}
        self._harms: dict[tuple[int, int], float] = {}

    def harm_s(self, tokens: int, slots: int, but: Collection[object] = ()) -> float | None:
        """Seconds of reading that others need again when somebody needs so many tokens and slots.

        None where one of `but`, nodes or owners, is among what would go: for whoever asks it is another sum.
        """
        free_tokens, free_slots = self._free_tokens, self._free_slots
        runs = 0 if free_tokens is None or tokens <= free_tokens else self._runs_for(tokens - free_tokens)
        states = 0 if free_slots is None or slots <= free_slots else self._states_for(slots - free_slots)
        if not runs and not states:
            return 0.0
        if self._are_among(but, runs, states):
            return None
        harm_s = self._harms.get((runs, states))
        if harm_s is None:
            harm_s = self._harms[runs, states] = self._sum_s(runs, states)
        return harm_s

    # -- inside -----------------------------------------------------------------------------------------------------

    def _sum_s(self, runs: int, states: int) -> float:
        """What the first so many runs and snapshots are worth to those whose they are."""
        most_s = self._prices.most_s
        total = self._lost[runs - 1] if runs else 0.0
        worst: dict[object, float] = {}
        for owner, lost in self._state_losses[:states]:
            if total > most_s:
                break
            if owner is None:
                continue
            # Whoever loses the snapshot cannot use the tokens before it either: the larger of both is their loss.
            before = worst[owner] if owner in worst else self._lost_of(owner, runs)
            if lost > before:
                total += lost - before
            worst[owner] = max(lost, before)
        return total

    def _are_among(self, those: Collection[object], runs: int, states: int) -> bool:
        first_run, first_state = self._first_run, self._first_state
        if first_run.keys().isdisjoint(those) and first_state.keys().isdisjoint(those):
            return False
        return any(first_run.get(each, runs) < runs or first_state.get(each, states) < states for each in those)

    def _runs_for(self, short_tokens: int) -> int:
        """How many runs go for so many tokens; no more than it takes to stop counting."""
        tokens = self._tokens[-1] if self._tokens else 0
        total = self._lost[-1] if self._lost else 0.0
        while tokens < short_tokens and total <= self._prices.most_s and (node := next(self._runs, None)) is not None:
            if node.holders or node in self._spared:
                continue
            owner, end, at = node.owner, node.ends[-1], len(self._tokens)
            self._first_run[node] = at
            tokens += end - node.start
            if owner is not None:
                self._first_run.setdefault(owner, at)
                if owner is not self._owner:
                    lost = self._price(owner, node.start, end)
                    total += lost
                    row = self._lost_by.setdefault(owner, [])
                    row.append((at, lost + row[-1][1] if row else lost))
            self._tokens.append(tokens)
            self._lost.append(total)
        return min(bisect_left(self._tokens, short_tokens) + 1, len(self._tokens))

    def _lost_of(self, owner: object, runs: int) -> float:
        """What an owner loses with the first so many runs."""
        return next((lost for at, lost in reversed(self._lost_by.get(owner, ())) if at < runs), 0.0)

    def _states_for(self, short_slots: int) -> int:
        """How many snapshots go for so many slots."""
        while len(self._state_losses) < short_slots and (node := next(self._states, None)) is not None:
            if node.locks or node in self._spared:
                continue
            owner, at = node.owner, len(self._state_losses)
            self._first_state[node] = at
            if owner is not None:
                self._first_state.setdefault(owner, at)
            if node.children or owner is None or owner is self._owner:
                # With a deeper one, nobody misses it.
                self._state_losses.append((None, 0.0))
            else:
                before = next((each for each in node.path() if each is not node and each.snapshot), None)
                start = 0 if before is None else before.ends[-1]
                self._state_losses.append((owner, self._price(owner, start, node.ends[-1])))
        return min(short_slots, len(self._state_losses))

    def _price(self, owner: object, start: int, end: int) -> float:
        worth = self._worths.get(owner)
        if worth is None:
            worth = self._worths[owner] = self._prices.worth(owner)
        return worth * (self._pace * self._prices.read_s(start, end))
