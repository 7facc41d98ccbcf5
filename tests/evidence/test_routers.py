"""Several routers before the same replicas against one, with a store and without, on seeds that nothing was tuned on."""

from __future__ import annotations

from typing import Any

import pytest

from ramjet.lab.report import Row, rows
from ramjet.lab.routers import DELAY_S
from ramjet.lab.runs import Case
from tests.evidence import report
from tests.evidence.kept import figures_of

WORKLOADS = ("W2", "W6")
SEEDS = range(11, 16)
FEW = range(11, 13)
SETUPS = ((1, DELAY_S, SEEDS), (2, DELAY_S, SEEDS), (8, DELAY_S, SEEDS), (2, None, FEW), (8, None, FEW))
"""Routers, and how old what they tell one another is when it arrives, None: they tell nothing; on which seeds. Few where
runs are long and the difference is not small."""
MOST = {True: 1.10, False: 1.25}
"""What the mean wait may be, with a store and without, over that of one router on the same seeds."""


def line(row: Row, one: Row, routers: int, delay_s: float | None) -> dict[str, Any]:
    """What came of one setup, beside what is asked of it."""
    ratio, most = row.mean_wait_s / one.mean_wait_s, MOST[delay_s is not None]
    return {
        "workload": row.workload,
        "routers": routers,
        "store": "-" if routers == 1 else "no" if delay_s is None else f"facts {delay_s:g} s old",
        "seeds": row.seeds,
        "mean wait, s": row.mean_wait_s,
        "of one router's": "-" if routers == 1 else f"{ratio:.3g} of {most:.3g}",
        "p95, s": row.p95_wait_s,
        "p99, s": row.p99_wait_s,
        "longest hold, s": row.max_held_s,
        "cached, %": 100 * row.cached_share,
        "cold, %": 100 * row.cold_share,
        "turns a minute": row.turns_per_min,
        "missed": "mean wait" if ratio > most else "-",
    }


@pytest.mark.evidence
def test_several_routers_do_as_one_does() -> None:
    """
    W2 and W6 with one, two and eight routers, requests dealt to them in turn: how long turns wait.
    """
    cases = [
        Case(workload=workload, policy="ramjet", seed=seed, routers=routers, delay_s=delay_s)
        for routers, delay_s, seeds in SETUPS
        for workload in WORKLOADS
        for seed in seeds
    ]
    figures = dict(zip(cases, figures_of(cases), strict=True))

    def row(workload: str, routers: int, delay_s: float | None, seeds: range) -> Row:
        those = [
            figures[Case(workload=workload, policy="ramjet", seed=seed, routers=routers, delay_s=delay_s)]
            for seed in seeds
        ]
        ((_, (mean,)),) = rows(those)
        return mean

    table = [
        line(row(workload, routers, delay_s, seeds), row(workload, 1, DELAY_S, seeds), routers, delay_s)
        for workload in WORKLOADS
        for routers, delay_s, seeds in SETUPS
    ]
    report.write(
        "routers",
        "Several routers before the same replicas",
        "Five seeds (11 to 15) that nothing was tuned on, or the first two of them, means over them, the longest hold of "
        "all; simulated replicas, as many production routers, and requests dealt to them one after another, whosever turn "
        f"it is. With a store, what one router does the others hear {DELAY_S:g} s later; without, they see the engines' own "
        "pages, once a second, and nothing else of one another. `x of y` is what was measured, on the same seeds, and what is asked. "
        "`make evidence ARGS='-k as_one_does'` runs it again; "
        "`ramjet lab run --workload W6 --policy ramjet --routers 8` plays a part of it, with `--no-store` without one.",
        table,
    )
    assert len(table) == len(SETUPS) * len(WORKLOADS)
