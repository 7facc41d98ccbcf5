"""A replica's scheduler in virtual time: who is read, who is answered, who waits.

Events in (`submit`, `abort`), time in (`advance`), what happened out. As in SGLang, whole chunks are read, a prompt that
is being read takes the chunk first, those that find no room wait at the head of the queue, and answers share the time
that reading leaves them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from typing import Literal

from ramjet.core.cache import Blocks, CacheSpec, EngineCache, Seat, SlotCache, SlotSpec
from ramjet.core.chains import Event as BlockEvent
from ramjet.sim.profile import Profile
from ramjet.sim.telling import TellingCache


@dataclass(slots=True, eq=False)
class Job:
    """One request inside the engine, and what became of it. Times are virtual seconds."""

    blocks: Blocks
    """The prompt's full pages."""
    prompt_tokens: int
    answer_tokens: int
    """What it will generate; at least 1."""
    with_answer: Callable[[int], Blocks] | None = None
    """The full pages of the prompt and so many tokens of the answer, for those who come back with it; None: nobody."""
    arrived_at: float = 0.0
    queued_at: float = 0.0
    seat: Seat | None = None
    started_at: float | None = None
    ready_at: float = 0.0
    """When what it reuses is back from the host."""
    first_at: float | None = None
    """When its first token was there."""
    ended_at: float | None = None
    written: int = 0
    """Tokens generated so far."""
    aborted: bool = False

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were reused; None before it is known."""
        return None if self.seat is None else self.seat.hit.tokens

    @property
    def left(self) -> int:
        """Tokens of the prompt that are still to be read."""
        return self.prompt_tokens - (0 if self.seat is None else self.seat.read_tokens)


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a job: its first token, more tokens, its end."""

    kind: Literal["first", "more", "end"]
    job: Job
    at: float
    tokens: int = 0
    """How many came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One forward, as an engine logs it."""

    kind: Literal["prefill", "decode"]
    at: float
    new_requests: int = 0
    new_tokens: int = 0
    cached_tokens: int = 0
    running: int = 0
    waiting: int = 0
    tokens_per_s: float = 0.0


@dataclass(slots=True)
class _Forward:
    """What the engine is at: reading parts of prompts, or decoding."""

    ends_at: float
    parts: list[tuple[Job, int]] = field(default_factory=list)
    step_ends: list[float] = field(default_factory=list)
    """When each of its steps of decoding ends."""
    step_s: float = 0.0


