"""Who is first in a ranking, where what others would lose has to be counted for as few as possible.

Counting that is dearer than all the rest, and it only ever makes a replica dearer. So all are ranked as if nobody lost
anything, and it is counted for those on whom the answer hangs, until nobody who is left could change it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop
from typing import Protocol

from msgspec.structs import replace

from ramjet.core.route import Ask, Candidate, Cost, Scored, tie_order, tied_until_s


class Counting(Protocol):
    """Counts what others would lose at a replica."""

    def __call__(self, candidate: Candidate, upto_s: float | None = None) -> tuple[float, bool]:
        """Seconds, and whether that is all: what comes after the first that makes it more than `upto_s` is not counted; None:
        than is free of charge."""


class Ranking:
    """The exact ranking, as far as somebody asks. It is that of `route.decide` with all harm counted, to the last digit."""

    def __init__(self, ask: Ask, ranked: Sequence[Scored], costs: Sequence[Cost], count: Counting) -> None:
        """
        Args:
            ask: the request.
            ranked: the replicas, ranked as if nobody lost anything there.
            costs: what they were ranked by.
            count: counts what others would lose.
        """
        self._ask = ask
        self._costs = costs
        self._count = count
        self._weights = [cost.harm_weight for cost in costs]
        self._weight = sum(self._weights)
        # In this order all the time: the first of them are tied as far as is known, in the order in which ties go.
        self._ranked = list(ranked)
        self._harm_s = [0.0] * len(ranked)
        """What others lose at least..."""
        self._total_s = [each.total_s for each in ranked]
        """...and what each costs at least..."""
        self._known = [False] * len(ranked)
        """...and whether that is all."""
        self._cheapest_s = math.inf
        """The least cost that is known."""
        limit_s = tied_until_s(min(self._total_s))
        self._tied = sum([total_s <= limit_s for total_s in self._total_s])

    def first(self) -> Scored:
        """The first."""
        self._count_all(0)
        first = self._first_of_ties(self._count_until_dear)
        assert first is not None
        return self._scored(first)

    def first_free(
        self, has_place: Callable[[Candidate], bool], free_upto_s: Callable[[Candidate], float]
    ) -> Scored | None:
        """The first that has a place and where others lose no more than is free of charge; None: there is none."""
        able = {at: self._by_total(at) for at, each in enumerate(self._ranked) if has_place(each.candidate)}

        def is_free(at: int) -> bool:
            if at not in able:
                return False
            candidate = self._ranked[at].candidate
            if not self._known[at] and self._harm_s[at] <= free_upto_s(candidate):
                self._take(at, *self._count(candidate))
            return not self._harm_s[at] or self._harm_s[at] <= free_upto_s(candidate)

        if not any(map(is_free, able)):
            return None
        first = self._first_of_ties(is_free)
        if first is not None:
            return self._scored(first)
        best: int | None = None
        for at in sorted(able, key=able.__getitem__):
            if best is not None and able[at] > self._by_total(best):
                break
            if is_free(at) and (best is None or self._by_total(at) < self._by_total(best)):
                best = at
        assert best is not None
        return self._scored(best)

    def of(self, replica: str | None) -> Scored | None:
        """A replica's place in it, if it has one."""
        for at, each in enumerate(self._ranked if replica is not None else ()):
            if each.candidate.replica == replica:
                self._count_all(at)
                return self._scored(at)
        return None

    def others(self, first: Scored) -> list[Scored]:
        """All but the first, as they rank as far as is known."""
        order = sorted(range(len(self._ranked)), key=self._total_s.__getitem__)
        return [self._scored(at) for at in order if self._ranked[at].candidate.replica != first.candidate.replica]

    # -- inside -----------------------------------------------------------------------------------------------------

    def _first_of_ties(self, may: Callable[[int], bool]) -> int | None:
        """The first that may of those that are as good as the cheapest; None: none of them. What one costs is known."""
        rest = [(total_s, at) for at, total_s in enumerate(self._total_s) if not self._known[at]]
        heapify(rest)
        for at in self._may_tie():
            if not may(at):
                continue
            total_s = self._total_s[at]
            while total_s <= tied_until_s(self._cheapest_s):
                while rest and self._known[rest[0][1]]:
                    heappop(rest)
                if not rest or total_s <= tied_until_s(min(rest[0][0], self._cheapest_s)):
                    return at
                # Whether it is tied is sure once the cheapest is known.
                self._count_until_dear(heappop(rest)[1])
        return None

    def _may_tie(self) -> Sequence[int]:
        """Who may be as good as the cheapest, in the order in which ties go."""
        limit_s = tied_until_s(self._cheapest_s)
        late = [at for at in range(self._tied, len(self._ranked)) if self._total_s[at] <= limit_s]
        if not late:
            return range(self._tied)
        order = tie_order(self._ask, self._costs)
        return sorted([*range(self._tied), *late], key=lambda at: order(self._ranked[at]))

    def _by_total(self, at: int) -> tuple[float, str]:
        return self._total_s[at], self._ranked[at].candidate.identity

    def _count_all(self, at: int) -> None:
        """Know what it costs."""
        if not self._known[at]:
            self._take(at, *self._count(self._ranked[at].candidate, math.inf))

    def _count_until_dear(self, at: int) -> bool:
        """Know what it costs, or that it is dearer than whoever is as good as the cheapest: then False."""
        limit_s = tied_until_s(self._cheapest_s)
        if not self._known[at] and self._total_s[at] <= limit_s:
            # Some more, for the sum is rounded; nothing hangs on how much.
            left_s = limit_s - self._ranked[at].total_s + 1.0
            self._take(
                at, *self._count(self._ranked[at].candidate, left_s / self._weight if self._weight else math.inf)
            )
        return self._known[at]

    def _take(self, at: int, harm_s: float, is_all: bool) -> None:  # noqa: FBT001 - as it was counted
        self._harm_s[at], self._known[at] = harm_s, is_all
        if harm_s:
            self._total_s[at] = sum(self._seconds(at))
        if is_all and self._total_s[at] < self._cheapest_s:
            self._cheapest_s = self._total_s[at]

    def _seconds(self, at: int) -> list[float]:
        """Its costs, with what is known of the harm."""
        harm_s, seconds = self._harm_s[at], self._ranked[at].seconds
        return [weight * harm_s if weight else s for weight, s in zip(self._weights, seconds, strict=True)]

    def _scored(self, at: int) -> Scored:
        each, harm_s = self._ranked[at], self._harm_s[at]
        if harm_s and each.candidate.harm_s != harm_s:
            candidate = replace(each.candidate, harm_s=harm_s)
            each = self._ranked[at] = Scored(candidate, self._total_s[at], each.names, tuple(self._seconds(at)))
        return each
