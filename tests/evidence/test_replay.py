"""How fast the simulator is: fifty thousand recorded requests through one replica."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.evidence import report

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sim_replay.py"


@pytest.mark.evidence
def test_fifty_thousand_requests_replay_in_under_a_minute() -> None:
    """
    The largest trace there is, on one core; the figure is written down and not asserted, for machines differ.
    """
    done = subprocess.run([sys.executable, str(SCRIPT), "--json"], capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    report.write(
        "replay",
        "Fifty thousand recorded requests through one simulated replica",
        "Claude Code sessions, eight at a time, in virtual time on one core; required: less than 60 s. `make replay` "
        "runs it again.",
        [{"what": name, "figure": figure} for name, figure in figures.items()],
    )
