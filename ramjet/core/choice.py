"""Where a request should go, as things stand: one decision, by the shortest of several ways to it. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from ramjet.core.admission import Admission
from ramjet.core.offers import Counted, Offers
from ramjet.core.route import Ask, Candidate, Decision, decide, tied_until_s
from ramjet.core.visit import Visit


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

    def rank(self, visit: Visit, now: float) -> Decision | None:
        """Rank all replicas that can serve a request; None where there is none."""
        candidates = self._candidates(visit, now, "all")
        return self._decide(visit, candidates) if candidates else None

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
        decision = self._decide(visit, (home, *others))
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

    def glance(self, visit: Visit, now: float) -> list[Candidate]:
        """All replicas that can serve a request which comes, with harm counted until it is too much to enter free of charge.

        Empty for one that does not have to wait: no prompt was read from it, or it was placed before. Where they are all
        too dear, it is held, however much dearer they are.
        """
        asks_to_enter = self._offers.policy.terms.mode == "enforce" and visit.turn is not None and not visit.tried
        return self._candidates(visit, now, "free") if asks_to_enter else []

    def look_around(self, visit: Visit, now: float, glanced: Sequence[Candidate]) -> Decision | None:
        """The decision among all replicas; None where there is none.

        Harm is counted to the end only where that matters: nobody is chosen who is dearer so far than who is as good as the
        cheapest that is free. What costs promise sees to that. `glanced` is what `glance` saw.
        """
        first_look = self._decide(visit, glanced) if glanced else None
        if first_look is None or first_look.refused:
            return self.rank(visit, now)
        ranked, is_free = first_look.ranked, self._offers.policy.terms.costs_nothing
        dear = [each for each in ranked if not is_free(each.candidate)]
        if not dear or len(dear) == len(ranked):
            return first_look
        limit_s, home = tied_until_s(min(each.total_s for each in ranked if is_free(each.candidate))), self.home(visit)
        matter = {
            each.candidate.replica: each.candidate.long_tokens
            for each in dear
            if each.total_s <= limit_s or each.candidate.replica == home
        }
        if not matter:
            return first_look
        counted = self._offers.candidates(visit, [self._offers.fleet[name] for name in matter], matter, now)
        known = {each.replica: each for each in counted}
        candidates = [known.get(each.candidate.replica, each.candidate) for each in ranked]
        return self._decide(visit, candidates)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _candidates(self, visit: Visit, now: float, harm: Counted) -> list[Candidate]:
        able = self._offers.able(visit)
        longs = self._offers.long_tokens(visit, self._offers.smallest_pool(able))
        return list(self._offers.candidates(visit, able, longs, now, harm=harm))

    def _decide(self, visit: Visit, candidates: Collection[Candidate]) -> Decision:
        policy = self._offers.policy
        return decide(self._ask(visit), candidates, rules=policy.rules, costs=policy.costs)

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
