"""How hard properties are tried: enough to see a fault soon on every run, and `make properties` ten times as hard."""

from __future__ import annotations

import os


def examples(number: int) -> int:
    """So many examples, or as many times more as the variable TIMES says."""
    return number * int(os.environ.get("TIMES", "1"))
