"""Who gets a request: the contract of a policy, and the baselines that the product's own is compared with.

Each baseline is one small class that follows its source's published logic, not its code. It knows what that router
would know: the prompt, what was sent where, first tokens and ends. What it does not know: how long answers get, when the
next turn comes, the engines' queues. Where a source counts characters or bytes, a token is taken for four of them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Protocol

import xxhash

from ramjet.core.cache import Blocks, CacheSpec, EngineCache, Node, PrefixCache, Seat, Snapshots
from ramjet.core.policies import Reading
from ramjet.core.returns import Returns
from ramjet.core.route import TIE_RATIO, TIE_S

BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """What a router can learn of a replica before it sends anything there."""

    pool_tokens: int
    """Its token pool."""
    slots: int | None
    """Its snapshot pool; None for a model without one, and where snapshots live in the token pool."""
    per_path: int | None
    """Most snapshots on a path; None: no cap."""
    private: int
    """Slots that a running request has for itself."""
    chunk_tokens: int
    """What one forward reads, at most."""
    page_tokens: int
    """Reuse ends on a multiple of this..."""
    grid: int | None
    """...and snapshots lie on multiples of this, in tokens; None where there are none."""


@dataclass(slots=True, eq=False)
class Request:
    """One turn on its way: what a policy is shown, and then what became of it. Times are virtual seconds."""

    number: int
    """In the order of arrival, from 0."""
    conversation: int
    """For measuring: a policy must not look, but for the one that stands for routers which clients tell (a session
    header)."""
    turn: int
    """Its place in the conversation, from 1; for measuring as well."""
    blocks: Blocks
    """The prompt's full blocks."""
    prompt_tokens: int
    arrived_at: float
    reusable_tokens: int = 0
    """The longest prefix that its prompt shares with any earlier one."""
    placed_at: float | None = None
    replica: int | None = None
    starts: Sequence[int] = ()
    """Blocks of the starts of the prompt that are to be read before it, set by a policy that slices."""
    finds_all: bool = True
    """Whether the engine held whatever has been sent of it, so that what comes next may find more."""
    first_at: float | None = None
    ended_at: float | None = None
    cached_tokens: int | None = None
    """What the engine reused; None before its first token."""


Placements = list[tuple[Request, int]]
"""Held requests that go now, and the replicas they go to."""


