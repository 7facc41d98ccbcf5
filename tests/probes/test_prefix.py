"""Where an engine can resume is read from its counts, and nothing is claimed that they do not show."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramjet.engines.facts import Facts
from ramjet.probes import forks, prefix
from ramjet.probes.forks import FORK, REFORK
from ramjet.probes.prefix import AGAIN, APPEND, COLD, GRID_AGAIN
from ramjet.probes.steps import Finding, Step
from tests.probes.replica import Cache, by, play, taught


def step(role: str, prompt_tokens: int, cached_tokens: int | None, shared_tokens: int | None = None) -> Step:
    """A step of which only the counts matter."""
    return Step(
        name=role,
        role=role,
        tokens=prompt_tokens,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        ttft_s=None,
        shared_tokens=shared_tokens,
    )


def five(again: int | None, append: int | None, first: int | None, second: int | None) -> list[Step]:
    """The seed's five requests with these counts."""
    return [
        step(COLD, 19_845, None if again is None else 0),
        step(AGAIN, 19_845, again),
        step(APPEND, 20_145, append),
        step(FORK, 19_845, first, 14_900),
        step(REFORK, 19_845, second, 14_900),
    ]


def found_in(cache: Cache, **lengths: int) -> tuple[Finding, Sequence[Step]]:
    """What the probe finds of a replica by a simple rule."""
    steps = play(prefix.plan(taught(), **lengths), by(cache))
    return prefix.judge(steps, Facts(engine="openai")), steps


def test_the_seeds_figures_are_snapshots() -> None:
    """
    19,845 tokens: 19,712 again, 12,288 for the first that leaves at 14,900 and 14,848 for the second. So much those five
    show; the chunk is 12,288 or a part of it, and only more requests tell which.
    """
    finding = prefix.judge(five(19_712, 19_712, 12_288, 14_848), Facts(engine="sglang"))

    assert finding.limit == "snapshots"
    assert finding.measured["snapshot_limited"] is True
    assert finding.measured["chunk_tokens"] is None
    assert "resumed at 12,288 and read 2,612 tokens again; the second resumed at 14,848" in finding.verdict


@pytest.mark.parametrize(
    ("name", "cache", "limited", "grid", "chunk"),
    [
        ("SGLang, hybrid", Cache(page=64, grid=256, chunk=6_144), True, 256, 6_144),
        ("SGLang, hybrid, two states a path", Cache(page=64, grid=256, chunk=6_144, per_path=2), True, 256, 6_144),
        ("SGLang, hybrid, four states a path", Cache(page=64, grid=256, chunk=6_144, per_path=4), True, 256, 6_144),
        ("SGLang, hybrid, one state a path", Cache(page=64, grid=256, chunk=6_144, per_path=1), True, 256, None),
        ("SGLang, small chunks", Cache(page=64, grid=64, chunk=512), True, 64, 512),
        ("SGLang, chunks of two grids", Cache(page=64, grid=256, chunk=512), True, 256, 512),
        ("a chunk longer than the prompt", Cache(page=64, grid=256, chunk=32_768), True, 256, None),
        ("SGLang, attention, pages of 64", Cache(page=64), False, 64, None),
        ("SGLang, attention, any token", Cache(page=1), False, 1, None),
        ("vLLM, blocks of 16", Cache(page=16), False, 16, None),
        ("vLLM, blocks of 128", Cache(page=128), False, 128, None),
        ("vLLM, blocks of 528", Cache(page=528), False, 528, None),
        ("vLLM, hybrid", Cache(page=528, grid=528, chunk=7_920), True, 528, 7_920),
        ("vLLM, guessing ahead", Cache(page=16, gives_up=16), False, None, None),
    ],
)
def test_engines_are_told_apart(name: str, cache: Cache, limited: bool, grid: int | None, chunk: int | None) -> None:
    """
    The probe finds an engine's grid and chunk, or says that it cannot.
    """
    finding, _ = found_in(cache)

    assert finding.measured == {
        "reports_cached_tokens": True,
        "snapshot_limited": limited,
        "grid_tokens": grid,
        "chunk_tokens": chunk,
    }, name
    assert finding.limit == ("snapshots" if limited else "none")