class Engine:
    """A replica. `advance` must be called with times that never fall."""

    def __init__(
        self,
        profile: Profile,
        *,
        on_batch: Callable[[Batch], None] | None = None,
        on_blocks: Callable[[BlockEvent], None] | None = None,
        whole_runs: bool = False,
    ) -> None:
        """
        Args:
            profile: what to simulate.
            on_batch: called for every forward.
            on_blocks: called for all that its cache stores and lets go, if that is a tree.
            whole_runs: let answers grow by many tokens at once while nothing else happens; for replays.
        """
        self.profile = profile
        self.cache = _cache(profile.cache, on_blocks)
        self.now = 0.0
        self.prompt_tokens_total = 0
        self.cached_tokens_total = 0
        self.host_tokens_total = 0
        self.written_tokens_total = 0
        self.aborted_total = 0
        self._on_batch = on_batch
        self._whole_runs = whole_runs
        self._arriving: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._reading: deque[Job] = deque()
        """Those that have a seat and a prompt to read; of all but the first, nothing has been read."""
        self._restoring: list[Job] = []
        self._writing: list[Job] = []
        self._forward: _Forward | None = None
        self._owed_s = 0.0
        """Time that answers are still to get for what was read before them."""

    @property
    def running(self) -> int:
        """Requests that are read or answered."""
        return len(self._reading) + len(self._restoring) + len(self._writing)

    @property
    def waiting(self) -> int:
        """Requests that are not."""
        return len(self._waiting) + len(self._arriving)

    @property
    def waiting_tokens(self) -> int:
        """Tokens of prompts that wait, by what could be reused now."""
        return sum(job.prompt_tokens - self.cache.find(job.blocks, job.prompt_tokens).tokens for job in self._waiting)

    @property
    def next_at(self) -> float | None:
        """When something will happen next, after an `advance`; None while there is nothing to do."""
        if self._forward is not None:
            return self._forward.ends_at
        times = [job.queued_at for job in self._arriving] + [job.ready_at for job in self._restoring]
        return min(times, default=None)

    def submit(self, job: Job, now: float) -> None:
        """Take a request in. `advance` to `now` first.

        Raises:
            ValueError: it can never fit, or has nothing to read or to write.
        """
        if job.prompt_tokens < 1 or job.answer_tokens < 1:
            raise ValueError(
                f"{job.prompt_tokens} tokens of prompt and {job.answer_tokens} of answer: at least 1 of each"
            )
        most = self.profile.most_tokens
        if job.prompt_tokens + job.answer_tokens > most:
            raise ValueError(
                f"The input ({job.prompt_tokens} tokens) and its answer ({job.answer_tokens}) are longer than "
                f"the longest request that fits ({most} tokens)"
            )
        job.arrived_at, job.queued_at = now, now + self.profile.timing.before_s(job.prompt_tokens)
        insort(self._arriving, job, key=lambda each: each.queued_at)
        self._cut_run(now, job.queued_at)

    def abort(self, job: Job, now: float) -> None:
        """The client has left: what runs ends with the forward it is in, what has been read stays cached.

        `advance` to `now` first.
        """
        if job.ended_at is not None or job.aborted:
            return
        job.aborted = True
        self.aborted_total += 1
        if job.seat is None:
            (self._arriving if job in self._arriving else self._waiting).remove(job)
            job.ended_at = now
        if self._forward is None:
            # Whoever waits for what this one had, or behind it, may go on now, and nothing else would wake them.
            self.now = max(self.now, now)
            self._begin()
        else:
            self._cut_run(now, now)

    def advance(self, now: float) -> list[Event]:
        """Let time pass; returns what happened, in order."""
        events: list[Event] = []
        while True:
            if self._forward is None:
                self._begin()
            if self._forward is None:
                at = self.next_at
                if at is None or at > now:
                    self.now = max(self.now, now)
                    break
                self.now = max(self.now, at)
                continue
            if self._forward.ends_at > now:
                break
            forward, self._forward = self._forward, None
            self.now = forward.ends_at
            self._end(forward, events)
        return events

    def flush(self) -> bool:
        """Forget everything that is cached; refused while anybody is inside."""
        if self.running or self.waiting:
            return False
        self.cache.clear()
        return True

    # -- the scheduler ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Choose the next forward, now."""
        while self._arriving and self._arriving[0].queued_at <= self.now:
            self._waiting.append(self._arriving.popleft())
        for job in sorted(self._restoring, key=lambda job: job.ready_at):
            if job.ready_at <= self.now:
                self._restoring.remove(job)
                self._reading.append(job)
        self._drop_aborted()
        if not self._writing:
            self._owed_s = 0.0
        step_s = self.profile.timing.steps_s(len(self._writing))
        if self._writing and self._owed_s >= step_s:
            self._decode(step_s, most=self._owed_steps(step_s))
        elif parts := self._next_parts():
            self._read(parts)
        elif self._writing:
            self._owed_s = 0.0
            self._decode(step_s)

    def _next_parts(self) -> list[tuple[Job, int]]:
        """What the next forward reads of which prompts: the one begun first, then as many as fit the chunk."""
        budget, page = self.profile.cache.chunk_tokens, self.profile.page_tokens
        parts = []
        queued = iter(list(self._reading))
        while budget:
            job = next(queued, None) or self._admit()
            if job is None:
                break
            tokens = job.left if job.left <= budget else budget // page * page
            if not tokens:
                break
            parts.append((job, tokens))
            budget -= tokens
        return parts

    def _admit(self) -> Job | None:
        """Seat those who wait, in order, until one has a prompt to read; None when the first finds no room."""
        timing = self.profile.timing
        while self._waiting and self.running < self.profile.max_running:
            job = self._waiting[0]
            seat = self.cache.enter(job.blocks, job.prompt_tokens, job.answer_tokens, self.now)
            if seat is None:
                return None
            self._waiting.popleft()
            job.seat, job.started_at = seat, self.now
            self.prompt_tokens_total += job.prompt_tokens
            self.cached_tokens_total += seat.hit.tokens
            self.host_tokens_total += seat.hit.host_tokens
            if not (seat.hit.host_tokens or seat.hit.host_state):
                self._reading.append(job)
                return job
            job.ready_at = self.now + timing.restore_s + timing.restore_token_s * seat.hit.host_tokens
            self._restoring.append(job)
        return None

    def _read(self, parts: list[tuple[Job, int]]) -> None:
        timing, seconds = self.profile.timing, 0.0
        for job, tokens in parts:
            assert job.seat is not None
            seconds += timing.read_s(job.seat.read_tokens, job.seat.read_tokens + tokens)
        if self._writing and timing.decode_share:
            self._owed_s += seconds * timing.decode_share / (1 - timing.decode_share)
        self._forward = _Forward(self.now + seconds, parts)
        self._log(parts)

    def _decode(self, step_s: float, most: int | None = None) -> None:
        steps = min(job.answer_tokens - job.written for job in self._writing) if self._whole_runs else 1
        if most is not None:
            steps = min(steps, most)
        # Added up one by one, so that a whole run ends at the very instant at which its steps would.
        ends = list(accumulate(repeat(step_s, steps), initial=self.now))[1:]
        self._forward = _Forward(ends[-1], step_ends=ends, step_s=step_s)
        if most is None:
            for at in (*(job.queued_at for job in self._arriving), *(job.ready_at for job in self._restoring)):
                self._cut_run(self.now, at)

    def _owed_steps(self, step_s: float) -> int:
        steps, owed_s = 0, self._owed_s
        while owed_s >= step_s:
            steps, owed_s = steps + 1, owed_s - step_s
        return steps

    def _cut_run(self, now: float, at: float) -> None:
        """Somebody comes at a time, or leaves now: a run of decoding ends with the step that is under way then."""
        if (run := self._forward) is None:
            return
        # What ends now has ended, and the next step is under way; what ends when somebody comes is the last.
        last = max(bisect_right(run.step_ends, now), bisect_left(run.step_ends, at))
        if last < len(run.step_ends):
            del run.step_ends[last + 1 :]
            run.ends_at = run.step_ends[-1]

    def _end(self, forward: _Forward, events: list[Event]) -> None:
        for job, tokens in forward.parts:
            assert job.seat is not None
            self.cache.forward(job.seat, tokens, self.now)
            if job.left:
                continue
            self._reading.remove(job)
            self._writing.append(job)
            if not job.aborted:
                job.first_at = self.now
                events.append(Event("first", job, self.now))
                self._write(job, 1)
                self._tell(job, 1, events)
        if steps := len(forward.step_ends):
            for _ in range(steps if self._owed_s else 0):
                self._owed_s = max(0.0, self._owed_s - forward.step_s)
            self._log_decode(forward)
            # The last step apart: who ends with it makes room for others then and not before, and who left did so in it.
            for job in self._writing:
                self._write(job, steps - 1)
            for job in [job for job in self._writing if not job.aborted]:
                self._write(job, 1)
                self._tell(job, steps, events)
        self._drop_aborted()

    def _write(self, job: Job, tokens: int) -> None:
        assert job.seat is not None
        if tokens:
            self.cache.write(job.seat, tokens)
            job.written += tokens
            self.written_tokens_total += tokens

    def _tell(self, job: Job, tokens: int, events: list[Event]) -> None:
        events.append(Event("more", job, self.now, tokens))
        if job.written == job.answer_tokens:
            self._writing.remove(job)
            self._leave(job)
            events.append(Event("end", job, self.now))

    def _drop_aborted(self) -> None:
        for place in (self._reading, self._restoring, self._writing):
            for job in [job for job in place if job.aborted]:
                place.remove(job)
                self._leave(job)

    def _leave(self, job: Job) -> None:
        assert job.seat is not None
        job.ended_at = self.now
        with_answer = job.with_answer if job.written else None
        self.cache.leave(job.seat, self.now, None if with_answer is None else with_answer(job.written))

    # -- the engine's log -------------------------------------------------------------------------------------------

    def _log(self, parts: list[tuple[Job, int]]) -> None:
        if self._on_batch is None:
            return
        new = [
            job.seat.hit.tokens
            for job, _ in parts
            if job.seat is not None and job.seat.read_tokens == job.seat.hit.tokens
        ]
        self._on_batch(
            Batch(
                kind="prefill",
                at=self.now,
                new_requests=len(parts),
                new_tokens=sum(tokens for _, tokens in parts),
                # Counted once: in a prompt's first chunk.
                cached_tokens=sum(new),
                running=len(self._writing),
                waiting=self.waiting,
            )
        )

    def _log_decode(self, forward: _Forward) -> None:
        if self._on_batch is None:
            return
        batch = Batch(
            kind="decode",
            at=self.now,
            running=len(self._writing),
            waiting=self.waiting,
            tokens_per_s=len(self._writing) / forward.step_s,
        )
        self._on_batch(batch)


def _cache(spec: CacheSpec | SlotSpec, tell: Callable[[BlockEvent], None] | None) -> EngineCache | SlotCache:
    if isinstance(spec, SlotSpec):
        return SlotCache(spec)
    return EngineCache(spec) if tell is None else TellingCache(spec, tell)
