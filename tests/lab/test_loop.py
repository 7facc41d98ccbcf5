"""The loop: when clients send, what a policy is told, and that a run can be done again."""

from __future__ import annotations

import pytest

from ramjet.lab.loop import Ideal, facts_of, play, simulate
from ramjet.lab.policies import BASELINES, Placements, Request, RoundRobin, Seconds
from ramjet.lab.runs import Case, run
from ramjet.lab.turns import Conversation, Turn, Workload
from ramjet.lab.workloads import SLOTS, TOKENS
from ramjet.sim.engine import Engine
from tests.lab.support import facts, growing, workload

TIMING = TOKENS.timing


class Waiting(RoundRobin):
    """Holds everything until its clock has come so far, and remembers what it was told."""

    def __init__(self, until_s: float, tick_s: float | None = 1.0) -> None:
        super().__init__(facts(1), 0)
        self.tick_s = tick_s
        self._until_s = until_s
        self._held: list[Request] = []
        self.heard: list[tuple[str, int, float]] = []

    def arrive(self, request: Request, now: float) -> int | None:
        self.heard.append(("arrive", request.number, now))
        self._held.append(request)
        return None

    def first_token(self, request: Request, now: float) -> Placements:
        self.heard.append(("first", request.number, now))
        return []

    def finish(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> Placements:
        self.heard.append(("finish", request.number, now))
        assert prompt_tokens == request.prompt_tokens
        assert cached_tokens == request.cached_tokens
        return []

    def tick(self, now: float) -> Placements:
        if now < self._until_s:
            return []
        going, self._held = self._held, []
        return [(request, 0) for request in going]


def one(turns: int = 1, start_s: float = 0.0) -> Workload:
    return workload(Conversation(start_s=start_s, turns=growing(0, turns=turns)))


def test_the_same_run_gives_the_same_figures() -> None:
    """
    To the last digit: nothing depends on the process, on the clock, or on what was run before.
    """
    case = Case(workload="W5", policy="seconds_crowding", seed=1)

    first = run(case)
    run(Case(workload="W5", policy="round_robin", seed=1))

    assert run(case) == first


def test_a_lone_cold_prompt_waits_for_its_reading() -> None:
    """
    Overhead and 80 blocks to read, on an engine as on the ideal replica.
    """
    expected = TIMING.overhead_s + TIMING.read_s(0, 80 * 256)

    (ideal,) = play(one(), RoundRobin(facts(1), 0), [Ideal(TOKENS)])
    (real,) = play(one(), RoundRobin(facts(1), 0), [Engine(TOKENS, whole_runs=True)])

    assert ideal.first_at == pytest.approx(expected)
    assert real.first_at == pytest.approx(expected)
    assert real.cached_tokens == ideal.cached_tokens == 0
    assert (real.placed_at, real.replica, real.turn) == (0.0, 0, 1)


def test_the_next_turn_comes_a_think_time_after_the_answer() -> None:
    """
    And finds the prompt and the answer before it.
    """
    first, second, third = play(one(turns=3), RoundRobin(facts(1), 0), [Engine(TOKENS, whole_runs=True)])

    assert first.ended_at is not None
    assert second.ended_at is not None
    assert second.arrived_at == first.ended_at + 1.0
    assert third.arrived_at == second.ended_at + 1.0
    # The last token of the answer was never read, so its block is not full.
    assert second.cached_tokens == 80 * 256
    assert second.reusable_tokens == 80 * 256
    assert [each.turn for each in (first, second, third)] == [1, 2, 3]


def test_an_agent_waits_for_its_sub_agent() -> None:
    """
    The sub-agent begins after the first turn, and the second turn not before the sub-agent is over.
    """
    made = workload(
        Conversation(turns=growing(0, turns=2)),
        Conversation(after=(0, 0), delay_s=0.2, awaited_by=(0, 1), turns=growing(1000, turns=3, think_s=5.0)),
    )

    requests = play(made, RoundRobin(facts(2), 0), [Engine(TOKENS, whole_runs=True) for _ in range(2)])

    main = [each for each in requests if each.conversation == 0]
    sub = [each for each in requests if each.conversation == 1]
    assert main[0].ended_at is not None
    assert sub[0].arrived_at == main[0].ended_at + 0.2
    assert main[1].arrived_at == sub[-1].ended_at
    assert main[1].arrived_at > main[0].ended_at + 10


def test_an_agent_that_thinks_longer_does_not_wait_for_its_sub_agent() -> None:
    """
    Its own pause counts where that is longer.
    """
    made = workload(
        Conversation(turns=growing(0, turns=2, think_s=60.0)),
        Conversation(after=(0, 0), delay_s=0.2, awaited_by=(0, 1), turns=growing(1000, turns=1)),
    )

    requests = play(made, RoundRobin(facts(2), 0), [Engine(TOKENS, whole_runs=True) for _ in range(2)])

    assert requests[0].ended_at is not None
    assert requests[2].arrived_at == requests[0].ended_at + 60.0


def test_time_held_is_time_waited() -> None:
    """
    A request that a policy holds is placed when its clock says so, and hears its events in order.
    """
    policy = Waiting(until_s=7.0)

    (request,) = play(one(start_s=0.5), policy, [Engine(TOKENS, whole_runs=True)])

    assert request.arrived_at == 0.5
    assert request.placed_at == 7.0
    assert request.first_at == pytest.approx(7.0 + TIMING.overhead_s + TIMING.read_s(0, 80 * 256))
    assert [what for what, _, _ in policy.heard] == ["arrive", "first", "finish"]
    assert [at for _, _, at in policy.heard] == [request.arrived_at, request.first_at, request.ended_at]


@pytest.mark.parametrize("tick_s", [None, 60.0])
def test_a_policy_that_never_lets_go_is_found_out(tick_s: float | None) -> None:
    """
    The loop says so, instead of running for ever.
    """
    with pytest.raises(RuntimeError, match=r"hold|held"):
        play(one(), Waiting(until_s=1e9, tick_s=tick_s), [Engine(TOKENS, whole_runs=True)])


def test_a_request_is_placed_once() -> None:
    """
    A policy that lets one go twice has a fault of its own.
    """

    class Twice(Waiting):
        def tick(self, now: float) -> Placements:
            return super().tick(now) * 2

    with pytest.raises(RuntimeError, match="twice"):
        play(one(), Twice(until_s=1.0), [Engine(TOKENS, whole_runs=True)])


def test_a_prompt_too_long_for_the_replicas_is_refused_before_the_run() -> None:
    """
    With the numbers and the remedy.
    """
    made = workload(Conversation(turns=[Turn(0.0, 500_000, 1, 0, ((0, 1_953),), ())]))

    with pytest.raises(ValueError, match=r"500,001 tokens.*499,968 at most: choose another profile"):
        simulate(made, RoundRobin, 0, replicas=2, profile=TOKENS)


def test_replicas_that_do_not_report_reuse_tell_a_policy_nothing() -> None:
    """
    It is measured all the same.
    """

    class Listening(RoundRobin):
        reported = 0

        def finish(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> Placements:
            assert cached_tokens is None
            return super().finish(request, now, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    requests = play(one(turns=2), Listening(facts(1), 0), [Engine(TOKENS, whole_runs=True)], reports_cached=False)

    assert requests[1].cached_tokens == 80 * 256


def test_no_policy_beats_the_lower_bound() -> None:
    """
    Not in any workload; here on the seed's pair, and on a few conversations with snapshots.
    """
    made = workload(*(Conversation(start_s=number, turns=growing(number * 500, turns=6)) for number in range(8)))

    def waited(name: str) -> float:
        requests = simulate(made, BASELINES[name], 1, replicas=2, profile=SLOTS)
        return sum(each.first_at - each.arrived_at for each in requests if each.first_at is not None)

    bound = waited("infinite")

    assert all(waited(name) >= bound for name in BASELINES)


def test_a_policy_is_told_what_the_replicas_are() -> None:
    """
    Pools, slots, caps and grids, as an engine reports them.
    """
    tokens, slots = facts_of(TOKENS), facts_of(SLOTS)

    assert (tokens.pool_tokens, tokens.slots, tokens.private, tokens.grid) == (499_968, None, 0, None)
    assert (slots.slots, slots.per_path, slots.private, slots.grid) == (28, 2, 3, 256)
    assert (slots.chunk_tokens, slots.page_tokens) == (6_144, 256)


def test_seconds_keeps_conversations_where_their_prompts_are() -> None:
    """
    Production's kind of price in the loop: every later turn is warm.
    """
    made = workload(*(Conversation(start_s=number, turns=growing(number * 500, turns=6)) for number in range(4)))

    requests = simulate(made, Seconds, 1, replicas=2, profile=TOKENS)

    homes = {each.conversation: each.replica for each in requests}
    assert all(each.replica == homes[each.conversation] for each in requests)
    assert set(homes.values()) == {0, 1}


class Slicing(Waiting):
    """Sends every prompt at once, after two starts of it, and remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(until_s=0.0, tick_s=None)
        self.found: list[tuple[int, int]] = []

    def arrive(self, request: Request, now: float) -> int | None:
        super().arrive(request, now)
        request.starts = (20, 50)
        return 0

    def start_read(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> None:
        self.heard.append(("start", request.number, now))
        self.found.append((prompt_tokens // 256, (cached_tokens or 0) // 256))


def test_starts_of_a_prompt_are_read_before_it() -> None:
    """
    Each is a request of one token that finds the one before; the turn waits for all of them, and what its own starts
    have read does not count as found.
    """
    policy = Slicing()

    first, second = play(one(turns=2), policy, [Engine(TOKENS, whole_runs=True)])

    reading = TIMING.read_s(0, 80 * 256) + 3 * TIMING.overhead_s
    assert first.first_at == pytest.approx(reading)
    assert (first.cached_tokens, second.cached_tokens) == (0, 80 * 256)
    assert [what for what, _, _ in policy.heard] == 2 * ["arrive", "start", "start", "first", "finish"]
    assert policy.found == [(20, 0), (50, 20), (20, 19), (50, 49)]
    starts = [at for what, _, at in policy.heard if what == "start"]
    assert starts[:2] == pytest.approx(
        [TIMING.overhead_s * each + TIMING.read_s(0, end * 256) for each, end in ((1, 20), (2, 50))]
    )


def test_who_comes_meanwhile_is_read_between_two_starts() -> None:
    """
    And not behind all of the prompt, as it would be if that were sent in one.
    """
    made = workload(
        Conversation(turns=growing(0, turns=1)), Conversation(start_s=1.0, turns=growing(1000, turns=1, start_blocks=4))
    )

    def waited(policy: RoundRobin) -> tuple[float, float]:
        long, short = play(made, policy, [Engine(TOKENS, whole_runs=True)])
        assert long.first_at is not None
        assert short.first_at is not None
        return long.first_at, short.first_at

    class OnlyTheLong(Slicing):
        def arrive(self, request: Request, now: float) -> int | None:
            super().arrive(request, now)
            request.starts = (20, 50) if request.conversation == 0 else ()
            return 0

    long_at, short_at = waited(OnlyTheLong())
    whole_long_at, whole_short_at = waited(RoundRobin(facts(1), 0))

    assert short_at < long_at
    assert short_at < whole_short_at
    assert long_at > whole_long_at


class Ticking(RoundRobin):
    """Counts how often its clock is asked."""

    tick_s: float | None = 1.0

    def __init__(self) -> None:
        super().__init__(facts(1), 0)
        self.ticks: list[float] = []

    def tick(self, now: float) -> Placements:
        self.ticks.append(now)
        return []


def test_a_night_in_which_nobody_comes_is_neither_counted_nor_a_deadlock() -> None:
    """
    Ten hours between two turns: the clock goes on before and after, at the same beats.
    """
    policy = Ticking()

    requests = play(workload(Conversation(turns=growing(0, turns=2, think_s=36_000.0))), policy, [Engine(TOKENS)])

    assert len(requests) == 2
    assert len(policy.ticks) < 200
    assert all(at == int(at) for at in policy.ticks)
    assert policy.ticks[-1] > 36_000