@settings(max_examples=40, deadline=None)
@given(
    page=st.sampled_from([1, 16, 64, 128, 384, 528, 1_056]),
    gives_up=st.booleans(),
    tokens=st.integers(8_000, 21_000),
    place=st.floats(0.4, 0.8),
)
def test_nothing_false_is_said_of_attention(page: int, gives_up: bool, tokens: int, place: float) -> None:
    """
    Whatever the blocks and wherever the prompt is left, an engine without snapshots is never said to have them, and a
    grid that is named is the true one.
    """
    finding, _ = found_in(
        Cache(page=page, gives_up=page if gives_up else 0), tokens=tokens, branch_at_tokens=int(place * tokens)
    )

    assert finding.measured["snapshot_limited"] is not True
    assert finding.measured["chunk_tokens"] is None
    assert finding.measured["grid_tokens"] in ({page, None} if gives_up or page > 1_000 else {page})


@settings(max_examples=40, deadline=None)
@given(
    grid=st.sampled_from([64, 128, 256]),
    grids=st.integers(2, 64),
    per_path=st.sampled_from([None, 2, 3, 4]),
    tokens=st.integers(8_000, 21_000),
    place=st.floats(0.4, 0.8),
)
@example(grid=256, grids=24, per_path=2, tokens=19_845, place=14_900 / 19_845)
def test_nothing_false_is_said_of_snapshots(
    grid: int, grids: int, per_path: int | None, tokens: int, place: float
) -> None:
    """
    Whatever chunk and cap, an engine with snapshots is never said to have none, and a grid or a chunk that is named is
    the true one.
    """
    cache = Cache(page=64, grid=grid, chunk=grid * grids, per_path=per_path, slots=1_000)

    finding, _ = found_in(cache, tokens=tokens, branch_at_tokens=int(place * tokens))

    assert finding.measured["snapshot_limited"] is not False
    assert finding.measured["grid_tokens"] in {grid, None}
    assert finding.measured["chunk_tokens"] in {grid * grids, None}


def test_one_fork_without_a_sign_proves_nothing() -> None:
    """
    A chunk may end right before the fork: 14,848 twice is attention, or chunks of 512.
    """
    assert forks.snapshot_limited(forks.seen(five(19_840, 19_840, 14_848, 14_848))) is None


def test_a_page_of_64_is_not_taken_for_128() -> None:
    """
    The five counts have 128 in common by chance; short prompts show the 64, and that it is no less.
    """
    steps = five(19_840, 19_840, 14_848, 14_848)
    assert prefix.grid_of(steps).tokens == 128
    assert prefix.grid_of(steps).known is None

    more = [*steps, step(GRID_AGAIN, 2_151, 2_112)]
    assert prefix.grid_of(more).tokens == 64

    more += [step(GRID_AGAIN, 2_107, 2_048)]
    assert prefix.grid_of(more).known == 64


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("sglang", ("--enable-cache-report",)),
        ("vllm", ("--enable-prompt-tokens-details",)),
        (None, ("--enable-cache-report", "--enable-prompt-tokens-details")),
    ],
)
def test_an_engine_that_reports_nothing_is_told_which_flag_it_needs(engine: str | None, flags: tuple[str, ...]) -> None:
    """
    Without a count nothing is concluded, and no more than two requests are spent.
    """
    steps = play(prefix.plan(taught()), by(Cache(), reports=False))
    finding = prefix.judge(steps, Facts(engine=engine))  # type: ignore[arg-type]

    assert len(steps) == 2
    assert finding.limit == "unknown"
    assert finding.flags == flags
    assert all(flag in finding.verdict for flag in flags)
    assert set(finding.measured.values()) == {None}


def test_an_engine_that_reuses_nothing_is_not_one_that_says_nothing() -> None:
    """
    Zero is none: it reports, and has no cache.
    """
    finding = prefix.judge(five(0, 0, 0, 0), Facts(engine="vllm"))

    assert finding.measured["reports_cached_tokens"] is True
    assert finding.flags == ("--enable-prefix-caching",)
    assert "Nothing was reused" in finding.verdict
