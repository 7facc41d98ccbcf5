"""What every test stands on."""

from __future__ import annotations

import pytest

from ramjet import logs


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    """Log lines of the servers under test are no output of the tests."""
    logs.configure("json", "error")
