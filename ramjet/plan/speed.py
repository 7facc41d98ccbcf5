"""How fast the replicas were, fitted to what a journal says of them: reading, overhead, decoding.

Reading is told by first tokens: since a prompt came, or, where others were read before it, since the last of those had
been. What others' answers took of that time is told with it. Decoding is told by answers during which nobody was read.
What the fleet has in common is fitted over all of it; what one replica is slower or faster by is one factor, the middle of
its own readings.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ramjet.core.record import Record
from ramjet.plan.least import robust
from ramjet.plan.span import Asked, Span
from ramjet.sim.profile import Timing

LEAST_READINGS = 5
"""With fewer first tokens than this the speeds are mostly those that were assumed."""
_LEAST_WAIT_S = 0.05
"""Shorter waits count as if they were so long: what they differ by is noise."""
_LEAST_ANSWER = 16
"""Shorter answers, in tokens, say more of HTTP than of decoding."""
_AT_TOKENS, _LEAST_READ = (1_000, 20_000, 100_000, 300_000), 256
"""For prompts of these lengths, read whole and but for so many tokens, what was assumed is a belief..."""
_AT_RUNNING = (1, 8)
"""...and so it is for so many answers at a time."""
_LEAST_BEHIND = 4_096
"""Of those that waited behind others only prompts with so much to read tell something: short ones share a forward."""
_MOST_RUNNING = 3
"""And where more were at the replica, it may have waited for a place and not for the reading."""
_MOST_SHARE = 0.9
"""What answers can get of the time, at most."""


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
    offs = [abs(each.took_s / _told_s(timing, each) - 1) for each in everything if not each.behind]
    return Speed(
        timing=timing,
        paces={replica: pace for replica, those in readings.items() if (pace := _pace(those, timing)) is not None},
        readings=len(everything),
        decodings=len(decodings),
        off_ratio=median(offs) if offs else None,
    )


_MOST_BESIDE = 200
"""How many neighbours are looked at on each side; who is further away has left, or has not come."""


def _beside(stays: Sequence[_Stay], place: int, start_s: float, end_s: float) -> list[_Stay]:
    """The others that were at the replica in a span of time."""
    near = [*stays[max(0, place - _MOST_BESIDE) : place], *stays[place + 1 : place + _MOST_BESIDE]]
    return [other for other in near if other.placed_s < end_s and other.ended_s > start_s]


def _record(stay: _Stay) -> Record:
    assert stay.asked.seen is not None
    return stay.asked.seen


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


@dataclass(frozen=True, slots=True)
class _Reading:
    """A prompt that was read, and what that took."""

    start: int
    """From this token..."""
    end: int
    """...to this one."""
    took_s: float
    """Until its first token: since it came, or, where others were read before it, since the last of those had been."""
    behind: bool
    """Whether others were: then it had reached the queue meanwhile."""
    beside_s: float
    """For how much of that time others were being answered."""


def _readings(stays: Sequence[_Stay]) -> list[_Reading]:
    """What one replica's first tokens tell. Engines read prompts one after the other, in the order in which they came."""
    reports = any(_record(each).usage.cached_tokens is not None for each in stays)
    found: list[_Reading] = []
    read_until = -math.inf
    for place, each in enumerate(stays):
        behind = read_until > each.placed_s
        start_s = max(each.placed_s, read_until)
        read_until = max(read_until, each.ended_s if each.read_s is None else each.read_s)
        record, end = _record(each), each.asked.prompt_tokens
        # Who reports what it reused and says nothing of a prompt reused nothing of it: SGLang leaves out a 0.
        cached = 0 if record.usage.cached_tokens is None and reports else record.usage.cached_tokens
        is_plain = record.attempts <= 1 and not record.slices and record.usage.prompt_tokens is not None
        if each.read_s is None or cached is None or not is_plain or cached > end or each.read_s <= start_s:
            continue
        others = _beside(stays, place, start_s, each.read_s)
        if behind and (end - cached < _LEAST_BEHIND or len(others) > _MOST_RUNNING):
            # Short prompts share a forward, and where many run it may have waited for a place.
            continue
        beside_s = _union_s(
            [(max(start_s, _first_s(other)), min(each.read_s, other.ended_s)) for other in others if other is not each]
        )
        found.append(_Reading(cached, end, each.read_s - start_s, behind, beside_s))
    return found


