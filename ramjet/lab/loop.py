"""Plays a workload: clients, a policy and replicas in virtual time, in one heap of events.

Closed loop: a turn comes a think time after the answer before it has ended, so whoever is slow is also asked for less.
The policy is told what a router would see; the engines are the simulator's. Equal arguments give equal requests, to the
last digit: events at one time are taken in the order in which they were made.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Literal, Protocol

from ramjet.core.cache import Blocks, Hit, PrefixCache, Seat, SlotSpec
from ramjet.core.record import WARM_RATIO
from ramjet.lab.policies import Factory, Infinite, Policy, ReplicaFacts, Request
from ramjet.lab.routers import Routers
from ramjet.lab.turns import Run, Turn, Workload
from ramjet.sim.engine import Engine, Event, Job
from ramjet.sim.profile import Profile

STUCK_S = 4 * 3_600.0
"""When nothing has gone on for so long, nothing will: the policy holds what it never lets go."""

QUIET_S = 60.0
"""What lasts so long without anybody being there is a pause."""


class Server(Protocol):
    """A replica as the loop drives it; `sim.engine.Engine` is one."""

    @property
    def next_at(self) -> float | None:
        """When something will happen next; None while there is nothing to do."""

    def submit(self, job: Job, now: float) -> None:
        """Take a request in, after `advance(now)`."""

    def advance(self, now: float) -> list[Event]:
        """Let time pass; returns what happened, in order."""


class Ideal:
    """One replica for everybody that forgets nothing and serves each as if it were alone: no policy can do better."""

    def __init__(self, profile: Profile) -> None:
        self._timing = profile.timing
        self._cache = PrefixCache()
        self._events: list[tuple[float, int, Literal["first", "end"], Job]] = []
        self._numbers = count()

    @property
    def next_at(self) -> float | None:
        """The next first token or end."""
        return self._events[0][0] if self._events else None

    def submit(self, job: Job, now: float) -> None:
        """Everything about it is known at once."""
        depth = self._cache.match(job.blocks).depth
        while job.blocks.tokens(depth) >= job.prompt_tokens:
            depth -= 1
        # Now, and not when it has been read: whoever comes meanwhile would do no better anywhere.
        self._cache.insert(job.blocks, now)
        cached = job.blocks.tokens(depth)
        job.seat = Seat(job.blocks, job.prompt_tokens, Hit(depth, cached, cached), job.prompt_tokens, cached, 0)
        job.first_at = now + self._timing.before_s(job.prompt_tokens) + self._timing.read_s(cached, job.prompt_tokens)
        job.ended_at = job.first_at + (job.answer_tokens - 1) * self._timing.steps_s(1)
        heapq.heappush(self._events, (job.first_at, next(self._numbers), "first", job))
        heapq.heappush(self._events, (job.ended_at, next(self._numbers), "end", job))

    def advance(self, now: float) -> list[Event]:
        """What was due by now."""
        happened = []
        while self._events and self._events[0][0] <= now:
            at, _, kind, job = heapq.heappop(self._events)
            if kind == "end" and job.with_answer is not None:
                self._cache.insert(job.with_answer(job.answer_tokens), at)
            happened.append(Event(kind, job, at))
        return happened


def facts_of(profile: Profile) -> ReplicaFacts:
    """What a router would learn of such a replica."""
    cache = profile.cache
    if isinstance(cache, SlotSpec):
        return ReplicaFacts(
            pool_tokens=cache.slots * cache.slot_tokens,
            slots=None,
            per_path=None,
            private=0,
            chunk_tokens=cache.chunk_tokens,
            page_tokens=cache.page_tokens,
            grid=None,
        )
    assert cache.pool_tokens is not None, "a simulated replica has a pool"
    states = cache.snapshots
    return ReplicaFacts(
        pool_tokens=cache.pool_tokens,
        slots=None if states is None else states.slots,
        per_path=None if states is None else states.per_path,
        private=0 if states is None else states.private,
        chunk_tokens=cache.chunk_tokens,
        page_tokens=cache.page_tokens,
        grid=None if states is None else states.grid_tokens,
    )


def simulate(workload: Workload, factory: Factory, seed: int, *, replicas: int, profile: Profile) -> list[Request]:
    """Play a workload on new replicas of one kind.

    Raises:
        ValueError: a prompt of it is longer than such a replica can take.
        RuntimeError: the policy holds requests and lets none go.
    """
    if workload.most_tokens > profile.most_tokens:
        raise ValueError(
            f"{workload.name} has a turn of {workload.most_tokens:,} tokens, and a replica of profile {profile.name} "
            f"takes {profile.most_tokens:,} at most: choose another profile for it"
        )
    policy = factory([facts_of(profile)] * replicas, seed)
    servers: list[Server] = (
        [Ideal(profile)]
        if isinstance(policy, Infinite)
        else [Engine(profile, whole_runs=True) for _ in range(replicas)]
    )
    if isinstance(policy, Routers):
        policy.engines = [each for each in servers if isinstance(each, Engine)]
    return play(workload, policy, servers, reports_cached=profile.reports_cached)


def play(
    workload: Workload, policy: Policy, servers: Sequence[Server], *, reports_cached: bool = True
) -> list[Request]:
    """Send every turn of a workload through a policy.

    Args:
        workload: what clients do.
        policy: who decides.
        servers: the replicas, new ones.
        reports_cached: whether the engines say what they reused.

    Returns the requests in the order of their arrival.

    Raises:
        RuntimeError: the policy holds requests and lets none go.
    """
    return _Play(workload, policy, servers, reports_cached=reports_cached).run()


class _Play:
    """One run."""

    def __init__(self, workload: Workload, policy: Policy, servers: Sequence[Server], *, reports_cached: bool) -> None:
        self._workload = workload
        self._policy = policy
        self._servers = servers
        self._reports_cached = reports_cached
        self._requests: list[Request] = []
        self._turns: dict[Request, Turn] = {}
        """Those that have not ended."""
        self._by_job: dict[Job, Request] = {}
        self._history = PrefixCache()
        """Every prompt that was ever sent: what the next one could reuse."""
        self._clients = _Clients(workload)
        # (time, number, what, index): "come" is a conversation's next turn, "go" a request that was placed, "wake" a
        # replica to look after, "tick" the policy's clock.
        self._heap: list[tuple[float, int, Literal["come", "go", "wake", "tick"], int]] = []
        self._numbers = count()
        self._wake_at: list[float | None] = [None] * len(servers)
        self._ended = 0
        self._went_on_at = 0.0

    def run(self) -> list[Request]:
        for conversation, at in self._clients.first():
            self._push(at, "come", conversation)
        tick_s = self._policy.tick_s
        if tick_s is not None:
            self._push(tick_s, "tick", 0)
        left = self._workload.turns
        while self._ended < left:
            if not self._heap:
                raise RuntimeError(f"the policy holds {len(self._turns)} requests, and nothing is left to wait for")
            now, _, kind, index = heapq.heappop(self._heap)
            if kind == "wake":
                if self._wake_at[index] == now:
                    self._wake_at[index] = None
                    self._look(index, now)
            elif kind == "come":
                self._come(index, now)
            elif kind == "go":
                self._go(self._requests[index], now)
            else:
                assert tick_s is not None
                self._place(self._policy.tick(now), now)
                self._push(now + tick_s * self._ticks(now, tick_s), "tick", 0)
                if now > self._went_on_at + STUCK_S and self._turns and not self._by_job:
                    raise RuntimeError(f"the policy has held {len(self._turns)} requests for {STUCK_S:,.0f} s")
        return self._requests

    def _ticks(self, now: float, tick_s: float) -> int:
        """How many ticks on the next one is: nobody needs those of a night in which nobody comes."""
        if self._turns or not self._heap or (quiet_s := self._heap[0][0] - now) < QUIET_S:
            return 1
        return int(quiet_s / tick_s)

    def _push(self, at: float, kind: Literal["come", "go", "wake", "tick"], index: int) -> None:
        heapq.heappush(self._heap, (at, next(self._numbers), kind, index))

    def _come(self, conversation: int, now: float) -> None:
        """A client sends its next turn."""
        turn, number, blocks = self._clients.send(conversation)
        known = self._history.match(blocks).depth
        self._history.insert(blocks, now)
        request = Request(
            number=len(self._requests),
            conversation=conversation,
            turn=number,
            blocks=blocks,
            prompt_tokens=turn.prompt_tokens,
            arrived_at=now,
            reusable_tokens=blocks.tokens(known),
        )
        self._went_on_at = now
        self._requests.append(request)
        self._turns[request] = turn
        replica = self._policy.arrive(request, now)
        if replica is not None:
            self._place([(request, replica)], now)

    def _place(self, placements: Sequence[tuple[Request, int]], now: float) -> None:
        """Requests leave the policy now."""
        for request, replica in placements:
            if request.placed_at is not None:
                raise RuntimeError(f"the policy placed request {request.number} twice")
            request.placed_at, request.replica = now, replica
            # By way of the heap: a replica may be in the middle of telling what happened.
            self._push(now, "go", request.number)

    def _go(self, request: Request, now: float) -> None:
        """A request, or the next start of its prompt, reaches its replica."""
        assert request.replica is not None
        turn = self._turns[request]
        if request.starts:
            depth, blocks = request.starts[0], request.blocks
            start = Blocks(blocks.hashes[:depth], blocks.ends[:depth])
            job = Job(start, start.tokens(depth), 1)
        else:
            job = Job(
                request.blocks,
                turn.prompt_tokens,
                turn.answer_tokens,
                with_answer=lambda _: self._clients.with_answer(request.blocks, turn),
            )
        self._by_job[job] = request
        self._look(request.replica, now)
        self._servers[request.replica].submit(job, now)
        self._wake(request.replica)

    def _look(self, replica: int, now: float) -> None:
        """Hear what has happened at a replica."""
        for event in self._servers[replica].advance(now):
            if event.kind == "more":
                continue
            request = self._by_job[event.job]
            if event.kind == "end":
                del self._by_job[event.job]
            if event.kind == "first" and request.finds_all:
                # What was there when it came, and not what its own starts have read.
                found = request.cached_tokens = event.job.cached_tokens or 0
                request.finds_all = found >= WARM_RATIO * event.job.prompt_tokens
            if request.starts:
                if event.kind == "end":
                    self._start_read(request, event)
            elif event.kind == "first":
                request.first_at = event.at
                self._place(self._policy.first_token(request, event.at), event.at)
            else:
                self._end(request, event.at)
        self._wake(replica)

    def _start_read(self, request: Request, event: Event) -> None:
        request.starts, job = request.starts[1:], event.job
        cached_tokens = job.cached_tokens if self._reports_cached else None
        self._policy.start_read(request, event.at, prompt_tokens=job.prompt_tokens, cached_tokens=cached_tokens)
        self._push(event.at, "go", request.number)

    def _wake(self, replica: int) -> None:
        at = self._servers[replica].next_at
        if at != self._wake_at[replica]:
            self._wake_at[replica] = at
            if at is not None:
                self._push(at, "wake", replica)

    def _end(self, request: Request, now: float) -> None:
        """An answer is complete: the policy learns of it, and clients go on."""
        request.ended_at = self._went_on_at = now
        self._ended += 1
        del self._turns[request]
        cached_tokens = request.cached_tokens if self._reports_cached else None
        self._place(
            self._policy.finish(request, now, prompt_tokens=request.prompt_tokens, cached_tokens=cached_tokens), now
        )
        for conversation, at in self._clients.answered(request.conversation, now):
            self._push(at, "come", conversation)


class _Clients:
    """Whose turn comes when, and what its prompt is."""

    def __init__(self, workload: Workload) -> None:
        self._conversations = workload.conversations
        self._hashes = workload.hashes
        most = max(
            (each.prompt_tokens + each.answer_tokens for c in workload.conversations for each in c.turns), default=0
        )
        block = workload.block_tokens
        self._ends = array("I", range(block, most + block + 1, block))
        self._next = [0] * len(self._conversations)
        self._prompts: dict[int, array[int]] = {}
        """Hashes of the last prompt of the conversations that are not over."""
        self._started_by: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._awaited: Counter[tuple[int, int]] = Counter()
        """Conversations that have to end before a turn."""
        self._ready_at: dict[tuple[int, int], float] = {}
        """Turns whose client only waits for such conversations."""
        for number, each in enumerate(self._conversations):
            if each.after is not None:
                self._started_by[each.after].append(number)
            if each.awaited_by is not None:
                self._awaited[each.awaited_by] += 1

    def first(self) -> list[tuple[int, float]]:
        """Conversations that begin by themselves, and when."""
        return [(number, each.start_s) for number, each in enumerate(self._conversations) if each.after is None]

    def send(self, conversation: int) -> tuple[Turn, int, Blocks]:
        """A conversation's next turn, its place from 1, and its prompt."""
        number = self._next[conversation]
        turn = self._conversations[conversation].turns[number]
        self._next[conversation] = number + 1
        hashes = self._prompts.get(conversation, array("Q"))[: turn.keep]
        self._extend(hashes, turn.added)
        self._prompts[conversation] = hashes
        return turn, number + 1, Blocks(hashes, self._ends[: len(hashes)])

    def with_answer(self, blocks: Blocks, turn: Turn) -> Blocks:
        """A prompt and its answer."""
        hashes = blocks.hashes[:]
        self._extend(hashes, turn.answer)
        return Blocks(hashes, self._ends[: len(hashes)])

    def answered(self, conversation: int, now: float) -> list[tuple[int, float]]:
        """A turn has been answered: the conversations that go on or begin because of that, and when."""
        number = self._next[conversation]
        coming = [
            (each, now + self._conversations[each].delay_s) for each in self._started_by[conversation, number - 1]
        ]
        this = self._conversations[conversation]
        if number < len(this.turns):
            at = now + this.turns[number].think_s
            if self._awaited[conversation, number]:
                self._ready_at[conversation, number] = at
            else:
                coming.append((conversation, at))
            return coming
        del self._prompts[conversation]
        if this.awaited_by is not None:
            self._awaited[this.awaited_by] -= 1
            if not self._awaited[this.awaited_by] and this.awaited_by in self._ready_at:
                coming.append((this.awaited_by[0], max(now, self._ready_at.pop(this.awaited_by))))
        return coming

    def _extend(self, hashes: array[int], runs: Sequence[Run]) -> None:
        for first, blocks in runs:
            hashes.extend(self._hashes[first : first + blocks])
