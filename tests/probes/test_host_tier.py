"""What comes back beyond the device is told from what never left it, by the engine's counts or by time, or not at all."""

from __future__ import annotations

import pytest

from ramjet.engines.facts import Facts
from ramjet.probes import host_tier
from ramjet.probes.steps import Finding, Step
from tests.probes.replica import Tiers, play, taught

SEED_S = (0.15, 0.42, 3.35)
"""From the device, from the host, read anew (seed)."""


def measured(tiers: Tiers, facts: Facts | None = None, fits: int | None = None) -> tuple[Finding, list[Step]]:
    """What the probe finds of a replica that holds whole sessions."""
    known = facts or Facts(engine="sglang")
    steps = play(host_tier.plan(taught(), known, fits=fits), tiers.answer)
    return host_tier.judge(steps, known), steps


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("fits", [None, 12])
def test_sessions_from_the_host_are_a_class_of_their_own(counts: bool, fits: int | None) -> None:
    """
    At the seed's speeds they are told by the engine's counts and as well by time alone.
    """
    finding, _ = measured(Tiers(device=12, host=4, counts=counts), fits=fits)

    assert finding.measured["sessions_on_device"] == 12
    # A loop takes each session from the host that was pushed out just before.
    assert [(each["sessions"], each["came_back"], each["from_host"]) for each in finding.measured["beyond"]] == [
        (13, 13, 13),
        (14, 14, 14),
        (16, 16, 16),
        (20, 0, 0),
    ]
    assert finding.measured["beyond"][0]["host_s"] == pytest.approx(0.42)
    assert "from the host in 0.42 s" in finding.verdict


@pytest.mark.parametrize("speed", [50, 500])
def test_milliseconds_are_no_tier(speed: float) -> None:
    """
    In a replica so fast that a copy from the host takes no longer than a client's noise, what came back is counted and
    its place left open.
    """
    reads_s = tuple(seconds / speed for seconds in SEED_S)
    finding, _ = measured(Tiers(device=12, host=4, counts=False, reads_s=(reads_s[0], reads_s[1], reads_s[2])), fits=12)

    assert [each["came_back"] for each in finding.measured["beyond"]] == [13, 14, 16, 0]
    assert {each["from_host"] for each in finding.measured["beyond"][:3]} == {None}
    assert "from where cannot be told" in finding.verdict


@pytest.mark.parametrize("speed", [1, 50])
def test_a_fast_replica_that_counts_is_told_as_a_slow_one(speed: float) -> None:
    """
    Counts do not depend on the clock.
    """
    reads_s = (SEED_S[0] / speed, SEED_S[1] / speed, SEED_S[2] / speed)
    finding, _ = measured(Tiers(device=5, host=2, reads_s=reads_s))

    assert finding.measured["sessions_on_device"] == 5
    assert [each["from_host"] for each in finding.measured["beyond"]] == [6, 7, 0]


@pytest.mark.parametrize(
    ("facts", "flags"),
    [
        (Facts(engine="sglang", host_tier=False), ("--enable-hierarchical-cache", "--hicache-size")),
        (Facts(engine="sglang", host_tier=True), ("--hicache-size", "--hicache-write-policy")),
        (Facts(engine="llamacpp"), ("--cache-ram",)),
    ],
)
def test_without_a_tier_nothing_comes_back(facts: Facts, flags: tuple[str, ...]) -> None:
    """
    One session more than fit, and all are read anew; the flags are those that this engine does not have on.
    """
    finding, steps = measured(Tiers(device=6), facts)

    assert finding.measured["sessions_on_device"] == 6
    assert [(each["sessions"], each["came_back"]) for each in finding.measured["beyond"]] == [(7, 0)]
    assert finding.flags == flags
    assert max(step.sessions or 0 for step in steps) == 8


def test_nothing_is_said_where_nothing_is_reported() -> None:
    """
    Without counts a tier cannot be told from luck, and two requests are enough to know.
    """
    steps = play(host_tier.plan(taught(), Facts(engine="openai")), lambda _ask: {"cached_tokens": None})
    finding = host_tier.judge(steps, Facts(engine="openai"))

    assert len(steps) == 2
    assert finding.limit == "unknown"
    assert "--enable-cache-report" in finding.flags
