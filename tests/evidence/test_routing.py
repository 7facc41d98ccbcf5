"""The rule against other routers', on seeds that nothing was tuned on."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from ramjet.lab.measure import Figures
from ramjet.lab.report import Row, rows
from ramjet.lab.runs import Case, run_all
from tests.evidence import report

WORKLOADS = tuple(f"W{number}" for number in range(10))
SEEDS = range(11, 16)
BASELINES = (
    "least_loaded",
    "sglang_cache_aware",
    "overlap_load",
    "sticky_until_saturated",
    "new_tokens_x_batch",
    "seconds",
    "seconds_crowding",
)
LOOSE, TOKENS, SLOTS = ("W0", "W5", "W6", "W7", "W9"), ("W1", "W2", "W8"), ("W3", "W4")
MOST_OF_BEST = {**dict.fromkeys(LOOSE, 1.10), **dict.fromkeys(TOKENS, 0.37), **dict.fromkeys(SLOTS, 0.35)}
"""What the mean wait may be, as a part of the best baseline's."""


def played(policies: tuple[str, ...]) -> dict[str, dict[str, Row]]:
    """By workload and policy, the mean over the seeds."""
    cases = [
        Case(workload=workload, policy=policy, seed=seed)
        for workload in WORKLOADS
        for policy in policies
        for seed in SEEDS
    ]
    found: dict[int, Figures] = dict(run_all(cases, processes=2))
    by_workload: dict[str, dict[str, Row]] = defaultdict(dict)
    for workload, those in rows([found[place] for place in range(len(cases))]):
        for row in those:
            by_workload[workload][row.policy] = row
    return by_workload


@pytest.mark.evidence
def test_nobody_waits_because_conversations_evict_each_other() -> None:
    """
    W0 to W9 on five seeds: the mean wait against the best of seven other rules, each from its published logic.
    """
    table: list[dict[str, Any]] = []
    for workload, by_policy in played(("ramjet", "infinite", *BASELINES)).items():
        ours, bound = by_policy["ramjet"], by_policy["infinite"]
        best = min((by_policy[policy] for policy in BASELINES), key=lambda row: row.mean_wait_s)
        table.append(
            {
                "workload": workload,
                "best baseline": best.policy,
                "its mean wait, s": best.mean_wait_s,
                "ramjet's, s": ours.mean_wait_s,
                "ratio": ours.mean_wait_s / best.mean_wait_s,
                "required": MOST_OF_BEST[workload],
                "lower bound, s": bound.mean_wait_s,
                "p99 / its p99, s": f"{ours.p99_wait_s:.0f} / {best.p99_wait_s:.0f}",
                "longest hold, s": ours.max_held_s,
                "p95 of a conversation's waits, ratio": ours.conversation_wait_p95_s / best.conversation_wait_p95_s,
                "turns a minute, ratio": ours.turns_per_min / best.turns_per_min,
                "cached, %": 100 * ours.cached_share,
            }
        )
    report.write(
        "routing",
        "The rule against other routers' in virtual time",
        "Five seeds (11 to 15) that nothing was tuned on, means over them, the longest hold of all; simulated replicas, "
        "the production router. A wait is from arrival to first token, the time held included. The lower bound is a "
        "cache without end and no queue. `make evidence ARGS='-k evict_each_other'` runs it again; "
        "`ramjet lab run --workload W2 --policy ramjet --seeds 3` plays a part of it.",
        table,
    )
    assert len(table) == len(WORKLOADS)
