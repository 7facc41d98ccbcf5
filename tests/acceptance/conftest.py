"""Engines that a session shares, and the page on which each test leaves its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.engines import Engines
from tests.evidence import report

Figures = Callable[[str, str, str], None]
"""Notes a row: what was done, what was asked, what was seen."""


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Started when a test asks for them, and stopped when the session ends."""
    running = Engines(tmp_path_factory.mktemp("engines"))
    try:
        yield running
    finally:
        running.stop()


def notes(name: str, title: str, says: str) -> Figures:
    """Writes a page anew with every row; rows of tests that did not run stay what they were."""
    path = Path(report.__file__).parents[2] / "docs" / "evidence" / f"{name}.json"

    def note(what: str, asked: str, seen: str) -> None:
        rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        row = {"what": what, "asked": asked, "seen": seen}
        others = [each for each in rows if each["what"] != what]
        place = next((at for at, each in enumerate(rows) if each["what"] == what), len(rows))
        report.write(name, title, says, [*others[:place], row, *others[place:]])

    return note
