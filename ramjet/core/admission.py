"""Who may enter now, and who is held: the working set must fit.

When the conversations that are alive need more than all pools together, placing every request at once lets them evict
one another, and every turn is read anew. So a request enters free of charge only where it pushes out little, or little
compared with what it still finds there of its own; otherwise its entry is paid, from an allowance of seconds that
fills slowly, so that swaps can never eat a replica. At most one cold read is on its way to a replica; the others wait
here, where they can still go elsewhere. Who has waited past the patience goes first.

Pure: what a replica holds and what entering would cost there come in with the ranking; time is an argument.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, Literal, NamedTuple, TypeVar

from ramjet.core.route import Candidate, Scored

Mode = Literal["off", "observe", "enforce"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The numbers of the rule; the study behind each is in docs/routing.md. Times in seconds."""

    mode: Mode = "enforce"
    """`observe` changes no decision and counts what it would have held."""
    patience_s: float = 100.0
    """Who has waited for longer makes the allowance fill faster: the one knob that users see."""
    max_hold_s: float = 600.0
    """Beyond it the edge refuses."""
    cold_s: float = 2.0
    """A prompt that takes longer to read is a cold read."""
    free_s: float = 0.7
    """Harm that is always free..."""
    found_weight: float = 20.0
    """...and what is free for each second of its own that the request still finds..."""
    read_weight: float = 1.0
    """...beyond those that it must read, so many times: who has lost half of a prompt lives there no more than who has
    lost all of it."""
    share: float = 0.18
    """Of a replica's time, what may go into reading again what entries push out..."""
    most_share: float = 0.8
    """...and the most that becomes of it when somebody has waited past the patience."""
    most_allowance_s: float = 45.0
    enough_s: float = 15.0
    """With so much of it any entry may be paid: the dearest leave it below zero for long."""
    first_allowance_s: float = 15.0
    most_looks: int = 128
    """Held requests, oldest first, that are looked at each time: looking takes time too."""
    reserve_after_s: float = 300.0
    """Who has waited for so long reserves one replica's allowance, and may have it drained."""
    home_wait_s: float = 30.0
    """A warm home that is only full is waited for, for so long..."""
    home_gain_s: float = 2.0
    """...if it is cheaper by so much."""

    def free_upto_s(self, found_s: float, read_s: float) -> float:
        """The most harm that is free for who finds so many seconds of their own, and has so many to read."""
        return self.free_s + self.found_weight * max(0.0, found_s - self.read_weight * read_s)

    def costs_nothing(self, candidate: Candidate) -> bool:
        """Whether entry there is free of charge."""
        harm_s = candidate.harm_s
        return not harm_s or harm_s <= self.free_upto_s(candidate.found_s, candidate.read_s)


Obstacle = Literal["reserved", "no_room", "full", "reading", "dear"]
"""What keeps a request out of a replica: it is kept clear for somebody who waits longer; its token pool has no room
beside those that run; it runs as many as its snapshot pool can bear; another long read is on its way there; it would push
out more than is free, and the allowance does not pay for that."""


class Entry(NamedTuple):
    """What it takes to enter a replica now."""

    way: Literal["free", "paid", "held"]
    obstacle: Obstacle | None
    """Why it is not free; for `paid` that is `dear`."""
    free_upto_s: float
    """Harm up to which it is free."""
    allowance_s: float
    """What may be spent there."""


@dataclass(slots=True)
class Held(Generic[T]):
    """Somebody who waits."""

    who: T
    since: float
    home: str | None


@dataclass(slots=True)
class _Account:
    """A replica's allowance of seconds."""

    seconds: float
    reserved_for: object = None
    drained_for: object = None


