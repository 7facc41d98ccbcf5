"""Whether one long prompt pushes the others out, and out of which pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ramjet.engines.facts import Facts
from ramjet.probes import eviction
from ramjet.probes.eviction import AGAIN, CONTROL, FIRST, LONG
from ramjet.probes.steps import REFUSED, Finding, Step, TooLong
from tests.probes.replica import Cache, by, play, taught

SEED = Facts(engine="sglang", pool_tokens=499_968, chunk_tokens=6_144, host_tier=False)


def measured(cache: Cache, facts: Facts, *, most_tokens: int | None = None, **sizes: int) -> tuple[Finding, list[Step]]:
    """What the probe finds of a replica by a simple rule."""
    steps = play(eviction.plan(taught(), facts, **sizes), by(cache), most_tokens=most_tokens)
    return eviction.judge(steps, facts), steps


def seed_steps(again: int | None, *, ttft_s: tuple[float, float] = (3.35, 0.2)) -> list[Step]:
    """The seed's experiment, in which every session comes back with so many tokens cached."""
    cold_s, warm_s = ttft_s

    def step(role: str, tokens: int, cached: int | None, seconds: float, session: int | None = None) -> Step:
        return Step(
            name=role,
            role=role,
            tokens=tokens,
            prompt_tokens=tokens,
            cached_tokens=cached,
            ttft_s=seconds,
            session=session,
        )

    back_s = warm_s if again and again > 10_000 else cold_s
    return [
        step(FIRST, 20_050, 0, cold_s, 1),
        step(CONTROL, 20_050, 19_968, warm_s, 1),
        *(step(FIRST, 20_050, 0, cold_s, number) for number in range(2, 7)),
        step(LONG, 308_000, 0, 17 * cold_s),
        *(step(AGAIN, 20_050, again, back_s, number) for number in range(1, 7)),
    ]


def test_the_seeds_incident() -> None:
    """
    All six came back cold though all prompts together filled 86 % of the token pool: it was the snapshots.
    """
    finding = eviction.judge(seed_steps(0), SEED)

    assert finding.limit == "snapshots"
    assert (finding.measured["sessions"], finding.measured["survived"]) == (6, 0)
    assert "The snapshot pool ran out, not the token pool" in finding.verdict
    assert "428,300 tokens and the token pool of 499,968 had room for them" in finding.verdict
    assert finding.flags[0] == "--mamba-max-states-per-path 2"
    # Six sessions of 3 chunks and a tail, 50 and a tail, and 4 for the request that runs.
    assert "--max-mamba-cache-size 79" in finding.flags


def test_the_seeds_fix() -> None:
    """
    With a cap per path all six came back with 99.6 % reused, and there is nothing to fix.
    """
    finding = eviction.judge(seed_steps(19_968), replace(SEED, snapshots_per_path=4))

    assert finding.limit == "none"
    assert finding.measured["survived"] == 6
    assert finding.flags == ()
    assert "99.6% reused" in finding.verdict


@pytest.mark.parametrize("speed", [1, 50, 5_000])
@pytest.mark.parametrize("again", [0, 6_144, 12_288, 19_968])
def test_how_fast_the_replica_is_does_not_matter(speed: float, again: int) -> None:
    """
    Only counts decide, so a simulated replica at any speed gives the verdict of a real one.
    """
    slow = eviction.judge(seed_steps(again), SEED)
    fast = eviction.judge(seed_steps(again, ttft_s=(3.35 / speed, 3.3 / speed)), SEED)

    assert (fast.limit, fast.flags, fast.measured) == (slow.limit, slow.flags, slow.measured)


