"""Hold what clients saw, what engines did and what Ramjet logged against one another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from tests.soak.clients import Sight
from tests.soak.engine import Answer

_EXPECTED = {
    "complete": ("ok",),
    "502 replica_unreachable": ("upstream_connect",),
    "502 replica_reset": ("upstream_reset",),
    "503 no_replica": ("no_replica",),
    "503 engine_busy": ("http_5xx",),
    "429 engine_busy": ("http_4xx",),
    "429 overloaded": ("shed",),
    "504 replica_timeout": ("timeout_first_byte",),
}
"""What Ramjet logs for what a client saw; for what was cut the engine's fate decides."""
_CUT = {"reset": "upstream_reset", "killed": "upstream_reset", "wedged": "upstream_stall"}
_RACE_S = 0.5
"""A client that leaves as its request ends may find another end in the log; the log's line is no later than this."""
_MOST_EXAMPLES = 5


@dataclass(slots=True)
class Verdict:
    """What is wrong, by kind, with examples; and counts worth reporting."""

    wrong: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(what the client saw, what the log says): requests."""
    raced: int = 0
    """Clients that left as their request ended otherwise."""
    unread: int = 0
    """Clients that left before Ramjet had read their request, which leaves no record."""
    homed: int = 0
    """Pairs of turns of which the first was answered by the untouched replica."""

    def blame(self, kind: str, example: object) -> None:
        """Something is wrong."""
        self.wrong[kind] += 1
        if len(self.examples[kind]) < _MOST_EXAMPLES:
            self.examples[kind].append(str(example)[:1_000])


def verdict(
    sights: Sequence[Sight], logged: Iterable[dict[str, Any]], answers: dict[str, list[Answer]], untouched: str
) -> Verdict:
    """Everything that must hold once all is over.

    Args:
        sights: the clients' side, in the order in which the requests were sent.
        logged: Ramjet's log.
        answers: the engines' side, by replica.
        untouched: the replica that was well all the time.
    """
    found = Verdict()
    lines = _requests(found, logged)
    fates: dict[str, list[tuple[str, Answer]]] = defaultdict(list)
    for replica, given in answers.items():
        for answer in given:
            fates[answer.request_id].append((replica, answer))
    for sight in sights:
        _outcome(found, sight, lines.get(sight.request_id), fates[sight.request_id])
    for unknown in lines.keys() - {sight.request_id for sight in sights}:
        found.blame("a log line for a request that nobody sent", lines[unknown])
    _answers(found, sights, fates, untouched)
    _homes(found, sights, lines, untouched)
    return found


def _requests(found: Verdict, logged: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Log lines of requests by their ids; everything in the log that is a fault is one."""
    lines: dict[str, dict[str, Any]] = {}
    for line in logged:
        if line["event"] == "request":
            if line["request_id"] in lines:
                found.blame("a request logged twice", line)
            lines[line["request_id"]] = {
                name: line[name]
                for name in ("outcome", "status", "replica", "reason", "attempts", "timestamp", "stream")
            }
        elif line.get("level") in {"error", "critical"}:
            found.blame("an error in the log", line)
    return lines


def _outcome(found: Verdict, sight: Sight, line: dict[str, Any] | None, fates: list[tuple[str, Answer]]) -> None:
    """The log must say of a request what its client saw."""
    if line is None:
        if sight.saw == "left" and not fates:
            found.unread += 1
        else:
            found.blame("a request without a log line", sight)
        return
    found.outcomes[sight.saw, line["outcome"]] += 1
    if sight.saw == "left":
        if line["outcome"] != "client_disconnect":
            found.raced += 1
            logged_at = datetime.fromisoformat(line["timestamp"])
            late = logged_at - (sight.left_at or logged_at)
            if late > timedelta(seconds=_RACE_S):
                found.blame("a client that had left is logged otherwise", (sight, line))
        return
    last = fates[-1][1].fate if fates else ""
    expected = (_CUT.get(last, ""),) if sight.saw == "cut" else _EXPECTED.get(sight.saw, ())
    if line["outcome"] not in expected or line["status"] != sight.status:
        found.blame("the log says something else than the client saw", (sight, line, fates))
    elif sight.replica is not None and line["replica"] != sight.replica:
        found.blame("the log names another replica than the client's header", (sight, line))


def _answers(
    found: Verdict, sights: Sequence[Sight], fates: dict[str, list[tuple[str, Answer]]], untouched: str
) -> None:
    """Every complete answer reaches one client, the one that asked, once."""
    by_serial = {answer.serial: (replica, answer) for given in fates.values() for replica, answer in given}
    got = Counter(sight.serial for sight in sights if sight.serial is not None)
    asked = {sight.request_id: sight for sight in sights}
    for serial, times in got.items():
        replica, answer = by_serial.get(serial, ("", None))
        if answer is None or answer.fate != "complete" or times > 1:
            found.blame("an answer that was never given, or given twice", (serial, times, replica, answer))
    for request_id, given in fates.items():
        complete = [(replica, answer) for replica, answer in given if answer.fate == "complete"]
        if len(complete) > 1:
            found.blame("a request answered to the end twice", (asked.get(request_id), given))
        sight = asked.get(request_id)
        if sight is None:
            found.blame("an engine was sent a request that nobody sent", given)
            continue
        for replica, answer in complete:
            # What was written just before a replica died may have died with it; the untouched one never died.
            if sight.saw not in {"complete", "left"} and replica == untouched:
                found.blame("an answer was lost", (sight, answer))


def _homes(found: Verdict, sights: Sequence[Sight], lines: dict[str, dict[str, Any]], untouched: str) -> None:
    """A conversation that the untouched replica has answered stays there."""
    turns: dict[int, list[Sight]] = defaultdict(list)
    for sight in sights:
        placed = lines.get(sight.request_id)
        if placed is not None and placed["replica"] is not None:
            turns[sight.conversation].append(sight)
    for row in turns.values():
        home = False
        for before, after in pairwise(row):
            if before.saw == "complete":
                home = before.replica == untouched
            if home:
                found.homed += 1
                line = lines[after.request_id]
                if line["replica"] != untouched:
                    found.blame("a conversation left the untouched replica", (before, after, line))


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Growth a second of what was sampled as (seconds, value), by least squares; 0 for too few samples."""
    if len(samples) < 3:
        return 0.0
    mean_at = sum(at for at, _ in samples) / len(samples)
    mean = sum(value for _, value in samples) / len(samples)
    spread = sum((at - mean_at) ** 2 for at, _ in samples)
    return sum((at - mean_at) * (value - mean) for at, value in samples) / spread if spread else 0.0
