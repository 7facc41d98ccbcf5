"""The report's tables as text, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest

from ramjet.core.record import SIZE_CLASSES
from ramjet.report.figures import Period, Report

UNKNOWN = "-"
_MOST_TURNS = 15
_NAMES = {"<8k": "under 8,000", "8k-150k": "8,000 to 150,000", ">=150k": "150,000 and more", "all": "all"}


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: the first column is a name, the others are figures."""

    name: str
    title: str
    about: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def whole(value: float | None) -> str:
    """A count; whoever does not know it says so."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """Seconds, with as many digits as tell something."""
    return UNKNOWN if value is None else f"{value:.2f}" if abs(value) < 10 else f"{value:,.0f}"


def percent(ratio: float | None) -> str:
    """A share."""
    return UNKNOWN if ratio is None else f"{100 * ratio:.1f}\N{NO-BREAK SPACE}%"


def moment(at: float | None) -> str:
    """Date and time, UTC."""
    return UNKNOWN if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def title(report: Report) -> str:
    """What the report is of."""
    period = report.whole
    return f"{moment(period.first_at)} to {moment(period.last_at)} UTC: {period.requests:,} requests, {period.turns:,} turns"


def notes(report: Report) -> list[str]:
    """What has to be known to read it."""
    said = [f"Journal {report.journal}."]
    if report.split_at is not None:
        said.append(f"Before and after {moment(report.split_at)} UTC.")
    if report.probes is not None:
        said.append(f"{report.probes:,} probes were left out.")
    return said


def grids(report: Report) -> list[Grid]:
    """All tables that have something in them."""
    return [grid for make in _GRIDS for grid in make(report) if grid.rows]


def _periods(report: Report) -> Sequence[Period]:
    """Before and after, where there is a split: both together would only hide it."""
    return report.periods[1:] or report.periods


def _by_period(report: Report) -> tuple[str, ...]:
    return ("",) if len(report.periods) == 1 else ("", "when")


def _named(report: Report, name: str, period: Period) -> tuple[str, ...]:
    return (name,) if len(report.periods) == 1 else (name, period.name)


def _sizes(report: Report) -> Iterator[Grid]:
    rows = [
        (
            *_named(report, _NAMES[each.size_class], period), whole(each.turns), whole(each.cold), percent(each.cold_ratio),
            whole(each.timed_turns), whole(each.over_10_s), whole(each.over_30_s), seconds(each.cold_wait_s),
        )
        for number in range(len(report.whole.sizes)) for period in _periods(report)
        if (each := period.sizes[number]).turns
    ]  # fmt: skip
    about = (
        "By prompt tokens. Cold: a later turn that reused less than half of what it could have; the share is of the "
        "turns of which that is known. Waits are seconds to the first token, of turns whose first token was seen."
    )
    head = (*_by_period(report), "turns", "cold", "share", "timed", "> 10 s", "> 30 s", "cold wait s")
    yield Grid("sizes", "Cold turns and long waits", about, head, rows)


def _cached(report: Report) -> Iterator[Grid]:
    rows: list[tuple[str, ...]] = []
    for period in _periods(report):
        each = period.cached
        counts = whole(each.reported_turns), whole(each.unreported_turns)
        tokens = whole(each.prompt_tokens), whole(each.cached_tokens), percent(each.cached_ratio)
        if period.turns:
            rows.append((*_named(report, "prompts", period), *tokens, *counts))
    head = (*_by_period(report), "tokens", "cached", "share", "turns", "not reported")
    yield Grid("cached", "Share of prompt tokens from the cache", "As the engines reported it.", head, rows)


def _ttft(report: Report) -> Iterator[Grid]:
    rows = [
        (*_named(report, each.temperature, period), whole(each.turns), seconds(each.p50_s), seconds(each.p90_s),
         seconds(each.p95_s), seconds(each.p99_s), seconds(each.most_s))
        for number in range(len(report.whole.ttft)) for period in _periods(report)
        if (each := period.ttft[number]).turns
    ]  # fmt: skip
    head = (*_by_period(report), "turns", "p50 s", "p90 s", "p95 s", "p99 s", "most s")
    yield Grid("ttft", "Seconds to the first token", "The time held in Ramjet is part of it.", head, rows)


def _reuse(report: Report) -> Iterator[Grid]:
    parts: list[list[tuple[str, ...]]] = []
    for period in _periods(report):
        reuse = period.reuse
        reach, compared = reuse.reachable_tokens, reuse.compared_reachable_tokens
        rows = [
            ("prompts", reuse.turns, reuse.prompt_tokens, None),
            ("a cache that forgets nothing", reuse.turns, reach, reach),
            ("achieved", reuse.turns, reuse.cached_tokens, reach),
            ("what any replica held", reuse.compared_turns, compared - reuse.forgotten_tokens, compared),
            ("gone where it went", reuse.compared_turns, reuse.lost_tokens, compared),
            ("at another replica", reuse.compared_turns, reuse.elsewhere_tokens, compared),
            ("held by none any more", reuse.compared_turns, reuse.forgotten_tokens, compared),
        ]
        if reuse.turns:
            parts.append(
                [
                    (*_named(report, name, period), whole(turns), whole(tokens), percent(tokens / of if of else None))
                    for name, turns, tokens, of in rows
                    if turns
                ]
            )
    about = (
        "What a cache that forgets nothing would have had of the prompts, and what became of it. What replicas held is "
        "what they were believed to hold when the turn was placed."
    )
    # Before and after of one thing stand together.
    mixed = [row for together in zip_longest(*parts) for row in together if row is not None]
    yield Grid("reuse", "Reachable and achieved reuse", about, (*_by_period(report), "turns", "tokens", "share"), mixed)


def _causes(report: Report) -> Iterator[Grid]:
    rows = [
        (*_named(report, each.cause, period), whole(each.turns), *(whole(each.by_size[size]) for size in SIZE_CLASSES),
         seconds(each.wait_s))
        for period in _periods(report) for each in period.causes
    ]  # fmt: skip
    head = (*_by_period(report), "turns", *SIZE_CLASSES, "wait s")
    yield Grid("causes", "Cold turns by cause", "And their seconds to the first token.", head, rows)


def _evictions(report: Report) -> Iterator[Grid]:
    rows = []
    for each in report.evictions:
        victim, turns = next(iter(each.victims.items()))
        most = "its own" if victim == each.by else victim
        counts = whole(each.turns), whole(each.long_turns), whole(each.conversations)
        rows.append((each.by, each.cause, *counts, seconds(each.wait_s), f"{most} ({turns:,})"))
    about = (
        "Conversations whose prompts took the room, as far as that was seen; the turns that were cold for it, and whose "
        "most of them were."
    )
    head = ("conversation", "pool", "cold turns", "of them long", "others", "wait s", "most of them")
    yield Grid("evictions", "Who pushed out whom", about, head, rows)


def _first_calls(report: Report) -> Iterator[Grid]:
    rows = [
        (*_named(report, "conversations", period), whole(f.conversations), percent(f.median_ratio), percent(f.mean_ratio))
        for period in _periods(report) if (f := period.first_calls).conversations
    ]  # fmt: skip
    about = (
        "The first prompt of 8,000 tokens and more of each conversation whose beginning was seen: the part of it that "
        "came from the cache, which is mostly a system prompt that others had sent."
    )
    head = (*_by_period(report), "conversations", "median", "mean")
    yield Grid("first_calls", "First large calls", about, head, rows)


def _together(report: Report) -> Iterator[Grid]:
    those = report.long_together
    rows = [
        ("one or more alive", whole(those.minutes)),
        ("two or more", whole(those.shared_minutes)),
        ("two or more on one replica", whole(those.same_replica_minutes)),
        ("more than its pool holds", whole(those.overfull_minutes)),
    ]
    about = (
        "Alive from the arrival of a turn of 150,000 tokens and more to its end, and between two such turns that are no "
        "more than five minutes apart."
    )
    if those.most_replica is not None:
        about += f" Together they had up to {those.most_tokens:,} tokens on {those.most_replica}."
    yield Grid(
        "long_together",
        "Long conversations side by side",
        about,
        ("", "minutes"),
        rows if those.minutes else (),
    )


def _replicas(report: Report) -> Iterator[Grid]:
    rows = [
        (each.replica, whole(each.turns), percent(each.cached_ratio), whole(each.cold), percent(each.cold_ratio),
         seconds(each.cold_wait_s), whole(each.failures), whole(each.unreported_turns))
        for each in report.replicas
    ]  # fmt: skip
    head = ("replica", "turns", "cached", "cold", "share", "cold wait s", "failures", "not reported")
    yield Grid("replicas", "Replicas", "What each has served.", head, rows)


def _pools(report: Report) -> Iterator[Grid]:
    rows = [
        (each.replica, whole(each.pool_tokens), percent(each.tokens_ratio_mean), percent(each.tokens_ratio_most),
         whole(each.pool_slots), percent(each.slots_ratio_mean), percent(each.slots_ratio_most), whole(each.per_path),
         whole(each.living_most), seconds(each.pace))
        for each in report.replicas if each.samples
    ]  # fmt: skip
    about = "The pools as the configuration or the engine says, and what was believed to be in them, looked at once a minute."
    head = (
        "replica", "token pool", "mean", "most", "slots", "mean", "most", "per path", "living", "pace",
    )  # fmt: skip
    yield Grid("pools", "What was in the pools", about, head, rows)


def _held(report: Report) -> Iterator[Grid]:
    rows = [
        (*_named(report, "held for room", period), whole(held.requests), seconds(held.p50_s), seconds(held.p95_s),
         seconds(held.most_s), whole(held.shed))
        for period in _periods(report) if (held := period.held).requests or held.shed
    ]  # fmt: skip
    head = (*_by_period(report), "requests", "p50 s", "p95 s", "most s", "turned away")
    yield Grid("held", "Held", "Requests that waited in Ramjet, because no replica had room.", head, rows)


def _left(report: Report) -> Iterator[Grid]:
    rows = [
        (*_named(report, "went away", period), whole(left.requests), whole(left.over_10_s), whole(left.over_30_s))
        for period in _periods(report) if (left := period.left).requests
    ]  # fmt: skip
    about = "Clients that went away before the first token; no other table has them."
    yield Grid("left", "Clients that did not wait", about, (*_by_period(report), "requests", "> 10 s", "> 30 s"), rows)


def _outcomes(report: Report) -> Iterator[Grid]:
    rows = [
        (*_named(report, outcome, period), whole(number), percent(number / period.requests))
        for period in _periods(report) for outcome, number in period.outcomes.items() if outcome != "ok"
    ]  # fmt: skip
    about = "Requests that ended otherwise than ok."
    yield Grid("outcomes", "Outcomes", about, (*_by_period(report), "requests", "share"), rows)


def _timeline(report: Report) -> Iterator[Grid]:
    line = report.timeline
    if line is None:
        return
    cold = sorted((each for each in line.points if each.temperature == "cold"), key=lambda each: -(each.ttft_s or 0.0))
    rows = [
        (moment(each.at), whole(each.turn), whole(each.prompt_tokens), whole(each.cached_tokens), seconds(each.ttft_s),
         each.cold_cause or UNKNOWN, each.replica or UNKNOWN)
        for each in cold[:_MOST_TURNS]
    ]  # fmt: skip
    about = (
        f"{line.turns:,} turns up to {line.most_tokens:,} tokens; a warm turn's median is {seconds(line.warm_p50_s)} s. "
        f"{line.cold:,} turns were cold, and took {seconds(line.cold_wait_s)} of {seconds(line.wait_s)} s of waiting."
    )
    head = ("its longest cold turns", "turn", "tokens", "cached", "TTFT s", "cause", "replica")
    yield Grid("timeline", f"One conversation: {line.conversation}", about, head, rows or [("none", *[UNKNOWN] * 6)])


_GRIDS: tuple[Callable[[Report], Iterator[Grid]], ...] = (
    _sizes,
    _cached,
    _ttft,
    _reuse,
    _causes,
    _evictions,
    _first_calls,
    _together,
    _replicas,
    _pools,
    _held,
    _left,
    _outcomes,
    _timeline,
)
