"""What fits: snapshots of one long prompt, conversations beside running requests, two long conversations in one pool."""

from __future__ import annotations

from collections.abc import Iterator

from ramjet.check.findings.values import Finding, Found, Ours
from ramjet.engines import advice

MOSTLY = 0.5
"""From this share of the snapshots that are free for conversations on, one prompt is as good as all of them."""
TYPICAL_TOKENS = 20_000
"""A conversation as the seed's agents have them, to say how many fit."""


def pools(seen: Found, ours: Ours, *, peers: int) -> Iterator[Finding]:
    """What the sizes of its pools mean.

    Args:
        seen: the replica.
        ours: the rules that Ramjet would apply.
        peers: other replicas that serve the same models.
    """
    yield from _snapshots(seen)
    yield from _room(seen)
    yield from _too_small(seen)
    yield from _long(seen, ours, peers)


def _snapshots(seen: Found) -> Iterator[Finding]:
    """What one long prompt does to everybody's snapshots."""
    own, longest = seen.pools, seen.longest_tokens
    if own.slots is None or longest is None:
        return
    left, written, kept = own.slots - own.held, own.snapshots_of(longest), own.kept_of(longest)
    if kept < MOSTLY * left or kept <= advice.FEW_SNAPSHOTS:
        return
    cap = "no cap per path" if own.per_path is None else f"at most {own.per_path} per path"
    does = (
        "clears the pool: every other conversation is read anew" if kept >= left else f"takes {kept} of the {left} left"
    )
    yield Finding(
        id="long_prompt_snapshots",
        severity="warning",
        text=f"{own.slots} snapshot slots, {own.held} per running request ({own.private_slots} of its own, and the one that it goes on "
        f"from), {cap}: one prompt of {longest:,} tokens, the "
        f"longest that it takes, writes {written} snapshots and {does}.",
        figures={
            "snapshot_slots": own.slots,
            "slots_per_request": own.held,
            "snapshots_per_path": own.per_path,
            "prompt_tokens": longest,
            "snapshots": written,
            "kept": kept,
        },
        remedy=f"try {advice.CAP} {advice.FEW_SNAPSHOTS}",
    )


def _room(seen: Found) -> Iterator[Finding]:
    """How many conversations stay beside the requests that run."""
    own = seen.pools
    if own.slots is None:
        return
    told = None if seen.facts is None else seen.facts.max_running
    running = min(own.slots // own.held, own.slots if told is None else told)
    left, each = max(0, own.slots - running * own.held), max(1, own.kept_of(TYPICAL_TOKENS))
    fit = left // each
    yield Finding(
        id="snapshot_room",
        severity="note",
        text=f"With {_count(running, 'request')} at work, {left} of {own.slots} snapshot slots are left: room for "
        f"{_count(fit, 'quiet conversation')} of {TYPICAL_TOKENS:,} tokens, {_count(each, 'snapshot')} each; with none, for "
        f"{_count(own.slots // each, 'conversation')}.",
        figures={"running": running, "left": left, "snapshots_each": each, "conversations": fit},
        remedy=None
        if fit >= running
        else f"routing.admission holds back what would not fit; {', '.join(_flags(seen))} or another replica makes room",
    )


def _flags(seen: Found) -> tuple[str, ...]:
    return () if seen.facts is None else advice.for_snapshots(seen.facts)


def _too_small(seen: Found) -> Iterator[Finding]:
    """A pool that has no room for what the engine says that it takes."""
    allowed = None if seen.facts is None else seen.facts.max_prompt_tokens
    if allowed is None or seen.pools.tokens is None or allowed <= seen.pools.tokens:
        return
    assert seen.facts is not None
    shorter = advice.flag(seen.facts.engine, "max_prompt_tokens")
    yield Finding(
        id="pool_too_small",
        severity="warning",
        text=f"It takes prompts of up to {allowed:,} tokens, and its pool holds {seen.pools.tokens:,}: a longer one is refused "
        "late or pushes out everybody, and is not reused.",
        figures={"max_prompt_tokens": allowed, "pool_tokens": seen.pools.tokens},
        remedy=f"{f'lower {shorter}, or ' if shorter else ''}make room: {', '.join(advice.for_tokens(seen.facts))}",
    )


def _long(seen: Found, ours: Ours, peers: int) -> Iterator[Finding]:
    """Long conversations that fit one pool only one at a time."""
    longest, pool = seen.longest_tokens, seen.pools.tokens
    if longest is None or pool is None or 2 * longest <= pool:
        return
    half, spread = pool // 2, ours.spread_long and peers > 0
    lower = f"set routing.spread_long.tokens to {_round(half):,}"
    if not peers:
        then = "There is one replica for them, so that they push each other out, turn by turn."
        remedy: str | None = "another replica, or a host tier"
    elif not ours.spread_long:
        then = "They must live on different replicas, and routing.spread_long is off: they may push each other out."
        remedy = "switch routing.spread_long on"
    elif ours.long_tokens > longest:
        then = (
            f"They must live on different replicas, and routing.spread_long takes only conversations from "
            f"{ours.long_tokens:,} tokens on for long: nothing but their price keeps them apart."
        )
        remedy = lower
    else:
        then = "They must live on different replicas, and routing.spread_long sees to that while there are any."
        remedy = None
    yield Finding(
        id="long_conversations",
        severity="note" if spread else "warning",
        text=f"Two conversations of {longest:,} tokens, the longest that it takes, are {2 * longest:,}, and a pool holds "
        f"{pool:,}. {then}",
        figures={"prompt_tokens": longest, "pool_tokens": pool, "replicas": peers + 1, "long_tokens": ours.long_tokens},
        remedy=remedy,
    )
    if spread and half < ours.long_tokens <= longest:
        yield Finding(
            id="long_from",
            severity="note",
            text=f"Conversations of {half:,} to {ours.long_tokens:,} tokens do not fit together either, and count as ordinary: "
            "nothing but their price keeps them apart.",
            figures={"pool_tokens": pool, "long_tokens": ours.long_tokens},
            remedy=lower,
        )


def _round(tokens: int) -> int:
    return tokens // 1_000 * 1_000 or tokens


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
