"""How fast the replicas were, fitted to what a journal says of them: reading, overhead, decoding.

Reading is told by the first tokens of prompts before which nobody was at their replica, decoding by the rest of answers
during which nobody was read. What the fleet has in common is fitted over all of it; what one replica is slower or faster
by is one factor, the middle of its own readings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ramjet.plan.span import Asked, Span
from ramjet.sim.profile import Timing

LEAST_READINGS = 5
"""With fewer first tokens than this the speeds are mostly those that were assumed."""
_LEAST_WAIT_S = 0.05
_LEAST_ANSWER = 16
_ROUNDS = 4
_BELIEF = 0.01
"""What was assumed counts like so many readings each: where nothing was seen of long prompts, something must be said."""
_AT_TOKENS = (1_000, 20_000, 100_000, 300_000)
_LEAST_READ = 256
_AT_RUNNING = (1, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What was fitted."""

    timing: Timing = field(default_factory=Timing)
    """Of the fleet."""
    paces: Mapping[str, float] = field(default_factory=dict)
    """How much longer each replica takes to read than that; 1 for those that are not named."""
    readings: int = 0
    """First tokens that it was told from."""
    decodings: int = 0
    """Answers that it was told from."""
    off_ratio: float | None = None
    """By how much the middle one of those first tokens is off, as a share of it; None where there were none."""

    def of(self, replica: str) -> Timing:
        """One replica's."""
        pace, timing = self.paces.get(replica, 1.0), self.timing
        return replace(timing, read_token_s=pace * timing.read_token_s, read_squared_s=pace * timing.read_squared_s)


@dataclass(frozen=True, slots=True)
class _Stay:
    """A request at its replica; times in seconds from the span's beginning."""

    asked: Asked
    placed_s: float
    read_s: float | None
    """When its first token came; None where nobody saw that."""
    ended_s: float


def fit(span: Span, assumed: Timing | None = None) -> Speed:
    """Fit what a span says to a simulated replica's timing.

    Args:
        span: of a journal; a trace says nothing, and what is assumed stays.
        assumed: what is true where nothing was seen.
    """
    timing = assumed or Timing()
    stays: defaultdict[str, list[_Stay]] = defaultdict(list)
    for each in span.requests:
        if each.seen is not None and each.seen.replica is not None:
            stays[each.seen.replica].append(_stay(each))
    for those in stays.values():
        those.sort(key=lambda stay: stay.placed_s)
    readings = {replica: _readings(those) for replica, those in stays.items()}
    everything = [each for those in readings.values() for each in those]
    if everything:
        timing = _fit_reading(everything, timing)
    decodings = [each for those in stays.values() for each in _decodings(those)]
    if decodings:
        timing = _fit_decoding(decodings, timing)
    offs = [abs(waited_s / _waits_s(timing, start, end) - 1) for start, end, waited_s in everything]
    return Speed(
        timing=timing,
        paces={replica: pace for replica, those in readings.items() if (pace := _pace(those, timing)) is not None},
        readings=len(everything),
        decodings=len(decodings),
        off_ratio=median(offs) if offs else None,
    )


def _stay(asked: Asked) -> _Stay:
    record = asked.seen
    assert record is not None
    return _Stay(
        asked,
        asked.at_s + record.held_s,
        None if record.ttft_s is None else asked.at_s + record.ttft_s,
        asked.at_s + record.duration_s,
    )


# -- reading --------------------------------------------------------------------------------------------------------

_Reading = tuple[int, int, float]
"""From which token to which, and how long until the first of the answer."""


def _readings(stays: Sequence[_Stay]) -> list[_Reading]:
    """Those before which nobody was at the replica."""
    found, busy_until = [], 0.0
    for each in stays:
        record = each.asked.seen
        assert record is not None
        cached = record.usage.cached_tokens
        is_plain = record.attempts <= 1 and not record.slices and record.usage.prompt_tokens is not None
        if busy_until <= each.placed_s and each.read_s is not None and cached is not None and is_plain:
            waited_s = each.read_s - each.placed_s
            if waited_s > 0 and cached <= each.asked.prompt_tokens:
                found.append((cached, each.asked.prompt_tokens, waited_s))
        busy_until = max(busy_until, each.ended_s)
    return found


def _waits_s(timing: Timing, start: int, end: int) -> float:
    return timing.before_s(end) + timing.read_s(start, end)


def _fit_reading(readings: Sequence[_Reading], assumed: Timing) -> Timing:
    """The two numbers of overhead and the two of reading."""
    factor = median(waited_s / _waits_s(assumed, start, end) for start, end, waited_s in readings)
    believed = [
        (start, tokens, factor * _waits_s(assumed, start, tokens))
        for tokens in _AT_TOKENS
        for start in (0, tokens - _LEAST_READ)
    ]
    solved = _robust(
        [(_terms(start, end), waited_s) for start, end, waited_s in readings],
        [(_terms(start, end), waited_s) for start, end, waited_s in believed],
    )
    overhead_s, overhead_token_s, read_token_s, read_squared_s = solved
    return replace(
        assumed,
        overhead_s=overhead_s,
        overhead_token_s=overhead_token_s,
        read_token_s=read_token_s,
        read_squared_s=read_squared_s,
    )


def _terms(start: int, end: int) -> tuple[float, ...]:
    return 1.0, float(end), float(end - start), float(end * end - start * start)


