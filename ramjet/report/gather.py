"""A report from a journal: one pass over its rows, and short looks at its samples and at one conversation."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ramjet.core.causes import Clues
from ramjet.core.record import Record
from ramjet.core.sample import Sample
from ramjet.core.usage import Usage
from ramjet.report import count
from ramjet.report.figures import Occupancy, Point, Report, Timeline
from ramjet.report.findings import findings
from ramjet.report.tally import BUCKETS, COLUMNS, JUDGED, Kind, PeriodTally, Seen, Tally


class NothingThere(Exception):
    """There is nothing to report on; the message says where it was looked for."""


class Journal(Protocol):
    """What is asked of a journal; `journal.read.Reader` is one."""

    def span(self, since: float | None, until: float | None) -> tuple[float, float] | None:
        """When the first and the last request of a span arrived; None where there is none."""

    def columns(
        self,
        names: Sequence[str],
        since: float | None = None,
        until: float | None = None,
        *,
        probes: bool = True,
        conversation: str | None = None,
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Some columns of its requests, in pages."""

    def probes(self, since: float | None = None, until: float | None = None) -> int:
        """Requests that were marked as probes."""

    def samples(self, since: float | None = None, until: float | None = None) -> Iterator[tuple[float, Sample]]:
        """What the replicas were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked; moments are seconds since 1970."""

    since: float | None = None
    until: float | None = None
    split_at: float | None = None
    exclude_probes: bool = False
    conversation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The journal itself."""

    path: str
    version: int
    dropped: int
    clues: Callable[[str], Clues | None]
    """Reads a row's clues."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A report, and points for its pictures: prompt tokens and TTFT by temperature."""

    report: Report
    points: Mapping[str, Sequence[tuple[int, float]]]


def gather(
    journal: Journal, about: About, question: Question, *, on_rows: Callable[[int], object] = lambda _: None
) -> Gathered:
    """Count it all.

    Args:
        journal: what to count.
        about: where it comes from.
        question: what of it.
        on_rows: told how many rows have been read, page by page.

    Raises:
        NothingThere: no request in that span, or no such conversation.
    """
    since, until, probes = question.since, question.until, not question.exclude_probes
    span = journal.span(since, until)
    if span is None:
        raise NothingThere(f"{about.path}: no request in that span of time; see `ramjet journal info`")
    tally = Tally(*span, split_at=question.split_at, clues=about.clues)
    for page in journal.columns(COLUMNS, since, until, probes=probes):
        tally.add(page)
        on_rows(len(page))
    conversation = question.conversation or count.most_telling(tally)
    timeline = None if conversation is None else _timeline(journal, about, question, conversation)
    if question.conversation is not None and timeline is None:
        raise NothingThere(f"{about.path}: no turn of conversation {question.conversation} in that span of time")
    whole = tally.whole
    replicas = _replicas(journal.samples(since, until), whole, tally.failures, *span)
    periods = [count.period("all", whole)]
    if question.split_at is not None:
        periods += [count.period("before", tally.before), count.period("after", tally.after)]
    report = Report(
        journal=about.path,
        version=about.version,
        dropped=about.dropped,
        probes=None if probes else journal.probes(since, until),
        split_at=question.split_at,
        bucket_s=tally.bucket_s,
        periods=periods,
        long_together=count.together(tally, {each.replica: each.pool_tokens for each in replicas}),
        moved_reasons=dict(tally.moved.most_common()),
        replicas=replicas,
        evictions=count.evictions(tally),
        timeline=timeline,
        over_time=count.over_time(tally),
        findings=(),
    )
    points = {warmth: those.kept for warmth, those in tally.points.items()}
    return Gathered(replace(report, findings=findings(report)), points)


def _timeline(journal: Journal, about: About, question: Question, conversation: str) -> Timeline | None:
    """One conversation's turns; a second pass over one column, which is quick."""
    points: list[Point] = []
    pages = journal.columns(
        COLUMNS, question.since, question.until, probes=not question.exclude_probes, conversation=conversation
    )
    for row in (row for page in pages for row in page):
        seen = Seen._make(row)
        if seen.outcome == "ok" and seen.turn is not None:
            points.append(_point(seen, about))
    if not points:
        return None
    waits = [each.ttft_s for each in points if each.ttft_s is not None]
    cold = [each for each in points if each.temperature == "cold"]
    warm = sorted(each.ttft_s for each in points if each.temperature == "warm" and each.ttft_s is not None)
    return Timeline(
        conversation=conversation,
        turns=len(points),
        cold=len(cold),
        wait_s=math.fsum(waits),
        cold_wait_s=math.fsum(each.ttft_s or 0.0 for each in cold),
        warm_p50_s=count.percentile(warm, 0.5),
        most_tokens=max(each.prompt_tokens for each in points),
        replicas=dict(Counter(each.replica for each in points if each.replica is not None).most_common()),
        points=points,
    )


