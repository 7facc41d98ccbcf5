"""The seed's story from end to end: what went wrong, what the planner says of the remedy, and what the remedy does.

A look at where prompts are resumed, and three scenes: a replica as it was, the same with a cap, and two long conversations on one replica or on two. Each leaves a
journal, and everything that is said is read from these journals by the report and the planner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramjet.core.record import SIZE_CLASSES, Record
from ramjet.demo import scenes
from ramjet.lab.recorded import Script
from ramjet.plan.figures import Difference, Figures, difference, figures, seen
from ramjet.plan.replay import Kept
from ramjet.plan.run import plan
from ramjet.plan.setup import Maker
from ramjet.plan.source import from_journal as span_from
from ramjet.plan.speed import fit
from ramjet.report.figures import Finding, Report
from ramjet.report.gather import Question
from ramjet.report.source import from_journal as report_from

_LONG = SIZE_CLASSES[-1]
CAP = f"per_path={scenes.CAP}"
STEPS = 13
"""What `on_step` is called for: two scripts, four scenes, and the planner's beginning and its six plays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """The first turn of each session after the long prompt was read."""

    sessions: int
    cold: int
    mean_wait_s: float | None
    cached_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A scene under some settings, as its journal tells it."""

    name: str
    figures: Figures
    report: Report
    came_back: Return | None = None
    """None where nobody was away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the planner said of the cap from the journal of the replica without, and how near that came."""

    figures: Figures | None
    error: str | None
    calibration: Difference | None
    kept: Kept | None
    to_found: Difference | None
    """How it differs from what the cap then did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongTurn:
    """One turn of the two long conversations together."""

    turn: int
    cached_ratio: float | None
    cold: int
    mean_wait_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two long conversations under a rule."""

    name: str
    turns: Sequence[LongTurn]
    later_ratio: float | None
    """Cached, of all their turns after the first."""
    later: int
    cold: int
    replicas: Mapping[str, int]
    """Long turns by replica."""
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All of it."""

    branches: Sequence[scenes.Resumed]
    stock: Side
    said: Said
    capped: Side
    confined: Pair
    spread: Pair


def tell(
    directory: Path,
    *,
    turns: int = 18,
    long_turns: int = 8,
    processes: int = 1,
    on_step: Callable[[str], object] = lambda _: None,
) -> Story:
    """Let it happen.

    Args:
        directory: where the journals go: stock.db, capped.db, confined.db and spread.db.
        turns: of each session, beside one long prompt.
        long_turns: of each of the two long conversations.
        processes: in which the planner plays.
        on_step: told what comes next, `STEPS` times in all.
    """
    on_step("writing what agents say")
    script = Script(scenes.intrusion(turns=turns))
    on_step("a replica without a cap")
    records = scenes.played(directory / "stock.db", script)
    stock = _side("stock", directory / "stock.db", records)
    span = span_from(directory / "stock.db")
    maker = Maker(names=span.replicas, known=span.known, routing={"routing.admission.mode": "off"}, speed=fit(span))
    came = plan(
        span,
        maker,
        {CAP: {"per_path": scenes.CAP}},
        processes=processes,
        configured=True,
        on_play=lambda *_: on_step("what the planner says of a cap"),
    )
    on_step("a replica with a cap")
    capped = _side(
        "capped", directory / "capped.db", scenes.played(directory / "capped.db", script, profile=scenes.CAPPED)
    )
    (tried,) = came.tried
    on_step("writing what long conversations say")
    script = Script(scenes.pair(turns=long_turns))
    pairs = []
    for name, policy in (("confined", scenes.CONFINED), ("spread", scenes.SPREAD)):
        on_step(f"two long conversations, {name}")
        path = directory / f"{name}.db"
        records = scenes.played(path, script, profile=scenes.FIXED, replicas=2, policy=policy)
        pairs.append(_pair(name, path, records))
    said = Said(
        figures=tried.figures,
        error=came.error or tried.error,
        calibration=came.calibration,
        kept=tried.kept,
        to_found=None if tried.figures is None else difference(tried.figures, capped.figures),
    )
    return Story(branches=scenes.branches(), stock=stock, said=said, capped=capped, confined=pairs[0], spread=pairs[1])


def worst(report: Report) -> Finding | None:
    """What most turns were cold for; None where none was worth saying."""
    cold = [each for each in report.findings if each.id.startswith("cold_")]
    return max(cold, key=lambda each: float(each.figures["turns"] or 0), default=None)


def _side(name: str, path: Path, records: Sequence[Record]) -> Side:
    span = span_from(path)
    return Side(
        name=name,
        figures=figures(span, seen(span)),
        report=report_from(path, Question()).report,
        came_back=_came_back(records),
    )


def _came_back(records: Sequence[Record]) -> Return:
    """Of the sessions, turn 2: all were away while the other agent's first prompt was read."""
    back = [each for each in records if each.turn == 2 and each.size_class != _LONG]
    return Return(
        sessions=len(back),
        cold=sum(each.cold is True for each in back),
        mean_wait_s=_mean([each.ttft_s for each in back if each.ttft_s is not None]),
        cached_ratio=_cached(back),
    )


def _pair(name: str, path: Path, records: Sequence[Record]) -> Pair:
    long = [each for each in records if each.size_class == _LONG]
    turns = []
    for number in sorted({each.turn or 0 for each in long}):
        those = [each for each in long if each.turn == number]
        turns.append(
            LongTurn(
                turn=number,
                cached_ratio=_cached(those),
                cold=sum(each.cold is True for each in those),
                mean_wait_s=_mean([each.ttft_s for each in those if each.ttft_s is not None]),
            )
        )
    later = [each for each in long if (each.turn or 0) > 1]
    names = sorted({each.replica or "" for each in long})
    return Pair(
        name=name,
        turns=turns,
        later_ratio=_cached(later),
        later=len(later),
        cold=sum(each.cold is True for each in later),
        replicas={each: sum(one.replica == each for one in long) for each in names},
        report=report_from(path, Question()).report,
    )


def _cached(records: Sequence[Record]) -> float | None:
    told = [each.usage for each in records if each.usage.cached_tokens is not None]
    tokens = sum(each.prompt_tokens or 0 for each in told)
    return sum(each.cached_tokens or 0 for each in told) / tokens if tokens else None


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
