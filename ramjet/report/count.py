"""From counts to figures."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from ramjet.core.causes import CAUSES
from ramjet.core.record import SIZE_CLASSES, TEMPERATURES
from ramjet.report.figures import (
    Cached,
    Cause,
    Eviction,
    FirstCalls,
    Held,
    Left,
    Period,
    Reach,
    SizeClass,
    Stretch,
    Together,
    Waits,
)
from ramjet.report.tally import JUDGED, LONG_WAITS_S, Cell, Kind, PeriodTally, Tally

_MOST_EVICTIONS = 20
_MOST_VICTIMS = 5


def ratio(part: float, whole: float) -> float | None:
    """A share; None of nothing."""
    return part / whole if whole else None


def percentile(ranked: Sequence[float], share: float) -> float | None:
    """The nearest rank: the smallest value that so many are not above; None of no values."""
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else None


def period(name: str, tally: PeriodTally) -> Period:
    """The figures of a period."""
    everything = cells(tally)
    for cell in everything:
        # Once each; whatever is ranked below is then put together of rows that are in order, which is quick.
        cell.ttft_s = array("d", sorted(cell.ttft_s))
    turns = sum(cell.turns for cell in everything)
    reported = sum(cell.reported for cell in everything)
    prompt_tokens = sum(cell.prompt_tokens for cell in everything)
    cached_tokens = sum(cell.cached_tokens for cell in everything)
    cached = Cached(
        reported_turns=reported,
        unreported_turns=turns - reported,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        cached_ratio=ratio(cached_tokens, prompt_tokens),
    )
    shares, left = sorted(tally.first_calls), tally.left_s
    return Period(
        name=name,
        first_at=tally.first_at,
        last_at=tally.last_at,
        requests=tally.requests,
        turns=turns,
        outcomes=dict(tally.outcomes.most_common()),
        sizes=[*(_size(tally, each, size=each) for each in SIZE_CLASSES), _size(tally, "all")],
        cached=cached,
        ttft=[*(_waits(tally, each, temperature=each) for each in TEMPERATURES), _waits(tally, "all")],
        reuse=_reach(tally),
        causes=_causes(tally),
        first_calls=FirstCalls(
            conversations=len(shares),
            mean_ratio=ratio(math.fsum(shares), len(shares)),
            median_ratio=percentile(shares, 0.5),
        ),
        held=_held(tally),
        left=Left(
            requests=len(left),
            over_10_s=sum(each > LONG_WAITS_S[0] for each in left),
            over_30_s=sum(each > LONG_WAITS_S[1] for each in left),
        ),
        confined_turns=tally.confined,
    )


def cells(tally: PeriodTally, **kind: str) -> list[Cell]:
    """Those of one kind; what is not named may be any: `cells(tally, replica="glm-1", temperature="cold")`."""
    return [
        cell
        for key, cell in tally.cells.items()
        if all(getattr(Kind._make(key), name) == value for name, value in kind.items())
    ]


def _seconds(those: Iterable[Cell]) -> Iterator[float]:
    return chain.from_iterable(cell.ttft_s for cell in those)


def _size(tally: PeriodTally, name: str, **kind: str) -> SizeClass:
    by = {warmth: sum(cell.turns for cell in cells(tally, temperature=warmth, **kind)) for warmth in TEMPERATURES}
    ranked = sorted(_seconds(cells(tally, **kind)))
    over = [len(ranked) - bisect_right(ranked, limit) for limit in LONG_WAITS_S]
    return SizeClass(
        size_class=name,
        turns=sum(by.values()),
        **by,
        cold_ratio=ratio(by["cold"], sum(by[each] for each in JUDGED)),
        timed_turns=len(ranked),
        over_10_s=over[0],
        over_30_s=over[1],
        wait_s=math.fsum(ranked),
        cold_wait_s=math.fsum(_seconds(cells(tally, temperature="cold", **kind))),
    )


def _waits(tally: PeriodTally, name: str, **kind: str) -> Waits:
    ranked = sorted(_seconds(cells(tally, **kind)))
    return Waits(
        temperature=name,
        turns=len(ranked),
        p50_s=percentile(ranked, 0.5),
        p90_s=percentile(ranked, 0.9),
        p95_s=percentile(ranked, 0.95),
        p99_s=percentile(ranked, 0.99),
        most_s=ranked[-1] if ranked else None,
    )


def _reach(tally: PeriodTally) -> Reach:
    reuse = tally.reuse
    missed = reuse.lost_tokens + reuse.elsewhere_tokens + reuse.forgotten_tokens
    return Reach(
        turns=reuse.turns,
        prompt_tokens=reuse.prompt_tokens,
        reachable_tokens=reuse.reachable_tokens,
        reachable_ratio=ratio(reuse.reachable_tokens, reuse.prompt_tokens),
        cached_tokens=reuse.cached_tokens,
        cached_ratio=ratio(reuse.cached_tokens, reuse.prompt_tokens),
        achieved_ratio=ratio(reuse.cached_tokens, reuse.reachable_tokens),
        compared_turns=reuse.compared_turns,
        compared_reachable_tokens=reuse.compared_reachable_tokens,
        compared_cached_tokens=reuse.compared_reachable_tokens - missed,
        lost_tokens=reuse.lost_tokens,
        elsewhere_tokens=reuse.elsewhere_tokens,
        forgotten_tokens=reuse.forgotten_tokens,
        any_replica_ratio=ratio(
            reuse.compared_reachable_tokens - reuse.forgotten_tokens, reuse.compared_reachable_tokens
        ),
    )


def _causes(tally: PeriodTally) -> list[Cause]:
    found = []
    for cause in CAUSES:
        by_size = {size: tally.causes[cause, size] for size in SIZE_CLASSES}
        if turns := sum(by_size.values()):
            found.append(Cause(cause=cause, turns=turns, by_size=by_size, wait_s=tally.causes_s[cause]))
    return sorted(found, key=lambda each: -each.wait_s)


def _held(tally: PeriodTally) -> Held:
    ranked = sorted(tally.held_s)
    return Held(
        requests=len(ranked),
        total_s=math.fsum(ranked),
        p50_s=percentile(ranked, 0.5),
        p95_s=percentile(ranked, 0.95),
        most_s=ranked[-1] if ranked else None,
        over_30_s=sum(each > LONG_WAITS_S[1] for each in ranked),
        shed=tally.outcomes["shed"],
    )


def together(tally: Tally, pools: Mapping[str, int | None]) -> Together:
    """The minutes of long conversations.

    Args:
        tally: the counts.
        pools: token pools by replica, as far as they are known.
    """
    shared = same = overfull = most = 0
    where: str | None = None
    for alive in tally.minutes.values():
        if len(alive) < 2:
            continue
        shared += 1
        here: defaultdict[str, list[int]] = defaultdict(list)
        for replica, tokens in alive.values():
            here[replica].append(tokens)
        beside = {replica: sum(tokens) for replica, tokens in here.items() if len(tokens) > 1}
        same += bool(beside)
        overfull += any((pool := pools.get(each)) is not None and sum_ > pool for each, sum_ in beside.items())
        for replica, sum_ in beside.items():
            if sum_ > most:
                most, where = sum_, replica
    return Together(
        minutes=len(tally.minutes),
        shared_minutes=shared,
        same_replica_minutes=same,
        overfull_minutes=overfull if any(pool is not None for pool in pools.values()) else None,
        most_tokens=most,
        most_replica=where,
    )


def evictions(tally: Tally) -> list[Eviction]:
    """Who pushed out most, first."""
    turns: Counter[tuple[str, str]] = Counter()
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    victims: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for pushed, number in tally.pushed.items():
        key = pushed.by, pushed.cause
        turns[key] += number
        seconds[key] += tally.pushed_s[pushed]
        victims[key][pushed.victim] += number
    found = [
        Eviction(
            by=by,
            cause=cause,
            turns=number,
            long_turns=tally.pushed_long[by, cause],
            conversations=len(victims[by, cause].keys() - {by}),
            victims=dict(victims[by, cause].most_common(_MOST_VICTIMS)),
            wait_s=seconds[by, cause],
        )
        for (by, cause), number in turns.items()
    ]
    return sorted(found, key=lambda each: (-each.wait_s, -each.turns, each.by))[:_MOST_EVICTIONS]


def over_time(tally: Tally) -> list[Stretch]:
    """What changed with the time; stretches in which nothing came are left out."""
    return [
        Stretch(
            at=tally.first_at + number * tally.bucket_s,
            judged_turns=bucket.judged,
            cold=bucket.cold,
            cached_ratio=ratio(bucket.cached_tokens, bucket.prompt_tokens),
            over_10_s=bucket.waits,
        )
        for number, bucket in sorted(tally.buckets.items())
    ]


def most_telling(tally: Tally) -> str | None:
    """The conversation that waited longest for cold turns; without any, the one with most turns."""
    those = tally.conversations.items()
    key = max(those, key=lambda each: (each[1].cold_s, each[1].turns), default=None)
    return None if key is None else key[0]
