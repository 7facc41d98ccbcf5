"""What an engine says it holds, against a model of an engine: prompts get their own blocks, and lose them when they go."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from ramjet.core import chains
from ramjet.core.cache import Blocks
from ramjet.core.chains import DEVICE, Chains, Ran, Removed, Stored, Unfit
from tests.effort import examples

SIZE = 16
Prompt = tuple[int, ...]
"""What its blocks of tokens contain."""


def name(prompt: Sequence[int]) -> int:
    """An engine's hash of a prompt's last block and of all before it."""
    return xxh3_64_intdigest(repr(tuple(prompt)).encode(), 1)


def blocks(prompt: Prompt, scale: int = SIZE) -> Blocks:
    """The same prompt as Ramjet knows it: hashes of its own, and lengths by its own estimate."""
    hashes = [xxh3_64_intdigest(repr(prompt[: at + 1]).encode(), 2) for at in range(len(prompt))]
    return Blocks(array("Q", hashes), array("I", (scale * (at + 1) for at in range(len(prompt)))))


class Engine:
    """Holds prefixes, and says so."""

    def __init__(self) -> None:
        self.chains = Chains()
        self.held: set[Prompt] = set()
        self.now = 0.0

    def cached(self, prompt: Prompt) -> int:
        """Blocks of a prompt that are there from its beginning on."""
        depth = 0
        while depth < len(prompt) and prompt[: depth + 1] in self.held:
            depth += 1
        return depth

    def store(self, prompt: Prompt, start: int, end: int, medium: str = DEVICE) -> None:
        """Read a part of a prompt."""
        self.now += 1
        parent = name(prompt[:start]) if start else None
        hashes = [name(prompt[: at + 1]) for at in range(start, end)]
        self.chains.stored(Stored(hashes=list(hashes), parent=parent, block_tokens=SIZE, medium=medium), self.now)
        if medium == DEVICE:
            self.held |= {prompt[: at + 1] for at in range(start, end)}

    def read(self, prompt: Prompt, chunk: int = 100) -> int:
        """Read what is not there of a prompt, in chunks; returns the blocks that were."""
        cached = self.cached(prompt)
        for start in range(cached, len(prompt), chunk):
            self.store(prompt, start, min(len(prompt), start + chunk))
        return cached

    def evict(self, prefixes: Iterable[Prompt], medium: str = DEVICE) -> None:
        """Let go of the last block of each of these."""
        prefixes = list(prefixes)
        self.held -= set(prefixes)
        self.chains.removed(Removed(hashes=[name(each) for each in prefixes], medium=medium))

    def serve(self, prompt: Prompt, chunk: int = 100, *, extra: int = 0) -> bool | None:
        """A request of ours: sent, read, reported."""
        since = self.now + 0.5
        cached = self.read(prompt, chunk)
        return self.chains.link(ran(prompt, cached, since, extra=extra))


def ran(prompt: Prompt, cached: int, since: float, *, extra: int = 0, scale: int = SIZE) -> Ran:
    """What a report says of a prompt, with so many tokens more than fill its blocks."""
    return Ran(blocks(prompt, scale), SIZE * len(prompt) + extra, SIZE * cached, since)


def tails(prompt: Prompt, left: int) -> list[Prompt]:
    """The prefixes beyond so many blocks, last first, as engines let go of them."""
    return [prompt[:depth] for depth in range(len(prompt), left, -1)]


def test_an_eviction_tells_how_much_of_a_prompt_is_left() -> None:
    """
    In the prompt's own estimate of its length, be that wrong; the first time only it says that all was there before.
    """
    engine, prompt = Engine(), tuple(range(40))
    engine.now += 1
    engine.read(prompt, chunk=12)
    assert engine.chains.link(ran(prompt, 0, 0.5, scale=4, extra=0))
    assert engine.chains.cuts() == []

    engine.evict(tails(prompt, 30))
    (first,) = engine.chains.cuts()
    engine.evict(tails(prompt[:30], 10))
    (second,) = engine.chains.cuts()

    assert (first.left_tokens, first.is_first) == (30 * 4, True)
    assert (second.left_tokens, second.is_first) == (10 * 4, False)


def test_turns_of_one_conversation_are_one_prompt() -> None:
    """
    An eviction in what the second turn has read tells of the second, one in the answer before it too; and whatever goes,
    each of them is told once.
    """
    engine, first, answer = Engine(), tuple(range(20)), tuple(range(20, 24))
    assert engine.serve(first)
    engine.store(first + answer, 20, 24)
    second = first + answer + tuple(range(24, 40))
    assert engine.serve(second)

    engine.evict(tails(second, 22))

    (cut,) = engine.chains.cuts()
    assert cut.left_tokens == 22 * SIZE
    assert len(cut.blocks) == 40


def test_what_only_an_answer_had_is_nobodys() -> None:
    """
    The end of an answer that no turn has come back with is no part of a prompt.
    """
    engine, prompt = Engine(), tuple(range(20))
    engine.serve(prompt)
    engine.store((*prompt, 50, 51), 20, 22)

    engine.evict(tails((*prompt, 50, 51), 20))

    assert engine.chains.cuts() == []


def test_two_prompts_of_one_length_that_are_read_together_belong_to_nobody() -> None:
    """
    Which is whose cannot be known; and the blocks of both stay free.
    """
    engine, one, other = Engine(), tuple(range(20)), tuple(range(100, 120))
    engine.read(one)
    engine.read(other)

    assert engine.chains.link(ran(one, 0, 0.5)) is False
    assert engine.chains.link(ran(other, 0, 0.5)) is False

    engine.evict(tails(one, 0))
    assert engine.chains.cuts() == []


def test_the_conversation_tells_two_prompts_of_one_length_apart() -> None:
    """
    Both go on from a turn whose blocks are known.
    """
    engine, talks = Engine(), [tuple(range(20)), tuple(range(100, 120))]
    for talk in talks:
        assert engine.serve(talk)
    later = [(*talk, *range(200, 210)) for talk in talks]
    since = engine.now + 0.5
    for prompt in later:
        engine.read(prompt)

    assert [engine.chains.link(ran(prompt, 20, since)) for prompt in later] == [True, True]

    engine.evict(tails(later[1], 25))
    (cut,) = engine.chains.cuts()
    assert cut.blocks.hashes == blocks(later[1]).hashes


def test_what_was_stored_before_a_prompt_was_sent_is_not_its() -> None:
    """
    Nor what begins elsewhere than where the engine found the end of what it had, nor what is of another length.
    """
    engine, prompt = Engine(), tuple(range(20))
    engine.read(prompt)

    assert engine.chains.link(ran(prompt, 0, engine.now + 0.5)) is None
    assert engine.chains.link(ran(prompt, 8, 0.5)) is None
    assert engine.chains.link(ran((*prompt, 1), 0, 0.5)) is None
    assert engine.chains.link(ran(prompt, 0, 0.5, extra=SIZE)) is None
    assert engine.chains.link(ran(prompt, 0, 0.5, extra=SIZE - 1)) is True


def test_a_feed_that_began_later_than_a_conversation_knows_what_it_has_seen() -> None:
    """
    The first 20 blocks were stored before anybody listened; of the next turn the rest is known, and so is when it goes.
    """
    engine, before = Engine(), tuple(range(20))
    engine.read(before)
    engine.chains = Chains()
    turn = (*before, *range(20, 50))
    assert engine.serve(turn, chunk=7)
    after = (*turn, *range(50, 60))
    assert engine.serve(after)

    engine.evict(tails(after, 30))

    assert [cut.left_tokens for cut in engine.chains.cuts()] == [30 * SIZE]


def test_blocks_with_a_copy_elsewhere_are_there_until_that_goes_too() -> None:
    """
    Whoever has a host tier brings them back from it.
    """
    engine, prompt = Engine(), tuple(range(20))
    engine.serve(prompt)
    told = [engine.chains.has_copies]
    engine.store(prompt, 0, 20, medium="CPU")
    assert [*told, engine.chains.has_copies] == [False, True]

    engine.evict(tails(prompt, 10))
    assert engine.chains.cuts() == []
    engine.evict(tails(prompt, 15), medium="CPU")
    assert [cut.left_tokens for cut in engine.chains.cuts()] == [15 * SIZE]

    # Back on the device: the copy of the next may go.
    engine.store(prompt[:15], 10, 15)
    engine.evict(tails(prompt[:15], 12), medium="CPU")
    assert engine.chains.cuts() == []
    assert len(engine.chains) == 15


def test_what_is_said_twice_is_there_once() -> None:
    """
    Two requests that read the same at once, and reports of what was reused.
    """
    engine, prompt = Engine(), tuple(range(20))
    engine.serve(prompt)
    engine.store(prompt, 0, 20)
    engine.store((*prompt, 7), 0, 21)

    assert len(engine.chains) == 21
    engine.evict(tails(prompt, 19))
    assert [cut.left_tokens for cut in engine.chains.cuts()] == [19 * SIZE]


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (Stored(hashes=[1], parent=None, block_tokens=32), "blocks of 16 and of 32 tokens"),
        (Stored(hashes=[1], parent=None, block_tokens=16, special="is of kind mamba"), "mamba"),
        (Stored(hashes=[name([0])], parent=5, block_tokens=16), "do not name what comes before"),
        (Stored(hashes=[name([0, 1])], parent=None, block_tokens=16), "do not name what comes before"),
        (Stored(hashes=[1, 1], parent=None, block_tokens=16), "two blocks have one hash"),
    ],
)
def test_what_cannot_be_used_says_why(event: Stored, says: str) -> None:
    """
    A hybrid model, or an engine whose hashes say nothing of what comes before.
    """
    engine = Engine()
    engine.serve(tuple(range(4)))

    with pytest.raises(Unfit, match=says):
        engine.chains.stored(event, 1.0)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An engine that says more than is kept of one is told to use larger pages.
    """
    monkeypatch.setattr(chains, "MOST_BLOCKS", 100)
    engine = Engine()
    engine.read(tuple(range(100)))

    with pytest.raises(Unfit, match="more than 100 blocks: give it larger pages"):
        engine.read((*range(100), 1))


