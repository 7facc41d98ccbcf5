"""Journals to report on: one of the production router in virtual time, and one written row by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from ramjet.cli import main
from ramjet.core.policies import Policy
from ramjet.core.record import Record
from ramjet.core.sample import Sample, samples
from ramjet.core.usage import Usage
from ramjet.core.visit import Visit
from ramjet.journal.store import Entry, Store
from ramjet.lab.loop import simulate
from ramjet.lab.policies import Placements, ReplicaFacts
from ramjet.lab.production import SHIPPED, Production
from ramjet.lab.turns import Workload
from ramjet.sim.profile import Profile

AT = 1_790_000_000.0
"""When the virtual time began: on a Monday, 2026-09-21 at 14:13:20 UTC."""


class Recorded(Production):
    """The production router, with what it would have written."""

    def __init__(self, facts: list[ReplicaFacts], seed: int, *, policy: Policy = SHIPPED) -> None:
        super().__init__(facts, seed, policy=policy)
        self.entries: list[Entry] = []
        self.samples: list[tuple[float, list[Sample]]] = []
        finish = self.router.finish

        def kept(visit: Visit, now: float, **how: Any) -> Record:
            record = finish(visit, now, **how)
            self.entries.append(Entry(AT + visit.arrived_at, record, visit.arrival))
            return record

        self.router.finish = kept  # type: ignore[method-assign]

    def tick(self, now: float) -> Placements:
        if not self.samples or now >= self.samples[-1][0] - AT + 60:
            self.samples.append((AT + now, samples(self.router, now)))
        return super().tick(now)


def played(
    path: Path, workload: Workload, *, replicas: int, profile: Profile, policy: Policy = SHIPPED, seed: int = 1
) -> list[Entry]:
    """Play a workload into a journal; the rows that are in it."""
    made: list[Recorded] = []

    def factory(facts: list[ReplicaFacts], number: int) -> Recorded:
        made.append(Recorded(facts, number, policy=policy))
        return made[0]

    simulate(workload, factory, seed, replicas=replicas, profile=profile)
    written(path, made[0].entries, made[0].samples)
    return made[0].entries


def written(path: Path, entries: Sequence[Entry], samples: Sequence[tuple[float, list[Sample]]] = ()) -> Path:
    """A journal with these rows and samples, closed."""
    store = Store(path, "a test's", days=36_500, megabytes=1_000)
    store.write(entries)
    for at, those in samples:
        store.write_samples(at, those)
    store.close()
    return path


def turn(number: int, *, at: float = 0.0, **more: Any) -> Entry:
    """A warm turn of the seed's 20,000 tokens that arrived so many seconds after `AT`; `more` goes into its record."""
    usage = Usage(prompt_tokens=more.pop("prompt_tokens", 20_000), cached_tokens=more.pop("cached_tokens", 19_712))
    known = {
        "request_id": f"r-{number}", "endpoint": "chat", "conversation": "c", "turn": number + 1, "replica": "glm-1",
        "reason": "affinity", "stream": True, "matched_tokens": 19_712, "best_matched_tokens": 19_712,
        "reusable_tokens": 19_800, "usage": usage, "ttft_s": 0.2, "duration_s": 1.0, "attempts": 1, "status": 200,
    }  # fmt: skip
    return Entry(AT + at, Record(**{**known, **more}), None)


def asked(path: Path, *arguments: str) -> dict[str, Any]:
    """What `ramjet report --json` says."""
    result = CliRunner().invoke(main, ["report", "--journal", str(path), "--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def found(said: dict[str, Any], name: str) -> dict[str, Any]:
    """The finding of that name."""
    return next(each for each in said["findings"] if each["id"] == name)