@pytest.mark.parametrize(
    ("name", "cache", "facts", "limit"),
    [
        ("pool known", Cache(grid=256), SEED, "snapshots"),
        ("pool unknown: the forks tell", Cache(grid=256), Facts(engine="openai"), "snapshots"),
        ("attention, too small", Cache(pool_tokens=400_000), Facts(engine="openai", pool_tokens=400_000), "tokens"),
        ("attention, too small, unknown", Cache(pool_tokens=400_000), Facts(engine="openai"), "tokens"),
        ("attention, room for all", Cache(pool_tokens=499_968), SEED, "none"),
        ("two states a path", Cache(grid=256, per_path=2), SEED, "none"),
        (
            "hybrid, and too few tokens",
            Cache(grid=256, pool_tokens=380_000, slots=500),
            Facts(engine="openai", pool_tokens=380_000),
            "tokens",
        ),
        ("vLLM's hybrid: one pool", Cache(page=528, grid=528, chunk=7_920), Facts(engine="vllm"), "tokens"),
        ("attention that says it has room", Cache(pool_tokens=400_000), replace(SEED, engine="vllm"), "unknown"),
    ],
)
def test_pools_are_told_apart(name: str, cache: Cache, facts: Facts, limit: str) -> None:
    """
    The pool is named by what fits it; where its size is not known, by what the engine resumes at.
    """
    finding, _ = measured(cache, facts)

    assert finding.limit == limit, name
    assert bool(finding.flags) == (limit in ("snapshots", "tokens"))


def test_a_session_that_kept_a_chunk_has_not_survived() -> None:
    """
    12,288 of 20,050 tokens are what a lost tail leaves; that is no survivor, and at a multiple of the chunk.
    """
    finding = eviction.judge(seed_steps(12_288), replace(SEED, pool_tokens=None))

    assert finding.measured["survived"] == 0
    assert finding.limit == "snapshots"


def test_what_a_repeat_reuses_is_the_measure() -> None:
    """
    An engine of large blocks never reuses 90 % of such a prompt, and loses nothing all the same.
    """
    finding, _ = measured(Cache(page=2_560), Facts(engine="openai"), sessions=3, tokens=5_000, long_tokens=20_000)

    assert finding.measured["survived"] == 3


def test_a_long_prompt_that_does_not_fit_is_lowered() -> None:
    """
    To what the engine says it takes, and the verdict says so.
    """
    finding, steps = measured(Cache(), Facts(engine="openai"), most_tokens=131_072)

    assert [step.tokens for step in steps if step.role == REFUSED] == [308_000]
    assert finding.measured["long_tokens"] == pytest.approx(131_072 - eviction.SPARE_TOKENS, abs=2)
    assert "was to have 308,000 tokens" in finding.verdict


def test_what_the_engine_is_known_to_take_is_not_tried() -> None:
    """
    No request is spent on a prompt that would be refused.
    """
    _, steps = measured(Cache(), Facts(engine="openai", max_prompt_tokens=131_072), most_tokens=131_072)

    assert not [step for step in steps if step.role == REFUSED]


def test_an_engine_without_room_for_anything_long_is_refused() -> None:
    """
    A long prompt of less than two sessions shows nothing.
    """
    with pytest.raises(TooLong):
        measured(Cache(), Facts(engine="openai"), most_tokens=30_000)


@pytest.mark.parametrize(
    ("reports", "says"), [(False, "does not say how much of a prompt it reused"), (True, "Nothing was reused")]
)
def test_no_long_prompt_is_sent_for_nothing(reports: bool, says: str) -> None:
    """
    Where a session that comes twice in a row shows nothing, two requests are all.
    """

    def answer(_ask: Any) -> dict[str, Any]:
        return {"cached_tokens": 0 if reports else None}

    steps = play(eviction.plan(taught(), SEED), answer)
    finding = eviction.judge(steps, SEED)

    assert len(steps) == 2
    assert finding.limit == "unknown"
    assert says in finding.verdict
    assert finding.measured["survived"] is None


@pytest.mark.parametrize("length", range(15))
def test_a_part_of_the_experiment_concludes_nothing(length: int) -> None:
    """
    Wherever it is broken off, no number of survivors is given before all were asked.
    """
    finding = eviction.judge(seed_steps(0)[:length], SEED)

    assert finding.measured["survived"] == (0 if length == 14 else None)
    assert finding.limit == ("snapshots" if length == 14 else "unknown")
