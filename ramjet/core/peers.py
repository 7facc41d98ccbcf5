"""Other routers before the same replicas: what they tell is taken in as if it had been done here, a moment later.

A peer's request is recognised, booked at the replica where it went, read and ended through the same router that serves
our own. So conversations, beliefs, what reports teach, queues, cold reads on their way and allowances are those of all
routers together, and no decision has to ask anybody. Pure: news come in with their times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from ramjet.core.fingerprint import Fingerprint
from ramjet.core.hints import Hint
from ramjet.core.news import Ended, Fact, Open, Placed, Read
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Visit

MOST_OPEN = 20_000
"""Requests of peers that are followed at a time; who tells of more is not believed in all."""
MOST_UNPLAYED = 20_000
"""Facts about replicas that are not known here, or not yet: 22 MB at a megabyte of text, where each request has three."""


class Peers:
    """Plays what peers tell into a router."""

    def __init__(self, router: Router, hashed: Callable[[str], int]) -> None:
        """
        Args:
            router: who takes it in.
            hashed: 64 bits of a name, the same as the peers'.
        """
        self._router = router
        self._hashed = hashed
        self._open: dict[int, dict[int, Visit]] = {}
        self._replicas: Mapping[int, str] = {}
        self._models: Mapping[int, str] = {}
        self._strangers: dict[tuple[int, int], int] = {}
        """Requests, by peer and number, at replicas that are not known here, or not yet, and at which..."""
        self._unplayed: deque[tuple[int, Placed | Read | Ended, float]] = deque()
        """...and what was told of them: by whom, and how far its clock was ahead."""
        self._has_met = False
        self._known = 1
        """Routers that were there when that was last heard."""
        self.look_again()

    @property
    def open(self) -> int:
        """Requests of theirs that are under way, as far as they have told."""
        return sum(map(len, self._open.values()))

    @property
    def in_flight(self) -> dict[str, int]:
        """The same by replica."""
        return {each.name: each.peers_in_flight for each in self._router.fleet}

    def look_again(self) -> None:
        """The fleet, or what it serves, may have changed."""
        fleet, before = self._router.fleet, self._replicas.keys()
        self._replicas = {self._hashed(each.identity): each.name for each in fleet}
        self._has_met = self._has_met or not self._replicas.keys() <= before
        self._models = {self._hashed(model): model for each in fleet for model in each.models}

    def take(self, peer: int, facts: Iterable[Fact], ahead_s: float, now: float) -> None:
        """Take in what a peer tells.

        Args:
            peer: who.
            facts: in the order in which they were told.
            ahead_s: how far its clock is ahead of ours.
            now: the time. What is said to come later is taken for now.
        """
        visits = self._open.setdefault(peer, {})
        for fact in facts:
            if isinstance(fact, Placed):
                if not self._knows(fact.replica):
                    self._strangers[peer, fact.number] = fact.replica
                    self._keep(peer, fact, ahead_s)
                elif (peer, fact.number) not in self._strangers:
                    self._placed(visits, fact, min(now, fact.at - ahead_s))
            elif isinstance(fact, Open):
                gone = visits.keys() - set(fact.numbers)
                self._end(visits, gone, now)
            elif (peer, fact.number) in self._strangers:
                self._keep(peer, fact, ahead_s)
            elif isinstance(fact, Read):
                visit = visits.get(fact.number)
                if visit is not None:
                    self._router.first_token(visit, min(now, fact.at - ahead_s))
            else:
                self._ended(visits, fact, min(now, fact.at - ahead_s))
        if not visits:
            del self._open[peer]

    def met(self) -> list[tuple[int, Placed | Read | Ended, float]]:
        """What was told of replicas before they were known here, once they are: `take` it, in this order.

        Whoever starts hears what peers have told before it has found its replicas, or been told of their ranks.
        """
        if not self._has_met:
            return []
        self._has_met = False
        met = {request for request, replica in self._strangers.items() if self._knows(replica)}
        told = [each for each in self._unplayed if (each[0], each[1].number) in met]
        self._unplayed = deque(each for each in self._unplayed if (each[0], each[1].number) not in met)
        for request in met:
            del self._strangers[request]
        return told

    def only(self, living: Collection[int], now: float) -> None:
        """Nobody but these is there any more: what others had under way has ended, as far as anybody will ever know."""
        self._known = 1 + len(living)
        for peer in self._open.keys() - set(living):
            visits = self._open.pop(peer)
            self._end(visits, list(visits), now)

    def lost(self, now: float) -> None:
        """Nobody can be heard. What peers have under way shows in the engines' pages; each takes its part of allowances."""
        self._router.admission.routers = max(self._router.admission.routers, self._known)
        self.only((), now)

    def found(self) -> None:
        """They are heard again: what one has paid all have, so that allowances are shared."""
        self._router.admission.routers = 1

    # -- inside -----------------------------------------------------------------------------------------------------

    def _knows(self, replica: int) -> bool:
        found = self._router.fleet.replicas.get(self._replicas.get(replica, ""))
        # The name may be another's since that was looked at.
        return found is not None and self._hashed(found.identity) == replica

    def _keep(self, peer: int, fact: Placed | Read | Ended, ahead_s: float) -> None:
        self._unplayed.append((peer, fact, ahead_s))
        if len(self._unplayed) > MOST_UNPLAYED:
            who, oldest, _ = self._unplayed.popleft()
            if isinstance(oldest, Placed):
                self._strangers.pop((who, oldest.number), None)

    def _placed(self, visits: dict[int, Visit], fact: Placed, at: float) -> None:
        if fact.number in visits or self.open >= MOST_OPEN:
            return
        try:
            prints = _read(fact)
        except ValueError:
            return  # its fault, and nobody else's
        arrival = Arrival(
            request_id="",
            endpoint=fact.endpoint,
            body_bytes=fact.body_bytes,
            stream=fact.stream,
            model=None if fact.model is None else self._models.get(fact.model),
            fingerprint=prints,
            hint=None if fact.hint is None else Hint(*fact.hint),
        )
        visits[fact.number] = self._router.follow(
            arrival,
            self._replicas[fact.replica],
            at,
            conversation=fact.conversation,
            turn=fact.turn,
            paid_s=fact.paid_s,
        )

    def _ended(self, visits: dict[int, Visit], fact: Ended, at: float) -> None:
        visit = visits.pop(fact.number, None)
        if visit is not None:
            self._router.conclude(visit, at, was_read=fact.was_read, is_ok=fact.is_ok, usage=fact.usage)

    def _end(self, visits: dict[int, Visit], numbers: Iterable[int], now: float) -> None:
        """Nobody knows how they ended: what was read is there, and nothing is learned."""
        for number in numbers:
            visit = visits.pop(number)
            self._router.conclude(visit, now, was_read=visit.first_token_at is not None, is_ok=False, usage=Usage())


def _read(fact: Placed) -> Fingerprint | None:
    """The prompt of a request; None where the peer could not read one."""
    if fact.usable is None:
        return None
    usable = fact.usable.chain
    return Fingerprint(usable, usable if fact.identity is None else fact.identity.chain)
