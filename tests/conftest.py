"""What every test stands on."""

from __future__ import annotations

import os

import pytest

from ramjet import logs


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Secrets and journals of the processes under test are nobody's own."""
    os.environ.pop("STATE_DIRECTORY", None)
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    """Log lines of the servers under test are no output of the tests."""
    logs.configure("json", "error")
