"""What requests cost through Ramjet, beside haproxy, and how that grows; written down and not asserted, for machines differ."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.proxy.growth import AXES, Figures, draw
from tests.evidence import report

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "evidence" / "growth.png"
ROUNDS = 3


def printed(*arguments: str) -> Any:
    """What a benchmark prints as JSON."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.evidence
def test_what_requests_cost_beside_haproxy() -> None:
    """
    Three rounds of each scenario, medians, and the longest steps of the event loop.
    """
    found = printed("benchmarks.proxy", "--rounds", str(ROUNDS), "--json")
    by_place: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in found["rows"]:
        by_place[row["scenario"], row["system"]].append(row)
    columns = {
        "cpu_ms": "ms a request",
        "chunk_us": "us a chunk",
        "mb_ms": "ms a MB",
        "p50_ms": "p50, ms",
        "gap_p99_ms": "gap p99, ms",
        "cached_percent": "cached, %",
        "resident_mb": "MB",
    }
    table = []
    for (scenario, system), rows in by_place.items():
        others = by_place.get((scenario, "haproxy"), []) if system == "ramjet" else []
        ratios = [row["cpu_ms"] / other["cpu_ms"] for row, other in zip(rows, others, strict=False) if other["cpu_ms"]]
        figures = {said: [row[name] for row in rows if row[name] is not None] for name, said in columns.items()}
        table.append(
            {
                "scenario": scenario,
                "system": system,
                "of haproxy": median(ratios) if ratios else "-",
                **{said: median(values) if values else "-" for said, values in figures.items()},
                "errors": sum(row["errors"] for row in rows),
            }
        )
    report.write(
        "proxy",
        "What requests cost through Ramjet",
        f"Medians of {ROUNDS} rounds of `make bench`, the ratio to haproxy in the same round; everything on as it ships. "
        "Times are of the proxy's processor, kernel included; `benchmarks/proxy` says what is sent. "
        f"Ramjet has {found['idle_mb']:.0f} MB when it has done nothing, and {found['after_mb']:.0f} MB after all of this. "
        "The longest steps of its event loop while prompts of 1.2 MB come, in ms: "
        f"{', '.join(step.split()[0] for step in found['longest_steps'][:5])}. "
        "`make evidence ARGS='-k cost_beside_haproxy'` runs it again.",
        table,
    )


@pytest.mark.evidence
@pytest.mark.parametrize("axis", AXES)
def test_how_that_grows(axis: str) -> None:
    """
    With the body, the fleet, the streams under way and the conversations known; each adds its rows to what the others saw.
    """
    found = printed("benchmarks.proxy.growth", "--axis", axis, "--json")
    before = [row for row in report.rows("growth") if row["what"] != axis]
    rows = [
        *before,
        *(
            {
                "what": row["axis"],
                "how much": row["size"],
                "ramjet, ms": row["ramjet_ms"],
                "haproxy, ms": row["haproxy_ms"] or "-",
                "ramjet, MB": "-" if row["resident_mb"] is None else round(row["resident_mb"]),
            }
            for row in found
        ),
    ]
    rows.sort(key=lambda row: list(AXES).index(row["what"]))
    draw([_figures(row) for row in rows], PICTURE)
    report.write(
        "growth",
        "How what a request costs grows",
        "Milliseconds of processor time for a request as one thing grows and all else stays: a small request but for the "
        "first rows, two replicas but for the second. `make growth` prints it, and "
        "`make evidence ARGS='-k how_that_grows'` writes it anew; benchmarks/proxy/growth.py says how each is measured."
        "\n\n![Growth](growth.png)",
        rows,
    )


def _figures(row: dict[str, Any]) -> Figures:
    haproxy_ms = row["haproxy, ms"]
    return Figures(
        axis=row["what"],
        size=row["how much"],
        requests=0,
        ramjet_ms=row["ramjet, ms"],
        haproxy_ms=None if haproxy_ms == "-" else haproxy_ms,
        resident_mb=None,
    )
