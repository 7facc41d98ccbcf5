"""What each replica offers a prompt: how soon it would be read there, how much of it is there, what it would push out.

Looking changes nothing that anybody decides by; whoever wants a place has to book it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from ramjet.core.beliefs import Belief
from ramjet.core.conversations import Conversation, Conversations
from ramjet.core.fleet import Fleet, Replica
from ramjet.core.losses import Prices
from ramjet.core.policies import Policy, long_from
from ramjet.core.returns import Returns
from ramjet.core.route import Candidate
from ramjet.core.slices import MOST_SLICES
from ramjet.core.visit import Lease, Visit

_LEAD_S = 0.3
"""A reading that ends sooner than this keeps nobody out."""


class Offers:
    """The fleet as a request sees it."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        beliefs: Mapping[str, Belief],
        conversations: Conversations,
        returns: Returns,
    ) -> None:
        """
        Args:
            fleet: who can serve.
            policy: what is in force; whoever changes it says so here too.
            beliefs: what each replica holds, by name.
            conversations: who is alive.
            returns: how likely they are to come back.
        """
        self.fleet = fleet
        self.policy = policy
        self._beliefs = beliefs
        self._conversations = conversations
        self._returns = returns
        self._standings: dict[str, tuple[tuple[float, int, int], tuple[float, int, float]]] = {}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Looks inside leave nothing behind: neither what they work out, nor what they find to be read by now."""
        standings = self._standings
        self._standings = {}
        with ExitStack() as stack:
            stack.callback(setattr, self, "_standings", standings)
            for replica in self.fleet:
                stack.enter_context(replica.unchanged())
                stack.enter_context(self._beliefs[replica.name].unchanged())
            yield

    def able(self, visit: Visit) -> list[Replica]:
        """The replicas that can serve a request and have not been tried."""
        replicas = [each for each in self.fleet.able if each.name not in visit.tried]
        model = visit.arrival.model
        if model is not None and any(model in each.models for each in replicas):
            replicas = [each for each in replicas if not each.models or model in each.models]
        return replicas

    def smallest_pool(self, replicas: Sequence[Replica]) -> int | None:
        """The smallest of their token pools that are known."""
        pools = (self._beliefs[each.name].pool_tokens for each in replicas)
        return min((pool for pool in pools if pool is not None), default=None)

    def long_tokens(self, visit: Visit, pool_tokens: int | None) -> Mapping[str, int]:
        """Tokens of the other living long conversations at each replica; nothing where the request is not long.

        `pool_tokens` is the smallest pool, which says what is long.
        """
        least_tokens = long_from(self.policy.long_tokens, [pool_tokens])
        if visit.prompt_tokens < least_tokens:
            return {}
        return self._conversations.long_tokens(least_tokens, None if visit.turn is None else visit.turn.conversation)

    def candidates(
        self,
        visit: Visit,
        replicas: Sequence[Replica],
        long_tokens: Mapping[str, int],
        now: float,
        *,
        counts_all: bool = True,
    ) -> list[Candidate]:
        """These replicas as a request sees them; `long_tokens` by name, `counts_all` as for one of them."""
        prices = self.prices(now)
        return [
            self.candidate(visit, each, long_tokens.get(each.name, 0), prices, now, counts_all=counts_all)
            for each in replicas
        ]

    def candidate(
        self,
        visit: Visit,
        replica: Replica,
        long_tokens: int,
        prices: Prices,
        now: float,
        *,
        counts_all: bool = True,
    ) -> Candidate:
        """A replica as a request sees it; without `counts_all`, the harm there counts until it is not free any more."""
        belief, reading, terms = self._beliefs[replica.name], self.policy.reading, self.policy.terms
        pace = belief.pace.factor
        queue_s, cold_reads, between_s = self._standing(replica, now)
        matched = own = 0
        found_s = harm_s = 0.0
        fits = True
        if visit.usable is not None and visit.turn is not None:
            prompt_tokens, conversation = visit.prompt_tokens, visit.turn.conversation
            outlook = belief.outlook(visit.usable, prompt_tokens)
            if self.policy.affinity:
                matched = outlook.hit.tokens
                own = max(0, matched - visit.shared_tokens)
                found_s = pace * reading.seconds(matched - own, matched) if own else 0.0
            most_s = 2 * terms.most_allowance_s
            if not counts_all:
                most_s = min(most_s, terms.free_upto_s(found_s))
            harm_s = belief.harm_s(outlook, prompt_tokens, conversation, prices, now, most_s=most_s)
            fits = not replica.in_flight or belief.fits(outlook, prompt_tokens)
        most = belief.pools.most_running
        return Candidate(
            replica=replica.name,
            identity=replica.url,
            matched_tokens=matched,
            own_tokens=own,
            in_flight=replica.in_flight,
            queue_s=queue_s,
            living=self._conversations.living_at[replica.name],
            long_tokens=long_tokens,
            pool_tokens=belief.pool_tokens,
            pace=pace,
            read_s=round(pace * reading.seconds(matched, visit.prompt_tokens), 6),
            found_s=found_s,
            harm_s=harm_s,
            fits=fits,
            is_full=most is not None and replica.in_flight >= most,
            cold_reads=cold_reads,
            between_s=between_s,
        )

    def prices(self, now: float) -> Prices:
        """What it costs others to lose something."""
        return Prices(partial(self._worth, now=now), self.policy.reading.seconds)

    def read_s(self, belief: Belief, start: int, end: int) -> float:
        """Seconds that a replica takes to read from one length in tokens to another."""
        return belief.pace.factor * self.policy.reading.seconds(start, end)

    def changed(self, replica: str) -> None:
        """Other prompts are read at a replica than a moment ago, though as many."""
        self._standings.pop(replica, None)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _standing(self, replica: Replica, now: float) -> tuple[float, int, float]:
        """Seconds of reading ahead of whoever comes to a replica now, how many of those readings are long, and how long
        one may be that slips in between their slices."""
        if not replica.queue:
            return 0.0, 0, 0.0
        known = self._standings.get(replica.name)
        stamp = (now, len(replica.queue), replica.in_flight)
        if known is None or known[0] != stamp:
            leases = [each for each in replica.queue if isinstance(each, Lease)]
            for lease in leases:
                # What is not seen to be read has been, when it should have.
                if not lease.shows_first and not lease.starts and now >= lease.read_at:
                    lease.read(lease.read_at)
            cold = [each for each in leases if each.is_cold and each.is_reading and not _ends_soon(each, now)]
            in_slices = bool(cold) and all(each.starts for each in cold)
            between_s = MOST_SLICES * (self.policy.slice_s or 0.0) if in_slices else 0.0
            known = self._standings[replica.name] = stamp, (round(replica.queue_at(now), 6), len(cold), between_s)
        return known[1]

    def _worth(self, owner: object, now: float) -> float:
        """The chance that a conversation comes back for what a replica holds of it."""
        if not isinstance(owner, Conversation):
            return 0.0
        return 1.0 if owner.running else self._returns.probability(now - owner.seen_at, self.policy.return_s)


def _ends_soon(lease: Lease, now: float) -> bool:
    """Whether a reading is about to end, and keeps nobody out: the next would find the replica idle."""
    return not lease.starts and 0 <= lease.read_at - now < _LEAD_S
