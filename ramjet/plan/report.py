"""What came of a plan: how far it is to be trusted, and a row for each of the settings; for people and as JSON."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from ramjet.core.record import SIZE_CLASSES
from ramjet.plan.doubts import doubts
from ramjet.plan.figures import TRUSTED, Difference, Figures, Outcome, difference, figures, seen
from ramjet.plan.replay import Kept, Replay, kept
from ramjet.plan.setup import FACTS, Setup
from ramjet.plan.span import Span
from ramjet.plan.speed import Speed

AS_IT_WAS = "as it was"
"""The name of the settings that held then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Some settings, and what they would have done."""

    name: str
    figures: Figures | None
    """None where the span cannot be played under them."""
    error: str | None
    """Why."""
    to_observed: Difference | None
    """None for a trace."""
    to_replayed: Difference | None
    kept: Kept | None
    spread: float | None = None
    """How far the mean waits of several plays lie apart, as a share of the middle one, which is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything there is to say."""

    span: Span
    setup: Setup
    """What held then."""
    speed: Speed
    observed: Figures | None
    """None for a trace."""
    replayed: Figures | None
    error: str | None
    """Why what held then cannot be played."""
    calibration: Difference | None
    """How what was replayed differs from what was observed; None for a trace."""
    spread: float | None
    """Of the plays of what held then."""
    doubts: Sequence[str]
    """What is not known, or not played."""
    tried: Sequence[Tried]


def plan_of(span: Span, setup: Setup, found: Sequence[tuple[str, Replay | str]], *, configured: bool) -> Plan:
    """Put it together.

    Args:
        span: what was played.
        setup: what held then.
        found: what came of that, first, and of each of the others, by name.
        configured: whether somebody said how Ramjet was configured.
    """
    (_, first), *others = found
    base = None if isinstance(first, str) else first
    then = seen(span) if span.observed else None
    observed = None if then is None else figures(span, then)
    replayed = None if base is None else base.figures
    return Plan(
        span=span,
        setup=setup,
        speed=setup.speed,
        observed=observed,
        replayed=replayed,
        error=first if isinstance(first, str) else None,
        calibration=None if observed is None or replayed is None else difference(replayed, observed),
        spread=None if base is None else base.spread,
        doubts=list(doubts(span, setup, configured=configured)),
        tried=[_tried(name, each, observed, then, base) for name, each in others],
    )


def _tried(
    name: str, each: Replay | str, observed: Figures | None, then: Sequence[Outcome] | None, base: Replay | None
) -> Tried:
    if isinstance(each, str):
        return Tried(name=name, figures=None, error=each, to_observed=None, to_replayed=None, kept=None)
    return Tried(
        name=name,
        figures=each.figures,
        error=None,
        to_observed=None if observed is None else difference(each.figures, observed),
        to_replayed=None if base is None else difference(each.figures, base.figures),
        kept=None if then is None or base is None else kept(then, base.outcomes, each.outcomes),
        spread=each.spread,
    )


# -- JSON -------------------------------------------------------------------------------------------------------------


def document(plan: Plan) -> dict[str, Any]:
    """One document; its names are a contract, and docs/plan.md says what they mean."""
    span, speed = plan.span, plan.speed
    return {
        "source": {
            "name": span.name,
            "kind": "journal" if span.observed else "trace",
            "requests": len(span.requests),
            "counted": sum(each.counts for each in span.requests),
            "left_out": dict(span.left_out),
            "guessed": dict(span.guessed),
            "dropped": span.dropped,
        },
        "replicas": [
            {"name": each.name, **{fact: getattr(each, fact) for fact in FACTS}, "told": sorted(each.told)}
            for each in plan.setup.replicas
        ],
        "speed": {
            "readings": speed.readings,
            "decodings": speed.decodings,
            "off_ratio": speed.off_ratio,
            "paces": dict(speed.paces),
            "timing": asdict(speed.timing),
        },
        "observed": None if plan.observed is None else asdict(plan.observed),
        "replayed": None if plan.replayed is None else asdict(plan.replayed),
        "spread": plan.spread,
        "error": plan.error,
        "calibration": None if plan.calibration is None else asdict(plan.calibration),
        "doubts": list(plan.doubts),
        "tried": [_tried_document(each) for each in plan.tried],
    }


def _tried_document(each: Tried) -> dict[str, Any]:
    counted = each.kept
    return {
        "name": each.name,
        "figures": None if each.figures is None else asdict(each.figures),
        "spread": each.spread,
        "error": each.error,
        "to_observed": None if each.to_observed is None else asdict(each.to_observed),
        "to_replayed": None if each.to_replayed is None else asdict(each.to_replayed),
        "kept": None
        if counted is None
        else {"cold": len(counted.cold), "explained": len(counted.explained), "kept": len(counted.kept)},
    }


# -- for people -------------------------------------------------------------------------------------------------------

HEAD = (
    "settings", "mean s", "change", "chance", "p50", "p95", "p99", "> 10 s", "> 30 s", "cold", *SIZE_CLASSES, "cached",
    "longest hold", "held in all", "turns/min",
)  # fmt: skip
CHECK = ("figure", "observed", "replayed", "error")


def check_rows(plan: Plan) -> list[tuple[str, ...]]:
    """The calibration: what was seen, what its replay gives, and how far apart they are."""
    observed, replayed, apart = plan.observed, plan.replayed, plan.calibration
    if observed is None or replayed is None or apart is None:
        return []
    return [
        ("mean wait, s", _seconds(observed.mean_wait_s), _seconds(replayed.mean_wait_s), _percent(apart.mean_wait)),
        (
            f"cold turns of {observed.later_turns:,}",
            f"{observed.cold_turns:,}",
            f"{replayed.cold_turns:,}",
            _percent(apart.cold_turns),
        ),
        ("cached share", _share(observed.cached_share), _share(replayed.cached_share), _percent(apart.cached_share)),
    ]


def verdict(plan: Plan) -> str:
    """How far what follows is to be trusted, in a sentence."""
    if plan.error is not None:
        return f"What held then cannot be played: {plan.error}"
    if plan.calibration is None:
        return "A trace does not say what became of it: how near a replay is, nobody can tell."
    if plan.calibration.trusted:
        return (
            f"The replay of what happened is within {TRUSTED:.0%}: the rows below are as near, as far as anybody knows."
        )
    told = (
        f"DO NOT TRUST THIS: the replay of what happened is off by more than {TRUSTED:.0%}, and whatever made it so is in "
        "the rows below too."
    )
    if plan.spread is not None and plan.spread > TRUSTED:
        told += (
            f" Its plays lie {plan.spread:.0%} apart: where conversations evict each other, who comes a moment later "
            "changes everything, and what happened was one case of many. A row that chance moves little may be right."
        )
    return told


def rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """A row for what was observed, for its replay, and for each of the settings."""
    to = plan.replayed if plan.observed is None else plan.observed
    if plan.observed is not None:
        yield _row("observed", plan.observed, None, None)
    if plan.replayed is not None:
        yield _row("replayed", plan.replayed, plan.calibration, plan.spread)
    for each in plan.tried:
        if each.figures is None:
            yield (each.name, *["-"] * (len(HEAD) - 1))
        else:
            yield _row(each.name, each.figures, None if to is None else difference(each.figures, to), each.spread)


def notes(plan: Plan) -> Iterator[str]:
    """What the table has no room for."""
    for each in plan.tried:
        if each.error is not None:
            yield f"{each.name}: {each.error}"
        elif each.kept is not None and each.kept.explained:
            yield (
                f"{each.name} would have kept {len(each.kept.kept):,} of {len(each.kept.explained):,} cold turns warm "
                f"(replayed; {len(each.kept.cold):,} were cold)"
            )


def _row(name: str, these: Figures, apart: Difference | None, spread: float | None) -> tuple[str, ...]:
    sizes: Mapping[str, Any] = these.by_size
    return (
        name,
        _seconds(these.mean_wait_s),
        "" if apart is None else _percent(apart.mean_wait, sign=True),
        "" if spread is None else _percent(spread),
        _seconds(these.p50_wait_s),
        _seconds(these.p95_wait_s),
        _seconds(these.p99_wait_s),
        f"{these.waits_over_10_s:,}",
        f"{these.waits_over_30_s:,}",
        f"{these.cold_turns:,}",
        *(_share(sizes[each].cold_turns / sizes[each].turns if sizes[each].turns else None) for each in SIZE_CLASSES),
        _share(these.cached_share),
        _seconds(these.max_held_s),
        _seconds(these.total_held_s),
        "-" if these.turns_per_min is None else f"{these.turns_per_min:.1f}",
    )


def tables(plan: Plan) -> Iterator[Table | str]:
    """All of it, for a terminal."""
    counted = sum(each.counts for each in plan.span.requests)
    yield f"{plan.span.name}: {len(plan.span.requests):,} requests played, {counted:,} counted"
    if check := check_rows(plan):
        yield _table("How near the replay is", CHECK, check)
    yield verdict(plan)
    for each in plan.doubts:
        yield f"- {each}"
    yield _table("Settings", HEAD, list(rows(plan)))
    yield from notes(plan)


def _table(title: str, head: Sequence[str], those: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", header_style="")
    for place, name in enumerate(head):
        table.add_column(name, justify="right" if place else "left", no_wrap=bool(place), overflow="fold")
    for each in those:
        table.add_row(*each)
    return table


def _seconds(value: float | None) -> str:
    return (
        "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _percent(value: float | None, *, sign: bool = False) -> str:
    return "-" if value is None else f"{value:+.1%}" if sign else f"{abs(value):.1%}"


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Ramjet: {name} under other settings</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1b1b1f; background: #fff; max-width: 80rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; margin: 0.5rem 0 2rem; display: block; overflow-x: auto }}
th, td {{ padding: 0.15rem 0.8rem; text-align: right; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left }}
</style>
<h1>{name} under other settings</h1>
<p>Waits are in seconds from a request's arrival to its first token, the time held included; "change" is the mean against the
first row, "chance" how far several plays lie apart that differ in nothing that matters. Cold is later turns that reused less than half of what they could have.</p>
{parts}
</html>
"""


def page(plan: Plan) -> str:
    """All of it as one HTML file that needs no other."""
    parts: list[str] = []
    if check := check_rows(plan):
        parts += ["<h2>How near the replay is</h2>", _html_table(CHECK, check)]
    parts.append(f"<p><b>{html.escape(verdict(plan))}</b></p>")
    if plan.doubts:
        parts.append("<ul>" + "".join(f"<li>{html.escape(each)}</li>" for each in plan.doubts) + "</ul>")
    parts += ["<h2>Settings</h2>", _html_table(HEAD, list(rows(plan)))]
    parts += [f"<p>{html.escape(each)}</p>" for each in notes(plan)]
    return _PAGE.format(name=html.escape(plan.span.name), parts="\n".join(parts))


def _html_table(head: Sequence[str], those: Sequence[Sequence[str]]) -> str:
    lines = [("th", head), *(("td", each) for each in those)]
    return (
        "<table>"
        + "\n".join(
            "<tr>" + "".join(f"<{cell}>{html.escape(value)}</{cell}>" for value in values) + "</tr>"
            for cell, values in lines
        )
        + "</table>"
    )
