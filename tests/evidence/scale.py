"""The tables of docs/scale.md, out of what the measurements in docs/evidence/ have left there.

python -m tests.evidence.scale     writes them anew, after `make evidence`
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.evidence import report

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "scale.md"
STREAM_TOKENS_S = 100
"""What one stream is taken to write in a second."""


def _measured(name: str, **where: Any) -> dict[str, Any]:
    """The one row of a measurement in which these columns have these values."""
    (row,) = (row for row in report.rows(name) if where.items() <= row.items())
    return row


def _figure(value: float) -> str:
    """Two figures that count, as a person writes them."""
    return f"{float(f'{value:.2g}'):,.10g}"


def _bench(scenario: str, column: str) -> float:
    return float(_measured("proxy", scenario=scenario, system="ramjet")[column])


def _growth(what: str, size: int, column: str) -> float:
    return float(_measured("growth", **{"what": what, "how much": size})[column])


def costs() -> list[tuple[str, str, str]]:
    """What one of each takes: what it is, how much that is, and what prints it again."""
    turn = _measured("decision", replicas=64, conversations=50_000, tokens=300_000, kind="next")
    memory = _measured("memory", **{"bound, MiB": 256})
    a_conversation = memory["process grew by, MiB"] * 1024 / memory["conversations"]
    a_stream = (_growth("in_flight", 5_000, "ramjet, MB") - _growth("in_flight", 0, "ramjet, MB")) / 5_000 * 1_000
    kept = _measured("journal", what="file, bytes a request")["figure"]
    handed_in = _measured("journal", what="writing: handing one in, µs of the event loop")["figure"]
    return [
        ("a small request", f"{_figure(_bench('small', 'ms a request'))} ms", "make bench"),
        ("a turn of 1.2 MB", f"{_figure(_bench('long1200', 'ms a request'))} ms", "make bench"),
        ("a turn of the agents' mix, its stream with it", f"{_figure(_bench('agent', 'ms a request'))} ms", "make bench"),
        ("a chunk of a stream that comes alone", f"{_figure(_bench('stream10', 'us a chunk'))} µs", "make bench"),
        ("a chunk in a burst", f"{_figure(_bench('stream0', 'us a chunk'))} µs", "make bench"),
        *(
            (f"a small request with {count} {'replica' if count == 1 else 'replicas'}", f"{_figure(_growth('replicas', count, 'ramjet, ms'))} ms", "make growth")
            for count in (1, 64, 256)
        ),
        (
            "deciding about the next turn of 300,000 tokens, with 64 replicas and 50,000 conversations",
            f"{_figure(turn['median'])} ms",
            "make decision",
        ),
        ("a conversation of 50 KB that is known", f"{_figure(a_conversation)} KB of memory", ".venv/bin/python -m tests.memory 100000 256"),
        ("a stream under way", f"{_figure(a_stream)} KB of memory", "make growth"),
        ("a row of the journal", f"{_figure(kept)} bytes on disk, {_figure(handed_in)} µs", "make journal"),
    ]  # fmt: skip


def ends() -> list[tuple[str, str]]:
    """Where one process ends: so many of each are a whole core, and so many conversations are remembered."""
    chunks_s = 1e6 / _bench("stream10", "us a chunk")
    memory = _measured("memory", **{"bound, MiB": 256})
    known = 256 / memory["estimated, MiB"] * memory["conversations"]
    return [
        ("small requests a second", _figure(1e3 / _bench("small", "ms a request"))),
        ("turns of the agents' mix a second", _figure(1e3 / _bench("agent", "ms a request"))),
        ("turns of 1.2 MB a second", _figure(1e3 / _bench("long1200", "ms a request"))),
        (
            f"streams of {STREAM_TOKENS_S} tokens a second, each in a chunk of its own",
            _figure(chunks_s / STREAM_TOKENS_S),
        ),
        ("conversations of 50 KB in the default `beliefs.memory_mb`", _figure(known)),
    ]


def tables() -> dict[str, str]:
    """Each table as it stands on the page, by the first cell of its head."""
    costs_of = [
        "| What | Takes | Printed by |",
        "|---|---|---|",
        *(f"| {what} | {much} | `{how}` |" for what, much, how in costs()),
    ]
    ends_at = ["| At most | |", "|---|---|", *(f"| {what} | {much} |" for what, much in ends())]
    return {"What": "\n".join(costs_of), "At most": "\n".join(ends_at)}


def main() -> None:
    """Put the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for head, table in tables().items():
        place = re.search(rf"^\| {head} \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
        assert place, f"no table begins with {head}"
        text = f"{text[: place.start()]}{table}\n{text[place.end() :]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
