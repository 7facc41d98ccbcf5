"""Ramjet that is told wrong facts: what it is told is wrong, and the engines stay as they are.

How far its learning makes up for that is measured in docs/evidence/robustness.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from random import Random

from ramjet.core.policies import Policy, PrefillCost, Reading
from ramjet.core.pools import Pools
from ramjet.lab.policies import BYTES_PER_TOKEN, Factory, ReplicaFacts, Request
from ramjet.lab.production import SHIPPED, Production, pools_of
from ramjet.lab.turns import BLOCK_TOKENS

_OFF = 0.1
"""By how much a conversation's tokens are longer or shorter than anybody's."""


class Misread(Production):
    """The tokens of half the conversations are 10 % longer than those of the other half, and than Ramjet assumes.

    A block is as long in bytes as in the conversation that sent it first: a shared prompt is the same bytes for all.
    """

    def __init__(
        self, facts: list[ReplicaFacts], seed: int, *, told: Callable[[ReplicaFacts], Pools] = pools_of
    ) -> None:
        super().__init__(facts, seed, told=told)
        self._seed = seed
        self._block_bytes: dict[int, int] = {}

    def _in_bytes(self, request: Request) -> tuple[array[int], int]:
        # By the conversation's number, so that it does not matter who came first.
        token_bytes = BYTES_PER_TOKEN * (1 + Random(f"{self._seed} {request.conversation}").choice((-_OFF, _OFF)))
        ends, size_bytes = array("Q"), 0
        for block in request.blocks.hashes:
            size_bytes += self._block_bytes.setdefault(block, round(BLOCK_TOKENS * token_bytes))
            ends.append(size_bytes)
        rest_tokens = request.prompt_tokens - request.blocks.tokens(len(request.blocks))
        return ends, size_bytes + round(rest_tokens * token_bytes)


def _pools(factor: float, *, slots: bool = True) -> Callable[[ReplicaFacts], Pools]:
    """Pools so many times as large as they are; `slots` False: of the snapshot pool nobody has said anything."""

    def told(facts: ReplicaFacts) -> Pools:
        true = pools_of(facts)
        known = true.slots if slots else None
        return replace(
            true, tokens=int(factor * facts.pool_tokens), slots=None if known is None else round(factor * known)
        )

    return told


def _told(about: str, told: Callable[[ReplicaFacts], Pools]) -> Factory:
    def make(facts: list[ReplicaFacts], seed: int) -> Production:
        return Production(facts, seed, told=told)

    make.__doc__ = about
    return make


def _reading(about: str, factor: float) -> Factory:
    def make(facts: list[ReplicaFacts], seed: int) -> Production:
        return Production(facts, seed, policy=reading_off(SHIPPED, factor))

    make.__doc__ = about
    return make


def reading_off(policy: Policy, factor: float) -> Policy:
    """The policy with the two numbers of `routing.prefill` so many times as large."""
    reading = Reading(factor * policy.reading.linear_s, factor * policy.reading.quadratic_s)
    costs = [replace(cost, reading=reading) if isinstance(cost, PrefillCost) else cost for cost in policy.costs]
    return replace(policy, reading=reading, costs=costs)


def _tokens_off(facts: list[ReplicaFacts], seed: int) -> Production:
    """Ramjet, with tokens 10 % longer in one half of the conversations and 10 % shorter in the other"""
    return Misread(facts, seed)


def _all_wrong(facts: list[ReplicaFacts], seed: int) -> Production:
    """Ramjet, told that pools are 20 % larger and nothing of slots, with tokens 10 % off"""
    return Misread(facts, seed, told=_pools(1.2, slots=False))


MISLED: dict[str, Factory] = {
    "ramjet-pools-high": _told("Ramjet, told that pools are 20 % larger than they are", _pools(1.2)),
    "ramjet-pools-low": _told("Ramjet, told that pools are 20 % smaller than they are", _pools(0.8)),
    "ramjet-slots-unknown": _told("Ramjet, told nothing of the snapshot pool", _pools(1.0, slots=False)),
    "ramjet-tokens-off": _tokens_off,
    "ramjet-all-wrong": _all_wrong,
    "ramjet-prefill-double": _reading("Ramjet, told that reading takes twice as long as it does", 2.0),
    "ramjet-prefill-half": _reading("Ramjet, told that reading takes half as long as it does", 0.5),
}
"""By name."""
