"""What the journal costs with a million requests in it and at 2,000 a second, and that no kill takes anything from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.evidence import report

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REPORT_S, REPORT_MB = 20.0, 1_000.0
ROWS_A_SECOND = 2_000
PUT_US = 50.0
"""A tenth of what a request has at 2,000 a second."""
ROUNDS = 200


def said(*command: str) -> Any:
    """What a program prints as JSON."""
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.evidence
def test_what_a_journal_of_a_million_requests_costs(tmp_path: Path) -> None:
    """
    A report takes 20 s of the processor and 1 GB at most, 2,000 requests a second are kept, and 200 kills cost nothing.
    """
    read = said(str(BENCHMARKS / "report.py"), "--json")
    kept = said(str(BENCHMARKS / "journal.py"), "--json", "--rate", str(ROWS_A_SECOND))
    kills = said("-m", "tests.journal.kills", str(tmp_path / "journal.db"), str(ROUNDS))
    report.write(
        "journal",
        "What the journal costs, and what a kill costs it",
        "`make report` (a report on a million requests, in a process of its own), `make journal` (20,000 requests, "
        f"and {ROWS_A_SECOND:,} a second for five seconds), and {ROUNDS} writers killed by SIGKILL one after the other, each at a random "
        "moment, each going on with the file of the one before. The machine is shared, so what is required is required "
        "of processor time: seconds on the wall's clock and the event loop's delay are what they were beside other programs. "
        f"Required: {REPORT_S:.0f} s, {REPORT_MB:,.0f} MB; {ROWS_A_SECOND:,} a second with none dropped and {PUT_US:.0f} µs of the event loop for each "
        "at most; every row there that was said to be, in order, in a file that SQLite finds sound. "
        "`make evidence ARGS='-k a_million_requests'` runs it again.",
        [
            {"what": name, "figure": figure}
            for name, figure in {
                "report: requests": read["requests"],
                "report: file, MB": read["megabytes"],
                "report: processor, s": read["processor_s"],
                "report: wall's clock, s": read["seconds"],
                "report: most memory, MB": read["peak_megabytes"],
                "writing: requests a second of one processor": kept["rows_a_second"],
                "writing: handing one in, µs of the event loop": kept["put_us"],
                f"at {ROWS_A_SECOND:,} a second: dropped": kept["dropped"],
                "the event loop's delay, 99th percentile, ms": kept["lag_ms"],
                "the same without a journal, ms": kept["idle_lag_ms"],
                "file, bytes a request": kept["bytes_a_request"],
                "kills": len(kills),
                "kills between a batch's beginning and its commit": sum(each["writing"] for each in kills),
                "rows said to be in the file": sum(each["promised"] for each in kills),
                "rows of them that were lost": sum(max(0, each["promised"] - each["found"]) for each in kills),
                "rows found": sum(each["found"] for each in kills),
                "rounds with a gap, or a file that is not sound": sum(
                    not (each["in_order"] and each["sound"]) for each in kills
                ),
            }.items()
        ],
    )
    assert read["requests"] == 1_000_000
    assert read["processor_s"] < REPORT_S
    assert read["peak_megabytes"] < REPORT_MB
    assert kept["rows_a_second"] > ROWS_A_SECOND
    assert kept["dropped"] == 0
    assert kept["put_us"] < PUT_US
    assert all(each["found"] >= each["promised"] and each["in_order"] and each["sound"] for each in kills)