def _first_s(stay: _Stay) -> float:
    return stay.ended_s if stay.read_s is None else stay.read_s


def _union_s(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that are in at least one of them."""
    total, until = 0.0, -math.inf
    for start_s, end_s in sorted(spans):
        total += max(0.0, end_s - max(start_s, until))
        until = max(until, end_s)
    return total


def _told_s(timing: Timing, each: _Reading) -> float:
    """What a reading should have taken."""
    before_s = 0.0 if each.behind else timing.before_s(each.end)
    return before_s + timing.read_s(each.start, each.end) + timing.decode_share * each.beside_s


def _fit_reading(readings: Sequence[_Reading], assumed: Timing) -> Timing:
    """The two numbers of overhead, the two of reading, and what answers take of the time."""
    alone = [each for each in readings if not each.behind] or readings
    factor = median(each.took_s / _told_s(assumed, each) for each in alone)
    believed = []
    for tokens in _AT_TOKENS:
        for start in (0, tokens - _LEAST_READ):
            took_s = factor * (assumed.before_s(tokens) + assumed.read_s(start, tokens))
            believed.append(_Reading(start, tokens, took_s, behind=False, beside_s=0.0))
        took_s = factor * assumed.read_s(0, tokens) / (1 - assumed.decode_share)
        believed.append(_Reading(0, tokens, took_s, behind=True, beside_s=took_s))
    solved = robust(
        [(_terms(each), each.took_s) for each in readings],
        [(_terms(each), each.took_s) for each in believed],
        least=_LEAST_WAIT_S,
    )
    overhead_s, overhead_token_s, read_token_s, read_squared_s, decode_share = solved
    return replace(
        assumed,
        overhead_s=overhead_s,
        overhead_token_s=overhead_token_s,
        read_token_s=read_token_s,
        read_squared_s=read_squared_s,
        decode_share=min(_MOST_SHARE, decode_share),
    )


def _terms(each: _Reading) -> tuple[float, ...]:
    arrives = 0.0 if each.behind else 1.0
    tokens, squared = each.end - each.start, each.end * each.end - each.start * each.start
    return arrives, arrives * each.end, float(tokens), float(squared), each.beside_s


def _pace(readings: Sequence[_Reading], timing: Timing) -> float | None:
    """How much longer one replica takes; None where it was seen too seldom to say."""
    ratios = []
    for each in readings:
        read_s = timing.read_s(each.start, each.end)
        beside_s = _told_s(timing, each) - read_s
        if read_s > beside_s:
            ratios.append(max(0.0, each.took_s - beside_s) / read_s)
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
        record = _record(each)
        tokens = record.usage.completion_tokens or 0
        if each.read_s is None or tokens < _LEAST_ANSWER or record.outcome != "ok":
            continue
        took_s = each.ended_s - each.read_s
        if took_s <= 0:
            continue
        written_s = read_s = 0.0
        for other in _beside(stays, place, each.read_s, each.ended_s):
            first_s = other.ended_s if other.read_s is None else other.read_s
            read_s += _overlap(other.placed_s, first_s, each)
            written_s += _overlap(first_s, other.ended_s, each)
        if read_s <= 0.05 * took_s:
            found.append((1 + written_s / took_s, took_s / (tokens - 1)))
    return found


def _overlap(start_s: float, end_s: float, answer: _Stay) -> float:
    assert answer.read_s is not None
    return max(0.0, min(end_s, answer.ended_s) - max(start_s, answer.read_s))


def _fit_decoding(decodings: Sequence[_Decoding], assumed: Timing) -> Timing:
    factor = median(each_s / (assumed.step_s + assumed.step_request_s * running) for running, each_s in decodings)
    solved = robust(
        [((1.0, running), each_s) for running, each_s in decodings],
        [((1.0, float(at)), factor * assumed.steps_s(at)) for at in _AT_RUNNING],
        least=1e-4,
    )
    return replace(assumed, step_s=max(1e-5, solved[0]), step_request_s=solved[1])
