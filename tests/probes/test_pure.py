"""Plans and judges know nothing of sockets, clocks and screens; only the edge of the package does."""

from __future__ import annotations

from pathlib import Path

import pytest

import ramjet.probes
from tests.test_architecture import imports, name_of, under

FOLDER = Path(ramjet.probes.__file__).parent
EDGE = frozenset(("cli", "client", "progress", "report", "run"))
NOT_FOR_PLANS = (
    "asyncio",
    "httpx",
    "aiohttp",
    "click",
    "rich",
    "time",
    "secrets",
    "socket",
    "os",
    "pathlib",
    "logging",
)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=name_of)
def test_plans_and_judges_are_pure(path: Path) -> None:
    """
    What they are told is all they know, so that they can be run against a rule instead of a replica.
    """
    touched = {module for module in imports(path) if any(under(module, each) for each in NOT_FOR_PLANS)}
    edge = {module for module in imports(path) if module in {f"ramjet.probes.{name}" for name in EDGE}}

    assert path.stem in EDGE or not touched | edge


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=name_of)
def test_probes_know_the_core_and_no_edge(path: Path) -> None:
    """
    Of Ramjet they import the core, what engines say, and, to ask for it, the pages.
    """
    allowed = ("ramjet.core", "ramjet.engines", "ramjet.probes", *(["ramjet.pages"] if path.stem == "client" else []))
    foreign = {
        module
        for module in imports(path)
        if under(module, "ramjet") and module != "ramjet" and not any(under(module, each) for each in allowed)
    }

    assert not foreign
