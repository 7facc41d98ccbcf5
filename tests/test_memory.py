"""Memory: one bound for the process, whatever clients send."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.evidence import report

BASE_MIB = 110
"""What a process takes beside its beliefs, with room to spare: the interpreter, libraries, what allocators keep."""


def measure(conversations: int, memory_mb: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.memory", str(conversations), str(memory_mb)], check=True, capture_output=True
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


@pytest.mark.timeout(300)
def test_memory_stays_flat_once_the_bound_is_reached() -> None:
    """
    8,000 conversations where there is room for 2,500: the oldest are forgotten, the newest is still pinned.
    """
    measured = measure(8_000, 8)

    assert measured["estimated, MiB"] <= 8
    assert measured["newest still pinned"]
    assert measured["growth at each tenth, MiB"][-1] - measured["growth at each tenth, MiB"][6] < 4
    assert measured["process in all, MiB"] < 8 + BASE_MIB


@pytest.mark.evidence
def test_memory_of_a_hundred_thousand_conversations() -> None:
    """
    100,000 conversations of 50 KB stay below `beliefs.memory_mb` + 110 MiB, and the newest is still pinned.
    """
    rows = [measure(100_000, memory_mb) for memory_mb in (256, 64)]
    report.write(
        "memory",
        "100,000 conversations of 50 KB in one process",
        "Every prompt is read, fingerprinted and routed; the bound is `beliefs.memory_mb` (default 256 MiB) and 110 MiB "
        "for all the rest. `make evidence ARGS='-k hundred_thousand'` runs it again.",
        rows,
    )
    for row in rows:
        assert row["newest still pinned"]
        assert row["process in all, MiB"] < row["bound, MiB"] + BASE_MIB
