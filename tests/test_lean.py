"""Who serves has in memory what serving needs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"httpx": 5, "rich": 5, "pygments": 1, "numpy": 20, "zmq": 5, "h11": 1}
"""What other commands need, or extras, and the megabytes it takes."""


def test_serving_takes_along_nothing_that_it_does_not_need() -> None:
    """
    A library may take others along when it is imported: structlog does.
    """
    found = "import sys, ramjet.cli, ramjet.app; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", found], check=True, capture_output=True, text=True)

    assert "structlog" in done.stdout.split()
    assert not HEAVY.keys() & set(done.stdout.split())


def test_what_was_kept_out_can_be_imported_afterwards() -> None:
    """
    By the commands that print tables.
    """
    subprocess.run([sys.executable, "-c", "import ramjet, rich.console, httpx"], check=True)
