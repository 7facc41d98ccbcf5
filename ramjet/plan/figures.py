"""What came of a span, seen or replayed, in the same figures; and how far two of them are apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramjet.core.record import SIZE_CLASSES, Record
from ramjet.lab.measure import quantile
from ramjet.plan.span import Span

LONG_WAITS_S = (10.0, 30.0)
_LATER = frozenset({"warm", "partial", "cold"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one request; None is unknown."""

    name: str
    replica: str | None
    wait_s: float | None
    """From its arrival to the first token, the time held included."""
    held_s: float
    ended_s: float
    """From the span's beginning."""
    prompt_tokens: int
    cached_tokens: int | None
    temperature: str
    """As `core.record` says it."""
    size_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """The turns of one size."""

    turns: int
    """Later turns of which it is known whether they were cold."""
    cold_turns: int
    mean_wait_s: float | None
    """Of all whose wait is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A span in figures; the field names are those of `ramjet plan --json`. None: nothing of the kind was seen."""

    turns: int
    waits: int
    """Turns whose wait is known."""
    mean_wait_s: float | None
    p50_wait_s: float | None
    p95_wait_s: float | None
    p99_wait_s: float | None
    max_wait_s: float | None
    waits_over_10_s: int
    waits_over_30_s: int
    later_turns: int
    """Those of which it is known whether they were cold."""
    cold_turns: int
    cold_share: float | None
    """Of the later turns (0 to 1)."""
    by_size: Mapping[str, SizeClass]
    cached_share: float | None
    """Of the prompt tokens of which the engine said it, those that were reused (0 to 1)."""
    held_turns: int
    max_held_s: float
    total_held_s: float
    turns_per_min: float | None
    """Over the time in which three quarters of the turns were answered."""


def seen(span: Span) -> list[Outcome]:
    """What became of the requests of a journal, in their order."""
    outcomes = []
    for each in span.requests:
        record = each.seen
        assert record is not None, "a trace does not say what became of it"
        outcomes.append(outcome_of(record, each.prompt_tokens, record.ttft_s, each.at_s + record.duration_s))
    return outcomes


def outcome_of(record: Record, prompt_tokens: int, wait_s: float | None, ended_s: float) -> Outcome:
    """From a record; what it says of cold and of sizes is said in one place."""
    return Outcome(
        name=record.request_id,
        replica=record.replica,
        wait_s=wait_s,
        held_s=record.held_s,
        ended_s=ended_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=record.usage.cached_tokens,
        temperature=record.temperature,
        size_class=record.size_class,
    )


def figures(span: Span, outcomes: Sequence[Outcome]) -> Figures:
    """Sum up what became of a span's requests, those that count.

    Of a journal only that is counted of which the journal knows what it was: of a request whose first token nobody saw
    no replayed wait either, so that two sums are of the same requests.
    """
    waits: list[float] = []
    ends: list[float] = []
    held: list[float] = []
    prompt_tokens = cached_tokens = turns = 0
    began_s = math.inf
    later: Counter[str] = Counter()
    cold: Counter[str] = Counter()
    waits_of: dict[str, list[float]] = {name: [] for name in SIZE_CLASSES}
    for asked, each in zip(span.requests, outcomes, strict=True):
        if not asked.counts:
            continue
        record = asked.seen
        turns += 1
        began_s = min(began_s, asked.at_s)
        ends.append(each.ended_s)
        held.append(each.held_s)
        if each.wait_s is not None and (record is None or record.ttft_s is not None):
            waits.append(each.wait_s)
            waits_of[each.size_class].append(each.wait_s)
        if each.cached_tokens is not None and (record is None or record.usage.cached_tokens is not None):
            prompt_tokens += each.prompt_tokens
            cached_tokens += each.cached_tokens
        if each.temperature in _LATER and (record is None or record.temperature in _LATER):
            later[each.size_class] += 1
            cold[each.size_class] += each.temperature == "cold"
    most_at = quantile(ends, 0.75) if ends else 0.0
    took_s = most_at - began_s
    in_all = later.total()
    return Figures(
        turns=turns,
        waits=len(waits),
        mean_wait_s=_mean(waits),
        p50_wait_s=_quantile(waits, 0.5),
        p95_wait_s=_quantile(waits, 0.95),
        p99_wait_s=_quantile(waits, 0.99),
        max_wait_s=_quantile(waits, 1.0),
        waits_over_10_s=sum(each > LONG_WAITS_S[0] for each in waits),
        waits_over_30_s=sum(each > LONG_WAITS_S[1] for each in waits),
        later_turns=in_all,
        cold_turns=cold.total(),
        cold_share=_rounded(cold.total() / in_all) if in_all else None,
        by_size={
            name: SizeClass(turns=later[name], cold_turns=cold[name], mean_wait_s=_mean(waits_of[name]))
            for name in SIZE_CLASSES
        },
        cached_share=_rounded(cached_tokens / prompt_tokens) if prompt_tokens else None,
        held_turns=sum(each > 0 for each in held),
        max_held_s=_rounded(max(held, default=0.0)),
        total_held_s=_rounded(math.fsum(held)),
        turns_per_min=_rounded(60 * sum(each <= most_at for each in ends) / took_s) if took_s > 0 else None,
    )


def _mean(values: Sequence[float]) -> float | None:
    return _rounded(math.fsum(values) / len(values)) if values else None


def _quantile(values: Sequence[float], share: float) -> float | None:
    return _rounded(quantile(values, share)) if values else None


def _rounded(value: float) -> float:
    return round(value, 4)


# -- how far apart ----------------------------------------------------------------------------------------------------

TRUSTED = 0.1
"""From this error on a replay is not to be trusted."""
_FEW_TURNS = 2
"""Cold turns by which two counts may differ, whatever share of them that is: of five, one more is a fifth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one sum differs from another, as a share of the other; None where one of the two is not known."""

    mean_wait: float | None
    cold_turns: float | None
    cached_share: float | None
    turns_per_min: float | None
    trusted: bool
    """Whether mean wait, cold turns and cached share are all within 10 %, or within two cold turns."""


def difference(of: Figures, to: Figures) -> Difference:
    """How `of` differs from `to`: 0.1 is a tenth more."""
    wait = _apart(of.mean_wait_s, to.mean_wait_s)
    cold, cached = _apart(of.cold_turns, to.cold_turns), _apart(of.cached_share, to.cached_share)
    near = abs(of.cold_turns - to.cold_turns) <= _FEW_TURNS or (cold is not None and abs(cold) <= TRUSTED)
    return Difference(
        mean_wait=wait,
        cold_turns=cold,
        cached_share=cached,
        turns_per_min=_apart(of.turns_per_min, to.turns_per_min),
        trusted=near and all(each is not None and abs(each) <= TRUSTED for each in (wait, cached)),
    )


def _apart(of: float | None, to: float | None) -> float | None:
    if of is None or to is None:
        return None
    if not to:
        return 0.0 if not of else None
    return _rounded(of / to - 1)
