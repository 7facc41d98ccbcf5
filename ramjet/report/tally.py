"""Counts over the journal's rows, in one pass and little memory; no judgement but core's own.

Rows come as tuples, for there may be a million of them. A turn is an answered prompt, as in the metrics: outcome `ok` and
a prompt that could be read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from ramjet.core.causes import Clues
from ramjet.core.record import SIZE_CLASSES, Record, size_class, temperature
from ramjet.core.usage import Usage

LIVING_S = 300.0
"""A conversation is alive between two turns that are no further apart, as `routing.living_s` has it by default."""
LONG_WAITS_S = (10.0, 30.0)
"""The seed's waits."""
JUDGED = frozenset(("warm", "partial", "cold"))
"""Temperatures of turns of which it is known how much they reused."""
AT_FAULT = frozenset(("upstream_connect", "upstream_reset", "upstream_stall", "timeout_first_byte"))
"""Outcomes that are a replica's fault, by docs/metrics.md."""
BUCKETS = 120
_LEAST_BUCKET_S = 60.0
_MOST_POINTS = 1_500
_LONG = SIZE_CLASSES[-1]
_SMALL = SIZE_CLASSES[0]


class Seen(NamedTuple):
    """A row, as far as it is counted."""

    arrived_at: float
    id: int
    conversation: str | None
    turn: int | None
    replica: str | None
    reason: str | None
    outcome: str
    estimated_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    matched_tokens: int | None
    best_matched_tokens: int | None
    reusable_tokens: int | None
    ttft_s: float | None
    duration_s: float
    held_s: float
    confined_tokens: int
    clues: str | None


_arrived_at = itemgetter(Seen._fields.index("arrived_at"))
_outcome = itemgetter(Seen._fields.index("outcome"))
COLUMNS = Seen._fields[2:]
"""What is asked of the journal; when a request arrived, and its id, come with it."""


@dataclass(slots=True)
class Reuse:
    """Tokens of turns of which is known what was cached, and what could have been."""

    turns: int = 0
    prompt_tokens: int = 0
    reachable_tokens: int = 0
    """What a cache that forgets nothing would have had."""
    cached_tokens: int = 0
    compared_turns: int = 0
    """Of these, the turns of which is also known what the best replica was believed to hold: for the rest below."""
    compared_reachable_tokens: int = 0
    lost_tokens: int = 0
    """Believed to be at the replica where it went, and not there."""
    elsewhere_tokens: int = 0
    """Held by another replica alone."""
    forgotten_tokens: int = 0
    """Held by none any more."""

    def add(self, tokens: int, cached: int, reusable: int, matched: int | None, best: int | None) -> None:
        """Take in a turn: tokens of the prompt, cached, reusable, believed there, and believed at the best replica."""
        # Engines keep answers too, and what is counted in tokens here is estimated: what was there could be reached.
        # Written out, for calls of min and max would be a tenth of the whole pass.
        reachable = reusable if reusable < tokens else tokens
        reachable = reachable if reachable > cached else cached
        self.turns += 1
        self.prompt_tokens += tokens
        self.reachable_tokens += reachable
        self.cached_tokens += cached
        if matched is None or best is None:
            return
        self.compared_turns += 1
        self.compared_reachable_tokens += reachable
        here = matched if matched < reachable else reachable
        if here > cached:
            self.lost_tokens += here - cached
        else:
            here = cached
        anywhere = best if best < reachable else reachable
        if anywhere > here:
            self.elsewhere_tokens += anywhere - here
        else:
            anywhere = here
        if reachable > anywhere:
            self.forgotten_tokens += reachable - anywhere

    def merge(self, other: Reuse) -> None:
        """Take in what another has counted."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Cell:
    """Turns of one replica, size class and temperature."""

    turns: int = 0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    """Of those whose first token was seen."""
    reported: int = 0
    """Of so many it is known what was cached..."""
    prompt_tokens: int = 0
    """...and so long were their prompts."""
    cached_tokens: int = 0

    def merge(self, other: Cell) -> None:
        """Take in what another has counted."""
        self.turns += other.turns
        self.ttft_s.extend(other.ttft_s)
        self.reported += other.reported
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens


class Kind(NamedTuple):
    """What the turns of a cell have in common."""

    replica: str
    size: str
    temperature: str


@dataclass(slots=True)
class PeriodTally:
    """What is counted before a moment and after it."""

    first_at: float | None = None
    last_at: float | None = None
    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    cells: defaultdict[tuple[str, str, str], Cell] = field(default_factory=lambda: defaultdict(Cell))
    """Turns by what `Kind` names."""
    reuse: Reuse = field(default_factory=Reuse)
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Cold turns by cause and size class..."""
    causes_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """...and their seconds to the first token by cause."""
    first_calls: array[float] = field(default_factory=lambda: array("d"))
    """Of conversations whose first turn is there: the part of the first large prompt that came from the cache."""
    held_s: array[float] = field(default_factory=lambda: array("d"))
    left_s: array[float] = field(default_factory=lambda: array("d"))
    """How long clients waited that went away before the first token."""
    confined: int = 0

    def merge(self, other: PeriodTally) -> None:
        """Take in what came later."""
        self.first_at = other.first_at if self.first_at is None else self.first_at
        self.last_at = self.last_at if other.last_at is None else other.last_at
        self.requests += other.requests
        self.confined += other.confined
        self.outcomes += other.outcomes
        self.causes += other.causes
        self.reuse.merge(other.reuse)
        for kind, cell in other.cells.items():
            self.cells[kind].merge(cell)
        for cause, seconds in other.causes_s.items():
            self.causes_s[cause] += seconds
        self.first_calls.extend(other.first_calls)
        self.held_s.extend(other.held_s)
        self.left_s.extend(other.left_s)


