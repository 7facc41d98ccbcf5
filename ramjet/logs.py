"""Logs: events with fields on standard error, one line each, as JSON or for people."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec
import structlog


def configure(log_format: str = "json", level: str = "info") -> None:
    """Set up structlog, and send what libraries log through it."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer(serializer=_encode)
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # httpx logs each probe at info; aiohttp's access log is off, for Ramjet writes its own line.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # httpcore logs all headers at debug, keys and cookies among them.
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    # What aiohttp's server logs is what could not be parsed, and it quotes it: that may be a key.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)


def _encode(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()
