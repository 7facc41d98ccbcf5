"""The same agents with admission off and on: what either side measured, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rich.table import Table

from ramjet.core.record import Record
from ramjet.demo.traffic import Summary
from ramjet.lab.measure import quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the agents of either side do, and how much room they find."""

    agents: int = 6
    """For each replica."""
    turns: int = 8
    shared_system_tokens: int = 6_000
    growth_tokens: int = 3_000
    """Of a task, and of each tool result."""
    think_s: float = 1.0
    pool_tokens: int = 80_000
    """Of each replica: room for three of its six agents at their longest, for what they share is there once."""
    seed: int = 1
    limit_s: float = 180.0
    """After so long a side is ended where it stands."""

    @property
    def most_tokens(self) -> int:
        """How long a conversation becomes, without the answers."""
        return self.shared_system_tokens + self.growth_tokens * self.turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one side measured. A wait is from sending a request to its first token, as its client saw it, time held
    included; None where no turn was answered."""

    admission: str
    turns: int
    """Answered, to their end."""
    failed: int
    unfinished: int
    """Not answered, or not even sent, when the time was up: their waits are in no figure, so those are too low."""
    mean_wait_s: float | None
    p95_wait_s: float | None
    cached_share: float | None
    """Of all prompt tokens, those that were reused (0 to 1)."""
    cold_turns: int
    """Later turns that reused less than half of what they could have."""
    turns_per_min: float
    held: int
    """Requests that Ramjet held for any time."""
    max_held_s: float
    duration_s: float


def side(admission: str, summary: Summary, records: Collection[Record], *, wanted: int) -> Side:
    """Sum up one side.

    Args:
        admission: its `routing.admission.mode`.
        summary: what the agents saw.
        records: what Ramjet recorded of all their requests.
        wanted: how many turns there were to be.
    """
    answered = [turn for turn in summary.turns if turn.ok]
    waits = [turn.ttft_s for turn in answered if turn.ttft_s is not None]
    prompt_tokens = sum(turn.prompt_tokens or 0 for turn in answered)
    cached_tokens = sum(turn.cached_tokens or 0 for turn in answered)
    return Side(
        admission=admission,
        turns=len(answered),
        failed=summary.failed,
        unfinished=wanted - len(summary.turns),
        mean_wait_s=math.fsum(waits) / len(waits) if waits else None,
        p95_wait_s=quantile(waits, 0.95) if waits else None,
        cached_share=cached_tokens / prompt_tokens if prompt_tokens else None,
        cold_turns=sum(record.cold is True for record in records),
        turns_per_min=60 * len(answered) / summary.duration_s,
        held=sum(record.held_s > 0 for record in records),
        max_held_s=max((record.held_s for record in records), default=0.0),
        duration_s=summary.duration_s,
    )


def table(sides: Sequence[Side]) -> Table:
    """A column for each side."""
    shown = Table(header_style="", expand=False)
    shown.add_column("admission")
    for each in sides:
        shown.add_column("on" if each.admission == "enforce" else each.admission, justify="right")
    for name, cell in _ROWS.items():
        shown.add_row(name, *map(cell, sides))
    return shown


_ROWS: dict[str, Callable[[Side], str]] = {
    "turns answered": lambda each: f"{each.turns:,}",
    "failed": lambda each: f"{each.failed:,}",
    "not finished in time": lambda each: f"{each.unfinished:,}",
    "mean wait, s": lambda each: _number(each.mean_wait_s, ".2f"),
    "95 % waited at most, s": lambda each: _number(each.p95_wait_s, ".2f"),
    "cached": lambda each: _number(each.cached_share, ".1%"),
    "cold turns": lambda each: f"{each.cold_turns:,}",
    "turns a minute": lambda each: f"{each.turns_per_min:.1f}",
    "requests held": lambda each: f"{each.held:,}",
    "longest hold, s": lambda each: f"{each.max_held_s:.2f}",
    "took, s": lambda each: f"{each.duration_s:.1f}",
}


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)