@dataclass(slots=True)
class ConversationTally:
    """What is counted for one conversation, of its later turns."""

    turns: int = 0
    cold: int = 0
    cold_s: float = 0.0


@dataclass(slots=True)
class Bucket:
    """What is counted in one stretch of time."""

    judged: int = 0
    cold: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    waits: int = 0
    """Over 10 s."""


class Points:
    """A bounded number of points, evenly chosen from all that come: who brings them counts `came`, and keeps those due."""

    __slots__ = ("_every", "_most", "came", "due", "kept")

    def __init__(self, most: int = _MOST_POINTS) -> None:
        self.kept: list[tuple[int, float]] = []
        self.came = 0
        self.due = 1
        """The number of the next point that is kept."""
        self._most = most
        self._every = 1

    def keep(self, tokens: int, seconds: float) -> None:
        """Keep the point that has come."""
        self.kept.append((tokens, seconds))
        self.due += self._every
        if len(self.kept) == 2 * self._most:
            # This one goes too, so the next comes two steps after the last that stays.
            self.kept = self.kept[::2]
            self._every *= 2


@dataclass(frozen=True, slots=True)
class Pushed:
    """Who pushed out whom, and of which pool."""

    by: str
    victim: str
    cause: str


class Tally:
    """Everything that is counted.

    Args:
        first_at: when the first request arrived, seconds since 1970...
        last_at: ...and the last.
        split_at: where "before" ends and "after" begins; None for one period.
        clues: reads what was known of a cold turn.
    """

    def __init__(
        self, first_at: float, last_at: float, *, split_at: float | None, clues: Callable[[str], Clues | None]
    ) -> None:
        self._clues = clues
        self._split_at = split_at
        self.before = PeriodTally()
        self.after = PeriodTally()
        self.first_at = first_at
        self.bucket_s = max(_LEAST_BUCKET_S, (last_at - first_at) / BUCKETS)
        self.buckets: defaultdict[int, Bucket] = defaultdict(Bucket)
        self.failures: Counter[str] = Counter()
        """Requests that ended by a replica's fault."""
        self.conversations: defaultdict[str, ConversationTally] = defaultdict(ConversationTally)
        self.minutes: defaultdict[int, dict[str, tuple[str, int]]] = defaultdict(dict)
        """By minute since 1970: the long conversations that are alive, with their replicas and tokens."""
        self.pushed: Counter[Pushed] = Counter()
        self.pushed_s: defaultdict[Pushed, float] = defaultdict(float)
        self.pushed_long: Counter[tuple[str, str]] = Counter()
        """By who pushed them out and the pool: cold turns of long prompts."""
        self.moved: Counter[str] = Counter()
        """Cold turns that were moved, by the reason of the move."""
        self.points: defaultdict[str, Points] = defaultdict(Points)
        """Prompt tokens and TTFT by temperature."""
        self._awaiting: set[str] = set()
        """Conversations whose first large prompt is still to come."""
        self._long_until: dict[str, tuple[float, tuple[str, int]]] = {}
        """Until when each was last seen, with its replica and tokens then."""

    @property
    def whole(self) -> PeriodTally:
        """Both periods together."""
        if self._split_at is None:
            return self.before
        both = PeriodTally()
        both.merge(self.before)
        both.merge(self.after)
        return both

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Take in rows in the order of their arrival."""
        split = len(rows) if self._split_at is None else bisect_left(rows, self._split_at, key=_arrived_at)
        for period, those in ((self.before, rows[:split]), (self.after, rows[split:])):
            if those:
                self._add(period, those)

    def _add(self, period: PeriodTally, rows: Sequence[tuple[Any, ...]]) -> None:
        if period.first_at is None:
            period.first_at = _arrived_at(rows[0])
        period.last_at = _arrived_at(rows[-1])
        period.requests += len(rows)
        period.outcomes.update(map(_outcome, rows))
        # A million times: what every turn needs is done here, with names that are local, and the rest elsewhere.
        cells, reuse, held = period.cells, period.reuse, period.held_s
        buckets, bucket_s, first_at = self.buckets, self.bucket_s, self.first_at
        conversations, awaiting, points = self.conversations, self._awaiting, self.points
        for row in rows:
            (
                at, _, conversation, turn, replica, _, outcome, estimated_tokens, prompt_tokens, cached, matched, best,
                reusable, ttft_s, _, held_s, confined, _,
            ) = row  # fmt: skip
            if held_s:
                held.append(held_s)
            if outcome != "ok" or turn is None:
                self._unanswered(period, Seen._make(row))
                continue
            tokens = estimated_tokens if prompt_tokens is None else prompt_tokens
            size, warmth = size_class(tokens), temperature(turn, cached, reusable)
            cell, bucket = cells[replica or "", size, warmth], buckets[int((at - first_at) / bucket_s)]
            cell.turns += 1
            if ttft_s is not None:
                cell.ttft_s.append(ttft_s)
                bucket.waits += ttft_s > LONG_WAITS_S[0]
                some = points[warmth]
                some.came += 1
                if some.came == some.due:
                    some.keep(tokens, ttft_s)
            if cached is not None:
                cell.reported += 1
                cell.prompt_tokens += tokens
                cell.cached_tokens += cached
                bucket.prompt_tokens += tokens
                bucket.cached_tokens += cached
                reuse.add(tokens, cached, reusable or 0, matched, best)
            bucket.judged += warmth in JUDGED
            if turn != 1:
                conversations[conversation].turns += 1
            if turn == 1 or size == _LONG or warmth == "cold" or confined or conversation in awaiting:
                self._special(period, Seen._make(row), tokens, warmth)

    def _unanswered(self, period: PeriodTally, seen: Seen) -> None:
        """A request that is no turn."""
        if seen.outcome == "client_disconnect" and seen.ttft_s is None and seen.turn is not None:
            period.left_s.append(seen.duration_s)
        elif seen.outcome in AT_FAULT and seen.replica is not None:
            self.failures[seen.replica] += 1

    def _special(self, period: PeriodTally, seen: Seen, tokens: int, warmth: str) -> None:
        """A turn that is a conversation's first, long, cold, confined, or perhaps the first large one."""
        conversation, size = seen.conversation, size_class(tokens)
        assert conversation is not None
        if seen.turn == 1:
            self._awaiting.add(conversation)
        if size != _SMALL and conversation in self._awaiting:
            self._awaiting.discard(conversation)
            if seen.cached_tokens is not None and tokens:
                period.first_calls.append(min(1.0, seen.cached_tokens / tokens))
        if size == _LONG:
            self._long(conversation, seen, tokens)
        if seen.confined_tokens:
            period.confined += 1
        if warmth == "cold":
            self.buckets[int((seen.arrived_at - self.first_at) / self.bucket_s)].cold += 1
            self._cold(conversation, seen, period, size)

    def _long(self, conversation: str, seen: Seen, tokens: int) -> None:
        at, ends = seen.arrived_at, seen.arrived_at + seen.duration_s
        here = seen.replica or "", tokens
        before = self._long_until.get(conversation)
        if before is not None:
            until, there = before
            if at - until <= LIVING_S:
                # Until it comes back it lives where it was.
                for minute in range(int(until // 60), int(at // 60)):
                    self.minutes[minute][conversation] = there
            ends = max(ends, until)
        self._long_until[conversation] = ends, here
        for minute in range(int(at // 60), int(ends // 60) + 1):
            self.minutes[minute][conversation] = here

    def _cold(self, conversation: str, seen: Seen, period: PeriodTally, size: str) -> None:
        record = Record(
            request_id="",
            endpoint="",
            turn=seen.turn,
            reusable_tokens=seen.reusable_tokens,
            usage=Usage(cached_tokens=seen.cached_tokens),
            clues=None if seen.clues is None else self._clues(seen.clues),
        )
        cause, evidence = record.cold_cause, record.cold_evidence
        assert cause is not None
        assert evidence is not None
        seconds = seen.ttft_s or 0.0
        period.causes[cause, size] += 1
        period.causes_s[cause] += seconds
        if cause == "moved":
            self.moved[seen.reason or "unknown"] += 1
        mine = self.conversations[conversation]
        mine.cold += 1
        mine.cold_s += seconds
        by = evidence["pushed_out_by"]
        if by is not None:
            pushed = Pushed(str(by), conversation, cause)
            self.pushed[pushed] += 1
            self.pushed_s[pushed] += seconds
            if size == _LONG:
                self.pushed_long[str(by), cause] += 1
