"""Log lines: what they look like, and that nobody waits for whoever reads them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest
import structlog

from ramjet import logs
from ramjet.core.record import Record
from ramjet.core.usage import Usage
from ramjet.logs import FLUSH_S, Lines

RECORD = Record(request_id="r", endpoint="chat", costs={"prefill": 1 / 3}, usage=Usage(prompt_tokens=9), model="é")


@contextmanager
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe's two ends: the number of the one, and a file for the other."""
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "w") as file:
            yield reading, file
    finally:
        os.close(reading)


class Told:
    """A log in a file of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self._monkeypatch = monkeypatch
        self._path = path

    def configure(self, log_format: str = "json", level: str = "info") -> None:
        """Log there from now on."""
        self._monkeypatch.setattr(sys, "stderr", self._path.open("w"))
        logs.configure(log_format, level)
        self._monkeypatch.setattr(logs, "log", structlog.get_logger())

    def lines(self) -> list[str]:
        """All lines; there are no more after that."""
        assert logs._lines is not None
        logs._lines.close()
        sys.stderr.close()
        return self._path.read_text().splitlines()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Told]:
    yield Told(monkeypatch, tmp_path / "log")
    monkeypatch.undo()
    logs.configure("json", "error")


def test_line_of_a_request_is_that_of_any_event(told: Told) -> None:
    """
    The short way and structlog's write the same keys in the same order, and only the times differ.
    """
    told.configure()
    logs.say_request(RECORD.log_fields())
    structlog.get_logger().info("request", **RECORD.log_fields())
    short, usual = map(json.loads, told.lines())

    assert list(short) == list(usual) == [*RECORD.log_fields(), "event", "level", "timestamp"]
    assert {**short, "timestamp": ""} == {**usual, "timestamp": ""}
    assert short["timestamp"][:11] == usual["timestamp"][:11]
    assert (short["timestamp"][-1], len(short["timestamp"])) == ("Z", len(usual["timestamp"]))


@pytest.mark.parametrize(("log_format", "level", "lines"), [("json", "warning", 0), ("console", "info", 1)])
def test_requests_are_said_as_the_log_is_configured(told: Told, log_format: str, level: str, lines: int) -> None:
    """
    Not at all where only warnings are wanted; for people where the log is for people.
    """
    told.configure(log_format, level)
    logs.say_request(RECORD.log_fields())
    said = told.lines()

    assert ["request_id=r" in line and "[info" in line for line in said] == [True] * lines


def test_libraries_speak_in_order_with_all_others(told: Told) -> None:
    """
    What comes through `logging` and what comes through structlog stand as they were said.
    """
    told.configure()
    for number in range(20):
        structlog.get_logger().info(f"a{number}")
        logging.getLogger("library").warning(f"b{number}")
        logs.say_request({"number": number})

    assert [json.loads(line)["event"] for line in told.lines()] == [
        event for number in range(20) for event in (f"a{number}", f"b{number}", "request")
    ]


def test_lines_are_written_together_and_warnings_at_once() -> None:
    """
    One write for all that came within a tenth of a second; a warning waits for nothing, and overtakes nobody.
    """
    with pipe() as (reading, file):
        lines = Lines(file)
        began = time.monotonic()
        for number in range(3):
            lines.info(f"{number}")
        assert os.read(reading, 1_000) == b"0\n1\n2\n"
        waited_s = time.monotonic() - began
        lines.info("before")
        began = time.monotonic()
        lines.warning("now")
        said = b""
        while b"now" not in said:
            said += os.read(reading, 1_000)
        at_once_s = time.monotonic() - began
        lines.close()

    assert waited_s >= 0.9 * FLUSH_S
    assert at_once_s < 0.9 * FLUSH_S
    assert said == b"before\nnow\n"


def test_nobody_waits_for_a_full_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Lines that nobody reads wait up to a bound; what comes then is lost, and said to be lost when somebody reads again.
    """
    with pipe() as (reading, file):
        lines = Lines(file, most_waiting=50)
        renderer = structlog.processors.JSONRenderer()
        monkeypatch.setattr(
            logs, "log", structlog.wrap_logger(lines, [renderer], structlog.make_filtering_bound_logger(0))
        )
        # More than a pipe holds: the thread is stuck from then on.
        lines.put_now("x" * 200_000)
        time.sleep(0.2)
        began = time.monotonic()
        for number in range(1_000):
            lines.put(f"{number}")
        took_s = time.monotonic() - began
        said = b""
        while b"log_lines_lost" not in said:
            said += os.read(reading, 1 << 20)
        lines.close()
    kept = said.split(b"\n")[1:51]

    assert took_s < 1
    assert kept == [b"%d" % number for number in range(50)]
    assert b'"lines": 950' in said


@pytest.mark.parametrize("how", ["closed", "gone", "none"])
def test_nobody_minds_a_file_that_is_closed(how: str) -> None:
    """
    A standard error that is closed, whose reader is gone, or that never was there costs the lines and nothing else.
    """
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        lines = Lines(None if how == "none" else file)
        if how == "closed":
            file.close()
        os.close(reading)
        lines.put_now("a")
        lines.close()

    assert not lines._thread.is_alive()
    assert not lines._waiting


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "1 / 0"])
def test_all_lines_are_there_at_the_end(end: str) -> None:
    """
    Whichever way a process ends by itself, what it said last is written.
    """
    program = f"import sys; from ramjet import logs; logs.configure(); logs.say_request({{'number': 1}}); {end}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True)

    assert '{"number":1,"event":"request"' in done.stderr
