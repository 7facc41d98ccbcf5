"""One story for all tests that read one: it takes a moment to happen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ramjet.core.admission import Terms
from ramjet.lab.production import SHIPPED
from ramjet.plan.source import from_journal
from ramjet.plan.span import Span
from tests.plan.support import EIGHTH, happened, story

TALKS = story(1, turns=6, long=((313_000, 60.0),), part=8)
PLACED_AT_ONCE = replace(SHIPPED, terms=Terms(mode="off"))


@pytest.fixture(scope="session")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seed's replica, without a cap, and everything placed at once."""
    path = tmp_path_factory.mktemp("story") / "journal.db"
    happened(path, TALKS, profile=EIGHTH, policy=PLACED_AT_ONCE)
    return path


@pytest.fixture(scope="session")
def span(journal: Path) -> Span:
    return from_journal(journal)


@pytest.fixture(scope="session")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Span:
    """What happens to the same conversations with a cap of two."""
    path = tmp_path_factory.mktemp("capped") / "journal.db"
    return happened(path, TALKS, policy=PLACED_AT_ONCE, profile=EIGHTH.with_flags(states_per_path=2))
