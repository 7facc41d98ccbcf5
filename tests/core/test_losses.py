"""What a replica would lose is looked up, and it is what walking its order of eviction anew would say."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ramjet.core.beliefs import KNOWN_S, Belief, Outlook
from ramjet.core.cache import Blocks, Seat
from ramjet.core.losses import Prices
from ramjet.core.policies import Reading
from ramjet.core.pools import Pools
from tests.core import eager
from tests.effort import examples

BLOCK = 256
WORTH = {"ann": 1.0, "bob": 0.5, "cid": 0.25}
OWNERS = (*WORTH, None)


def prompt(words: list[int]) -> Blocks:
    """A block for each word; equal beginnings are equal prefixes."""
    hashes, chain = array("Q"), 7
    for word in words:
        chain = (chain * 1_000_003 + word + 1) % (1 << 64)
        hashes.append(chain)
    return Blocks(hashes, array("I", range(BLOCK, BLOCK * len(words) + 1, BLOCK)))


# A stem that many share, and a part of its own: prompts that branch, and prompts that go on.
WORDS = st.tuples(st.integers(0, 2), st.integers(0, 7), st.integers(2, 12)).map(
    lambda each: [9] * each[0] + [each[1]] * each[2]
)
POOLS = st.builds(
    Pools,
    tokens=st.sampled_from((None, 24 * BLOCK, 48 * BLOCK)),
    slots=st.sampled_from((None, 8, 12)),
    per_path=st.sampled_from((None, 2)),
    private=st.just(1),
    chunk_tokens=st.sampled_from((2 * BLOCK, 5 * BLOCK)),
)
WHO = st.sampled_from(OWNERS)
EVENT = st.one_of(
    st.tuples(st.just("serve"), WORDS, WHO),
    st.tuples(st.just("serve"), WORDS, WHO),
    st.tuples(st.just("book"), WORDS, WHO),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("report"), WORDS, WHO),
    st.tuples(st.just("pace"), st.sampled_from((0.5, 3.0))),
    st.tuples(st.just("expire"), st.integers(0, 20)),
    st.tuples(st.just("forget")),
)


def apply(belief: Belief, seats: list[Seat], event: tuple[Any, ...], now: float) -> None:
    """Something that happens to a replica."""
    kind, *rest = event
    if kind in {"serve", "book"}:
        blocks = prompt(rest[0])
        seats.append(belief.book(blocks, blocks.ends[-1] + 50, rest[1], now))
    if kind == "serve" or (kind == "leave" and seats):
        belief.version += 1
        belief.cache.leave(seats.pop(rest[0] % len(seats) if kind == "leave" else -1), now)
    if kind == "report":
        blocks, length = prompt(rest[0]), BLOCK * len(rest[0])
        sought = replace(belief.sought(belief.outlook(blocks, length)), tokens=4_096)
        belief.report(blocks, length, sought=sought, cached_tokens=BLOCK, owner=rest[1], now=now)
    if kind == "pace":
        belief.pace.learn(1.0, rest[0])
    if kind == "expire":
        belief.expire(now - rest[0])
    if kind == "forget":
        belief.forget_least_used()


@given(
    pools=POOLS,
    before=st.lists(st.tuples(st.just("serve"), WORDS, WHO), min_size=8, max_size=12),
    events=st.lists(EVENT, min_size=2, max_size=12),
    asking=st.lists(st.tuples(WORDS, WHO, st.sampled_from((0.3, 1.0, 1e9))), min_size=4, max_size=8),
)
@settings(max_examples=examples(60), deadline=None)
def test_what_is_looked_up_is_what_a_walk_would_say(
    pools: Pools,
    before: list[tuple[Any, ...]],
    events: list[tuple[Any, ...]],
    asking: list[tuple[list[int], str | None, float]],
) -> None:
    """
    To the last digit, whatever was asked before and has happened since, and whatever the asking has there itself.
    """
    belief, seats = Belief(pools), list[Seat]()
    prices = Prices(worth=lambda owner: WORTH[str(owner)], read_s=Reading(1e-3, 1e-7).seconds)

    for now, event in enumerate([*before, *events]):
        apply(belief, seats, event, float(now))
        for words, owner, most_s in asking:
            blocks, length = prompt(words), BLOCK * len(words)
            outlook = belief.outlook(blocks, length)
            # All within five seconds, for the chances of these owners do not change with time.
            seen = belief.harm_s(outlook, length, owner, prices, now / 100, most_s=most_s)
            assert seen == eager.harm_s(belief, outlook, length, owner, prices, most_s)


def full(worth: Callable[[object], float]) -> tuple[Belief, Outlook, Prices]:
    """A replica that one conversation fills, a prompt that would push that out, and what it costs."""
    belief, blocks = Belief(Pools(tokens=8 * BLOCK)), prompt([0] * 8)
    belief.cache.leave(belief.book(blocks, 8 * BLOCK, "ann", 0.0), 0.0)
    prices = Prices(worth=worth, read_s=lambda start, end: (end - start) / BLOCK)
    return belief, belief.outlook(prompt([1] * 8), 8 * BLOCK), prices


def test_chances_are_asked_again_after_a_while() -> None:
    """
    Within five seconds they are taken for what they were; nothing else is.
    """
    chance = [1.0]
    belief, outlook, prices = full(lambda _: chance[0])
    assert belief.harm_s(outlook, 8 * BLOCK, "bob", prices, 10.0, most_s=1e9) == 8.0

    chance[0] = 0.5

    assert belief.harm_s(outlook, 8 * BLOCK, "bob", prices, 10.0 + KNOWN_S - 0.1, most_s=1e9) == 8.0
    assert belief.harm_s(outlook, 8 * BLOCK, "bob", prices, 10.0 + KNOWN_S, most_s=1e9) == 4.0


def test_what_changes_is_seen_at_once() -> None:
    """
    Another prompt has taken its place there and runs, and what runs does not go.
    """
    belief, outlook, prices = full(lambda _: 1.0)
    before = belief.harm_s(outlook, 8 * BLOCK, "bob", prices, 10.0, most_s=1e9)

    belief.book(prompt([2] * 8), 8 * BLOCK, "cid", 10.0)

    assert before == 8.0
    assert belief.harm_s(outlook, 8 * BLOCK, "bob", prices, 10.0, most_s=1e9) == 0.0
