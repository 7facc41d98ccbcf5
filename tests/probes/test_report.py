"""What is printed holds whatever was measured, and however little."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ramjet.engines.facts import Facts
from ramjet.probes import capacity, eviction, host_tier, pair, prefix, report
from ramjet.probes.run import Limits, Measured, Spent
from ramjet.probes.steps import Finding, Plan, Step
from tests.probes.replica import Cache, by, play, taught

FACTS = Facts(engine="sglang", pool_tokens=60_000)
Judge = Callable[[Sequence[Step], Facts], Finding]

PROBES: dict[str, tuple[Callable[[], Plan], Judge]] = {
    "prefix": (lambda: prefix.plan(taught()), prefix.judge),
    "eviction": (
        lambda: eviction.plan(taught(), FACTS, sessions=3, tokens=2_500, long_tokens=30_000),
        eviction.judge,
    ),
    "capacity": (lambda: capacity.plan(taught(), FACTS, tokens=3_500), capacity.judge),
    "host-tier": (lambda: host_tier.plan(taught(), FACTS, tokens=3_500), host_tier.judge),
    "pair": (lambda: pair.plan(taught(), long_tokens=9_000, ordinary_tokens=2_500, turns=3), pair.judge),
}


def measured(probe: str, steps: Sequence[Step]) -> Measured:
    """These steps, as a run would have left them."""
    spent = Spent(limits=Limits(requests=1, prompt_tokens=1, seconds=1.0), started_at=0.0)
    return Measured(
        probe=probe, writer=taught(), spent=spent, url="http://host", model="m", facts=FACTS, steps=[*steps]
    )


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_can_be_broken_off_anywhere(name: str) -> None:
    """
    After any number of requests there is a document, with nothing concluded and what was measured so far.
    """
    plan, judge = PROBES[name]
    steps = play(plan(), by(Cache(page=64, grid=256, chunk=1_024, slots=8, pool_tokens=60_000)))

    for length in range(len(steps)):
        part = measured(name, steps[:length])
        finding = report.broken_off(judge(part.steps, FACTS), "it was interrupted", length)
        told = report.document(part, finding, stopped="it was interrupted", took_s=1.0)

        assert (told["limit"], told["flags"]) == ("unknown", [])
        assert told["verdict"].startswith("Stopped before the end: it was interrupted.")
        assert {told[figure] for figure in told["so_far"]} == {None} or not told["so_far"]
        assert len(json.loads(json.dumps(told))["steps"]) == length
        report.table(part)


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("slots", [8, 10_000])
def test_a_finished_probe_says_what_it_found(name: str, slots: int) -> None:
    """
    Its limit is one of four words, its verdict a sentence, and its flags are flags.
    """
    plan, judge = PROBES[name]
    steps = play(plan(), by(Cache(page=64, grid=256, chunk=1_024, slots=slots, pool_tokens=60_000)))
    finding = judge(steps, FACTS)

    assert finding.limit in ("snapshots", "tokens", "none", "unknown")
    assert finding.verdict.endswith(".")
    assert "not finished" not in finding.verdict
    assert all(flag.startswith(("--", "RAMJET_")) for flag in finding.flags)


def test_many_steps_are_shown_by_their_passes() -> None:
    """
    Hundreds of requests make a table of some dozen rows, which say how many were sent.
    """
    steps = play(PROBES["capacity"][0](), by(Cache(page=64, pool_tokens=60_000)))
    rows = report.rows(steps)

    assert len(rows) < len(steps) / 2
    assert any(row.name == "4 x 3,500 again (4 sent)" for row in rows)
    assert len(report.rows(steps[:10])) == 10


def test_what_is_unknown_is_null_and_what_is_none_is_zero() -> None:
    """
    In the document as in the steps.
    """
    steps = play(PROBES["eviction"][0](), by(Cache(), reports=False))
    told = report.document(measured("eviction", steps), eviction.judge(steps, FACTS), stopped=None, took_s=1.0)
    lost = play(PROBES["eviction"][0](), by(Cache(pool_tokens=30_000)))
    also = report.document(measured("eviction", lost), eviction.judge(lost, FACTS), stopped=None, took_s=1.0)

    assert [step["cached_tokens"] for step in told["steps"]] == [None, None]
    assert told["survived"] is None
    assert also["steps"][0]["cached_tokens"] == 0
    assert also["survived"] == 0


def test_a_page_escapes_what_engines_say() -> None:
    """
    A model's name is a text and no markup.
    """
    pytest.importorskip("matplotlib")
    steps = play(PROBES["eviction"][0](), by(Cache()))
    evil = replace(steps[0], name="<script>alert(1)</script>", replica="<img src=x>")
    told: dict[str, Any] = report.document(
        measured("eviction", steps), eviction.judge(steps, FACTS), stopped=None, took_s=1.0
    )
    page = report.page({**told, "model": "<b>m</b>", "verdict": "<i>"}, [evil, *steps[1:]])

    assert "<script>" not in page
    assert "<img" not in page
    assert "<b>m" not in page
    assert "<i>" not in page
