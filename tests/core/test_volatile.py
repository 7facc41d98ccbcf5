"""Which lines of a system prompt are volatile, and that finding them costs nothing worth mentioning."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.volatile import without_volatile_lines

BILLING = "x-anthropic-billing-header: cc_version=2.1.0; cch=7f3a9;"


@pytest.mark.parametrize(
    "line",
    [
        BILLING,
        "Current time: 12:31:59",
        "The time is now 9:05.",
        "date: 2026-09-26T12:33:00Z",
        "[2026-09-26 12:35:04]",
        "timestamp=2026-09-26T00:00:00+02:00",
        "Today is Saturday, 12:35",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_volatile_line_is_left_out_wherever_it_stands(line: str, end: str) -> None:
    """
    A billing nonce and a clock say nothing about whose conversation it is.
    """
    rest = [f"You are a coding agent.{end}", f"Be brief.{end}"]

    for at in range(3):
        text = "".join([*rest[:at], line + end, *rest[at:]])
        assert without_volatile_lines(text) == "".join(rest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "You are a coding agent.\nBe brief.\n",
        "The meeting is at 12:30.\n",
        "The current date is 26 September 2026.\n",
        "Use port :8000 of the current host.\n",
        "std::vector and a::b\n",
        "Psalm 119:105\n",
        "ratio 16:99 today\n",
    ],
)
def test_what_does_not_change_from_turn_to_turn_stays(text: str) -> None:
    """
    A time alone is content, and so is a date alone: it takes both, or the word that goes with a clock.
    """
    assert without_volatile_lines(text) is None


def test_a_line_ends_where_a_message_begins() -> None:
    """
    The role in front of a text ends with NUL and is not lost with the text's first line.
    """
    assert without_volatile_lines(f"system\0{BILLING}\nYou are.") == "system\0You are."


def test_the_last_line_needs_no_end() -> None:
    """
    A block of its own that holds nothing but the nonce leaves nothing.
    """
    assert without_volatile_lines(BILLING) == ""
    assert without_volatile_lines("You are.\nNow: 12:31") == "You are.\n"


def test_a_log_that_was_pasted_in_is_content() -> None:
    """
    Beyond 64 lines that look like a clock nobody looks any further.
    """
    log = "".join(f"2026-09-26 12:{minute:02}:00 cache 72% full\n" for minute in range(60)) * 2

    kept = without_volatile_lines(log)

    assert kept is not None
    assert kept.count("\n") >= 120 - 64


LINES = st.lists(
    st.sampled_from(
        (f"{BILLING}\n", "now 12:31\n", "now 12:31\r\n", "You are.\n", "12:30\n", "\n", "a:59 b\n", "é:汉\n")
    ),
    max_size=12,
)


@given(lines=LINES)
def test_only_whole_lines_go_and_the_rest_keeps_its_order(lines: list[str]) -> None:
    """
    What is kept is the text without its volatile lines, and looking again finds no more of them.
    """
    text = "".join(lines)
    stable = "".join(line for line in lines if "billing" not in line and "now" not in line)

    kept = without_volatile_lines(text)

    assert kept == (None if stable == text else stable)
    assert without_volatile_lines(stable) is None


@pytest.mark.parametrize(
    "text",
    [
        "12:30 " * 40_000,
        "a:30 " * 40_000,
        "x" * 250_000 + ":30" * 64,
        '{"at":"12:30","id":"' + "7" * 250_000 + '","log":"' + ":30 " * 64 + '"}',
        f"{BILLING}\n" * 60_000,
        "\n" * 1_000_000,
        "you are a coding agent: " * 40_000,
    ],
    ids=["times", "colons", "letters", "json", "nonces", "ends", "prose"],
)
def test_no_text_holds_the_router_up(text: str) -> None:
    """
    Prompts are hostile input and the router has one thread: a quarter of a megabyte takes no tenth of a second.
    """
    started_at = time.process_time()

    without_volatile_lines(text)

    assert time.process_time() - started_at < 0.1 * max(1.0, len(text) / 250_000)
