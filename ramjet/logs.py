"""Logs: events with fields on standard error, one line each, as JSON or for people."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec
import structlog

log = structlog.get_logger()

FLUSH_S = 0.1
"""How long a line may wait for others, to be written with them."""
MOST_WAITING = 10_000
"""Lines that may wait where nobody takes them: some 8 MB of request lines."""
_CLOSE_S = 1.0

_encoder = msgspec.json.Encoder(enc_hook=repr)


class Lines:
    """Lines on their way to a file: gathered, and written together by a thread.

    Nobody who logs waits for the file, be it full, slow or closed. A warning or an error is written at once, with all lines
    before it. As structlog's logger, a line goes the way that its level says.
    """

    def __init__(self, file: TextIO | None, most_waiting: int = MOST_WAITING) -> None:
        """
        Args:
            file: where they go; None: nowhere.
            most_waiting: so many may wait; those that come then are lost, and counted.
        """
        self._write = _writer_to(file)
        self._most_waiting = most_waiting
        self._waiting: deque[str | bytes] = deque()
        self._lost = 0
        self._wake, self._hurry = threading.Event(), threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, line: str | bytes) -> None:
        """Take in a line, without its end, to be written soon; never waits, but for what is said after the end."""
        if self._closing:
            self._write(_bytes(line) + b"\n")
            return
        if len(self._waiting) >= self._most_waiting:
            self._lost += 1
            return
        self._waiting.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def put_now(self, line: str | bytes) -> None:
        """The same, to be written at once."""
        self.put(line)
        self._hurry.set()

    debug = info = msg = put
    warning = warn = error = exception = critical = fatal = put_now

    def close(self) -> None:
        """Write what waits; gives up on a file that does not take it."""
        atexit.unregister(self.close)
        self._closing = True
        self._wake.set()
        self._hurry.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._hurry.wait(FLUSH_S)
            # Whoever comes from here on wakes it anew.
            self._wake.clear()
            self._hurry.clear()
            self._flush()
        self._flush()

    def _flush(self) -> None:
        gathered = [self._waiting.popleft() for _ in range(len(self._waiting))]
        lost, self._lost = self._lost, 0
        if lost:
            # Now that there is room; those that were lost came after those that are gathered.
            log.warning("log_lines_lost", lines=lost)
        if gathered:
            self._write(b"\n".join([*map(_bytes, gathered), b""]))


class _Handler(logging.Handler):
    """What libraries log, in order with all else."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record over as a line."""
        put = self._lines.put_now if record.levelno >= logging.WARNING else self._lines.put
        put(self.format(record))


_lines: Lines | None = None
_says_requests = False
"""Whether request lines are wanted, as JSON."""


def configure(log_format: str = "json", level: str = "info") -> None:
    """Set up structlog, and send what libraries log through it."""
    global _lines, _says_requests  # noqa: PLW0603 - there is one log, as structlog has one configuration
    if _lines is not None:
        _lines.close()
    _lines = Lines(sys.stderr)
    _says_requests = log_format == "json" and level in {"debug", "info"}
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
        logger_factory=lambda *_: _lines,
        cache_logger_on_first_use=True,
    )
    handler = _Handler(_lines)
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


def say_request(fields: dict[str, Any]) -> None:
    """Log what became of a request.

    There is one such line for each, so it does not go through structlog's processors; the line is the same. `fields` are
    taken over.
    """
    if _says_requests and _lines is not None:
        fields["event"], fields["level"] = "request", "info"
        fields["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        _lines.put(_encoder.encode(fields))
    else:
        log.info("request", **fields)


def _encode(event: Any, **_: Any) -> str:
    return _encoder.encode(event).decode()


def _bytes(line: str | bytes) -> bytes:
    return line if isinstance(line, bytes) else line.encode(errors="backslashreplace")


def _writer_to(file: TextIO | None) -> Callable[[bytes], None]:
    """What writes to a file and keeps to itself that this did not work: there is nobody left to tell.

    Where it can it goes past the file's own buffer, whose lock a write that is stuck would keep until the process ends.
    """
    try:
        number = None if file is None else file.fileno()
    except (OSError, ValueError):
        number = None

    def to_number(data: bytes) -> None:
        assert number is not None
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(number, left) :]
        except OSError:
            return

    def to_file(data: bytes) -> None:
        try:
            if file is not None:
                file.write(data.decode())
                file.flush()
        except (OSError, ValueError):
            return

    return to_file if number is None else to_number
