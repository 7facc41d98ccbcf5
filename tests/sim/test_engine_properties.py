"""A replica in virtual time under any interleaving of clients who come, wait and leave."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.cache import Blocks, EngineCache, SlotSpec
from ramjet.sim.engine import Engine, Event, Job
from ramjet.sim.profile import Profile, Timing
from tests.core.caches import PAGE, blocks, check, check_slots
from tests.core.test_engine_cache import CHUNK, GRID, SLOW, WORDS, specs
from tests.effort import examples

TIMINGS = (
    # Halves and quarters, so that things happen at the very same instant; and numbers that no float can hold.
    Timing(overhead_s=0.5, read_token_s=0.125, read_squared_s=0, step_s=0.25, step_request_s=0.25, restore_s=0.75,
           restore_token_s=0),
    Timing(overhead_s=0.15, read_token_s=0.01, step_s=0.012, step_request_s=0.001, decode_share=0.3),
    Timing(overhead_s=0, read_token_s=0.01, step_s=0.1, step_request_s=0.03, decode_share=0),
)  # fmt: skip


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Small replicas of every kind."""
    slots = st.builds(
        SlotSpec,
        slots=st.integers(1, 3),
        slot_tokens=st.just(20 * PAGE),
        page_tokens=st.just(PAGE),
        chunk_tokens=st.just(CHUNK),
        checkpoints=st.none() | st.integers(1, 3),
        checkpoint_tokens=st.just(GRID),
        tail_tokens=st.just(PAGE),
        host_tokens=st.integers(0, 80),
    )
    return Profile(
        name="small",
        about="",
        cache=draw(specs() | slots),
        timing=draw(st.sampled_from(TIMINGS)),
        max_running=draw(st.integers(1, 4)),
    )


@dataclass(frozen=True)
class Come:
    words: list[int]
    more: int
    answer_tokens: int
    comes_back: bool


@dataclass(frozen=True)
class Leave:
    who: int


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Next:
    """Wait for so many things to happen."""

    times: int


Each = Come | Leave | Wait | Next


COME = st.builds(
    Come,
    words=WORDS,
    more=st.integers(0, PAGE - 1),
    answer_tokens=st.integers(1, 2 * GRID),
    comes_back=st.booleans(),
)
WAIT = st.builds(Wait, st.sampled_from((0.0, 0.15, 0.25, 0.5, 1.0, 3.0)) | st.floats(0, 2, allow_nan=False))
NEXT = st.builds(Next, st.integers(1, 4))
LEAVE = st.builds(Leave, st.integers(0, 20))
STORIES = st.lists(COME | COME | WAIT | NEXT | LEAVE, min_size=8, max_size=32)


class Story:
    """What became of everybody."""

    def __init__(
        self, profile: Profile, story: list[Each], *, whole_runs: bool = False, times: list[float] | None = None
    ) -> None:
        """
        Args:
            profile: the replica.
            story: who does what.
            whole_runs: see `Engine`.
            times: when, if they did it before.
        """
        self.engine = Engine(profile, whole_runs=whole_runs)
        self.jobs: list[Job] = []
        self.events: list[Event] = []
        self.now = 0.0
        self.times: list[float] = []
        for number, each in enumerate(story):
            self.look()
            # Whoever comes or leaves does so in the present.
            self.advance(self.now if times is None else times[number])
            if times is None:
                self.wait(each)
            if isinstance(each, Come):
                self.come(each)
            elif isinstance(each, Leave) and self.jobs:
                self.engine.abort(self.jobs[each.who % len(self.jobs)], self.now)
            self.times.append(self.now)
        self.look()
        while (at := self.engine.next_at) is not None:
            self.advance(at)
            self.look()

    def wait(self, each: Each) -> None:
        if isinstance(each, Wait):
            self.advance(self.now + each.seconds)
        elif isinstance(each, Next):
            for _ in range(each.times):
                if (at := self.engine.next_at) is not None:
                    self.advance(at)

    def come(self, each: Come) -> None:
        tokens = len(each.words) * PAGE + each.more
        if tokens + each.answer_tokens > self.engine.profile.most_tokens:
            return

        def with_answer(written: int) -> Blocks:
            more = (tokens + written) // PAGE - len(each.words)
            return blocks(each.words + [each.words[0]] * more)

        job = Job(blocks(each.words), tokens, each.answer_tokens, with_answer=with_answer if each.comes_back else None)
        self.engine.submit(job, self.now)
        self.jobs.append(job)

    def advance(self, now: float) -> None:
        assert now >= self.now, "what happens next does not lie in the past"
        events = self.engine.advance(now)
        times = [event.at for event in events]
        assert times == sorted(times)
        assert all(self.now <= at <= now for at in times)
        self.events += events
        self.now = now

    def look(self) -> None:
        """Nothing may be wrong at any time."""
        engine = self.engine
        inside = [job for job in self.jobs if job.ended_at is None]
        assert engine.running + engine.waiting == len(inside)
        assert (engine.next_at is None) == (not inside), "while somebody is inside, something will happen"
        seats = [job.seat for job in inside if job.seat is not None]
        assert engine.running == len(seats) <= engine.profile.max_running
        if isinstance(engine.cache, EngineCache):
            check(engine.cache, seats)
        else:
            check_slots(engine.cache, seats)

    def told(self) -> list[tuple[object, ...]]:
        return [(each.first_at, each.ended_at, each.cached_tokens, each.written, each.aborted) for each in self.jobs]


@given(profiles(), STORIES)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW)
def test_everybody_who_fits_is_served(profile: Profile, story: list[Each]) -> None:
    """
    Whoever came, stayed and fits has an end, in order: arrival, seat, first token, last; and nobody leaves a trace.
    """
    told = Story(profile, story)

    for job in told.jobs:
        assert job.ended_at is not None
        if job.aborted:
            continue
        assert job.started_at is not None
        assert job.first_at is not None
        assert job.arrived_at <= job.queued_at <= job.started_at <= job.first_at <= job.ended_at
        assert job.written == job.answer_tokens
        assert sum(event.tokens for event in told.events if event.job is job) == job.answer_tokens
    assert told.engine.flush(), "nobody is inside"


@given(profiles(), STORIES)
@settings(max_examples=examples(80), deadline=None, suppress_health_check=SLOW)
def test_whole_runs_change_nothing_but_how_often_one_is_told(profile: Profile, story: list[Each]) -> None:
    """
    Answers that grow by many tokens at once have the same first and last instants, and find the same in the cache.
    """
    step_by_step = Story(profile, story)

    whole = Story(profile, story, whole_runs=True, times=step_by_step.times)

    assert whole.told() == step_by_step.told()


@given(profiles(), STORIES)
@settings(max_examples=examples(20), deadline=None, suppress_health_check=SLOW)
def test_a_replay_is_deterministic(profile: Profile, story: list[Each]) -> None:
    """
    Equal stories have equal ends, to the last digit.
    """
    first, second = Story(profile, story), Story(profile, story)

    assert first.told() == second.told()
    assert [(event.kind, event.at, event.tokens) for event in first.events] == [
        (event.kind, event.at, event.tokens) for event in second.events
    ]
