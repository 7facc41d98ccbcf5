"""What was asked in a span of time, as values that can be played again: prompts in tokens, and who waited for whom.

A client sends its next turn when it has the answer to the last one. So what is kept of a turn is the gap since the end
of the answer that it waited for; only what waited for nothing keeps its time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramjet.core.cache import Blocks
from ramjet.core.fingerprint import Chain
from ramjet.core.fleet import whole_name
from ramjet.core.lengths import TokenRatios
from ramjet.core.record import Record
from ramjet.core.visit import Arrival

SLACK_S = 0.02
"""An answer that ended so shortly after a turn's arrival had ended before: both times are taken by two clocks."""
SLACK_TOKENS = 1_024
"""What is found beyond what was sent before, within this, is an error of the estimate."""
_LEAST_BYTES, _MOST_BYTES = 0.5, 32.0
"""Bytes a token; outside of this a count is wrong, or belongs to something else."""
_PLAYED = frozenset({"ok", "client_disconnect", "client_stall", "upstream_reset", "stream_error_event", "shutdown"})
"""Outcomes of requests of which a replica has read the prompt, if anything has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request."""

    name: str
    at_s: float
    """When it came, from the span's beginning; what is played keeps it where nothing is before it."""
    after: int | None = None
    """The request that it waited for, by its place in the span..."""
    gap_s: float = 0.0
    """...and how long after the end of that one's answer it came."""
    prompt_tokens: int
    answer_tokens: int
    blocks: Blocks
    """The prompt's blocks, with their ends in tokens. Equal hashes are equal prefixes, in all of the span."""
    arrival: Arrival | None = None
    """As Ramjet had it; None in a trace, where blocks are all there is."""
    seen: Record | None = None
    """What became of it; None in a trace."""
    counts: bool = True
    """Whether it is measured. What found, or was believed to have, something from before the span is only played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Everything that was asked, in the order of arrival."""

    name: str
    requests: Sequence[Asked]
    replicas: Sequence[str] = ()
    """Those that served it; none in a trace."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Requests that cannot be played, by reason."""
    guessed: Mapping[str, int] = field(default_factory=dict)
    """Requests of which something was guessed, by what."""
    fresh_answers: bool = False
    """Whether clients send answers back in another form than they got them, so that nothing of them is reused."""
    dropped: int = 0
    """Requests that the journal lost, ever."""
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What Ramjet knew of each replica, by `setup.FACTS`; nothing where that was not kept."""

    @property
    def observed(self) -> bool:
        """Whether it is known what became of it."""
        return bool(self.requests) and self.requests[0].seen is not None


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished request, as a journal tells it."""

    arrived_at: float
    """Seconds since 1970, UTC."""
    record: Record
    arrival: Arrival


