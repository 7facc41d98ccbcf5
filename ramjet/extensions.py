"""Which of the parts that are written in C are missing: all works without them, at several times the cost."""

from __future__ import annotations

from aiohttp.http import HttpRequestParser
from multidict import CIMultiDict

_WRITTEN_IN_C = {
    "aiohttp": (HttpRequestParser.__module__, "aiohttp._http_parser"),
    "multidict": (CIMultiDict.__module__, "multidict._multidict"),
}
"""Where something is from, and where it is from if it is in C."""


def missing() -> list[str]:
    """The packages that were installed without theirs, or told by the environment to do without."""
    return [name for name, (found, wanted) in _WRITTEN_IN_C.items() if found != wanted]