class World:
    """An engine, strangers beside us, and what a belief that is only ever cut would hold of our prompts."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.believed: dict[Prompt, int] = {}
        self.copied: set[Prompt] = set()
        self.is_complete = True
        """Whether the feed has been heard from the beginning on."""

    def play(self, what: str, talk: int, length: int, other: int) -> None:
        """Something happens, and what follows from it."""
        prompt = (talk // 3, *(talk for _ in range(length)), length % 3)
        if what in {"serve", "together", "stranger"}:
            self._read(prompt, other, what)
        elif what == "late":
            self.engine.chains, self.is_complete = Chains(), False
            self.believed.clear()
        elif self.engine.held:
            held = sorted(self.engine.held)
            self._let_go(what, held[(length * 7 + other) % len(held)])
        for cut in self.engine.chains.cuts():
            # As a belief does, which is a tree: all that grew from there goes.
            gone, left = list(cut.blocks.hashes), cut.left_tokens // SIZE
            for mine, depth in self.believed.items():
                if left < len(mine) and list(blocks(mine).hashes[: left + 1]) == gone[: left + 1]:
                    self.believed[mine] = min(depth, left)

    def _read(self, prompt: Prompt, chunk: int, what: str) -> None:
        if what == "stranger":
            self.engine.read((9, *prompt), chunk)
            return
        since, cached = self.engine.now + 0.5, self.engine.read(prompt, chunk)
        if what == "together":
            self.engine.read((*prompt[:-1], 7), chunk)
        if cached < len(prompt) and self.engine.chains.link(ran(prompt, cached, since)):
            self.believed[prompt] = len(prompt)

    def _let_go(self, what: str, block: Prompt) -> None:
        if what == "tail":
            block = max((each for each in self.engine.held if each[: len(block)] == block), key=len)
        if what == "copy":
            self.engine.store(block, len(block) - 1, len(block), medium="CPU")
            self.copied.add(block)
        elif what == "uncopy":
            self.copied.discard(block)
            self.engine.chains.removed(Removed(hashes=[name(block)], medium="CPU"))
        else:
            self.engine.evict([block])

    def there(self, prompt: Prompt) -> int:
        """Blocks of a prompt that are there or can come back, from its beginning on."""
        depth = 0
        while depth < len(prompt) and prompt[: depth + 1] in self.engine.held | self.copied:
            depth += 1
        return depth


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["serve", "stranger", "together", "tail", "any", "copy", "uncopy", "late"]),
        st.integers(0, 5),
        st.integers(1, 30),
        st.integers(1, 9),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=examples(200), deadline=None)
def test_never_more_is_believed_than_is_stored(steps: list[tuple[str, int, int, int]]) -> None:
    """
    Whoever is served in whatever order, beside strangers or not, and whatever goes, from its end or from its middle: what
    the cuts have left of a prompt of ours is there, where the feed was heard from the beginning on.
    """
    world = World()
    for step in steps:
        world.play(*step)

        if world.is_complete:
            assert all(depth <= world.there(mine) for mine, depth in world.believed.items())
        assert len(world.engine.chains) <= len(world.engine.held) + len(world.copied)