def span_of(
    entries: Iterable[Entry],
    *,
    name: str = "journal",
    since: float | None = None,
    dropped: int = 0,
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> Span:
    """Make a span of a journal's requests.

    Args:
        entries: in the order of arrival.
        name: what it is called.
        since: what arrived before is played, to fill the caches, and not measured; None: nothing did.
        dropped: requests that the journal lost.
        known: what Ramjet knew of each replica.
    """
    entries = list(entries)
    left_out: Counter[str] = Counter(reason for each in entries if (reason := _unplayable(each)) is not None)
    played = [each for each in entries if _unplayable(each) is None]
    guessed: Counter[str] = Counter()
    answers = _Answers([each.record for each in played])
    ends = _Ends(played)
    waits, found = _Waits(), _Found()
    requests = []
    began_at = played[0].arrived_at if played else 0.0
    for place, each in enumerate(played):
        record, prompt = each.record, each.arrival.fingerprint
        assert prompt is not None
        prompt_tokens = record.usage.prompt_tokens
        if not prompt_tokens:
            prompt_tokens = max(1, record.estimated_tokens)
            guessed["prompt_tokens"] += 1
        answer_tokens, is_known = answers.tokens(record)
        guessed["completion_tokens"] += not is_known
        blocks = ends.blocks(prompt.usable, prompt_tokens)
        after, gap_s = waits.before(place, each.arrived_at, record)
        is_whole = found.all(blocks, record, after)
        if not is_whole:
            guessed["began_before"] += 1
        requests.append(
            Asked(
                name=record.request_id,
                at_s=each.arrived_at - began_at,
                after=after,
                gap_s=gap_s,
                prompt_tokens=prompt_tokens,
                answer_tokens=answer_tokens,
                blocks=blocks,
                arrival=each.arrival,
                seen=record,
                counts=is_whole and (since is None or each.arrived_at >= since),
            )
        )
    return Span(
        name=name,
        requests=requests,
        replicas=_replicas({each.record.replica for each in played if each.record.replica} | {*(known or {})}),
        left_out=dict(left_out),
        guessed={what: count for what, count in guessed.items() if count},
        fresh_answers=_fresh_answers(requests),
        dropped=dropped,
        known=known or {},
    )


def _unplayable(each: Entry) -> str | None:
    """Why a request cannot be played; None: it can."""
    record, prompt = each.record, each.arrival.fingerprint
    if record.replica is None or record.outcome not in _PLAYED:
        return "not served"
    if record.outcome != "ok" and record.ttft_s is None:
        return "broken off before its first token"
    if prompt is None or not prompt.usable.hashes:
        return "no blocks"
    return None


class _Answers:
    """How long answers were, known or guessed."""

    def __init__(self, records: Sequence[Record]) -> None:
        known = sorted(each.usage.completion_tokens for each in records if each.usage.completion_tokens)
        self._typical = known[len(known) // 2] if known else 1
        paces = sorted(
            (each.duration_s - each.ttft_s) / (each.usage.completion_tokens - 1)
            for each in records
            if each.ttft_s is not None and each.usage.completion_tokens and each.usage.completion_tokens > 1
        )
        self._step_s = paces[len(paces) // 2] if paces else 0.0

    def tokens(self, record: Record) -> tuple[int, bool]:
        """Of one request, and whether the engine said so."""
        known = record.usage.completion_tokens
        if known is not None:
            return max(1, known), True
        if record.ttft_s is not None and self._step_s > 0:
            return 1 + round((record.duration_s - record.ttft_s) / self._step_s), False
        return self._typical, False


class _Ends:
    """Where blocks end in tokens. A block ends at the same token in all prompts that have it.

    What the engine counted for a prompt is spread over its new blocks by their bytes; what is known keeps its place.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._ends: dict[int, int] = {}
        sizes = [
            (each.arrival.fingerprint.usable.size_bytes, each.record.usage.prompt_tokens)
            for each in entries
            if each.arrival.fingerprint is not None and each.record.usage.prompt_tokens
        ]
        in_all = sum(tokens for _, tokens in sizes)
        self._bytes_per_token = sum(size for size, _ in sizes) / in_all if in_all else TokenRatios.DEFAULT

    def blocks(self, chain: Chain, prompt_tokens: int) -> Blocks:
        """A prompt's blocks with their ends in tokens."""
        known = self._known(chain)
        at_bytes, at_tokens = (chain.ends[known - 1], self._ends[chain.hashes[known - 1]]) if known else (0, 0)
        left_bytes, left_tokens = chain.size_bytes - at_bytes, prompt_tokens - at_tokens
        per_token = left_bytes / left_tokens if left_tokens > 0 else 0.0
        if not _LEAST_BYTES <= per_token <= _MOST_BYTES:
            per_token = self._bytes_per_token
        for block, end in zip(chain.hashes[known:], chain.ends[known:], strict=True):
            self._ends[block] = at_tokens + int((end - at_bytes) / per_token)
        return Blocks(chain.hashes, array("I", (self._ends[block] for block in chain.hashes)))

    def _known(self, chain: Chain) -> int:
        """How many of its blocks an earlier prompt had: what comes before a known one is known."""
        return bisect_left(range(len(chain)), 1, key=lambda at: chain.hashes[at] not in self._ends)


class _Waits:
    """Which answer each turn waited for: the last one of its conversation to end before it came."""

    def __init__(self) -> None:
        self._ended: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)

    def before(self, place: int, arrived_at: float, record: Record) -> tuple[int | None, float]:
        """The request that this one waited for, and how long after its end it came."""
        if record.conversation is None:
            return None, 0.0
        ended = self._ended[record.conversation]
        last = bisect_right(ended, (arrived_at + SLACK_S, place)) - 1
        insort(ended, (arrived_at + record.duration_s, place))
        if last < 0:
            return None, 0.0
        at, before = ended[last]
        return before, max(0.0, arrived_at - at)


class _Found:
    """Whether what a request found, or could have, was sent in this span."""

    def __init__(self) -> None:
        self._sent: set[int] = set()

    def all(self, blocks: Blocks, record: Record, after: int | None) -> bool:
        """Take a prompt in; whether everything that was found of it is from this span."""
        shared = bisect_left(range(len(blocks)), 1, key=lambda at: blocks.hashes[at] not in self._sent)
        known = blocks.tokens(shared)
        # An answer that came back is no block of the prompt that it answered; it is one of this prompt's own.
        follows = after is not None and shared > 0
        self._sent.update(blocks.hashes[shared:])
        cached = record.usage.cached_tokens
        if cached is not None and cached > known + SLACK_TOKENS and not follows:
            return False
        return record.turn is None or record.turn == 1 or after is not None or shared > 0


def _fresh_answers(requests: Sequence[Asked]) -> bool:
    """Whether answers long enough to be found again were not, in most of the turns that found all of the prompt before."""
    found = missed = 0
    for each in requests:
        before = None if each.after is None else requests[each.after]
        cached = None if each.seen is None else each.seen.usage.cached_tokens
        if before is None or cached is None or before.answer_tokens < 2 * 256:
            continue
        if cached >= before.prompt_tokens + 256:
            found += 1
        elif cached >= 0.95 * before.prompt_tokens:
            missed += 1
    return missed > found and missed >= 5


def _replicas(names: set[str]) -> list[str]:
    """The replicas that there were; one that turned out to have ranks is those."""
    return sorted(names - {whole for name in names if (whole := whole_name(name)) != name})
