"""The seed's story as tables, in the seed's order and beside its own figures, and as one document."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ramjet.core.record import SIZE_CLASSES
from ramjet.demo.story import Pair, Side, Story
from ramjet.demo.verdict import verdicts
from ramjet.report.tables import Grid, percent, seconds, whole
from ramjet.report.terminal import lines

# What the seed measured on two GPUs a replica, of which it served these at a time; production has other traffic.
_THEIRS_SIZES = {
    (">=150k", "stock"): ("913", "7.6 %", "-", "66"),
    (">=150k", "capped"): ("379", "1.1 %", "-", "3"),
    ("8k-150k", "stock"): ("12,518", "5.4 %", "70", "-"),
    ("8k-150k", "capped"): ("514", "3.1 %", "1", "-"),
}
"""Its production: turns, share that was cold, waits over 10 s and over 30 s."""
_NAMES = {"<8k": "under 8,000", "8k-150k": "8,000 to 150,000", ">=150k": "150,000 and more"}
_WHEN = {"stock": "before", "capped": "after"}


def document(story: Story) -> dict[str, Any]:
    """Everything; the names of its parts are those of the report and of the planner."""
    said = story.said
    return {
        "branches": [asdict(each) for each in story.branches],
        "sides": [_side(each) for each in (story.stock, story.capped)],
        "said": {
            "figures": None if said.figures is None else asdict(said.figures),
            "error": said.error,
            "calibration": None if said.calibration is None else asdict(said.calibration),
            "kept": None
            if said.kept is None
            else {name: len(getattr(said.kept, name)) for name in ("cold", "explained", "kept")},
            "to_found": None if said.to_found is None else asdict(said.to_found),
        },
        "pairs": [_pair(each) for each in (story.confined, story.spread)],
        "verdicts": [asdict(each) for each in verdicts(story)],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "journal": side.report.journal,
        "figures": asdict(side.figures),
        "sizes": [asdict(each) for each in side.report.whole.sizes],
        "came_back": None if side.came_back is None else asdict(side.came_back),
        "findings": [asdict(each) for each in side.report.findings],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "name": pair.name,
        "journal": pair.report.journal,
        "turns": [asdict(each) for each in pair.turns],
        "later_ratio": pair.later_ratio,
        "later": pair.later,
        "cold": pair.cold,
        "replicas": dict(pair.replicas),
        "findings": [asdict(each) for each in pair.report.findings],
    }


def grids(story: Story) -> list[Grid]:
    """The tables."""
    return [_branches(story), _came_back(story), _sizes(story), _shares(story), _turns(story)]


def _branches(story: Story) -> Grid:
    theirs = ("19,712", "19,712", "12,288", "14,848")
    rows = [
        (each.name, whole(each.prompt_tokens), whole(each.known_tokens), whole(each.cached_tokens), measured)
        for each, measured in zip(story.branches, theirs, strict=True)
    ]
    about = (
        "After a prompt of 19,845 tokens: an attention layer could go on from all that is shared, a KDA layer from the "
        "nearest snapshot alone."
    )
    return Grid(
        "branches", "Where a prompt is resumed", about, ("", "prompt", "shared", "cached", "post: cached"), rows
    )


def _came_back(story: Story) -> Grid:
    rows = [
        (_WHEN[side.name], whole(back.sessions), whole(back.cold), seconds(back.mean_wait_s), percent(back.cached_ratio), *theirs)
        for side, theirs in ((story.stock, ("6 of 6", "3.35", "0 %")), (story.capped, ("0 of 6", "0.15 to 0.30", "99.6 %")))
        if (back := side.came_back) is not None
    ]  # fmt: skip
    about = (
        "One replica: six sessions of 20,000 tokens, then one prompt of 313,000 (the post: 308,000), then the sessions "
        "again. The post capped at four here, and at two in production."
    )
    head = ("", "sessions", "cold", "mean wait s", "cached", "post: cold", "post: wait s", "post: cached")
    return Grid("came_back", "Six sessions around one long prompt", about, head, rows)


def _sizes(story: Story) -> Grid:
    rows = []
    for place, name in enumerate(SIZE_CLASSES):
        for side in (story.stock, story.capped):
            each = side.report.whole.sizes[place]
            if each.turns:
                cells = whole(each.turns), whole(each.cold), percent(each.cold_ratio), whole(each.over_10_s)
                theirs = _THEIRS_SIZES.get((name, side.name), ("-",) * 4)
                rows.append((_NAMES[name], _WHEN[side.name], *cells, whole(each.over_30_s), *theirs))
    about = (
        "The same replica at work, by prompt tokens, without a cap and with one of two. The post's are its production's, "
        "of two replicas and in hours with other traffic, so they are comparable in direction alone."
    )
    head = ("", "when", "turns", "cold", "share", "> 10 s", "> 30 s", "post: turns", "share", "> 10 s", "> 30 s")
    return Grid("sizes", "Cold turns and long waits", about, head, rows)


def _shares(story: Story) -> Grid:
    said, found, was = story.said.figures, story.capped.figures, story.stock.figures
    rows = [
        (name, seconds(each.mean_wait_s), whole(each.cold_turns), whole(each.later_turns), percent(each.cached_share))
        for name, each in (("before", was), ("planned", said), ("after", found))
        if each is not None
    ]
    about = "What the planner says of the cap, from the journal of before, beside what the cap then does."
    return Grid("planned", "Said and found", about, ("", "mean wait s", "cold turns", "of", "cached"), rows)


def _turns(story: Story) -> Grid:
    rows = []
    for number, (one, other) in enumerate(zip(story.confined.turns, story.spread.turns, strict=False)):
        rows.append(
            (
                f"turn {one.turn}", percent(one.cached_ratio), whole(one.cold), seconds(one.mean_wait_s),
                percent(other.cached_ratio), whole(other.cold), seconds(other.mean_wait_s),
                "-" if not number else "about half", "-" if not number else "98.6 %",
            )
        )  # fmt: skip
    about = (
        "Two conversations of 290,000 tokens that grow by 4,000 a turn, and six ordinary sessions, on two replicas with the "
        "cap and a host tier: kept to one replica by routing.long_prompt, and spread as Ramjet does by itself. "
        "The post kept about half of each when confined; here both snapshots that a cap leaves lie at a prompt's end, which "
        "goes first, and next to nothing is kept."
    )
    head = (
        "",
        "confined: cached",
        "cold",
        "wait s",
        "spread: cached",
        "cold",
        "wait s",
        "post: confined",
        "post: spread",
    )
    return Grid("turns", "Two long conversations", about, head, rows)


def text(story: Story, width: int = 100) -> Iterator[str]:
    """All of it, line by line."""
    for grid in grids(story):
        yield grid.title
        yield from textwrap.wrap(grid.about, width)
        yield from lines(grid)
        yield ""
    yield "What the report says of the journal of before"
    for finding in story.stock.report.findings:
        yield from _paragraph(f"{finding.severity}: {finding.text}", width)
        if finding.remedy is not None:
            yield from _paragraph(f"Remedy: {finding.remedy.text}", width)
    yield ""
    yield "Verdict"
    for each in verdicts(story):
        yield from _paragraph(f"{'as the post says' if each.holds else 'NOT as the post says'}: {each.text}", width)


def _paragraph(said: str, width: int) -> Sequence[str]:
    return textwrap.wrap(said, width, initial_indent="  ", subsequent_indent="    ")