def _pace(readings: Sequence[_Reading], timing: Timing) -> float | None:
    """How much longer one replica takes; None where it was seen too seldom to say."""
    ratios = [
        max(0.0, waited_s - timing.before_s(end)) / read_s
        for start, end, waited_s in readings
        if (read_s := timing.read_s(start, end)) > timing.before_s(end)
    ]
    if len(ratios) < LEAST_READINGS:
        return None
    return min(100.0, max(0.01, median(ratios)))


# -- decoding -------------------------------------------------------------------------------------------------------

_Decoding = tuple[float, float]
"""How many answers there were on average, and seconds a token."""


def _decodings(stays: Sequence[_Stay]) -> list[_Decoding]:
    """Those of answers during which hardly anybody was read."""
    found = []
    for place, each in enumerate(stays):
        record = each.asked.seen
        assert record is not None
        tokens = record.usage.completion_tokens or 0
        if each.read_s is None or tokens < _LEAST_ANSWER or record.outcome != "ok":
            continue
        took_s = each.ended_s - each.read_s
        if took_s <= 0:
            continue
        written_s = read_s = 0.0
        for other in _beside(stays, place):
            first_s = other.ended_s if other.read_s is None else other.read_s
            read_s += _overlap(other.placed_s, first_s, each)
            written_s += _overlap(first_s, other.ended_s, each)
        if read_s <= 0.05 * took_s:
            found.append((1 + written_s / took_s, took_s / (tokens - 1)))
    return found


_MOST_BESIDE = 200
"""How many neighbours are looked at on each side; who is further away has left, or has not come."""


def _beside(stays: Sequence[_Stay], place: int) -> list[_Stay]:
    each = stays[place]
    near = [*stays[max(0, place - _MOST_BESIDE) : place], *stays[place + 1 : place + _MOST_BESIDE]]
    return [other for other in near if other.placed_s < each.ended_s and other.ended_s > (each.read_s or 0.0)]


def _overlap(start_s: float, end_s: float, answer: _Stay) -> float:
    assert answer.read_s is not None
    return max(0.0, min(end_s, answer.ended_s) - max(start_s, answer.read_s))


def _fit_decoding(decodings: Sequence[_Decoding], assumed: Timing) -> Timing:
    factor = median(each_s / (assumed.step_s + assumed.step_request_s * running) for running, each_s in decodings)
    solved = _robust(
        [((1.0, running), each_s) for running, each_s in decodings],
        [((1.0, float(at)), factor * assumed.steps_s(at)) for at in _AT_RUNNING],
        least=1e-4,
    )
    return replace(assumed, step_s=max(1e-5, solved[0]), step_request_s=solved[1])


# -- least squares ----------------------------------------------------------------------------------------------------

_Sample = tuple[tuple[float, ...], float]


def _robust(samples: Sequence[_Sample], believed: Sequence[_Sample], *, least: float = _LEAST_WAIT_S) -> list[float]:
    """Coefficients, none below 0, for which sums of terms are nearest to what was seen.

    A square counts by what was seen: between shares, where the noise of short waits would tell how fast long prompts are
    read, and seconds, where a few long ones would be all there is.
    What is far off is left out in the next round: a reading beside somebody that nobody knew of, a restart.
    """
    kept, solved = samples, [0.0]
    for _ in range(_ROUNDS):
        solved = _not_negative([*((each, 1.0) for each in kept), *((each, _BELIEF) for each in believed)], least)
        offs = [abs(_sum(solved, terms) - seen) / max(seen, least) for terms, seen in samples]
        most = max(0.05, 3 * median(offs))
        kept = [each for each, off in zip(samples, offs, strict=True) if off <= most]
    return solved


def _not_negative(weighted: Sequence[tuple[_Sample, float]], least: float) -> list[float]:
    """Weighted least squares; a coefficient that comes out negative is left out, the most negative first."""
    used = list(range(len(weighted[0][0][0])))
    # Each term in units of its largest, or the squares of tokens would drown the rest.
    units = [max(abs(terms[at]) for (terms, _), _ in weighted) or 1.0 for at in used]
    solved = [0.0] * len(used)
    while used:
        matrix = [[0.0] * len(used) for _ in used]
        right = [0.0] * len(used)
        for (terms, seen), weight in weighted:
            share = weight / max(seen, least)
            row = [terms[at] / units[at] for at in used]
            for i, one in enumerate(row):
                right[i] += share * one * seen
                for j, other in enumerate(row):
                    matrix[i][j] += share * one * other
        found = _solved(matrix, right)
        if min(found) >= 0:
            for at, value in zip(used, found, strict=True):
                solved[at] = value / units[at]
            break
        del used[found.index(min(found))]
    return solved


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with pivots; a row that says nothing gives 0."""
    size = len(right)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        right[column], right[pivot] = right[pivot], right[column]
        if abs(matrix[column][column]) < 1e-12:
            continue
        for row in range(column + 1, size):
            factor = matrix[row][column] / matrix[column][column]
            right[row] -= factor * right[column]
            for at in range(column, size):
                matrix[row][at] -= factor * matrix[column][at]
    found = [0.0] * size
    for row in reversed(range(size)):
        rest = right[row] - sum(matrix[row][at] * found[at] for at in range(row + 1, size))
        found[row] = rest / matrix[row][row] if abs(matrix[row][row]) >= 1e-12 else 0.0
    return found


def _sum(solved: Sequence[float], terms: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(solved, terms, strict=True))
