"""Ramjet that is told wrong facts: what it is told, and that nothing else is wrong."""

from __future__ import annotations

import pytest

from ramjet.core.policies import PrefillCost, Reading
from ramjet.lab.loop import facts_of, simulate
from ramjet.lab.misled import MISLED, Misread, reading_off
from ramjet.lab.policies import ReplicaFacts, Request
from ramjet.lab.production import SHIPPED, Production
from ramjet.lab.runs import policies
from ramjet.lab.turns import BLOCK_TOKENS
from ramjet.lab.workloads import SLOTS, TOKENS, WORKLOADS, build
from tests.lab.support import facts, prompt

HYBRID = [facts_of(SLOTS)] * 2


def made(name: str, those: list[ReplicaFacts]) -> Production:
    policy = MISLED[name](those, 7)
    assert isinstance(policy, Production)
    return policy


@pytest.mark.parametrize("name", MISLED)
def test_each_says_what_it_was_told(name: str) -> None:
    """
    `ramjet lab list` shows it, under a name of its own.
    """
    assert MISLED[name].__doc__
    assert policies()[name] is MISLED[name]


@pytest.mark.parametrize(
    ("name", "tokens", "slots"),
    [
        # The replica has 499,968 tokens and 28 slots.
        ("ramjet-pools-high", 599_961, 34),
        ("ramjet-pools-low", 399_974, 22),
        ("ramjet-slots-unknown", 499_968, None),
        ("ramjet-all-wrong", 599_961, None),
        ("ramjet-tokens-off", 499_968, 28),
    ],
)
def test_pools_are_told_wrong(name: str, tokens: int, slots: int | None) -> None:
    """
    By 20 %, or not at all; what one forward reads and the cap on a path stay true.
    """
    for replica in made(name, HYBRID).router.fleet:
        pools = replica.pools
        assert (pools.tokens, pools.slots, pools.per_path, pools.chunk_tokens) == (tokens, slots, 2, 6_144)


def request(number: int, conversation: int, *parts: tuple[str, int]) -> Request:
    blocks = prompt(*parts)
    return Request(number, conversation, 1, blocks, BLOCK_TOKENS * len(blocks) + 100, 0.0)


def test_tokens_are_longer_in_some_conversations_than_in_others() -> None:
    """
    By 10 % to either side, the same for every turn of one; what two have in common is the same bytes in both.
    """
    policy = Misread(facts(2), 1)
    sizes, shared = {}, set()
    for number in range(40):
        ends, size_bytes = policy._in_bytes(request(number, number, ("system", 10), (str(number), 10)))
        later, _ = policy._in_bytes(request(100 + number, number, ("system", 10), (str(number), 10), ("more", 5)))
        assert later[:20] == ends
        assert ends[9] in {10 * 922, 10 * 1126}
        sizes[number] = size_bytes - ends[9]
        shared.add(ends[9])

    assert len(shared) == 1
    assert set(sizes.values()) == {10 * 922 + 360, 10 * 1126 + 440}


def test_both_numbers_of_reading_are_wrong_wherever_they_are_used() -> None:
    """
    In what prefilling costs, and in everything else that is priced in seconds.
    """
    policy = reading_off(SHIPPED, 2.0)

    twice = Reading(2 * 0.1655e-3, 2 * 5.3e-11)
    assert policy.reading == twice
    assert [cost.reading for cost in policy.costs if isinstance(cost, PrefillCost)] == [twice]
    assert len(policy.costs) == len(SHIPPED.costs)


@pytest.mark.parametrize(("name", "factor"), [("ramjet-prefill-double", 2.0), ("ramjet-prefill-half", 0.5)])
def test_how_fast_a_replica_reads_is_learned_whatever_was_told(name: str, factor: float) -> None:
    """
    After the seed's pair has been served, the factor that was learned undoes the one that was told.
    """
    learned = []
    for each in (name, "ramjet"):
        playing: list[Production] = []

        def make(those: list[ReplicaFacts], seed: int, name: str = each, to: list[Production] = playing) -> Production:
            policy = policies()[name](those, seed)
            assert isinstance(policy, Production)
            to.append(policy)
            return policy

        simulate(build("W5", 1), make, 1, replicas=2, profile=WORKLOADS["W5"].profile)
        learned.append([belief.pace.factor for belief in playing[0].router.beliefs.values()])

    told_wrong, told_right = learned
    assert [factor * each for each in told_wrong] == pytest.approx(told_right, rel=0.25)


def test_what_is_told_is_wrong_and_the_replicas_are_not() -> None:
    """
    The facts that a policy is made from are those of the replicas that are played.
    """
    for name in MISLED:
        those = facts(2)
        made(name, those)
        assert those == [facts_of(TOKENS)] * 2
