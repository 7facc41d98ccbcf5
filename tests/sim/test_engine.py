"""The scheduler: who is read, who is answered, who waits, and what becomes of those who leave.

A chunk is 1,000 tokens and takes a second; a step of decoding takes 0.1 s and 0.1 s more for each answer in it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ramjet.core.cache import Blocks, CacheSpec, EngineCache, HostTier, SlotSpec, Snapshots
from ramjet.sim.engine import Batch, Engine, Event, Job
from ramjet.sim.profile import Profile, Timing
from tests.core.caches import blocks

PAGE = 10
TIMING = Timing(
    overhead_s=0,
    read_token_s=0.001,
    read_squared_s=0,
    step_s=0.1,
    step_request_s=0.1,
    decode_share=0.5,
    restore_s=1.5,
    restore_token_s=0,
)
SPEC = CacheSpec(pool_tokens=10_000, page_tokens=PAGE, chunk_tokens=1_000)
PROFILE = Profile(name="round", about="a replica with round numbers", cache=SPEC, timing=TIMING, max_running=4)


class Replica:
    """An engine, and the words in which these tests are told."""

    def __init__(self, profile: Profile = PROFILE, **options: Any) -> None:
        self.engine = Engine(profile, **options)
        self.events: list[Event] = []
        self.now = 0.0

    def come(
        self, tokens: int, words: str, *, answer: int = 1, at: float | None = None, comes_back: bool = True
    ) -> Job:
        """A request arrives at a time, or together with what else happens now."""
        if at is not None:
            self.until(at)
        pages = tokens // PAGE
        text = words + words[-1] * (pages - len(words))

        def with_answer(written: int) -> Blocks:
            return blocks(text[:pages] + "." * ((tokens + written) // PAGE - pages), PAGE)

        job = Job(blocks(text[:pages], PAGE), tokens, answer, with_answer=with_answer if comes_back else None)
        self.engine.submit(job, self.now)
        return job

    def leave(self, job: Job, at: float) -> None:
        """A client hangs up."""
        self.until(at)
        self.engine.abort(job, at)

    def until(self, now: float) -> None:
        self.events += self.engine.advance(now)
        self.now = now

    def finish(self) -> None:
        """Let everything end that can."""
        while (at := self.engine.next_at) is not None:
            self.until(at)

    def served(self, tokens: int, words: str) -> Job:
        """A request that comes to an end before the test begins."""
        job = self.come(tokens, words)
        self.finish()
        return job


def seconds(value: float | None) -> Any:
    """Times are sums of floats."""
    return pytest.approx(value, abs=1e-9)


# -- reading ---------------------------------------------------------------------------------------------------------


def test_a_prompt_is_read_in_chunks_and_answered_step_by_step() -> None:
    """
    2,500 tokens in 2.5 s, of which the first token comes; two more, 0.2 s each.
    """
    replica = Replica()

    job = replica.come(2_500, "a", answer=3)
    replica.finish()

    assert job.first_at == seconds(2.5)
    assert job.ended_at == seconds(2.9)
    assert [(event.kind, event.tokens) for event in replica.events] == [
        ("first", 0), ("more", 1), ("more", 1), ("more", 1), ("end", 0),
    ]  # fmt: skip


def test_a_short_request_waits_for_all_chunks_of_a_long_prompt_before_it() -> None:
    """
    A prompt that is being read takes the chunk first; the short one fits beside its last 500 tokens.
    """
    replica = Replica()
    long = replica.come(4_500, "a")

    short = replica.come(200, "b", at=0.5)
    replica.finish()

    assert long.first_at == short.first_at == seconds(4.7)


def test_short_prompts_share_a_chunk() -> None:
    """
    Four of 200 tokens are one forward; what is left of the chunk is a part of the fifth, in whole pages.
    """
    replica = Replica(replace(PROFILE, max_running=10))
    parts: list[Job] = [replica.come(205, words) for words in "abcde"]

    replica.finish()

    assert [job.first_at for job in parts[:4]] == [seconds(1.0)] * 4
    assert parts[4].first_at == seconds(1.025), "of the chunk 180 tokens were left for it"


def test_what_is_cached_is_not_read() -> None:
    """
    A second turn reads its own part alone.
    """
    replica = Replica()
    replica.served(2_000, "a")
    began = replica.now

    job = replica.come(2_300, "a")
    replica.finish()

    assert job.cached_tokens == 2_000
    assert job.first_at == seconds(began + 0.3)


def test_what_a_server_does_before_the_queue_holds_nobody_up() -> None:
    """
    Template and tokenizer work beside the scheduler, for all that come at once.
    """
    replica = Replica(replace(PROFILE, timing=replace(TIMING, overhead_s=0.25)))

    jobs = [replica.come(500, words) for words in "ab"]
    replica.finish()

    assert [job.first_at for job in jobs] == [seconds(1.25)] * 2


def test_reading_gets_slower_with_what_lies_before() -> None:
    """
    Whole or in chunks, cold or from where it is cached: the parts of a prompt add up.
    """
    timing = Timing()

    whole = timing.read_s(0, 100_000)

    assert whole == pytest.approx(timing.read_s(0, 40_000) + timing.read_s(40_000, 100_000))
    assert timing.read_s(90_000, 100_000) > timing.read_s(0, 10_000)


# -- answering -------------------------------------------------------------------------------------------------------


def test_decoding_slows_with_the_batch() -> None:
    """
    Alone 0.2 s a token; three at a time 0.4 s.
    """
    for count, step_s in ((1, 0.2), (3, 0.4)):
        replica = Replica()
        jobs = [replica.come(10, words, answer=11) for words in "abc"[:count]]
        replica.finish()

        for job in jobs:
            assert job.first_at is not None
            assert job.ended_at == seconds(job.first_at + 10 * step_s)


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_answers_get_their_share_of_the_time_while_a_prompt_is_read(share: float) -> None:
    """
    Reading 8 s of prompt takes 10 s where a fifth of the time is theirs, and 16 s where half is.
    """
    replica = Replica(replace(PROFILE, timing=replace(TIMING, decode_share=share)))
    answer = replica.come(10, "a", answer=1_000)
    replica.until(1.0)
    written, began = answer.written, replica.now

    long = replica.come(8_000, "b")
    replica.until(began + 8 / (1 - share) + 0.5)

    assert long.first_at is not None
    assert long.first_at - began == pytest.approx(8 / (1 - share), abs=1.0 + 0.2)
    assert (answer.written - written) * 0.2 == pytest.approx(8 * share / (1 - share), abs=1.0)


def test_without_a_share_answers_wait_until_everything_is_read() -> None:
    """
    Reading goes first, whatever waits.
    """
    replica = Replica(replace(PROFILE, timing=replace(TIMING, decode_share=0)))
    answer = replica.come(1_000, "a", answer=5)
    long = replica.come(5_000, "b", at=0.5)
    replica.finish()

    assert long.first_at == seconds(6.0)
    assert [event.at for event in replica.events if event.job is answer and event.kind == "more"][:2] == [
        seconds(1.0),
        seconds(6.2),
    ]


def test_time_that_was_owed_to_an_answer_is_not_given_to_the_next() -> None:
    """
    Whoever it was owed to is gone. (It was kept, and later answers went before prompts that waited.)
    """
    replica = Replica()
    replica.come(10, "a", answer=2)
    replica.come(3_000, "b", at=0.005)
    replica.finish()
    began = replica.now

    replica.come(10, "c", answer=50)
    waiting = replica.come(1_000, "d", at=began + 0.005)
    replica.finish()

    assert waiting.first_at == seconds(began + 0.01 + 1.0)


# -- who waits -------------------------------------------------------------------------------------------------------


def test_no_more_run_than_may() -> None:
    """
    However much room there is.
    """
    replica = Replica(replace(PROFILE, max_running=2))
    first, second, third = (replica.come(100, words, answer=20) for words in "abc")
    replica.until(1.0)
    assert (replica.engine.running, replica.engine.waiting) == (2, 1)

    replica.finish()

    assert first.ended_at == second.ended_at == third.started_at


def test_the_head_of_the_queue_waits_for_memory_and_enters_when_somebody_leaves() -> None:
    """
    It is not overtaken by one behind it that would fit.
    """
    replica = Replica()
    large = replica.come(6_000, "a", answer=10)
    head = replica.come(5_000, "b", at=0.5)
    small = replica.come(100, "c", at=0.6)
    replica.until(6.5)
    assert (head.started_at, small.started_at) == (None, None)
    assert replica.engine.waiting == 2

    replica.finish()

    assert head.started_at == large.ended_at
    assert small.first_at is not None
    assert head.first_at is not None
    assert small.first_at >= head.first_at


def test_waiting_tokens_are_what_would_be_read_now() -> None:
    """
    What is cached of those that wait does not count.
    """
    replica = Replica(replace(PROFILE, max_running=1))
    replica.served(2_000, "a")
    replica.come(100, "b", answer=100)
    replica.come(2_300, "a")
    replica.until(replica.now + 0.5)

    assert replica.engine.waiting_tokens == 300


@pytest.mark.parametrize(
    ("cache", "most"),
    [
        (SPEC, 10_000),
        (replace(SPEC, snapshots=Snapshots(slots=None, tokens_each=100, grid_tokens=PAGE, private=1)), 9_800),
        (SlotSpec(slot_tokens=3_000), 3_000),
    ],
)
def test_what_can_never_fit_is_refused_and_what_just_fits_is_served(cache: CacheSpec | SlotSpec, most: int) -> None:
    """
    With its answer; where states lie in the token pool, their room is not for tokens.
    """
    replica = Replica(replace(PROFILE, cache=cache))

    with pytest.raises(ValueError, match=f"longest request that fits .{most} tokens"):
        replica.come(most, "a", answer=1)
    job = replica.come(most - 1, "a", answer=1)
    replica.finish()

    assert job.ended_at is not None


@pytest.mark.parametrize(("tokens", "answer"), [(0, 1), (1, 0)])
def test_nothing_to_read_or_to_write_is_refused(tokens: int, answer: int) -> None:
    """
    It would never end.
    """
    with pytest.raises(ValueError, match="at least 1 of each"):
        Engine(PROFILE).submit(Job(blocks(""), tokens, answer), 0.0)


# -- the host tier ---------------------------------------------------------------------------------------------------


def with_host(pool_tokens: int = 4_000, **states: Any) -> Replica:
    """A replica with a host tier that has served 2,000 tokens of "a"."""
    snapshots = Snapshots(**({"slots": 100, "grid_tokens": PAGE} | states))
    host = HostTier(tokens=100_000, slots=100)
    replica = Replica(replace(PROFILE, cache=replace(SPEC, pool_tokens=pool_tokens, snapshots=snapshots, host=host)))
    replica.served(2_005, "a")
    return replica


def test_others_are_read_while_a_prefix_comes_back_from_the_host() -> None:
    """
    1.5 s for the one that comes back, and the one behind it is not held up.
    """
    replica = with_host()
    replica.served(3_005, "b")
    began = replica.now

    back = replica.come(2_105, "a")
    other = replica.come(1_005, "c")
    replica.finish()

    assert back.cached_tokens == 2_000
    assert replica.engine.host_tokens_total == 2_000
    assert other.first_at == seconds(began + 1.005)
    assert back.first_at == seconds(began + 1.5 + 0.105)


def test_a_state_that_comes_back_alone_takes_its_time_too() -> None:
    """
    The cap took it from the device, and its tokens are there. (It took no time.)
    """
    replica = with_host(per_path=1)
    began = replica.now

    job = replica.come(1_205, "a" * 100 + "b")
    replica.finish()

    assert job.cached_tokens == 1_000
    assert replica.engine.host_tokens_total == 0
    assert job.first_at == seconds(began + 1.5 + 0.205)


def test_those_that_come_back_are_read_in_the_order_in_which_they_are_back() -> None:
    """
    And not in that in which they were asked for.
    """
    replica = with_host(pool_tokens=6_000)
    replica.served(1_005, "b")
    replica.served(5_005, "c")
    timing = replace(TIMING, restore_s=0, restore_token_s=0.0004)
    replica.engine.profile = replace(replica.engine.profile, timing=timing)
    busy = replica.come(805, "d")

    long, short = replica.come(2_705, "a"), replica.come(1_705, "b")
    replica.finish()

    assert (long.cached_tokens, short.cached_tokens) == (2_000, 1_000)
    assert (long.ready_at, short.ready_at) == (seconds(busy.queued_at + 0.8), seconds(busy.queued_at + 0.4))
    assert short.first_at is not None
    assert long.first_at is not None
    assert short.first_at < long.first_at


# -- those who leave -------------------------------------------------------------------------------------------------


def gone(job: Job) -> bool:
    return job.aborted and job.ended_at is not None


def test_who_leaves_before_the_queue_is_gone_at_once() -> None:
    """
    Nobody has seen it yet.
    """
    replica = Replica(replace(PROFILE, timing=replace(TIMING, overhead_s=0.25)))
    job = replica.come(100, "a")

    replica.leave(job, at=0.1)

    assert job.ended_at == 0.1
    assert replica.engine.next_at is None
    assert (replica.engine.running, replica.engine.waiting, replica.engine.aborted_total) == (0, 0, 1)


def test_who_leaves_the_queue_is_gone_at_once() -> None:
    """
    It has no seat to give back.
    """
    replica = Replica(replace(PROFILE, max_running=1))
    replica.come(5_000, "a")
    job = replica.come(100, "b", at=0.5)

    replica.leave(job, at=1.5)

    assert job.ended_at == 1.5
    assert job.cached_tokens is None


def test_who_leaves_while_it_is_read_is_gone_with_that_chunk_which_stays_cached() -> None:
    """
    A forward cannot be called back.
    """
    replica = Replica()
    job = replica.come(5_000, "a")

    replica.leave(job, at=1.5)
    replica.finish()

    assert job.ended_at == seconds(2.0)
    assert replica.come(5_000, "a").first_at is None
    replica.finish()
    assert replica.engine.cached_tokens_total == 2_000


def test_who_leaves_with_a_seat_before_it_is_read_is_never_read() -> None:
    """
    Its turn was to come when the chunk of another ended.
    """
    replica = Replica()
    first, second = replica.come(800, "a"), replica.come(3_000, "b")
    replica.until(0.5)
    assert second.seat is not None

    replica.leave(second, at=0.5)
    replica.finish()

    assert first.ended_at == second.ended_at == seconds(1.0)


def test_who_leaves_while_it_comes_back_from_the_host_is_gone() -> None:
    """
    With nothing else to do at once, else with what is being done.
    """
    replica = with_host()
    replica.served(3_005, "b")
    job = replica.come(2_105, "a")
    began = replica.now

    replica.leave(job, at=began + 0.5)

    assert job.ended_at == began + 0.5
    assert replica.engine.next_at is None


def test_who_leaves_while_it_is_answered_is_gone_with_that_step_which_does_not_count() -> None:
    """
    Its tokens up to then stay cached, for it may come back with them.
    """
    replica = Replica()
    job = replica.come(100, "a", answer=100)

    replica.leave(job, at=0.1 + 20 * 0.2 + 0.1)
    replica.finish()

    assert job.written == 21
    assert job.ended_at == seconds(0.1 + 21 * 0.2)
    assert replica.engine.cache.find(*prompt_and_answer(job)).tokens == 120


def test_leaving_twice_or_after_the_end_changes_nothing() -> None:
    """
    Whoever cleans up need not know what has happened.
    """
    replica = Replica()
    ended, left = replica.served(100, "a"), replica.come(100, "b", answer=50)
    replica.leave(left, at=replica.now + 1)

    replica.engine.abort(left, replica.now)
    replica.engine.abort(ended, replica.now)
    replica.finish()

    assert not ended.aborted
    assert replica.engine.aborted_total == 1


def test_whoever_waits_behind_one_that_leaves_goes_on_at_once() -> None:
    """
    Nothing else would have woken them. (They stayed in the queue until somebody else came, or for ever.)
    """
    replica = with_host()
    replica.served(3_005, "b")
    began = replica.now
    back = replica.come(2_105, "a")
    waits = replica.come(3_005, "c")
    replica.until(began + 0.5)
    assert waits.started_at is None, "there is no room for both"

    replica.leave(back, at=began + 0.5)
    assert replica.engine.next_at is not None
    replica.finish()

    assert waits.first_at == seconds(began + 0.5 + 3.005)


def test_the_next_in_the_queue_goes_on_when_its_head_leaves() -> None:
    """
    It was the head that found no room.
    """
    replica = with_host()
    replica.served(3_005, "b")
    began = replica.now
    replica.come(2_105, "a")
    head, small = replica.come(3_005, "c"), replica.come(105, "d")

    replica.leave(head, at=began + 0.5)
    replica.finish()

    assert small.first_at == seconds(began + 0.5 + 0.105)


# -- whole runs ------------------------------------------------------------------------------------------------------


def test_a_whole_run_is_told_at_once() -> None:
    """
    For replays, in which nobody watches the tokens come.
    """
    replica = Replica(whole_runs=True)
    job = replica.come(1_000, "a", answer=101)
    replica.finish()

    assert job.ended_at == seconds(1 + 100 * 0.2)
    assert [event.tokens for event in replica.events if event.kind == "more"] == [1, 100]


def test_a_whole_run_ends_with_the_step_in_which_somebody_comes() -> None:
    """
    Who comes is read after that step, as if steps were taken one by one.
    """
    replica = Replica(replace(PROFILE, timing=replace(TIMING, decode_share=0)), whole_runs=True)
    replica.come(1_000, "a", answer=101)

    job = replica.come(500, "b", at=1 + 3.5 * 0.2)
    replica.finish()

    assert job.first_at == seconds(1 + 4 * 0.2 + 0.5)


def test_who_leaves_a_whole_run_has_the_tokens_of_its_steps_until_then() -> None:
    """
    And whoever comes back with them finds them. (They were lost, all of the run.)
    """
    replica = Replica(whole_runs=True)
    job = replica.come(100, "a", answer=100)

    replica.leave(job, at=0.1 + 20 * 0.2 + 0.1)
    replica.finish()

    assert job.written == 21
    assert job.ended_at == seconds(0.1 + 21 * 0.2)
    assert replica.engine.written_tokens_total == 21


def test_an_answer_that_ends_in_a_whole_run_makes_room_at_its_end_and_not_before() -> None:
    """
    The other's tokens were there at the same time. (Less was evicted than step by step, and later prompts found more.)
    """
    cached = []
    for whole_runs in (False, True):
        replica = Replica(replace(PROFILE, cache=replace(SPEC, pool_tokens=400)), whole_runs=whole_runs)
        replica.served(100, "a")
        for words in "bc":
            replica.come(100, words, answer=60, comes_back=False)
        replica.finish()
        cached.append(replica.served(100, "a").cached_tokens)

    assert cached == [0, 0]


# -- what it says ----------------------------------------------------------------------------------------------------


def test_every_forward_is_logged() -> None:
    """
    Cached tokens count once, in a prompt's first chunk.
    """
    batches: list[Batch] = []
    replica = Replica(on_batch=batches.append)
    replica.served(1_000, "a")
    del batches[:]

    replica.come(2_200, "a", answer=3)
    replica.come(100, "b")
    replica.finish()

    prefill = [each for each in batches if each.kind == "prefill"]
    assert [(each.new_requests, each.new_tokens, each.cached_tokens, each.waiting) for each in prefill] == [
        (1, 1_000, 1_000, 1),
        (2, 300, 0, 0),
    ]
    assert [(each.running, each.tokens_per_s) for each in batches if each.kind == "decode"] == [(1, seconds(5.0))] * 2


def test_it_counts_what_it_has_done() -> None:
    """
    Tokens of prompts, of which cached, and of answers.
    """
    replica = Replica()
    replica.served(1_005, "a")
    replica.served(1_005, "a")

    engine = replica.engine
    assert (engine.prompt_tokens_total, engine.cached_tokens_total, engine.written_tokens_total) == (2_010, 1_000, 2)


def test_it_forgets_only_when_nobody_is_inside() -> None:
    """
    SGLang answers 400 then.
    """
    replica = Replica()
    replica.come(1_000, "a")
    assert not replica.engine.flush()
    replica.finish()

    assert replica.engine.flush()

    assert isinstance(replica.engine.cache, EngineCache)
    assert replica.engine.cache.used_tokens == 0


def prompt_and_answer(job: Job) -> tuple[Any, int]:
    """What its client comes back with, and a word more."""
    assert job.with_answer is not None
    tokens = job.prompt_tokens + job.written
    return job.with_answer(job.written), tokens + 1


def test_a_long_prompt_takes_longer_to_reach_the_queue() -> None:
    """
    Where tokens take time to be made, a short prompt that comes after a long one is in the queue before it.
    """
    replica = Replica(replace(PROFILE, timing=replace(TIMING, overhead_s=0.5, overhead_token_s=0.001)))

    long, short = replica.come(5_000, "a"), replica.come(1_000, "b")
    replica.finish()

    assert (long.queued_at, short.queued_at) == (5.5, 1.5)
    assert short.ended_at == seconds(2.5)
    assert long.started_at == seconds(5.5)
