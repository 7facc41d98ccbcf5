"""What a decision costs, and how that grows with the fleet, with what it holds, and with the prompt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.evidence import report

ROOT = Path(__file__).parents[2]
SCRIPT, PICTURE = ROOT / "benchmarks" / "decision.py", ROOT / "docs" / "evidence" / "decision.png"


@pytest.mark.evidence
def test_what_a_decision_costs() -> None:
    """
    64 replicas, 50,000 conversations, 300,000 tokens, each of them grown alone, and 1,000 replicas with 200,000
    conversations; written down and not asserted, for machines differ.
    """
    command = [sys.executable, str(SCRIPT), "--growth", "--json", "--plot", str(PICTURE)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report.write(
        "decision",
        "What a decision costs",
        "Milliseconds of processor time from a prompt's fingerprint to its place, among replicas whose pools are full. "
        "`next` is a conversation's next turn, `new` its first, `sent` a first one that is not held whatever it pushes "
        "out; between two that are timed, sixteen other turns are served. Parts are medians; the prompt's hashing comes "
        "before and is not in the sum: it is the same work in every row of one length, and so says how busy the machine was. "
        "Required: less than 1 ms at 64 replicas, 50,000 conversations and 300,000 "
        "tokens, and less than 2 at 1,000 replicas and 200,000 conversations. In the last columns is what history and "
        "beliefs take by the router's estimate, and the most that the whole process has taken by then. `make decision` runs that again, `make decision ARGS=--growth` all of it, and "
        "`benchmarks/decision.py` says what is played.\n\n![Growth](decision.png)",
        [
            {
                "replicas": row["replicas"],
                "conversations": row["conversations"],
                "tokens": row["tokens"],
                "kind": row["kind"],
                "held, %": round(100 * row["held"] / row["decisions"]),
                "median": round(row["median_ms"], 2),
                "p99": round(row["p99_ms"], 2),
                "recognise": round(row["recognise_ms"], 2),
                "look": round(row["look_ms"], 2),
                "rank": round(row["rank_ms"], 2),
                "book": round(row["book_ms"], 2),
                "hash": round(row["hash_ms"], 2),
                "beliefs, MB": round(row["believed_mb"]),
                "process, MB": round(row["process_mb"]),
            }
            for row in json.loads(done.stdout)
        ],
    )
