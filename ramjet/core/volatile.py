"""Lines in a system prompt that change from turn to turn and say nothing about whose conversation it is.

Some clients put a billing nonce or a clock at the head of every request. The engine cannot reuse what follows such a
line, and Ramjet does not pretend that it can; but it must still see that the conversation is the same one.
"""

from __future__ import annotations

import re

_BILLING = "x-anthropic-billing-header:"
# A search that starts with a literal colon is 30 times faster than one for the whole clock, and most prompts have none.
_MAYBE_CLOCK = re.compile(r":[0-5][0-9]")
_CLOCK_LINE = re.compile(
    r"(?i)(?=.*\b(?:[01]?[0-9]|2[0-3]):[0-5][0-9])"
    r"(?=.*\b(?:now|today|date|time|timestamp|clock|current)\b|.*\b\d{4}-\d\d-\d\d[T ])"
)
_MOST_LINES = 64
"""Clock-like lines looked at before giving up: a log pasted into a system prompt is content, not a clock."""


def without_volatile_lines(text: str) -> str | None:
    """The text without its volatile lines; None when it has none, which is the usual case and costs no copy."""
    cuts: list[tuple[int, int]] = []
    at = text.find(_BILLING)
    while at >= 0:
        cuts.append(_line_around(text, at))
        at = text.find(_BILLING, cuts[-1][1])
    for seen, found in enumerate(_MAYBE_CLOCK.finditer(text)):
        if seen == _MOST_LINES:
            break
        start, end = _line_around(text, found.start())
        if (start, end) not in cuts and _CLOCK_LINE.match(text, start, end):
            cuts.append((start, end))
    if not cuts:
        return None
    kept, last = [], 0
    for start, end in sorted(cuts):
        kept.append(text[last:start])
        last = end
    kept.append(text[last:])
    return "".join(kept)


def _line_around(text: str, at: int) -> tuple[int, int]:
    # The role in front of a message's text ends with NUL and belongs to no line.
    start = max(text.rfind("\n", 0, at), text.rfind("\0", 0, at)) + 1
    end = text.find("\n", at)
    return start, len(text) if end < 0 else end + 1
