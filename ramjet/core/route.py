"""Choose a replica for one request.

A plain function of its arguments: no clock, no socket, no log. `decide` returns its whole working, because the log, the
page and the planner all ask "why there?". Every cost is in seconds of waiting, so that an operator can hold it against
a measured TTFT; there are no weights.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress, repeat
from operator import attrgetter
from typing import Protocol

import xxhash
from msgspec import Struct, field

TIE_S = 0.05
TIE_RATIO = 0.05
"""Costs closer than the larger of these are a tie: the estimates behind them are no better than that."""

_IDENTITY, _TOTAL = attrgetter("identity"), attrgetter("total_s")
_NAME = attrgetter("name")

REASONS = (
    "affinity",  # the replica that holds most of the prompt
    "load",  # another holds more, but waiting there would take longer
    "new",  # nobody holds any of it
    "no_prompt",  # no prompt could be read from the request
    "only",  # no other replica may serve it
    "retry",  # the first choice failed
    "fail_open",  # no replica is up: trying beats refusing
    "long_prompt",
    "long_prompt_spill",
    "spread_long",
    "room",  # the cheapest has no room for it now
)
"""Every reason a decision can have; also the values of the metric's label."""


class Ask(Struct, frozen=True, kw_only=True):
    """One request as routing sees it."""

    body_bytes: int
    prompt_tokens: int
    """An estimate until the engine has said it."""
    model: str | None = None
    has_prompt: bool = True
    """False where no prompt could be read: nothing is known to match, `prompt_tokens` comes from the body's size."""
    conversation: int = 0
    """What two routers agree on without talking: the hash of the prompt up to the end of its first user message."""
    home: str | None = None
    """The replica that served the conversation's last turn; None for a conversation never seen."""
    in_parallel: bool = False
    """Whether a turn of the same conversation is under way, or it leaves one: calls in parallel may be many."""
    shared: Sequence[tuple[int, int]] = ()
    """The prompt cut where the number of living conversations that share it changes: (end in tokens, conversations)."""


class Candidate(Struct, frozen=True, gc=False):
    """One replica as this request sees it."""

    replica: str
    identity: str
    """What is the same for every router: the replica's URL, and its rank."""
    matched_tokens: int = 0
    """Prompt tokens we believe it can reuse; a belief, not a fact."""
    own_tokens: int = 0
    """The part of those that only this conversation uses."""
    in_flight: int = 0
    queue_s: float = 0.0
    """Seconds of reading sent there and not finished."""
    living: int = 0
    """Living conversations whose home it is."""
    long_tokens: int = 0
    """Tokens of other living long conversations whose home it is."""
    pool_tokens: int | None = None
    """Its token pool; None when unknown."""
    pace: float = 1.0
    """How many times as long as expected it takes to read."""
    read_s: float = 0.0
    """Seconds to read what it does not hold."""
    found_s: float = 0.0
    """Seconds it would take to read what it holds of the conversation's own part."""
    harm_s: float = 0.0
    """Seconds of reading that others will need again for what this request would push out, as far as they come back; and
    as far as it was counted."""
    fits: bool = True
    """Whether its pool has room beside the requests that run there."""
    is_full: bool = False
    """Whether it runs as many requests as its snapshot pool can bear."""
    cold_reads: int = 0
    """Long reads on their way there."""
    between_s: float = 0.0
    """How long a read may be that slips in between the slices of those; 0 where one of them is sent whole."""


class Rule(Protocol):
    """May a replica serve this request? A rule that would refuse everybody gives way.

    Whom it does not refuse beside an ideal replica, idle and without long neighbours, it refuses beside none.
    """

    @property
    def name(self) -> str:
        """One of `REASONS`."""

    def refuses(self, ask: Ask, candidates: Sequence[Candidate]) -> Mapping[str, str]:
        """The replicas that may not, and why. `candidates` are all that the rules before have left."""


class Cost(Protocol):
    """What it costs to serve this request, in seconds of waiting.

    All candidates at once: what a cost has to know of the others it works out once, and not for each of them. It is
    never less where more is to be read, ahead or lost.
    """

    @property
    def name(self) -> str:
        """The cost's name in the log."""

    @property
    def breaks_ties(self) -> bool:
        """Whether it also decides between replicas that are as good by everything together."""

    @property
    def harm_weight(self) -> float:
        """Seconds that it charges for each second that others lose, and nothing else if any; then it breaks no ties."""

    def seconds(self, ask: Ask, candidates: Sequence[Candidate]) -> Sequence[float]:
        """Seconds at each of the candidates, never negative."""


class Scored(Struct, frozen=True):
    """A candidate with the working of its cost."""

    candidate: Candidate
    total_s: float
    names: Sequence[str] = ()
    """Of the costs..."""
    seconds: Sequence[float] = ()
    """...and each of them, which make up the total."""

    @property
    def costs(self) -> dict[str, float]:
        """The costs by name; made when somebody asks, for most are never asked for."""
        return dict(zip(self.names, self.seconds, strict=True))


