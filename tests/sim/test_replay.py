"""The benchmark that replays a published trace, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sim_replay.py"
MEASURED = ("seconds", "requests_per_s")


def replay(requests: int) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "--requests", str(requests), "--json"]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return result


def test_a_replay_is_the_same_every_time() -> None:
    """
    All but how long it took.
    """
    first, second = replay(300), replay(300)

    assert all(first.pop(name) > 0 and second.pop(name) > 0 for name in MEASURED)
    assert first == second
    assert first["requests"] == 300
    assert 0.5 < first["cached_share"] < 1
