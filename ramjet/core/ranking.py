"""Who is first in a ranking, where what others would lose has to be counted for as few as possible.

Counting that is dearer than all the rest, and it only ever makes a replica dearer. So all are ranked as if nobody lost
anything, and it is counted for those on whom the answer hangs, until nobody who is left could change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from msgspec.structs import replace

from ramjet.core.route import Ask, Candidate, Cost, Scored, tie_order, tied_until_s


class Counting(Protocol):
    """Counts what others would lose at a replica."""

    def __call__(self, candidate: Candidate, *, all_of_it: bool) -> tuple[float, bool]:
        """Seconds, and whether that is all; not `all_of_it`: until it is too much to enter free of charge."""


class Ranking:
    """The exact ranking, as far as somebody asks. It is that of `route.decide` with all harm counted, to the last digit."""

    def __init__(self, ask: Ask, ranked: Sequence[Scored], costs: Sequence[Cost], count: Counting) -> None:
        """
        Args:
            ask: the request.
            ranked: the replicas, ranked as if nobody lost anything there.
            costs: what they were ranked by.
            count: asked at most twice for each.
        """
        self._ask = ask
        self._costs = costs
        self._count = count
        # In this order all the time: the first of them are tied as far as is known, in the order in which ties go.
        self._scored = list(ranked)
        self._least_s = [each.total_s for each in ranked]
        """What each costs at least..."""
        self._exact_s: dict[int, float] = {}
        """...and exactly, by its place."""
        self._glanced: set[int] = set()
        limit_s = tied_until_s(min(self._least_s))
        self._tied = sum([total_s <= limit_s for total_s in self._least_s])
        self._first: Scored | None = None

    def first(self) -> Scored:
        """The first."""
        if self._first is None:
            self._exact(0)
            self._first = self._first_of_ties(lambda at: self._exact(at) is not None)
            assert self._first is not None
        return self._first

    def first_of(self, has_place: Callable[[Candidate], bool], is_free: Callable[[Candidate], bool]) -> Scored | None:
        """The first that has a place, which needs no harm to be known, and may be entered free of charge; None: nobody."""
        able = {at: self._by_total(at) for at, each in enumerate(self._scored) if has_place(each.candidate)}

        def enters(at: int) -> bool:
            return at in able and is_free(self._glance(at).candidate)

        if next(filter(enters, able), None) is None:
            return None
        first = self._first_of_ties(enters)
        if first is not None:
            return first
        best: int | None = None
        for at in sorted(able, key=able.__getitem__):
            if best is not None and able[at] > self._by_total(best):
                break
            if enters(at) and (best is None or self._by_total(at) < self._by_total(best)):
                best = at
        assert best is not None
        return self._scored[best]

    def of(self, replica: str | None) -> Scored | None:
        """A replica's place in it, if it has one."""
        return next((self._exact(at) for at, each in enumerate(self._scored) if each.candidate.replica == replica), None)

    def all(self) -> Iterator[Scored]:
        """All of them: the first, and then as they rank as far as is known."""
        first = self.first()
        yield first
        yield from (each for each in self._scored if each is not first)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _first_of_ties(self, may: Callable[[int], bool]) -> Scored | None:
        """The first that may of those that are as good as the cheapest; None: none of them may. Somebody's cost is known."""
        for at in self._may_tie():
            if not may(at):
                continue
            total_s = self._exact_s[at]
            while tied_until_s(min(self._least_s)) < total_s <= tied_until_s(min(self._exact_s.values())):
                # It may be tied: that is sure once the cheapest is known.
                unknown = [other for other in range(len(self._scored)) if other not in self._exact_s]
                self._exact(min(unknown, key=self._least_s.__getitem__))
            if total_s <= tied_until_s(min(self._least_s)):
                return self._scored[at]
        return None

    def _may_tie(self) -> Sequence[int]:
        """Who may be as good as the cheapest, in the order in which ties go."""
        limit_s = tied_until_s(min(self._exact_s.values()))
        late = [at for at in range(self._tied, len(self._scored)) if self._least_s[at] <= limit_s]
        if not late:
            return range(self._tied)
        order = tie_order(self._ask, self._costs)
        return sorted([*range(self._tied), *late], key=lambda at: order(self._scored[at]))

    def _by_total(self, at: int) -> tuple[float, str]:
        return self._least_s[at], self._scored[at].candidate.identity

    def _exact(self, at: int) -> Scored:
        """With all that others lose."""
        if at not in self._exact_s:
            self._take(at, *self._count(self._scored[at].candidate, all_of_it=True))
        return self._scored[at]

    def _glance(self, at: int) -> Scored:
        """With what others lose, until that is too much to enter free of charge."""
        if at not in self._exact_s and at not in self._glanced:
            self._glanced.add(at)
            self._take(at, *self._count(self._scored[at].candidate, all_of_it=False))
        return self._scored[at]

    def _take(self, at: int, harm_s: float, is_all: bool) -> None:  # noqa: FBT001 - as it was counted
        each = self._scored[at]
        if harm_s:
            candidate = replace(each.candidate, harm_s=harm_s)
            seconds = tuple(
                cost.seconds(self._ask, [candidate])[0] if cost.counts_harm else known_s
                for cost, known_s in zip(self._costs, each.seconds, strict=True)
            )
            self._scored[at] = Scored(candidate, sum(seconds), each.names, seconds)
            self._least_s[at] = self._scored[at].total_s
        if is_all:
            self._exact_s[at] = self._least_s[at]
