"""The seed's story as a journal: six sessions, a prompt of 313,000 tokens among them, and who comes back cold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from ramjet.core.cache import CacheSpec
from ramjet.core.policies import Policy
from ramjet.core.pools import Pools
from ramjet.lab.production import SHIPPED
from ramjet.plan.figures import Figures, figures, seen
from ramjet.plan.setup import Maker
from ramjet.plan.source import from_journal
from ramjet.plan.span import Span
from ramjet.plan.speed import fit
from ramjet.sim.profile import GLM, Profile
from tests.recorded import Says, Talk, recorded

EIGHTH = GLM.with_flags(pool_tokens=499_968 // 8, chunk_tokens=6_144 // 8)
"""The seed's replica at an eighth: as many chunks and snapshots in prompts of an eighth, and tests that are quick."""


def story(
    seed: int,
    *,
    turns: int = 20,
    long: Sequence[tuple[int, float]] = ((313_000, 120.0),),
    later: int = 4,
    think_s: tuple[float, float] = (10.0, 40.0),
    part: int = 1,
) -> list[Talk]:
    """Six sessions of 20,000 tokens, and long prompts: so many tokens each, at such a time; all divided by `part`.

    The long ones go on for so many turns, `later`. Clients think between turns for a time between the two of `think_s`.
    """
    chance = Random(seed)

    def says() -> Says:
        return Says(
            tokens=chance.randint(200, 900) // part,
            think_s=chance.uniform(*think_s),
            answer_tokens=chance.randint(40, 300),
        )

    talks = [
        Talk(
            words=f"session {number}",
            tokens=20_000 // part,
            start_s=3.0 * number,
            turns=[says() for _ in range(turns - 1)],
        )
        for number in range(6)
    ]
    for number, (tokens, start_s) in enumerate(long):
        goes_on = [replace(says(), tokens=3_000 // part) for _ in range(later)]
        talks.append(Talk(words=f"another agent {number}", tokens=tokens // part, start_s=start_s, turns=goes_on))
    return talks


def tokens_alone(profile: Profile) -> Pools:
    """What SGLang says by itself: its token pool, and nothing of snapshots that it derived the number of."""
    assert isinstance(profile.cache, CacheSpec)
    return Pools(tokens=profile.cache.pool_tokens)


def happened(
    path: Path, talks: Sequence[Talk], *, profile: Profile = GLM, replicas: int = 1, policy: Policy = SHIPPED
) -> Span:
    """What a journal says of conversations with Ramjet told of tokens alone."""
    recorded(path, talks, profile=profile, replicas=replicas, told=tokens_alone, policy=policy)
    return from_journal(path)


def then(span: Span, chunk_tokens: int = 6_144) -> Maker:
    """The settings that held: 28 slots, as the engine's log says."""
    return Maker(
        names=span.replicas, known=span.known, given={"slots": 28, "chunk_tokens": chunk_tokens}, speed=fit(span)
    )


def observed(span: Span) -> Figures:
    return figures(span, seen(span))
