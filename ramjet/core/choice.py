"""Where a request should go, as things stand: one decision, by the shortest of several ways to it. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from ramjet.core.admission import Admission
from ramjet.core.beliefs import Outlook
from ramjet.core.fleet import Replica
from ramjet.core.offers import Offers
from ramjet.core.ranking import Ranking
from ramjet.core.route import Ask, Candidate, Decision, Scored, decide, reason_of, tied_until_s
from ramjet.core.visit import Visit

SMALL = 64
"""In a fleet of so many all replicas are looked at for a request that does not simply go home..."""
LOOKED_AT = 8
"""...and in a larger one so many."""


class Found(NamedTuple):
    """What there is for a request, now that it comes."""

    decision: Decision | None
    """None where it is to be held: then nobody asks who would be cheapest."""
    free: Scored | None
    """Where it may enter free of charge, if that was asked."""


class Choice:
    """Decides by the policy that the offers are made under."""

    def __init__(self, offers: Offers, admission: Admission[Visit]) -> None:
        """
        Args:
            offers: the fleet as a request sees it.
            admission: who may enter free of charge.
        """
        self._offers = offers
        self._admission = admission

    def home(self, visit: Visit) -> str | None:
        """Where the conversation's last turn was; None for a new one, or where its home has been removed."""
        home = None if visit.turn is None else visit.turn.conversation.home
        if home is None or not self._offers.policy.affinity:
            return None
        # Whose home has been removed is new again, or all of them would go to one replica.
        return home if home in self._offers.fleet.replicas else None

    def rank(self, visit: Visit, now: float, *, everywhere: bool = False) -> Decision | None:
        """Rank the replicas that can serve a request; None where there is none.

        Args:
            visit: the request.
            now: the time.
            everywhere: look at all of them, however many they are.
        """
        ask, able = self._ask(visit), self._offers.able(visit)
        if not able:
            return None
        candidates = self._candidates(visit, able if everywhere else self._worth_a_look(visit, ask, able, now), now)
        return self._decide(ask, candidates, len(able))

    def stay(self, visit: Visit, now: float) -> Decision | None:
        """The decision to go home, where that is cheaper than any other replica could be; None: look at them all.

        Most turns are like that, and for them a large fleet is no dearer than a small one. The decision is the one that
        all replicas together would have led to: what costs and rules promise sees to that.
        """
        name = self.home(visit)
        if name is None or visit.tried:
            return None
        able = self._offers.able(visit)
        replica = self._offers.fleet[name]
        if len(able) < 2 or replica not in able:
            return None
        pool_tokens = self._offers.smallest_pool(able)
        (home,) = self._offers.candidates(visit, [replica], self._offers.long_tokens(visit, pool_tokens), now)
        ideal = Candidate(replica="", identity="", matched_tokens=visit.prompt_tokens, pool_tokens=pool_tokens)
        # Idle, and as busy as the home: to wait at the one costs least, and to leave for the other does.
        others = ideal, replace(ideal, replica=" ", in_flight=home.in_flight)
        decision = self._decide(self._ask(visit), (home, *others), 1)
        here, *elsewhere = decision.ranked
        # Where a rule refuses one of them, or would all, it has to see who the others are.
        if decision.refused or decision.reason != "affinity" or here.candidate is not home:
            return None
        elsewhere_s = min(each.total_s for each in elsewhere)
        may_enter = self._offers.policy.terms.mode == "off" or self._admission.choose([here], home.replica) is not None
        if elsewhere_s <= tied_until_s(here.total_s) or not may_enter:
            return None
        best = home.matched_tokens  # the ideal is nobody's
        return replace(decision, ranked=(here,), elsewhere_s=elsewhere_s, best_matched_tokens=best)

    def look_around(self, visit: Visit, now: float, *, asks_to_enter: bool) -> Found | None:
        """The decision among all replicas, and where admission lets it in; None where there is no replica.

        What a replica would lose is counted only for those on whom the answer hangs.
        """
        ask, able = self._ask(visit), self._offers.able(visit)
        if not able:
            return None
        policy, home, near = self._offers.policy, ask.home, self._worth_a_look(visit, ask, able, now)
        looks: dict[str, Outlook] = {}
        longs = self._offers.long_tokens(visit, self._offers.smallest_pool(near))
        candidates = list(self._offers.candidates(visit, near, longs, now, harm=False, looks=looks))
        enforces = policy.terms.mode == "enforce"
        if self._offers.have_room(visit, looks):
            # As nearly always where pools are large: then this is the whole ranking, and there is nothing to count.
            decision = self._decide(ask, candidates, len(able))
            free = self._admission.choose(decision.ranked, home) if asks_to_enter else None
            return Found(None if asks_to_enter and enforces and free is None else decision, free)
        count = self._offers.counting(visit, now, looks)
        # Where the first is free the others are not counted, and how old a count is may show later: so in one order always.
        candidates.sort(key=lambda each: each.identity)
        if asks_to_enter and enforces and not any(count(each)[1] for each in candidates):
            return Found(None, None)
        decision = self._decide(ask, candidates, len(able))
        if decision.refused:
            # What the rules leave is ranked anew, and whether that changed the choice is to be seen.
            decision = self._decide(ask, self._candidates(visit, near, now), len(able))
            return Found(decision, self._admission.choose(decision.ranked, home) if asks_to_enter else None)
        ranking = Ranking(ask, decision.ranked, policy.costs, count)
        # Who only watches has to know the first in any case.
        first = None if asks_to_enter and enforces else ranking.first()
        free = None
        if asks_to_enter:
            free = ranking.first_free(self._admission.has_place, self._offers.free_upto_s)
            free = self._admission.or_home(free, ranking.of(home))
            if free is None and enforces:
                return Found(None, None)
        first = first or ranking.first()
        reason = decision.reason
        if first.candidate.replica != decision.chosen.candidate.replica:
            reason = reason_of(ask, first.candidate, candidates)
        return Found(replace(decision, ranked=(first, *ranking.others(first)), reason=reason), free)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _worth_a_look(self, visit: Visit, ask: Ask, able: Sequence[Replica], now: float) -> Sequence[Replica]:
        """All that are able, or of a large fleet those that are looked at."""
        return able if len(able) <= SMALL else self._offers.nearest(visit, able, ask, LOOKED_AT, now)

    def _candidates(self, visit: Visit, replicas: Sequence[Replica], now: float) -> list[Candidate]:
        longs = self._offers.long_tokens(visit, self._offers.smallest_pool(replicas))
        return list(self._offers.candidates(visit, replicas, longs, now))

    def _decide(self, ask: Ask, candidates: Collection[Candidate], able: int) -> Decision:
        policy = self._offers.policy
        decision = decide(ask, candidates, rules=policy.rules, costs=policy.costs)
        return decision if len(candidates) >= able else replace(decision, not_looked_at=able - len(candidates))

    def _ask(self, visit: Visit) -> Ask:
        conversation = visit.turn.conversation if visit.turn is not None else None
        return Ask(
            body_bytes=visit.arrival.body_bytes,
            prompt_tokens=visit.prompt_tokens,
            model=visit.arrival.model,
            has_prompt=conversation is not None,
            # Nothing tells these requests apart, so their own ids spread them.
            conversation=xxh3_64_intdigest(visit.arrival.request_id.encode())
            if conversation is None
            else conversation.head,
            home=self.home(visit),
            in_parallel=visit.in_parallel,
            shared=visit.shared,
        )
