"""The seed's story from end to end, its figures beside the seed's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramjet.demo.story import tell
from ramjet.demo.verdict import verdicts
from tests.evidence import report


def row(what: str, before: Any, said: Any, after: Any, theirs: tuple[str, str]) -> dict[str, Any]:
    return {
        "what": what,
        "before": before,
        "planned": said,
        "after": after,
        "post: before": theirs[0],
        "post: after": theirs[1],
    }


@pytest.mark.evidence
def test_the_seed_from_end_to_end(tmp_path: Path) -> None:
    """
    Cold for want of snapshots and not of tokens, warm with a cap, as planned within a tenth; and apart, not together.
    """
    story = tell(tmp_path)
    was, said, found = story.stock.figures, story.said.figures, story.capped.figures
    before, after = story.stock.came_back, story.capped.came_back
    assert said is not None
    assert before is not None
    assert after is not None
    rows = [
        *(
            row(f"{each.name}: tokens cached", each.cached_tokens, "", "", (measured, ""))
            for each, measured in zip(story.branches, ("19,712", "19,712", "12,288", "14,848"), strict=True)
        ),
        row("sessions of 6 that come back cold", before.cold, "", after.cold, ("6", "0")),
        row("their mean wait, s", before.mean_wait_s, "", after.mean_wait_s, ("3.35", "0.15 to 0.30")),
        row("their cached share, %", _percent(before.cached_ratio), "", _percent(after.cached_ratio), ("0", "99.6")),
        row("mean wait of all, s", was.mean_wait_s, said.mean_wait_s, found.mean_wait_s, ("", "")),
        row(f"cold turns of {was.later_turns}", was.cold_turns, said.cold_turns, found.cold_turns, ("", "")),
        row(
            "cached share of all, %",
            _percent(was.cached_share),
            _percent(said.cached_share),
            _percent(found.cached_share),
            ("", ""),
        ),
        row("waits over 10 s", was.waits_over_10_s, said.waits_over_10_s, found.waits_over_10_s, ("", "")),
        row("waits over 30 s", was.waits_over_30_s, said.waits_over_30_s, found.waits_over_30_s, ("", "")),
        row(
            "two long conversations, confined and spread: cached after turn 1, %",
            _percent(story.confined.later_ratio),
            "",
            _percent(story.spread.later_ratio),
            ("about half", "98.6"),
        ),
        row("their cold turns", story.confined.cold, "", story.spread.cold, ("", "")),
    ]

    assert all(each.holds for each in verdicts(story)), verdicts(story)

    report.write(
        "seed",
        "The seed's story from end to end",
        "`ramjet demo --story`: a simulated replica of the seed's kind, 28 snapshots and 499,968 tokens; six sessions of "
        "20,000 tokens, another agent's prompt of 313,000, the sessions again, and all of them at work; without a cap, as "
        "`ramjet plan` says of a cap of two from the journal, and with the cap. Then two conversations of 290,000 tokens on "
        "two replicas with the cap and a host tier, kept to one by routing.long_prompt, and spread. The production router "
        "decides, in virtual time, admission off as the post's had none. `make evidence ARGS='-k from_end_to_end'` runs it "
        "again.\n\n" + "\n".join(f"* {each.text}" for each in verdicts(story)),
        rows,
    )


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * ratio
