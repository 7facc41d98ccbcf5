"""Which pool it was that lost something: the token pool, or the one of state snapshots. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ramjet.engines.facts import Facts
from ramjet.probes.steps import Limit

FULL = 0.97
"""From this share of the token pool on, it is the token pool: running requests and pages that are not full take the
rest."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A pool, and why it must be that one, as the second half of a sentence."""

    limit: Limit
    because: str


def cause(needed_tokens: int, facts: Facts, *, snapshot_limited: bool | None, held_tokens: int = 0) -> Cause:
    """Why prompts of so many tokens together did not stay.

    Args:
        needed_tokens: of all prompts that should have stayed.
        facts: what the engine says of itself.
        snapshot_limited: whether it resumes at snapshots only; None if unknown.
        held_tokens: the most that was seen to stay at once, in whatever prompts.
    """
    pool = facts.pool_tokens
    if facts.engine == "vllm" and snapshot_limited is not False:
        return Cause("tokens", "vLLM keeps its states in the blocks of the token pool, so that there is one limit")
    if pool is not None and needed_tokens >= FULL * pool:
        return Cause("tokens", f"together they are {needed_tokens:,} tokens and the token pool holds {pool:,}")
    if snapshot_limited is False or (facts.engine == "llamacpp" and snapshot_limited is None):
        return _without_snapshots(needed_tokens, facts)
    if pool is not None:
        room = f"together they are {needed_tokens:,} tokens and the token pool of {pool:,} had room for them"
        if snapshot_limited:
            return Cause("snapshots", f"{room}, and the engine resumes at snapshots only")
        return Cause("snapshots", room)
    if needed_tokens <= FULL * held_tokens:
        return Cause(
            "snapshots", f"together they are {needed_tokens:,} tokens, and {held_tokens:,} were seen to stay at once"
        )
    return Cause("unknown", "the engine does not say how many tokens its pool holds")


def _without_snapshots(needed_tokens: int, facts: Facts) -> Cause:
    pool = facts.pool_tokens
    if facts.engine == "llamacpp":
        slots = "a few slots" if facts.max_running is None else f"{facts.max_running} slots"
        return Cause(
            "unknown", f"llama.cpp keeps a conversation only while nobody else takes its slot, and has {slots}"
        )
    if pool is None:
        return Cause("tokens", "the engine resumes anywhere, so that there are no snapshots to run out of")
    return Cause(
        "unknown",
        f"together they are {needed_tokens:,} tokens, the token pool of {pool:,} had room for them, and the engine resumes "
        "anywhere: somebody else used the pool, or it is smaller than it says",
    )
