"""What each replica offers a prompt: how soon it would be read there, how much of it is there, what it would push out.

Looking changes nothing that anybody decides by; whoever wants a place has to book it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from heapq import nlargest

from ramjet.core.beliefs import Belief, Outlook
from ramjet.core.conversations import Conversation, Conversations
from ramjet.core.fleet import Fleet, Replica
from ramjet.core.losses import Prices
from ramjet.core.policies import LongPromptRule, Policy, QueueCost, long_from
from ramjet.core.ranking import Counting
from ramjet.core.returns import Returns
from ramjet.core.route import TIE_S, Ask, Candidate, rendezvous
from ramjet.core.slices import MOST_SLICES
from ramjet.core.visit import Lease, Visit

_CROWDED_S = 1e12
"""More than any replica has ahead of it: where other long conversations leave no room comes last."""
_LEAD_S = 0.3
"""A reading that ends sooner than this keeps nobody out."""
_IDLE = 0.0, 0, 0.0
"""How a replica stands where nobody reads."""


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
        """The replicas that can serve a request, may, and have not been tried."""
        replicas = self.fleet.able
        if visit.tried or visit.shunned:
            replicas = [each for each in replicas if each.name not in visit.tried and each.url not in visit.shunned]
        model = visit.arrival.model
        if model is not None and [each for each in replicas if model in each.models]:
            replicas = [each for each in replicas if not each.models or model in each.models]
        return replicas

    def nearest(self, visit: Visit, replicas: Sequence[Replica], ask: Ask, most: int, now: float) -> list[Replica]:
        """Of many replicas so many that are worth a closer look, by what is known of them without one.

        Those that may hold something of the prompt: the home, and where the conversations are that it shares it with. Those
        that a rule may keep it to. And those that have the least ahead of whoever comes; among equals rendezvous decides, as
        it does in a decision, so that routers agree.
        """
        known = [self.fleet.replicas.get(name) for name in (ask.home or "", *visit.holders)]
        near = [each for each in known if each is not None and each in replicas]
        for rule in self.policy.rules:
            if isinstance(rule, LongPromptRule) and ask.body_bytes >= rule.least_bytes:
                near += [each for each in replicas if rule.names(each.name)]
        request_s = next((each.request_s for each in self.policy.costs if isinstance(each, QueueCost)), 0.0)

        def ahead_s(replica: Replica) -> float:
            others = replica.others.at(now)
            return request_s * (replica.in_flight + others.requests) + replica.queue_s + others.queue_s

        # Most of a large fleet has nothing to read, and nobody else's requests.
        seconds = [
            ahead_s(each) if each.queue or each.others.are_there else request_s * each.in_flight for each in replicas
        ]
        crowded = self._crowded(visit, replicas)
        if crowded:
            seconds = [
                _CROWDED_S if each.name in crowded else ahead for each, ahead in zip(replicas, seconds, strict=True)
            ]
        # Nobody tells apart what is nearer than a tie.
        last_s = TIE_S * int(sorted(seconds)[most - 1] / TIE_S)
        until_s = last_s + TIE_S
        least = [at for at, ahead in enumerate(seconds) if ahead < until_s]
        first = [replicas[at] for at in least if seconds[at] < last_s]
        tied = [(rendezvous(ask.conversation, replicas[at].identity), at) for at in least if seconds[at] >= last_s]
        kept = dict.fromkeys(near)
        found = kept | dict.fromkeys([*first, *[replicas[at] for _, at in nlargest(most, tied)]])
        return list(found)[: max(most, len(kept))]

    def _crowded(self, visit: Visit, replicas: Sequence[Replica]) -> set[str]:
        """Where other long conversations leave no room for a long one, as far as is known."""
        beside = self.long_tokens(visit, self.smallest_pool(replicas))
        pools = {name: self._beliefs[name].pool_tokens for name in beside if name in self._beliefs}
        return {name for name, pool in pools.items() if pool is None or beside[name] + visit.prompt_tokens > pool}

    def smallest_pool(self, replicas: Sequence[Replica]) -> int | None:
        """The smallest of their token pools that are known."""
        beliefs = self._beliefs
        pools = [beliefs[each.name].cache.pool_tokens for each in replicas]
        return min([pool for pool in pools if pool is not None], default=None)

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
        replicas: Iterable[Replica],
        long_tokens: Mapping[str, int],
        now: float,
        *,
        harm: bool = True,
        looks: dict[str, Outlook] | None = None,
    ) -> Iterator[Candidate]:
        """These replicas as a request sees them, each looked at when it is asked for.

        Args:
            visit: the request.
            replicas: the replicas.
            long_tokens: what is to be said of each, by name.
            now: the time.
            harm: whether the harm there is counted, which is dearer than all the rest.
            looks: where to note what the prompt finds at each, for `counting`.
        """
        # A request looks at every replica of a fleet: what is the same for all of them is not asked for each.
        beliefs, living_at = self._beliefs, self._conversations.living_at
        policy, read_s_of = self.policy, self.policy.reading.seconds
        prompt_tokens, shared_tokens, turn = visit.prompt_tokens, visit.shared_tokens, visit.turn
        blocks = None if turn is None else visit.usable
        prices, most_s = self._prices(now), self._most_s
        read: dict[tuple[float, int], float] = {}
        for replica in replicas:
            name, ours, others = replica.name, replica.all_in_flight, replica.others.at(now)
            belief = beliefs[name]
            pace, most_running, in_flight = belief.pace.factor, belief.most_running, ours + others.requests
            queue_s, cold_reads, between_s = self._standing(replica, now) if replica.queue else _IDLE
            outlook = None if blocks is None else belief.outlook(blocks, prompt_tokens)
            matched = outlook.hit.tokens if outlook is not None and policy.affinity else 0
            read_s = read.get((pace, matched))
            if read_s is None:
                read_s = read[pace, matched] = round(pace * read_s_of(matched, prompt_tokens), 6)
            own, found_s, harm_s = 0, 0.0, 0.0
            if matched > shared_tokens:
                own = matched - shared_tokens
                found_s = pace * read_s_of(shared_tokens, matched)
            if looks is not None and outlook is not None:
                looks[name] = outlook
            if harm and outlook is not None and turn is not None:
                harm_s = belief.harm_s(outlook, prompt_tokens, turn.conversation, prices, now, most_s=most_s)
            # In the order of its fields, which is half as dear as by their names.
            yield Candidate(
                name,
                replica.identity,
                matched,
                own,
                in_flight,
                queue_s + others.queue_s,
                living_at[name],
                long_tokens.get(name, 0),
                belief.pool_tokens,
                pace,
                read_s,
                found_s,
                harm_s,
                # Where nothing of ours is, one may always go: others must not keep us out for ever.
                not ours or outlook is None or belief.fits(outlook, prompt_tokens, others.tokens),
                most_running is not None and bool(ours) and in_flight >= most_running,
                cold_reads,
                between_s,
            )

    def counting(self, visit: Visit, now: float, looks: Mapping[str, Outlook]) -> Counting:
        """What counts the harm that a request would do at a replica that was looked at without."""
        turn, most_s, prompt_tokens = visit.turn, self._most_s, visit.prompt_tokens
        beliefs, prices = self._beliefs, self._prices(now)

        def count(candidate: Candidate, upto_s: float | None = None) -> tuple[float, bool]:
            name = candidate.replica
            if turn is None or name not in looks:
                return 0.0, True
            upto_s = min(most_s, self.free_upto_s(candidate) if upto_s is None else upto_s)
            harm_s = beliefs[name].harm_s(looks[name], prompt_tokens, turn.conversation, prices, now, most_s=upto_s)
            return harm_s, harm_s <= upto_s or upto_s == most_s

        return count

    def have_room(self, visit: Visit, looks: Mapping[str, Outlook]) -> bool:
        """Whether nobody would lose anything for a request, wherever it was looked at."""
        beliefs, tokens = self._beliefs, visit.prompt_tokens
        return all(beliefs[name].has_room(outlook, tokens) for name, outlook in looks.items())

    def free_upto_s(self, candidate: Candidate) -> float:
        """The most that others may lose at a replica where entry is to be free of charge."""
        return self.policy.terms.free_upto_s(candidate.found_s, candidate.read_s)

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
        known = self._standings.get(replica.name)
        stamp = (now, len(replica.queue), replica.all_in_flight)
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

    @property
    def _most_s(self) -> float:
        """Where harm is counted no further: nobody could ever pay for it."""
        return 2 * self.policy.terms.most_allowance_s

    def _prices(self, now: float) -> Prices:
        """What it costs others to lose something."""
        return Prices(partial(self._worth, now=now), self.policy.reading.seconds)

    def _worth(self, owner: object, now: float) -> float:
        """The chance that a conversation comes back for what a replica holds of it."""
        if not isinstance(owner, Conversation):
            return 0.0
        return 1.0 if owner.running else self._returns.probability(now - owner.seen_at, self.policy.return_s)


def _ends_soon(lease: Lease, now: float) -> bool:
    """Whether a reading is about to end, and keeps nobody out: the next would find the replica idle."""
    return not lease.starts and 0 <= lease.read_at - now < _LEAD_S
