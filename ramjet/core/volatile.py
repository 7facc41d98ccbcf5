"""Lines in a system prompt that change from turn to turn and say nothing about whose conversation it is.

Some clients put a billing nonce or a clock at the head of every request. The engine cannot reuse what follows such a
line, and Ramjet does not pretend that it can; but it must still see that the conversation is the same one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

_BILLING = "x-anthropic-billing-header:"
# A search that starts with a literal colon is 30 times faster than one for the whole clock, and most prompts have none.
_MAYBE_CLOCK = re.compile(r":[0-5][0-9]")
_CLOCK = re.compile(r"(?<![0-9])(?:[01]?[0-9]|2[0-3]):[0-5][0-9]")
_ABOUT_TIME = re.compile(r"(?i)\b(?:now|today|date|time|timestamp|clock|current)\b|\b[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]")
_MOST_LINES = 64
"""Suspects looked at before giving up: a log pasted into a system prompt is content, not a clock."""
_MOST_CHARACTERS = 512
"""A longer line is content too, whatever stands in it."""


def without_volatile_lines(text: str) -> str | None:
    """The text without its volatile lines; None when it has none, which is the usual case and costs no copy."""
    cuts = sorted({*_billing_lines(text), *_clock_lines(text)})
    if not cuts:
        return None
    kept, last = [], 0
    for start, end in cuts:
        kept.append(text[last:start])
        last = end
    kept.append(text[last:])
    return "".join(kept)


def _billing_lines(text: str) -> Iterator[tuple[int, int]]:
    at = text.find(_BILLING)
    for _ in range(_MOST_LINES):
        if at < 0:
            return
        line = _line_around(text, at)
        if line is not None:
            yield line
        at = text.find(_BILLING, at + len(_BILLING))


def _clock_lines(text: str) -> Iterator[tuple[int, int]]:
    for found in islice(_MAYBE_CLOCK.finditer(text), _MOST_LINES):
        line = _line_around(text, found.start())
        if line is not None and _CLOCK.search(text, *line) and _ABOUT_TIME.search(text, *line):
            yield line


def _line_around(text: str, at: int) -> tuple[int, int] | None:
    """Where the line begins and ends, its newline included; None for one too long to be of interest."""
    first, last = max(0, at - _MOST_CHARACTERS), min(len(text), at + _MOST_CHARACTERS)
    # The role in front of a message's text ends with NUL and belongs to no line.
    before = max(text.rfind("\n", first, at), text.rfind("\0", first, at))
    newline = text.find("\n", at, last)
    if (before < 0 and first) or (newline < 0 and last < len(text)):
        return None
    return before + 1, len(text) if newline < 0 else newline + 1
