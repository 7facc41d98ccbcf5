"""Ramjet: the load balancer that sends every turn of a conversation to the replica that holds its cache."""

import sys

__version__ = "0.1.0"

if not {"rich", "structlog"} & sys.modules.keys():
    # Where rich is installed, structlog takes it along for tracebacks in colour, which nobody here sees: 5 MB, and a
    # tenth of a second. What is None there cannot be imported.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]
