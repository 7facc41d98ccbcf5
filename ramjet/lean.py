"""Libraries, imported without what they would take along and nobody here needs: 7 MB, and a fifth of a second.

structlog takes rich, for tracebacks in colour, and greenlet where they are installed. aiohttp reads all certificate
authorities, twice, for requests that its client might send; here it is a server alone, and its client would trust nobody.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

_AUTHORITIES = "SSL_CERT_FILE"


def _without(modules: set[str], library: str) -> None:
    """Import a library that does without some modules where they are not installed."""
    hidden = modules - sys.modules.keys()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # what is None there cannot be imported
    try:
        import_module(library)
    finally:
        for name in hidden:
            del sys.modules[name]


def _without_authorities(library: str) -> None:
    """Import a library for which no certificate authority is to be found."""
    before = os.environ.get(_AUTHORITIES)
    os.environ[_AUTHORITIES] = os.devnull
    try:
        import_module(library)
    finally:
        del os.environ[_AUTHORITIES]
        if before is not None:
            os.environ[_AUTHORITIES] = before


_without({"rich", "greenlet"}, "structlog")
_without_authorities("aiohttp")
