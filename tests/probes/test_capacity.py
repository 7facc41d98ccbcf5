"""How many sessions stay is found to within one, and the pool that ends there is named."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramjet.engines.facts import Facts
from ramjet.probes import capacity
from ramjet.probes.steps import Ask, Finding, Step
from tests.probes.replica import Cache, by, play, taught

SEED = Facts(engine="sglang", pool_tokens=499_968, chunk_tokens=6_144)


def measured(
    cache: Cache, facts: Facts, *, most_tokens: int | None = None, **options: int
) -> tuple[Finding, list[Step]]:
    """What the probe finds of a replica by a simple rule."""
    steps = play(capacity.plan(taught(), facts, **options), by(cache), most_tokens=most_tokens)
    return capacity.judge(steps, facts), steps


def truth(cache: Cache, tokens: int, most: int) -> int:
    """The largest number of sessions of which all come back to an empty replica like this one."""
    writer = taught()
    texts = [writer.text(f"truth {number}", tokens) for number in range(most + 1)]

    def some_are_lost(sessions: int) -> bool:
        fresh = replace(cache, pages=OrderedDict(), states=OrderedDict(), forked=set())
        twice = [fresh.serve(text) for text in (*texts[:sessions], *texts[:sessions])]
        return min(twice[sessions:]) < 0.9 * (tokens - 400)

    return bisect_left(range(1, most + 1), x=True, key=some_are_lost)


def test_the_seeds_numbers() -> None:
    """
    28 slots less four for the request that runs: six sessions of 20,000 tokens without a cap, twelve with a cap of two.
    """
    stock, _ = measured(Cache(grid=256, slots=24, pool_tokens=499_968), SEED)
    capped, _ = measured(
        Cache(grid=256, slots=24, per_path=2, pool_tokens=499_968), replace(SEED, snapshots_per_path=2)
    )

    assert (stock.measured["sessions_that_fit"], stock.limit) == (6, "snapshots")
    assert (capped.measured["sessions_that_fit"], capped.limit) == (12, "snapshots")
    assert stock.flags[0] == "--mamba-max-states-per-path 2"
    assert not [flag for flag in capped.flags if "states-per-path" in flag]
    # Long sessions show the other limit, once the cap leaves them snapshots enough.
    assert [(each["tokens"], each["sessions_that_fit"], each["limit"]) for each in capped.measured["findings"]] == [
        (20_000, 12, "snapshots"),
        (80_000, 6, "tokens"),
    ]


@settings(max_examples=6, deadline=None)
@given(
    slots=st.integers(3, 32),
    pool_tokens=st.integers(30_000, 90_000),
    per_path=st.sampled_from([None, 2, 3]),
    chunk=st.sampled_from([1_024, 2_048]),
    known=st.booleans(),
)
@example(slots=24, pool_tokens=90_000, per_path=2, chunk=1_024, known=True)
def test_an_unknown_replica_is_measured_to_within_one_session(
    slots: int, pool_tokens: int, per_path: int | None, chunk: int, known: bool
) -> None:
    """
    Whatever its pools, for short sessions and long ones; and a pool that is named is one that could end there.
    """
    cache = Cache(page=256, grid=256, chunk=chunk, slots=slots, per_path=per_path, pool_tokens=pool_tokens)
    facts = Facts(engine="openai", pool_tokens=pool_tokens if known else None)

    finding, _ = measured(cache, facts, tokens=3_100, other_tokens=12_400, most_tokens=pool_tokens - 64)

    for found in finding.measured["findings"]:
        tokens, fits = found["tokens"], found["sessions_that_fit"]
        assert abs(fits - truth(cache, tokens, 40)) <= 1
        by_snapshots = truth(replace(cache, pool_tokens=1 << 40), tokens, 40)
        by_tokens = truth(replace(cache, slots=100_000), tokens, 40)
        if found["limit"] == "snapshots":
            assert by_snapshots <= by_tokens + 1, "the other pool would have ended earlier"
        if found["limit"] == "tokens":
            # A pool that is all but full is taken for full.
            assert by_tokens <= by_snapshots + 2
        assert found["limit"] != "none"
        assert not known or found["limit"] != "unknown"


def quarter(**habits: Any) -> Cache:
    """The seed's replica with a quarter of everything but the snapshots' number."""
    return Cache(**{"page": 64, "chunk": 1_536, "pool_tokens": 124_992, **habits})


@pytest.mark.parametrize(
    ("name", "cache", "facts", "fits", "limit"),
    [
        ("attention", quarter(), Facts(engine="openai", pool_tokens=124_992), 25, "tokens"),
        ("attention, unknown", quarter(), Facts(engine="openai"), 25, "tokens"),
        ("vLLM", quarter(page=16, pool_tokens=40_000), Facts(engine="vllm", pool_tokens=40_000), 8, "tokens"),
        ("hybrid, unknown", quarter(grid=64), Facts(engine="openai"), 6, "snapshots"),
        ("capped, unknown", quarter(grid=64, per_path=2), Facts(engine="openai"), 12, "snapshots"),
        ("hybrid of many slots, unknown", quarter(grid=64, slots=900), Facts(engine="openai"), 25, "tokens"),
    ],
)
def test_the_pool_is_named_with_and_without_the_engines_help(
    name: str, cache: Cache, facts: Facts, fits: int, limit: str
) -> None:
    """
    Where the engine does not say what its pool holds, what else was seen to stay says it.
    """
    finding, _ = measured(cache, facts, most_tokens=cache.pool_tokens - 64, tokens=5_000)

    assert finding.limit == limit, name
    assert finding.measured["sessions_that_fit"] == pytest.approx(fits, abs=1)


def test_as_many_as_were_tried_is_no_limit() -> None:
    """
    Where nothing is lost, the number is a lower bound and said to be one.
    """
    finding, _ = measured(Cache(), Facts(engine="openai"), tokens=2_048, most_sessions=12)

    assert finding.limit == "none"
    assert finding.measured["sessions_that_fit"] == 12
    assert finding.measured["at_least"] is True


def test_llama_cpp_has_slots_and_neither_pool() -> None:
    """
    It keeps as many conversations as it has slots, of whatever size; that is neither pool, and --parallel changes it.
    """
    kept: list[str] = []

    def answer(ask: Ask) -> dict[str, Any]:
        text = ask.messages[0]["content"]
        likest = max(kept, key=lambda each: shared(each, text), default="")
        cached = shared(likest, text) // 4
        if likest and cached > ask.tokens / 10:
            kept.remove(likest)
        else:
            cached = 0
        kept.append(text)
        del kept[:-4]
        return {"cached_tokens": cached}

    def shared(one: str, other: str) -> int:
        return next(
            (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
        )

    facts = Facts(engine="llamacpp", max_running=4)
    steps = play(capacity.plan(taught(), facts, tokens=2_048), answer)
    finding = capacity.judge(steps, facts)

    assert [each["sessions_that_fit"] for each in finding.measured["findings"]] == [4, 4]
    assert finding.limit == "unknown"
    assert "--parallel" in finding.flags


def test_a_second_size_the_engine_refuses_is_replaced_by_a_shorter_one() -> None:
    """
    How long a prompt may be is often not known; the first finding stands and another size is measured.
    """
    finding, _ = measured(Cache(grid=256, slots=12), Facts(engine="openai"), most_tokens=30_000)

    assert [each["tokens"] for each in finding.measured["findings"]] == [20_000, 5_000]


def test_nothing_is_counted_where_nothing_is_reported() -> None:
    """
    Unknown is null: an engine that does not report gets the flag it needs and no number.
    """
    steps = play(capacity.plan(taught(), SEED), by(Cache(), reports=False))
    finding = capacity.judge(steps, SEED)

    assert len(steps) == 2
    assert finding.measured["sessions_that_fit"] is None
    assert finding.flags == ("--enable-cache-report",)


@given(
    cliff=st.integers(1, 80), most=st.integers(2, 70), guess=st.none() | st.integers(1, 90), start=st.integers(1, 20)
)
def test_climbing_finds_the_cliff(cliff: int, most: int, guess: int | None, start: int) -> None:
    """
    Wherever it is, whatever was guessed, and never by trying a number twice.
    """
    tried: list[int] = []

    def attempted(sessions: int) -> Generator[Ask, Step, bool | None]:
        tried.append(sessions)
        yield from ()
        return sessions <= cliff

    def run() -> Any:
        try:
            next(capacity.climb(attempted, most=most, guess=guess, start=start))
        except StopIteration as ended:
            return ended.value

    assert run() == ((cliff, cliff + 1) if cliff < most else (most, None))
    assert len(set(tried)) == len(tried)
    assert max(tried, default=0) <= most
