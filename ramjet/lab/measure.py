"""The figures of a run: how long clients waited, what was reused, how fast it went."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ramjet.core.record import Record
from ramjet.core.usage import Usage
from ramjet.lab.policies import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run. Times are virtual seconds; a wait is from a request's arrival to its first token, the time held included."""

    workload: str
    policy: str
    seed: int
    replicas: int
    profile: str
    conversations: int
    turns: int
    mean_wait_s: float
    p50_wait_s: float
    p95_wait_s: float
    p99_wait_s: float
    max_wait_s: float
    max_held_s: float
    """The longest time that a request was held before it went to a replica."""
    conversation_wait_p50_s: float
    """What the turns of a conversation waited, summed."""
    conversation_wait_p95_s: float
    cached_share: float
    """Of all prompt tokens, those that were reused (0 to 1)."""
    cold_share: float
    """Of the later turns that could have reused something, those that reused less than half of it (0 to 1)."""
    turns_per_min: float
    """Over the time in which three quarters of the turns were answered: the last ones are few, whoever decides."""


def figures(
    requests: Sequence[Request], *, workload: str, policy: str, seed: int, replicas: int, profile: str
) -> Figures:
    """Sum a run up; every request has ended."""
    waits, ends, held_s = [], [], 0.0
    by_conversation: defaultdict[int, float] = defaultdict(float)
    prompt_tokens = cached_tokens = 0
    for request in requests:
        assert request.first_at is not None
        assert request.ended_at is not None
        assert request.placed_at is not None
        assert request.cached_tokens is not None
        wait_s = request.first_at - request.arrived_at
        waits.append(wait_s)
        ends.append(request.ended_at)
        by_conversation[request.conversation] += wait_s
        held_s = max(held_s, request.placed_at - request.arrived_at)
        prompt_tokens += request.prompt_tokens
        cached_tokens += request.cached_tokens
    most_at = quantile(ends, 0.75)
    return Figures(
        workload=workload,
        policy=policy,
        seed=seed,
        replicas=replicas,
        profile=profile,
        conversations=len(by_conversation),
        turns=len(requests),
        mean_wait_s=_rounded(math.fsum(waits) / len(waits)),
        p50_wait_s=_rounded(quantile(waits, 0.5)),
        p95_wait_s=_rounded(quantile(waits, 0.95)),
        p99_wait_s=_rounded(quantile(waits, 0.99)),
        max_wait_s=_rounded(max(waits)),
        max_held_s=_rounded(held_s),
        conversation_wait_p50_s=_rounded(quantile(by_conversation.values(), 0.5)),
        conversation_wait_p95_s=_rounded(quantile(by_conversation.values(), 0.95)),
        cached_share=_rounded(cached_tokens / prompt_tokens),
        cold_share=_rounded(_cold_share(requests)),
        turns_per_min=_rounded(60 * sum(end <= most_at for end in ends) / most_at),
    )


def quantile(values: Iterable[float], share: float) -> float:
    """The least value that so large a share of them does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _cold_share(requests: Iterable[Request]) -> float:
    seen = Counter(
        # What is cold is said in one place.
        Record(
            request_id="",
            endpoint="",
            turn=request.turn,
            reusable_tokens=request.reusable_tokens,
            usage=Usage(cached_tokens=request.cached_tokens),
        ).temperature
        for request in requests
    )
    later = seen["warm"] + seen["partial"] + seen["cold"]
    return seen["cold"] / later if later else 0.0


def _rounded(value: float) -> float:
    return round(value, 4)