class Policy(Protocol):
    """Decides where requests go, and when. The loop tells it what a router would see, in order."""

    tick_s: float | None
    """How often `tick` is called, in virtual seconds; None: never."""

    def arrive(self, request: Request, now: float) -> int | None:
        """A request has come: the index of its replica, or None to hold it."""

    def start_read(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> None:
        """The engine has read a start of its prompt."""

    def first_token(self, request: Request, now: float) -> Placements:
        """The engine has read its prompt."""

    def finish(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> Placements:
        """It has been answered, and the engine reports this usage (None: it does not say)."""

    def tick(self, now: float) -> Placements:
        """Time has passed."""


Factory = Callable[[list[ReplicaFacts], int], Policy]
"""Makes a policy for a fleet; the number seeds its chances and its hashes."""


class Baseline:
    """What all baselines have in common: they place at once, hold nothing, and count what is in flight."""

    tick_s: float | None = None
    source = ""
    """Where its logic is published."""

    def __init__(self, facts: list[ReplicaFacts], seed: int) -> None:
        self.facts = facts
        self.seed = seed
        self.in_flight = [0] * len(facts)
        self._turn = count()

    def arrive(self, request: Request, now: float) -> int | None:
        """Choose and book."""
        replica = self._choose(request, now)
        self.in_flight[replica] += 1
        return replica

    def start_read(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Never: baselines slice nothing."""

    def first_token(self, request: Request, now: float) -> Placements:  # noqa: ARG002
        """Its prompt has been read."""
        return []

    def finish(
        self,
        request: Request,
        now: float,  # noqa: ARG002 - some of them need it
        *,
        prompt_tokens: int,  # noqa: ARG002
        cached_tokens: int | None,  # noqa: ARG002
    ) -> Placements:
        """Its place is free again."""
        assert request.replica is not None
        self.in_flight[request.replica] -= 1
        return []

    def tick(self, now: float) -> Placements:  # noqa: ARG002
        """Nobody is held."""
        return []

    def _choose(self, request: Request, now: float) -> int:
        raise NotImplementedError

    def _least(self, costs: Sequence[float]) -> int:
        """The replica with the least; equals take turns, in a row that moves on with every request."""
        first = next(self._turn)
        return min(range(len(costs)), key=lambda replica: (costs[replica], (replica - first) % len(costs)))

    def _hashed(self, key: int) -> int:
        """A replica by rendezvous hashing."""
        return max(range(len(self.facts)), key=lambda replica: _mix(key, replica, self.seed))


def _mix(key: int, replica: int, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(key.to_bytes(8, "little") + replica.to_bytes(2, "little"), seed=seed)


def _opening(request: Request, tokens: int) -> int:
    """The hash of a prompt's first tokens; a prompt shorter than a block is like no other."""
    depth = bisect_right(request.blocks.ends, tokens)
    return request.blocks.hashes[depth - 1] if depth else request.number


# -- blind ----------------------------------------------------------------------------------------------------------


class RoundRobin(Baseline):
    """One after the other."""

    source = "every load balancer's default"

    def _choose(self, request: Request, now: float) -> int:  # noqa: ARG002
        return next(self._turn) % len(self.facts)


class LeastLoaded(Baseline):
    """Where the fewest requests are in flight; equals take turns."""

    source = "nginx least_conn, KubeAI LeastLoad"

    def _choose(self, request: Request, now: float) -> int:  # noqa: ARG002
        return self._least(self.in_flight)


class PrefixHash(Baseline):
    """By the hash of the prompt's first 4 KB, whatever the load."""

    source = "SMG prefix_hash (256 tokens), Olla (512 bytes), KubeAI (100 characters), all with shorter windows"
    TOKENS = 4_096 // BYTES_PER_TOKEN

    def _choose(self, request: Request, now: float) -> int:  # noqa: ARG002
        return self._hashed(_opening(request, self.TOKENS))


class ConversationHash(Baseline):
    """By the hash of the session that the client names, whatever the load."""

    source = "vllm-router consistent_hash (X-Session-ID), production-stack session"

    def _choose(self, request: Request, now: float) -> int:  # noqa: ARG002
        return self._hashed(request.conversation)


# -- products -------------------------------------------------------------------------------------------------------


class SglangCacheAware(Baseline):
    """The deepest match in the router's own tree if it is over 0.3 of the prompt, else the fewest in flight.

    Affinity is off for everybody while the fullest replica has 64 requests more than the emptiest and 1.5 times as many.
    """

    source = "sglang-router 0.3.2 and SMG cache_aware: cache_threshold 0.3, balance_abs 64, balance_rel 1.5"
    THRESHOLD = 0.3
    BALANCE_ABS = 64
    BALANCE_REL = 1.5
    TREE_TOKENS = (1 << 26) // BYTES_PER_TOKEN
    """Its limit is 2^26 characters for each worker, whatever the engine's pool."""

    def __init__(self, facts: list[ReplicaFacts], seed: int) -> None:
        super().__init__(facts, seed)
        self._trees = [PrefixCache(self.TREE_TOKENS) for _ in facts]

    def _choose(self, request: Request, now: float) -> int:
        replica = self._wanted(request)
        self._trees[replica].insert(request.blocks, now)
        return replica

    def _wanted(self, request: Request) -> int:
        most, least = max(self.in_flight), min(self.in_flight)
        if most - least > self.BALANCE_ABS and most > self.BALANCE_REL * least:
            return self._least(self.in_flight)
        depths = [tree.match(request.blocks).depth for tree in self._trees]
        deepest = max(depths)
        if request.blocks.tokens(deepest) <= self.THRESHOLD * request.prompt_tokens:
            return self._least(self.in_flight)
        # Whoever else has that node is as good: its map of workers gives the same one every time, in no known order.
        key = request.blocks.hashes[deepest - 1]
        holders = [replica for replica, depth in enumerate(depths) if depth == deepest]
        return max(holders, key=lambda replica: _mix(key, replica, self.seed))


class OverlapLoad(Baseline):
    """Most overlap, at most 32 blocks of 2 KB, less four for each 32 KB of unread prompt in flight there."""

    source = "the original Ramjet (Rust): score = min(overlap, 32) - 4 x load, absolute affinity basis (its default)"
    BLOCK_TOKENS = 2_048 // BYTES_PER_TOKEN
    CAP_BLOCKS = 32
    ALPHA = 4
    UNIT_BYTES = 32_768
    MOST_UNITS = 8
    INDEX_BLOCKS = 100_000

    def __init__(self, facts: list[ReplicaFacts], seed: int) -> None:
        super().__init__(facts, seed)
        self._indexes = [PrefixCache(self.INDEX_BLOCKS * self.BLOCK_TOKENS) for _ in facts]
        self._load = [0] * len(facts)
        self._units: dict[Request, int] = {}

    def _choose(self, request: Request, now: float) -> int:  # noqa: ARG002
        overlaps = [
            request.blocks.tokens(index.match(request.blocks).depth) // self.BLOCK_TOKENS for index in self._indexes
        ]
        affinity = self._affinity(overlaps)
        first = next(self._turn)
        replica = max(
            range(len(self.facts)),
            key=lambda each: (
                affinity[each] - self.ALPHA * self._load[each],
                overlaps[each],
                -((each + first) % len(self.facts)),
            ),
        )
        unread_bytes = request.prompt_tokens * BYTES_PER_TOKEN - overlaps[replica] * 2_048
        self._units[request] = units = min(self.MOST_UNITS, max(1, math.ceil(unread_bytes / self.UNIT_BYTES)))
        self._load[replica] += units
        return replica

    def _affinity(self, overlaps: Sequence[int]) -> list[int]:
        return [min(overlap, self.CAP_BLOCKS) for overlap in overlaps]

    def finish(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> Placements:
        """Only an answer that has ended is learned from, and the load is held until then."""
        assert request.replica is not None
        self._load[request.replica] -= self._units.pop(request)
        self._indexes[request.replica].insert(request.blocks, now)
        return super().finish(request, now, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)


class OverlapLoadRelative(OverlapLoad):
    """The same, but overlap is measured from the warmest replica down, so that a long shared prompt hides nothing."""

    source = "the original Ramjet, RJ_ROUTE_AFFINITY_BASIS=relative; its code was not read, the formula is inferred"

    def _affinity(self, overlaps: Sequence[int]) -> list[int]:
        return [-min(self.CAP_BLOCKS, max(overlaps) - overlap) for overlap in overlaps]


class _Unread(Baseline):
    """Routers that know what a replica was sent, and how many tokens of that it has yet to read."""

    def __init__(self, facts: list[ReplicaFacts], seed: int) -> None:
        super().__init__(facts, seed)
        # Replicas that keep snapshots reuse less than this says: none of these routers knows about them.
        self._indexes = [PrefixCache(each.pool_tokens) for each in facts]
        self._unread_tokens = [0] * len(facts)
        self._reading: dict[Request, tuple[int, int]] = {}

    def _choose(self, request: Request, now: float) -> int:
        depths = [index.match(request.blocks).depth for index in self._indexes]
        unread = [request.prompt_tokens - request.blocks.tokens(depth) for depth in depths]
        replica = self._prefer(request, depths, unread)
        self._indexes[replica].insert(request.blocks, now)
        self._unread_tokens[replica] += unread[replica]
        self._reading[request] = (replica, unread[replica])
        return replica

    def _prefer(self, request: Request, depths: Sequence[int], unread: Sequence[int]) -> int:
        raise NotImplementedError

    def first_token(self, request: Request, now: float) -> Placements:  # noqa: ARG002
        """What it had to read has been read."""
        replica, tokens = self._reading.pop(request)
        self._unread_tokens[replica] -= tokens
        return []


class StickyUntilSaturated(_Unread):
    """Among the replicas that hold 80 % of the prompt, the one with the fewest unread tokens; all, when those are late.

    Late is an estimated 18 s later than the best of the others, at 15,928 tokens a second.
    """

    source = "llm-d router, prefix-cache-affinity-filter and token-load-scorer (defaults since llm-d-router#1639)"
    THRESHOLD = 0.80
    MOST_PENALTY_S = 18.0
    TOKENS_PER_S = 15_928

    def __init__(self, facts: list[ReplicaFacts], seed: int) -> None:
        super().__init__(facts, seed)
        self._rng = Random(seed)

    def _prefer(self, request: Request, depths: Sequence[int], unread: Sequence[int]) -> int:
        everybody = range(len(depths))
        sticky = [each for each in everybody if depths[each] and depths[each] >= self.THRESHOLD * len(request.blocks)]
        others = [each for each in everybody if each not in sticky]
        if sticky and others:
            lead = min(self._unread_tokens[each] for each in sticky) - min(self._unread_tokens[each] for each in others)
            if lead / self.TOKENS_PER_S > self.MOST_PENALTY_S:
                sticky = []
        load = {each: self._unread_tokens[each] + unread[each] for each in sticky or everybody}
        least = min(load.values())
        return self._rng.choice([each for each in load if load[each] == least])


class NewTokensTimesBatch(_Unread):
    """The least product of tokens to read and requests, this one counted in both."""

    source = "LMetric (arXiv 2603.15202): new prefill tokens x batch size"

    def _prefer(self, request: Request, depths: Sequence[int], unread: Sequence[int]) -> int:  # noqa: ARG002
        # Without this request in it, an idle replica's product would be 0 whatever it would have to read.
        return self._least(
            [
                (self._unread_tokens[each] + unread[each]) * (self.in_flight[each] + 1)
                for each in range(len(self.in_flight))
            ]
        )


# -- seconds --------------------------------------------------------------------------------------------------------


HORIZON_S = 300.0
"""Who comes back later than this would hardly have found its prompt anyway (the study: 60 to 1,000 s are alike)."""
_RETURNS = Returns()
"""The chance of that before anything is learned."""


class Mirror(EngineCache):
    """A replica's cache as a router believes it to be: a prompt is taken as read when it is sent, and held until it ends.

    Those that find no room wait here as they do there.
    """

    def __init__(self, facts: ReplicaFacts) -> None:
        snapshots = None
        if facts.slots is not None:
            snapshots = Snapshots(
                slots=facts.slots, per_path=facts.per_path, private=facts.private, grid_tokens=facts.grid or 1
            )
        super().__init__(
            CacheSpec(
                pool_tokens=facts.pool_tokens,
                page_tokens=facts.page_tokens,
                chunk_tokens=facts.chunk_tokens,
                snapshots=snapshots,
            )
        )
        self._queue: deque[Request] = deque()
        self._seats: dict[Request, Seat] = {}

    def sent(self, request: Request, now: float) -> None:
        """A request is on its way there."""
        self._queue.append(request)
        self._admit(now)

    def ended(self, request: Request, now: float) -> None:
        """It has been answered."""
        seat = self._seats.pop(request, None)
        if seat is not None:
            self.leave(seat, now)
        else:
            self._queue.remove(request)
            self.serve(request.blocks, request.prompt_tokens, now)
        self._admit(now)

    def _admit(self, now: float) -> None:
        while self._queue:
            request = self._queue[0]
            seat = self.enter(request.blocks, request.prompt_tokens, 0, now)
            if seat is None:
                return
            self._seats[self._queue.popleft()] = seat
            while (left := request.prompt_tokens - seat.read_tokens) > 0:
                self.forward(seat, min(left, self.spec.chunk_tokens), now)

    def harm_s(self, request: Request, now: float, reading: Reading) -> float:
        """Seconds of reading that others will have to do again if this prompt goes there, by the chance they come back."""
        match = self.match(request.blocks)
        own = set() if match.node is None else set(match.node.path())
        unread = request.prompt_tokens - self.find(request.blocks, request.prompt_tokens).tokens
        return self._tokens_harm_s(unread, own, now, reading) + self._slots_harm_s(unread, own, now, reading)

    def _tokens_harm_s(self, unread: int, own: set[Node], now: float, reading: Reading) -> float:
        assert self.pool_tokens is not None
        need, total = unread + self.used_tokens - self.pool_tokens, 0.0
        for node in self._order:
            if need <= 0:
                break
            if node.holders or node in own:
                continue
            end = node.ends[-1]
            total += _RETURNS.probability(now - node.touched_at, HORIZON_S) * reading.seconds(
                max(node.start, end - need), end
            )
            need -= node.tokens
        return total

    def _slots_harm_s(self, unread: int, own: set[Node], now: float, reading: Reading) -> float:
        states = self.spec.snapshots
        if states is None or states.slots is None:
            return 0.0
        saved = math.ceil(unread / self.spec.chunk_tokens)
        more = states.private + (saved if states.per_path is None else min(saved, states.per_path))
        need, total = self.used_slots + more - states.slots, 0.0
        for node in self.snapshots:
            if need <= 0:
                break
            if node.locks or node in own:
                continue
            need -= 1
            if not node.children:
                before = next((above for above in node.path() if above is not node and above.snapshot), None)
                start = 0 if before is None else before.ends[-1]
                total += _RETURNS.probability(now - node.touched_at, HORIZON_S) * reading.seconds(start, node.ends[-1])
        return total


class Seconds(Baseline):
    """The least seconds: to read what the replica does not hold, behind what it was sent and has not read."""

    source = "the study's price without crowding; Dynamo's cost is of this kind, in blocks"
    READING = Reading()

    def __init__(self, facts: list[ReplicaFacts], seed: int) -> None:
        super().__init__(facts, seed)
        self._mirrors = [Mirror(each) for each in facts]
        self._queue_s = [0.0] * len(facts)
        self._reading: dict[Request, tuple[int, float]] = {}

    def _choose(self, request: Request, now: float) -> int:
        matched = [mirror.find(request.blocks, request.prompt_tokens).tokens for mirror in self._mirrors]
        read_s = [self.READING.seconds(each, request.prompt_tokens) for each in matched]
        costs = [
            read_s[each] + self._queue_s[each] + self._crowding_s(request, each, now) for each in range(len(matched))
        ]
        limit = min(costs) + max(TIE_S, TIE_RATIO * min(costs))
        key = request.blocks.hashes[-1] if len(request.blocks) else request.number
        replica = max(
            (each for each in range(len(costs)) if costs[each] <= limit),
            key=lambda each: (matched[each], _mix(key, each, self.seed)),
        )
        self._mirrors[replica].sent(request, now)
        self._queue_s[replica] += read_s[replica]
        self._reading[request] = (replica, read_s[replica])
        return replica

    def _crowding_s(self, request: Request, replica: int, now: float) -> float:  # noqa: ARG002
        return 0.0

    def first_token(self, request: Request, now: float) -> Placements:  # noqa: ARG002
        """What it had to read has been read."""
        replica, seconds = self._reading.pop(request)
        self._queue_s[replica] -= seconds
        return []

    def finish(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> Placements:
        """What it held may be pushed out from now on."""
        assert request.replica is not None
        self._mirrors[request.replica].ended(request, now)
        return super().finish(request, now, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)


class SecondsCrowding(Seconds):
    """The same, and the seconds of reading that this prompt would cost those whose prefixes it pushes out."""

    source = "the study's price: what is lost, times the chance that its owner comes back within 300 s"

    def _crowding_s(self, request: Request, replica: int, now: float) -> float:
        return self._mirrors[replica].harm_s(request, now, self.READING)


class Infinite(Baseline):
    """No policy but a lower bound: one replica that forgets nothing and serves everybody as if alone."""

    source = "the study's lower bound: infinite cache, no queue"

    def _choose(self, request: Request, now: float) -> int:  # noqa: ARG002
        return 0


INFINITE = "infinite"

BASELINES: dict[str, type[Baseline]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "prefix_hash": PrefixHash,
    "conversation_hash": ConversationHash,
    "sglang_cache_aware": SglangCacheAware,
    "overlap_load": OverlapLoad,
    "overlap_load_relative": OverlapLoadRelative,
    "sticky_until_saturated": StickyUntilSaturated,
    "new_tokens_x_batch": NewTokensTimesBatch,
    "seconds": Seconds,
    "seconds_crowding": SecondsCrowding,
    INFINITE: Infinite,
}
"""By name, for the command line."""