class Decision(Struct, frozen=True):
    """The ranking and its working: the first is the choice, the others are where to go if it fails."""

    ranked: tuple[Scored, ...]
    reason: str
    refused: Mapping[str, str] = field(default_factory=dict)
    """Replica to the reason it may not serve."""
    rules: tuple[str, ...] = ()
    """The rules that refused those."""
    elsewhere_s: float | None = None
    """What even an ideal replica would have cost; None unless that was reason enough to look at none but the first."""
    best_matched_tokens: int = 0
    """The most of the prompt that any of those that were looked at is believed to hold."""
    not_looked_at: int = 0
    """Replicas of a large fleet that were passed over, for others had less ahead of whoever came."""

    @property
    def chosen(self) -> Scored:
        """The choice."""
        return self.ranked[0]


def decide(
    ask: Ask, candidates: Collection[Candidate], *, rules: Sequence[Rule] = (), costs: Sequence[Cost] = ()
) -> Decision:
    """Rank the candidates for one request; every candidate is either ranked or refused.

    Raises:
        ValueError: there is no candidate.
    """
    if not candidates:
        raise ValueError("no replica to choose from")
    everybody = sorted(candidates, key=_IDENTITY)
    most = max([each.matched_tokens for each in everybody])
    unruled = ranked = _rank(ask, everybody, costs)
    if not rules:
        return Decision(ranked, reason_of(ask, ranked[0].candidate, everybody), best_matched_tokens=most)
    allowed, refused, obeyed, reason = _apply(rules, ask, everybody)
    if refused:
        ranked = _rank(ask, allowed, costs)
    if reason is None or (not reason.endswith("_spill") and ranked[0].candidate is unruled[0].candidate):
        reason = reason_of(ask, ranked[0].candidate, everybody)
    return Decision(ranked, reason, refused, obeyed, best_matched_tokens=most)


def _apply(
    rules: Sequence[Rule], ask: Ask, candidates: list[Candidate]
) -> tuple[list[Candidate], dict[str, str], tuple[str, ...], str | None]:
    """What the rules leave, what they refuse, which did, and the one that decided (`..._spill` where it gave way)."""
    allowed, reason = candidates, None
    refused: dict[str, str] = {}
    obeyed: list[str] = []
    for rule in rules:
        answers = rule.refuses(ask, allowed)
        if not answers:
            continue
        left = [each for each in allowed if each.replica not in answers]
        if not left:
            spill = f"{rule.name}_spill"
            reason = spill if spill in REASONS else reason
            continue
        reason = reason or rule.name
        obeyed.append(rule.name)
        refused |= answers
        allowed = left
    return allowed, refused, tuple(obeyed), reason


def _rank(ask: Ask, candidates: Sequence[Candidate], costs: Sequence[Cost]) -> tuple[Scored, ...]:
    names = tuple(map(_NAME, costs))
    columns = [cost.seconds(ask, candidates) for cost in costs]
    workings = list(zip(*columns, strict=True)) if columns else [()] * len(candidates)
    scored = list(map(Scored, candidates, map(sum, workings), repeat(names), workings))
    scored.sort(key=_TOTAL)
    tied = bisect_right(scored, tied_until_s(scored[0].total_s), key=_TOTAL)
    if tied > 1:
        scored[:tied] = sorted(scored[:tied], key=tie_order(ask, costs))
    return tuple(scored)


def tie_order(ask: Ask, costs: Sequence[Cost]) -> Callable[[Scored], tuple[int, bool, float, int]]:
    """Who comes first among those that are as good by everything together. Harm has no part in it."""
    breaking = [cost.breaks_ties for cost in costs]
    return lambda each: (
        -each.candidate.own_tokens,
        each.candidate.replica != ask.home,
        sum(compress(each.seconds, breaking)),
        -rendezvous(ask.conversation, each.candidate.identity),
    )


def tied_until_s(least_s: float) -> float:
    """Up to which cost a candidate is as good as the cheapest."""
    return least_s + max(TIE_S, TIE_RATIO * least_s)


def rendezvous(conversation: int, identity: str) -> int:
    """A number that every router computes alike; the highest wins (rendezvous hashing, Thaler and Ravishankar 1996)."""
    return xxhash.xxh3_64_intdigest(identity.encode(), seed=conversation)


def reason_of(ask: Ask, chosen: Candidate, candidates: Sequence[Candidate]) -> str:
    """Why one of the candidates was chosen, where no rule made the choice."""
    if len(candidates) == 1:
        return "only"
    if not ask.has_prompt:
        return "no_prompt"
    most = max([each.matched_tokens for each in candidates])
    if not most:
        return "new"
    holds_most = chosen.matched_tokens == most or chosen.replica == ask.home
    return "affinity" if holds_most else "load"
