"""The marker that ties tests to the numbered cases."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "case(*numbers): the numbered cases of the list of bug cases that a test plays")