def _point(seen: Seen, about: About) -> Point:
    record = Record(
        request_id="",
        endpoint="",
        turn=seen.turn,
        reusable_tokens=seen.reusable_tokens,
        usage=Usage(cached_tokens=seen.cached_tokens),
        clues=None if seen.clues is None else about.clues(seen.clues),
    )
    return Point(
        at=seen.arrived_at,
        turn=seen.turn or 0,
        prompt_tokens=seen.estimated_tokens if seen.prompt_tokens is None else seen.prompt_tokens,
        cached_tokens=seen.cached_tokens,
        ttft_s=seen.ttft_s,
        temperature=record.temperature,
        cold_cause=record.cold_cause,
        replica=seen.replica,
    )


@dataclass(slots=True)
class _Samples:
    """What was seen of one replica's samples."""

    last: Sample
    number: int = 0
    down: int = 0
    living: int = 0
    sums: dict[str, list[float]] = field(default_factory=lambda: {"tokens": [0.0, 0, 0.0], "slots": [0.0, 0, 0.0]})
    """Of each pool: the sum of the parts that were taken, how many, and the most."""
    stretches: defaultdict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, sample: Sample, stretch: int) -> None:
        self.last = sample
        self.number += 1
        self.down += sample.state == "down"
        self.living = max(self.living, sample.living)
        pools = (
            ("tokens", sample.resident_tokens, sample.pool_tokens),
            ("slots", sample.resident_slots, sample.pool_slots),
        )
        for name, taken, pool in pools:
            if taken is not None and pool:
                share, sums, most = taken / pool, self.sums[name], self.stretches[stretch]
                sums[0], sums[1], sums[2] = sums[0] + share, sums[1] + 1, max(sums[2], share)
                most[name] = max(most.get(name, 0.0), share)


def _replicas(
    samples: Iterable[tuple[float, Sample]],
    whole: PeriodTally,
    failures: Mapping[str, int],
    first_at: float,
    last_at: float,
) -> list[Occupancy]:
    """Each replica that was sampled or has served."""
    stretch_s = max(60.0, (last_at - first_at) / BUCKETS)
    seen: dict[str, _Samples] = {}
    for at, sample in samples:
        known = seen.get(sample.replica)
        if known is None:
            known = seen[sample.replica] = _Samples(sample)
        known.add(sample, int((at - first_at) // stretch_s))
    names = {*seen, *failures, *(Kind._make(key).replica for key in whole.cells)}
    found = []
    for name in sorted(names - {""}):
        looked = seen.get(name) or _Samples(Sample(replica=name, state="unknown"))
        over_time = [
            (first_at + number * stretch_s, each.get("tokens"), each.get("slots"))
            for number, each in sorted(looked.stretches.items())
        ]
        found.append(_occupancy(name, whole, failures.get(name, 0), looked, over_time))
    return found


def _occupancy(
    name: str,
    whole: PeriodTally,
    failures: int,
    samples: _Samples,
    over_time: Sequence[tuple[float, float | None, float | None]],
) -> Occupancy:
    last, sums = samples.last, samples.sums
    means = {pool: count.ratio(total, number) for pool, (total, number, _) in sums.items()}
    most = {pool: most if number else None for pool, (_, number, most) in sums.items()}
    served = count.cells(whole, replica=name)
    cold = count.cells(whole, replica=name, temperature="cold")
    turns = sum(cell.turns for cell in served)
    judged = sum(cell.turns for each in JUDGED for cell in count.cells(whole, replica=name, temperature=each))
    number = sum(cell.turns for cell in cold)
    return Occupancy(
        replica=name,
        turns=turns,
        judged_turns=judged,
        cold=number,
        cold_ratio=count.ratio(number, judged),
        cold_wait_s=math.fsum(seconds for cell in cold for seconds in cell.ttft_s),
        cached_ratio=count.ratio(
            sum(each.cached_tokens for each in served), sum(each.prompt_tokens for each in served)
        ),
        unreported_turns=turns - sum(cell.reported for cell in served),
        failures=failures,
        samples=samples.number,
        pool_tokens=last.pool_tokens,
        pool_slots=last.pool_slots,
        per_path=last.per_path,
        host=last.host,
        tokens_ratio_mean=means["tokens"],
        tokens_ratio_most=most["tokens"],
        slots_ratio_mean=means["slots"],
        slots_ratio_most=most["slots"],
        living_most=samples.living if samples.number else None,
        down_samples=samples.down,
        pace=last.pace if samples.number else None,
        over_time=over_time,
    )
