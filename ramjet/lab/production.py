"""The product's own policy in the laboratory: the production router, admission included, behind the policy's contract.

Only the edge is replaced: a prompt's blocks stand for its fingerprint, and virtual time for the clock.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ramjet.core.admission import Terms
from ramjet.core.fingerprint import Chain, Fingerprint
from ramjet.core.fleet import Fleet, Replica
from ramjet.core.others import Load
from ramjet.core.policies import BalanceCost, CrowdingCost, LeaveCost, Policy, PrefillCost, QueueCost, SpreadLongRule
from ramjet.core.pools import Pools
from ramjet.core.record import Record
from ramjet.core.route import Cost
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Visit
from ramjet.lab.policies import BYTES_PER_TOKEN, Factory, Placements, ReplicaFacts, Request

SHIPPED = Policy(
    rules=(SpreadLongRule(),),
    costs=(PrefillCost(), QueueCost(), CrowdingCost(), BalanceCost(), LeaveCost()),
)
"""What `ramjet serve` does without a configuration file."""


def pools_of(facts: ReplicaFacts) -> Pools:
    """A replica's pools, as its configuration would say them."""
    return Pools(
        tokens=facts.pool_tokens,
        slots=facts.slots,
        per_path=facts.per_path,
        private=facts.private,
        chunk_tokens=facts.chunk_tokens,
        grid_tokens=facts.grid or 256,
    )


def in_bytes(request: Request) -> tuple[array[int], int]:
    """Where each block of a prompt ends in bytes, and how long it is in all, if all tokens are of one length."""
    ends = array("Q", (BYTES_PER_TOKEN * end for end in request.blocks.ends))
    return ends, BYTES_PER_TOKEN * request.prompt_tokens


def arrival_of(request: Request, heads: dict[int, int], in_bytes_: tuple[array[int], int] | None = None) -> Arrival:
    """A request whose prompt is blocks and nothing else, as the edge would hand it in.

    Args:
        request: what a client sends.
        heads: where each conversation's first user message ends, in blocks: messages say so on the wire, and here the
            first prompt does. It is added to.
        in_bytes_: where the blocks end in bytes, and the prompt; None: four to a token.
    """
    head = heads.setdefault(request.conversation, len(request.blocks))
    ends, size_bytes = in_bytes(request) if in_bytes_ is None else in_bytes_
    chain = Chain(request.blocks.hashes, ends, min(head, len(ends)), size_bytes)
    return Arrival(
        request_id=str(request.number),
        endpoint="chat",
        body_bytes=chain.size_bytes,
        stream=True,
        fingerprint=Fingerprint(chain, chain),
        # Where messages end, nobody says here: it may be cut at any block.
        cuts=ends[:-1],
    )


