"""What was cut short goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ramjet.lab.measure import Figures
from ramjet.lab.runs import Case, run, run_all
from tests.evidence import kept


def test_what_was_made_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The second time only what is new is played, also where the file's last line was cut short.
    """
    old, new = (Case(workload="W5", policy=policy, seed=1) for policy in ("round_robin", "least_loaded"))
    (first,) = kept.figures_of([old], processes=1, directory=tmp_path)
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(b'[{"workload"')
    played: list[Case] = []

    def watched(cases: Sequence[Case], *, processes: int) -> Iterator[tuple[int, Figures]]:
        played.extend(cases)
        return run_all(cases, processes=processes)

    monkeypatch.setattr(kept, "run_all", watched)

    for _ in range(2):
        assert kept.figures_of([old, new, old], processes=1, directory=tmp_path) == [first, run(new), first]
    assert played == [new]
    assert kept.figures_of([new], processes=2, directory=tmp_path) == [run(new)]