@dataclass(slots=True)
class Admission(Generic[T]):
    """The state: who waits, and what each replica may still spend on swaps."""

    terms: Terms = Terms()
    routers: int = 1
    """Ramjets that fill allowances each for itself; 1 where each hears what the others have paid."""
    _held: OrderedDict[int, Held[T]] = field(default_factory=OrderedDict)
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _filled_at: float | None = None
    _changed: bool = False

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[T]:
        return (each.who for each in self._held.values())

    def allowance_s(self, replica: str) -> float:
        """Seconds that swaps may still cost at a replica."""
        return self._account(replica).seconds

    def charge(self, replica: str, paid_s: float) -> None:
        """An entry has been paid, here or by a peer: the allowance is of all Ramjets together."""
        self._account(replica).seconds -= paid_s

    def longest_s(self, now: float) -> float:
        """How long the one who has waited longest has waited; 0 if nobody waits."""
        return max((now - each.since for each in self._held.values()), default=0.0)

    def choose(self, ranked: Sequence[Scored], home: str | None) -> Scored | None:
        """The cheapest replica where a request may enter free of charge, now that it comes; None: it is to be held.

        Args:
            ranked: the replicas that may serve it, cheapest first.
            home: where its last turn was.
        """
        return self._free(ranked, home, None)

    def has_place(self, candidate: Candidate, who: T | None = None) -> bool:
        """Whether a replica has a place for one who waits, or for anybody, whatever it pushes out."""
        drained_for = self._account(candidate.replica).drained_for
        if drained_for is not None and drained_for is not who:
            return False
        return candidate.fits and not candidate.is_full and self._may_read(candidate)

    def entry(self, candidate: Candidate, who: T | None = None) -> Entry:
        """What it takes to enter a replica now, for one who waits, or for anybody. Changes nothing that matters."""
        account = self._account(candidate.replica)
        obstacle: Obstacle | None = None
        if account.drained_for not in {None, who}:
            obstacle = "reserved"
        elif not candidate.fits:
            obstacle = "no_room"
        elif candidate.is_full:
            obstacle = "full"
        elif not self._may_read(candidate):
            obstacle = "reading"
        elif not self.terms.costs_nothing(candidate):
            obstacle = "dear"
        pays = obstacle == "dear" and self._can_pay(candidate, who)
        way: Literal["free", "paid", "held"] = "free" if obstacle is None else "paid" if pays else "held"
        return Entry(way, obstacle, self.terms.free_upto_s(candidate.found_s, candidate.read_s), account.seconds)

    def hold(self, who: T, home: str | None, now: float) -> None:
        """Let somebody wait."""
        self._held[id(who)] = Held(who, now, home)

    def leave(self, who: T) -> bool:
        """Somebody waits no longer; False if they never did. What was kept for them is free again."""
        for account in self._accounts.values():
            if account.reserved_for is who:
                account.reserved_for = None
            if account.drained_for is who:
                account.drained_for = None
        return self._held.pop(id(who), None) is not None

    def poll(
        self,
        now: float,
        replicas: Collection[str],
        rank: Callable[[T], Sequence[Scored]],
        enter: Callable[[T, Scored, float], None],
        *,
        glance: Callable[[T], Iterable[Candidate]],
        quick: bool = False,
    ) -> None:
        """Let in those who may enter now.

        Args:
            now: the time.
            replicas: the names of all.
            rank: the replicas that may serve one of the held, cheapest first, as things stand.
            enter: books one there, for so many seconds of the allowance; it is called before the next is ranked.
            glance: replicas where a place may be, as one of the held sees them; who could enter none of these is not
                ranked, except who has waited for so long that an allowance is kept for them.
            quick: no time has passed to speak of, and so nobody has come to have waited for that long.
        """
        self._fill(now, replicas)
        looked_at = [
            each
            for each in islice(self._held.values(), self.terms.most_looks)
            if (not quick and self._may_reserve(each, now))
            or any(self._could(one, each.who) for one in glance(each.who))
        ]
        rankings = {id(each.who): rank(each.who) for each in looked_at}
        if not quick:
            self._reserve(now, looked_at, len(replicas), rankings)
        for paying in (False, True):
            for each in looked_at:
                if id(each.who) not in self._held:
                    continue
                ranking = rankings[id(each.who)]
                chosen = self._choose(each, ranking, now, paying=paying)
                if chosen is not None and self._changed:
                    # Somebody has entered since: what was true before need not be.
                    ranking = rankings[id(each.who)] = rank(each.who)
                    chosen = self._choose(each, ranking, now, paying=paying)
                if chosen is None:
                    continue
                paid_s = chosen.candidate.harm_s if paying else 0.0
                self.charge(chosen.candidate.replica, paid_s)
                self.leave(each.who)
                enter(each.who, chosen, paid_s)
                self._changed = True
        self._changed = False

    # -- inside -----------------------------------------------------------------------------------------------------

    def _account(self, replica: str) -> _Account:
        if replica not in self._accounts:
            self._accounts[replica] = _Account(self.terms.first_allowance_s)
        return self._accounts[replica]

    def _fill(self, now: float, replicas: Collection[str]) -> None:
        elapsed = 0.0 if self._filled_at is None else max(0.0, now - self._filled_at)
        self._filled_at = now
        for name in [name for name in self._accounts if name not in replicas]:
            del self._accounts[name]
        terms = self.terms
        share = min(terms.most_share, terms.share * max(1.0, self.longest_s(now) / terms.patience_s))
        for name in replicas:
            account = self._account(name)
            account.seconds = min(terms.most_allowance_s, account.seconds + share / self.routers * elapsed)

    def _choose(self, each: Held[T], ranking: Sequence[Scored], now: float, *, paying: bool) -> Scored | None:
        if paying:
            return self._paid(each.who, ranking)
        return self._free(ranking, self._waits_for(each, now), each.who)

    def _reserve(
        self, now: float, held: Sequence[Held[T]], replicas: int, rankings: Mapping[int, Sequence[Scored]]
    ) -> None:
        """Keep an allowance for those who wait longest, and a replica clear for those who never fit beside others."""
        terms = self.terms
        for account in self._accounts.values():
            account.reserved_for = None
        draining = sum(account.drained_for is not None for account in self._accounts.values())
        for each in held:
            if not self._may_reserve(each, now):
                return  # the others have not waited longer
            best: tuple[float, Candidate] | None = None
            for scored in rankings[id(each.who)]:
                candidate = scored.candidate
                account = self._account(candidate.replica)
                if account.reserved_for is not None or account.drained_for not in {None, each.who}:
                    continue
                missing = self._entry_s(candidate) - account.seconds
                fills_s = 0.0 if missing <= 0 else missing / terms.share if terms.share else math.inf
                cost = candidate.read_s + candidate.harm_s + fills_s
                if best is None or cost < best[0]:
                    best = cost, candidate
            if best is None:
                continue
            candidate = best[1]
            account = self._account(candidate.replica)
            account.reserved_for = each.who
            can_pay = account.seconds >= self._entry_s(candidate)
            if can_pay and not candidate.fits and account.drained_for is None and draining < max(1, replicas // 4):
                account.drained_for = each.who
                draining += 1

    def _may_reserve(self, each: Held[T], now: float) -> bool:
        return now - each.since > self.terms.reserve_after_s

    def _could(self, candidate: Candidate, who: T) -> bool:
        return self.has_place(candidate, who) and (self.terms.costs_nothing(candidate) or self._can_pay(candidate, who))

    def _entry_s(self, candidate: Candidate) -> float:
        """What must be in the allowance of a replica for an entry there."""
        return min(candidate.harm_s, self.terms.enough_s, self.terms.most_allowance_s)

    def _can_pay(self, candidate: Candidate, who: T | None) -> bool:
        account = self._account(candidate.replica)
        enough = account.seconds >= self._entry_s(candidate)
        return enough and account.reserved_for in {None, who}

    def _waits_for(self, each: Held[T], now: float) -> str | None:
        """The home that somebody waits for, until they have waited long enough to go anywhere."""
        return each.home if now - each.since <= self.terms.home_wait_s else None

    def _may_read(self, candidate: Candidate) -> bool:
        return candidate.read_s <= max(self.terms.cold_s, candidate.between_s) or not candidate.cold_reads

    def _is_only_full(self, candidate: Candidate) -> bool:
        return candidate.is_full and candidate.fits and self._account(candidate.replica).drained_for is None

    def _is_free(self, candidate: Candidate, who: T | None = None) -> bool:
        return self.terms.costs_nothing(candidate) and self.has_place(candidate, who)

    def _free(self, ranked: Sequence[Scored], home: str | None, who: T | None) -> Scored | None:
        free = next((each for each in ranked if self._is_free(each.candidate, who)), None)
        at_home = next((each for each in ranked if each.candidate.replica == home), None)
        if at_home is None or free is at_home or at_home.candidate.read_s > self.terms.cold_s:
            return free
        # The home is warm: where it is only full, its next place is worth more than another replica's first.
        cheaper = free is None or at_home.total_s + self.terms.home_gain_s < free.total_s
        return None if cheaper and self._is_only_full(at_home.candidate) else free

    def _paid(self, who: T, ranking: Sequence[Scored]) -> Scored | None:
        return next(
            (each for each in ranking if self._can_pay(each.candidate, who) and self.has_place(each.candidate, who)),
            None,
        )