class Routed:
    """`core.router` as a policy, for a fleet; who derives from it says what a request looks like when it arrives."""

    tick_s: float | None = 1.0

    def __init__(self, fleet: Fleet, policy: Policy) -> None:
        """
        Args:
            fleet: in the order of the loop's replicas.
            policy: how it decides.
        """
        self.router = Router(fleet, policy)
        self._names = [each.name for each in fleet]
        self._places = {each.name: place for place, each in enumerate(fleet)}
        self._visits: dict[Request, Visit] = {}
        self._requests: dict[Visit, Request] = {}

    def _arrival(self, request: Request) -> Arrival:
        """The request as the edge would hand it in."""
        raise NotImplementedError

    def _ended(self, request: Request, visit: Visit, record: Record) -> None:
        """What became of it, for those who want to know."""

    def arrive(self, request: Request, now: float) -> int | None:
        """Place it, or hold it."""
        visit = self.router.arrive(self._arrival(request), now)
        self._visits[request], self._requests[visit] = visit, request
        return None if self.router.place(visit, now) is None else self._go(visit)

    def _go(self, visit: Visit) -> int:
        """It goes: the index of its replica."""
        request, lease = self._requests[visit], visit.lease
        assert lease is not None
        if lease.starts:
            request.starts = self._depths(request, visit)
        return self._places[lease.replica.name]

    def _depths(self, request: Request, visit: Visit) -> list[int]:  # noqa: ARG002 - whose blocks are others needs it
        """Blocks of the starts of its prompt."""
        assert visit.lease is not None
        return [start.cut + 1 for start in visit.lease.starts]

    def start_read(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> None:
        """A start of its prompt has been read."""
        usage = Usage(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
        self.router.start_read(self._visits[request], now, usage)

    def first_token(self, request: Request, now: float) -> Placements:
        """Its prompt has been read; of an answer that is no stream nobody sees that."""
        visit = self._visits[request]
        if not visit.arrival.stream:
            return []
        self.router.first_token(visit, now)
        return self._admit(now, quick=True)

    def finish(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> Placements:
        """It has been answered."""
        visit = self._visits.pop(request)
        del self._requests[visit]
        usage = self._usage(request, prompt_tokens, cached_tokens)
        self._ended(request, visit, self.router.finish(visit, now, outcome="ok", status=200, usage=usage))
        return self._admit(now, quick=True)

    def _usage(self, request: Request, prompt_tokens: int, cached_tokens: int | None) -> Usage:  # noqa: ARG002
        """What the engine reports."""
        return Usage(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    def tick(self, now: float) -> Placements:
        """Let in who may enter now."""
        return self._admit(now)

    def admit_soon(self, now: float) -> Placements:
        """Let in who may enter where a place has become free."""
        return self._admit(now, quick=True)

    def loaded(self, place: int, load: Load, now: float) -> None:
        """An engine has said what it has."""
        self.router.loaded(self._names[place], load, now)

    def _admit(self, now: float, *, quick: bool = False) -> Placements:
        entered = self.router.admit(now, quick=quick)
        return [(self._requests[visit], self._go(visit)) for visit in entered]


class Production(Routed):
    """The same for replicas of which the laboratory tells the facts, and prompts that are blocks and nothing else."""

    def __init__(
        self,
        facts: list[ReplicaFacts],
        seed: int,
        *,
        policy: Policy = SHIPPED,
        told: Callable[[ReplicaFacts], Pools] = pools_of,
    ) -> None:
        """
        Args:
            facts: what is true of each replica.
            seed: of its hashes.
            policy: how it decides.
            told: what it is told of a replica's pools.
        """
        fleet = Fleet()
        for number, each in enumerate(facts):
            fleet.add(Replica(str(number), f"http://{seed}.{number}", configured=told(each)))
        super().__init__(fleet, policy)
        self.heads: dict[int, int] = {}
        """Where each conversation's first user message ends, in blocks."""

    def _arrival(self, request: Request) -> Arrival:
        return arrival_of(request, self.heads, self._in_bytes(request))

    def _in_bytes(self, request: Request) -> tuple[array[int], int]:
        """Where each block of a prompt ends in bytes, and how long it is in all."""
        return in_bytes(request)


def without_facts(facts: list[ReplicaFacts], seed: int) -> Production:
    """Ramjet where nobody says how large the pools are."""
    return Production(facts, seed, told=lambda _: Pools())


def _with(about: str, **changes: Any) -> Factory:
    def make(facts: list[ReplicaFacts], seed: int) -> Production:
        return Production(facts, seed, policy=replace(SHIPPED, **changes))

    make.__doc__ = about
    return make


def _but(name: str) -> tuple[Cost, ...]:
    return tuple(cost for cost in SHIPPED.costs if cost.name != name)


def _shipped(facts: list[ReplicaFacts], seed: int) -> Production:
    """Ramjet as it ships."""
    return Production(facts, seed)


POLICIES: dict[str, Factory] = {
    "ramjet": _shipped,
    "ramjet-slices": _with("Ramjet that sends long cold reads in slices of 3 s", slice_s=3.0),
    "ramjet-no-admission": _with("Ramjet that places everything at once", terms=Terms(mode="off")),
    "ramjet-no-crowding": _with("Ramjet that does not price what it pushes out", costs=_but("crowding")),
    "ramjet-no-leave": _with("Ramjet whose conversations leave for any gain", costs=_but("leave")),
    "ramjet-no-balance": _with("Ramjet that does not count conversations", costs=_but("balance")),
    "ramjet-no-spread": _with("Ramjet without the rule for long conversations", rules=()),
    "ramjet-half-found": _with(
        "Ramjet that gives credit for what is found, however much must be read", terms=Terms(read_weight=0.0)
    ),
    "ramjet-no-found": _with("Ramjet that gives no credit for what is found", terms=Terms(found_weight=0.0)),
    "ramjet-cold-crowds": _with("Ramjet that sends any number of cold reads at once", terms=Terms(cold_s=math.inf)),
    "ramjet-no-patience": _with("Ramjet that never hurries for who waits", terms=Terms(patience_s=math.inf)),
    "ramjet-without-facts": without_facts,
}
"""By name: the product's own, and each of its ingredients left out."""
