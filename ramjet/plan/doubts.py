"""What is not known, or not played, and may be why a replay is not near what happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ramjet.plan.figures import TRUSTED
from ramjet.plan.setup import Setup
from ramjet.plan.span import Span
from ramjet.plan.speed import LEAST_READINGS, Speed

GRID_TOKENS = 256
"""Snapshots lie on multiples of this."""
_SURE_REPORTS = 5
_FEW = 0.02
"""What so small a share of the requests has in it changes nothing."""


def doubts(span: Span, setup: Setup, *, configured: bool) -> Iterator[str]:
    """What is not known and what is not played, as far as it may matter; each with what to do about it."""
    unknown = [each.name for each in setup.replicas if each.tokens is None]
    if unknown and setup.base is None:
        yield f"nobody says how many tokens {_names(unknown)} can hold, so nothing is ever pushed out there: --tokens"
    counts = _cached_counts(span)
    on_grid = len(counts) >= _SURE_REPORTS and not any(count % GRID_TOKENS for count in counts)
    if on_grid and all(each.slots is None for each in setup.replicas):
        yield (
            f"all {len(counts):,} reported counts lie on multiples of {GRID_TOKENS}, as they do where a hybrid model "
            "resumes at snapshots, and nobody says how many it can keep: --slots"
        )
    if not span.observed:
        return
    if not configured:
        yield "nobody says how Ramjet was configured then, so the defaults are taken: --config or --set"
    if not span.known and not configured:
        yield "nobody says what Ramjet knew of the replicas, so it is taken to have known all that is said here"
    tiers = [each.name for each in setup.replicas if each.host_tier and each.host_tokens is None]
    if tiers:
        yield f"nobody says how much the host tier of {_names(tiers)} holds, so a default is taken: --host-tokens, --host-slots"
    yield from _of_speed(span, setup.speed)
    yield from _of_requests(span)


def _of_speed(span: Span, speed: Speed) -> Iterator[str]:
    if speed.readings < LEAST_READINGS:
        yield (
            f"only {speed.readings} first tokens tell how fast replicas read, so that is mostly a guess: a longer span of time"
        )
    elif speed.off_ratio is not None and speed.off_ratio > TRUSTED:
        yield (
            f"where nobody was before, the middle first token is {speed.off_ratio:.0%} off what was fitted: something else uses "
            "these replicas, or they are not of one kind"
        )
    guessed = span.guessed.get("completion_tokens", 0)
    if guessed > _FEW * len(span.requests):
        yield f"the length of {guessed:,} of {len(span.requests):,} answers was not reported and is guessed"


def _of_requests(span: Span) -> Iterator[str]:
    records = [each.seen for each in span.requests if each.seen is not None]
    left_out = sum(span.left_out.values())
    if left_out > _FEW * (left_out + len(records)):
        told = ", ".join(f"{count:,} {reason}" for reason, count in span.left_out.items())
        yield f"{left_out:,} requests are not played: {told}"
    before = span.guessed.get("began_before", 0)
    if before:
        yield f"{before:,} requests found something older than the span, and are played but not counted"
    if span.dropped:
        yield f"the journal lost {span.dropped:,} requests since it was begun, which are not played"
    for what, count in (
        ("did not say how much they reused, and count for neither cold turns nor the cached share",
         sum(each.usage.cached_tokens is None for each in records)),
        ("were no streams, and their waits do not count", sum(each.ttft_s is None for each in records)),
        ("were tried at more than one replica; in a replay no replica fails", sum(each.attempts > 1 for each in records)),
        ("were cold after a restart; in a replay no replica restarts",
         sum(each.cold_cause == "restart" for each in records)),
    ):  # fmt: skip
        if count > _FEW * len(records):
            yield f"{count:,} of {len(records):,} requests {what}"


def _cached_counts(span: Span) -> list[int]:
    return [
        each.seen.usage.cached_tokens
        for each in span.requests
        if each.seen is not None and each.seen.usage.cached_tokens
    ]


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
