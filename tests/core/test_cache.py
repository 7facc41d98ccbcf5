"""The radix tree: what it holds, what it forgets, and in which order."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramjet.core.cache import Blocks, PrefixCache

BLOCK = 64


def prompt(*words: int | str) -> Blocks:
    """A prompt of one 64-token block a word; equal beginnings give equal hashes."""
    hashes, chain = array("Q"), 0
    for word in words:
        chain = hash((chain, word)) & (2**64 - 1)
        hashes.append(chain)
    return Blocks(hashes, array("I", range(BLOCK, BLOCK * len(words) + 1, BLOCK)))


def test_a_follow_up_finds_all_of_the_turn_before() -> None:
    """
    What was read for one turn is there for the next.
    """
    cache = PrefixCache()
    cache.insert(prompt(1, 2, 3), now=0)

    assert cache.match(prompt(1, 2, 3, 4, 5)).depth == 3
    assert cache.match(prompt(1, 2, 9)).depth == 2
    assert cache.match(prompt(7)).depth == 0


def test_a_shared_beginning_is_stored_once() -> None:
    """
    Two conversations with one system prompt take its room once.
    """
    cache = PrefixCache()
    cache.insert(prompt("system", "tools", 1), now=0)
    cache.insert(prompt("system", "tools", 2), now=1)

    assert cache.tokens == 4 * BLOCK


def test_the_shared_beginning_outlives_the_conversations_that_grew_from_it() -> None:
    """
    Leaves go first, the least recently used of them before the others.
    """
    cache = PrefixCache(pool_tokens=4 * BLOCK)
    cache.insert(prompt("system", 1), now=0)
    cache.insert(prompt("system", 2), now=1)
    cache.insert(prompt("system", 3), now=2)
    cache.insert(prompt("system", 4), now=3)

    assert cache.match(prompt("system", 1)).depth == 1
    assert cache.match(prompt("system", 2)).depth == 2
    assert cache.match(prompt("system", 4)).depth == 2


def test_two_conversations_that_do_not_fit_take_room_from_the_end_of_the_other() -> None:
    """
    The seed's pair: 2 x 290k in 500k. The older one loses its end, not all of itself.
    """
    cache = PrefixCache(pool_tokens=8 * BLOCK)
    cache.insert(prompt(*range(5)), now=0)
    cache.insert(prompt(*range(100, 105)), now=1)

    assert cache.match(prompt(*range(5))).depth == 3
    assert cache.match(prompt(*range(100, 105))).depth == 5


def test_what_is_held_stays_and_goes_when_released() -> None:
    """
    A running request's prompt is pinned.
    """
    cache = PrefixCache(pool_tokens=4 * BLOCK)
    held = cache.insert(prompt(1, 2), now=0)
    assert held is not None
    cache.hold(held)
    cache.insert(prompt(3, 4, 5), now=1)
    assert cache.match(prompt(1, 2)).depth == 2
    assert cache.match(prompt(3, 4, 5)).depth == 2

    cache.release(held)
    cache.insert(prompt(6, 7, 8, 9), now=2)

    assert cache.match(prompt(1, 2)).depth == 0


def test_trimming_forgets_what_grew_from_there() -> None:
    """
    The engine said it had less: everything below that point is gone, the rest stays.
    """
    cache = PrefixCache()
    for tail in (1, 2):
        cache.insert(prompt("system", "tools", tail, tail), now=0)
    cache.insert(prompt("other"), now=0)

    cache.trim(prompt("system", "tools", 1, 1), 3)
    assert [cache.match(prompt("system", "tools", tail, tail)).depth for tail in (1, 2)] == [3, 4]
    cache.trim(prompt("system", "tools", 1, 1), 1)

    assert [cache.match(prompt("system", "tools", tail, tail)).depth for tail in (1, 2)] == [1, 1]
    assert cache.tokens == 2 * BLOCK


def test_a_prompt_larger_than_the_pool_keeps_the_beginning_that_fits() -> None:
    """
    Nothing overflows, whatever is sent.
    """
    cache = PrefixCache(pool_tokens=3 * BLOCK)

    cache.insert(prompt(*range(10)), now=0)

    assert cache.tokens == 3 * BLOCK
    assert cache.match(prompt(*range(10))).depth == 3


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=7)


@given(st.lists(PROMPTS, max_size=30), st.integers(1, 20))
@settings(max_examples=200)
def test_a_larger_pool_never_turns_a_hit_into_a_miss(history: list[list[int]], blocks: int) -> None:
    """
    Eviction by recency, leaf first and block by block, has the inclusion property.
    """
    small, large = PrefixCache(blocks * BLOCK), PrefixCache((blocks + 3) * BLOCK)
    for now, words in enumerate(history):
        assert small.match(prompt(*words)).depth <= large.match(prompt(*words)).depth
        small.insert(prompt(*words), now)
        large.insert(prompt(*words), now)


class AgainstASet(RuleBasedStateMachine):
    """The tree against the dumbest model: the set of all prefixes that were inserted and not forgotten."""

    @initialize()
    def empty(self) -> None:
        self.cache = PrefixCache()
        self.model: set[tuple[int, ...]] = set()
        self.holds: list[tuple[tuple[int, ...], object]] = []
        self.now = 0.0

    @rule(words=PROMPTS)
    def insert(self, words: list[int]) -> None:
        self.now += 1
        self.cache.insert(prompt(*words), self.now)
        self.model.update(tuple(words[: n + 1]) for n in range(len(words)))

    @rule(words=PROMPTS, depth=st.integers(0, 6))
    def trim(self, words: list[int], depth: int) -> None:
        self.cache.trim(prompt(*words), depth)
        gone = tuple(words[: depth + 1])
        if len(words) > depth:
            self.model = {known for known in self.model if known[: depth + 1] != gone}

    @rule(words=PROMPTS)
    def look(self, words: list[int]) -> None:
        expected = max((n for n in range(len(words) + 1) if tuple(words[:n]) in self.model), default=0)
        assert self.cache.match(prompt(*words)).depth == expected

    @rule()
    def restart(self) -> None:
        self.cache.clear()
        self.model.clear()

    @precondition(lambda self: self.model)
    @rule()
    def evict(self) -> None:
        before = self.cache.tokens
        assert self.cache.evict_one()
        assert self.cache.tokens < before
        self.model = {known for known in self.model if self.cache.match(prompt(*known)).depth == len(known)}

    @invariant()
    def every_token_is_counted_once(self) -> None:
        assert self.cache.tokens == len(self.model) * BLOCK
        assert self.cache.blocks == len(self.model)


TestAgainstASet = AgainstASet.TestCase


def test_an_empty_cache_has_nothing_to_evict() -> None:
    assert not PrefixCache().evict_one()
    assert PrefixCache().oldest_at is None
    assert PrefixCache().insert(Blocks(array("Q"), array("I")), now=0) is None


@pytest.mark.parametrize("later", [400.0])
def test_what_nobody_used_for_long_expires(later: float) -> None:
    cache = PrefixCache()
    cache.insert(prompt(1, 2), now=0)
    cache.insert(prompt(1, 3), now=later)

    cache.expire(before=later)

    assert cache.match(prompt(1, 2)).depth == 1
    assert cache.match(prompt(1, 3)).depth == 2
