"""Every cause of a cold turn, forced hundreds of times: what Ramjet says against what the engines know."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest

from ramjet.core.pools import Pools
from ramjet.sim.profile import Profile
from tests.evidence import report
from tests.evidence.causes import (
    SCENARIOS,
    Verdict,
    World,
    everything,
    matrix,
    nothing,
    play,
    right_ratio,
    shared_heads,
    show,
    silent_restarts,
    tokens_only,
)

RUNS: dict[str, tuple[Callable[[Profile], Pools], Sequence[Callable[..., World]]]] = {
    "all pools known": (everything, SCENARIOS),
    "token pools known": (tokens_only, SCENARIOS),
    "nothing known": (nothing, SCENARIOS),
    "all known, restarts unseen": (everything, (silent_restarts,)),
    "all known, long common system prompt": (everything, (shared_heads,)),
}


@pytest.mark.evidence
@pytest.mark.timeout(900)
def test_the_confusion_matrix() -> None:
    """
    At least 95 % of the cold turns get the right cause where the pools are known, and where they are not, few a wrong one.
    """
    seen = {name: play(20, 11, told, scenarios) for name, (told, scenarios) in RUNS.items()}
    rows = [{"told": name, **row} for name, verdicts in seen.items() for row in matrix(verdicts)]
    for name, verdicts in seen.items():
        sys.stdout.write(show(name, verdicts) + "\n")
    says = [
        "Rows are what the simulated engine knows of the cold turn, columns what Ramjet said of it (`ramjet/core/causes`).",
        "The traffic is made by `tests/evidence/causes.py` in virtual time: scenarios that force each cause, 20 times with",
        "other sizes, orders and think times, the production router in front of one to three engines. Its prompts are",
        "coarser than the engines' pages, and it guesses tokens from bytes.",
        "",
        *(
            f"* {name}: {len(each)} cold turns, {right_ratio(each):.1%} right, {_wrong(each):.1%} wrong."
            for name, each in seen.items()
        ),
        "",
        f"Of those with the right pool in the first run, {_named(seen['all pools known'])} name the conversation that needed",
        "the room; others name a neighbour, for an engine keeps answers too and lets go a little earlier than the belief.",
        "",
        "The last run shows a limit: where a system prompt's own snapshot was dropped by the cap, the belief forgets all",
        "that grew from it, and what it has forgotten it cannot explain.",
        "",
        "`make evidence` makes it again; so does `pytest -m evidence tests/evidence/test_causes.py`.",
    ]
    report.write("causes", "What made turns cold, told and true", "\n".join(says), rows)

    known, tokens, none, *_ = seen.values()
    assert right_ratio(known) >= 0.95
    assert max(_wrong(tokens), _wrong(none)) <= 0.05


def _wrong(verdicts: Sequence[Verdict]) -> float:
    return sum(each.said not in {each.truth, "unknown"} for each in verdicts) / len(verdicts)


def _named(verdicts: Sequence[Verdict]) -> str:
    named = [
        (each.record.cold_evidence or {})["pushed_out_by"] == each.by
        for each in verdicts
        if each.said == each.truth and each.by is not None and (each.record.cold_evidence or {})["pushed_out_by"]
    ]
    return f"{sum(named):,} of {len(named):,} that name one"
