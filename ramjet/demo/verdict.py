"""What the seed's story shows, in words: each sentence is made from the figures, and says otherwise when they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ramjet.demo import scenes
from ramjet.demo.story import Pair, Story, worst
from ramjet.plan.figures import TRUSTED

NEAR_FULL_RATIO = 0.9
"""A token pool that was never so full was not the limit."""
_BETTER = 0.05
"""Shares that are nearer than this are alike."""
_POOLS = {"cold_snapshot_pool": "the snapshot pool", "cold_token_pool": "the token pool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One claim of the seed's."""

    id: str
    holds: bool
    """Whether the figures say what the seed found."""
    text: str


def verdicts(story: Story) -> list[Verdict]:
    """All of them, in the seed's order."""
    return [each for make in (_forgets, _limit, _cap, _said, _apart) for each in make(story)]


def _forgets(story: Story) -> Iterator[Verdict]:
    back = story.stock.came_back
    if back is None or not back.sessions:
        return
    holds = back.cold == back.sessions
    cold = f"{_all(back.cold, back.sessions)} came back cold after the long prompt"
    text = f"{cold}, and waited {_seconds(back.mean_wait_s)} in the mean."
    yield Verdict(id="sessions_come_back_cold", holds=holds, text=text)


def _limit(story: Story) -> Iterator[Verdict]:
    found = worst(story.stock.report)
    most = max((each.tokens_ratio_most or 0.0 for each in story.stock.report.replicas), default=0.0)
    if found is None:
        yield Verdict(id="snapshot_pool_is_the_limit", holds=False, text="Nothing was short: no turn was cold.")
        return
    limit = _POOLS.get(found.id)
    turns, cold = found.figures["turns"], found.figures["cold"]
    if limit is None:
        what = found.id.removeprefix("cold_")
        text = f"No pool was the limit: most cold turns, {turns} of {cold}, have the cause {what}."
    elif found.id == "cold_snapshot_pool":
        other = (
            f"not the token pool, of which {_percent(most)} was used at most"
            if most < NEAR_FULL_RATIO
            else f"but the token pool was full too ({_percent(most)})"
        )
        text = f"The replica ran out of snapshots: {limit} was the limit for {turns} of {cold} cold turns, {other}."
    else:
        text = f"The replica ran out of tokens: {limit} was the limit for {turns} of {cold} cold turns."
    capped = found.remedy is not None and found.remedy.changes.get("per_path") == scenes.CAP
    if found.remedy is not None:
        text += f" The report says: {found.remedy.text}."
    holds = found.id == "cold_snapshot_pool" and most < NEAR_FULL_RATIO and capped
    yield Verdict(id="snapshot_pool_is_the_limit", holds=holds, text=text)


def _cap(story: Story) -> Iterator[Verdict]:
    before, after = story.stock.figures, story.capped.figures
    back = story.capped.came_back
    holds = after.cold_turns < before.cold_turns and (after.mean_wait_s or 0.0) < (before.mean_wait_s or 0.0)
    said = "helps" if holds else "does not help"
    text = (
        f"A cap of {scenes.CAP} snapshots per path {said}: {before.cold_turns:,} cold turns become {after.cold_turns:,}, "
        f"a mean wait of {_seconds(before.mean_wait_s)} becomes {_seconds(after.mean_wait_s)}, and "
        f"{_percent(before.cached_share)} of prompt tokens cached become {_percent(after.cached_share)}."
    )
    if back is not None and back.sessions:
        warm = f"{_all(back.sessions - back.cold, back.sessions)} came back warm"
        text += f" {warm}, in {_seconds(back.mean_wait_s)}, with {_percent(back.cached_ratio)} of their prompts reused."
        holds = holds and back.cold == 0
    yield Verdict(id="cap_keeps_sessions", holds=holds, text=text)


def _said(story: Story) -> Iterator[Verdict]:
    said = story.said
    if said.figures is None or said.to_found is None:
        text = f"The planner could not say what a cap would do: {said.error}."
        yield Verdict(id="planner_is_right", holds=False, text=text)
        return
    found = story.capped.figures
    near = said.to_found.trusted
    text = (
        f"The planner had said so from the journal of the replica without a cap, "
        f"{'within' if near else 'but not within'} {TRUSTED:.0%}: a mean wait of {_seconds(said.figures.mean_wait_s)} "
        f"({_seconds(found.mean_wait_s)} found), {said.figures.cold_turns:,} cold turns ({found.cold_turns:,}), "
        f"{_percent(said.figures.cached_share)} cached ({_percent(found.cached_share)})."
    )
    if said.calibration is not None and not said.calibration.trusted:
        text += f" Its replay of what happened was off by more than {TRUSTED:.0%}, so it says itself not to trust it."
    yield Verdict(id="planner_is_right", holds=near, text=text)


def _apart(story: Story) -> Iterator[Verdict]:
    confined, spread = story.confined, story.spread
    if confined.later_ratio is None or spread.later_ratio is None:
        return
    gain = spread.later_ratio - confined.later_ratio
    what = (
        "Keeping long conversations on one replica makes them slower"
        if gain > _BETTER
        else "Keeping long conversations on one replica makes them faster"
        if gain < -_BETTER
        else "Where long conversations go makes no difference"
    )
    advice = {True: "switch routing.long_prompt off", False: "leave routing.long_prompt as it is"}[gain > _BETTER]
    text = f"{what}: {_on(confined)}; {_on(spread)}. So {advice}."
    yield Verdict(id="spreading_is_better", holds=gain > _BETTER, text=text)


def _on(pair: Pair) -> str:
    where = "one replica" if len(pair.replicas) == 1 else f"{len(pair.replicas)} replicas"
    return (
        f"{pair.name}, on {where}, {_percent(pair.later_ratio)} of their prompts were cached after the first turn and "
        f"{pair.cold} of {pair.later} turns were cold"
    )


def _all(number: int, of: int) -> str:
    return f"All {of} sessions" if number == of else f"{number or 'None'} of {of} sessions"


def _seconds(value: float | None) -> str:
    return "an unknown time" if value is None else f"{value:,.2f} s" if value < 10 else f"{value:,.1f} s"


def _percent(ratio: float | None) -> str:
    return "an unknown share" if ratio is None else f"{ratio:.1%}".replace("%", " %")
