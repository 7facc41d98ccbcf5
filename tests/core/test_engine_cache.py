"""An engine's cache under every interleaving of requests: what must always add up, and what may never be found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramjet.core.cache import CacheSpec, EngineCache, Hit, HostTier, Seat, SlotCache, SlotSpec, Snapshots
from tests.core.caches import PAGE, blocks, check, check_promises, check_slots
from tests.effort import examples

GRID, CHUNK = 2 * PAGE, 4 * PAGE

SLOW = [HealthCheck.too_slow]
"""A busy machine is no fault of the cache's."""

WHO = st.integers(0, 5)
WORDS = st.builds(
    lambda word, common, own: [word] * common + own,
    st.integers(0, 2),
    st.integers(0, 9),
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
)
"""Prompts that have much in common and leave one another anywhere."""
HOSTS = st.none() | st.builds(
    HostTier,
    tokens=st.integers(0, 30).map(lambda pages: pages * PAGE),
    slots=st.integers(0, 6),
    policy=st.sampled_from(("write_through", "write_back")),
    usable=st.sampled_from((1.0, 0.7)),
)


@st.composite
def states(draw: st.DrawFn) -> Snapshots:
    """Pools of snapshots in which at least one request can run."""
    private = draw(st.integers(1, 3))
    one_pool = draw(st.booleans())
    return Snapshots(
        slots=None if one_pool else private + draw(st.integers(1, 6)),
        tokens_each=draw(st.sampled_from((PAGE, 3 * PAGE))) if one_pool else 0,
        grid_tokens=draw(st.sampled_from((PAGE, GRID))),
        track_tokens=draw(st.sampled_from((None, 3 * PAGE))),
        per_path=draw(st.none() | st.integers(1, 3)),
        private=private,
        cap_first=draw(st.booleans()),
        forks=draw(st.booleans()),
        tail_with_kv=draw(st.booleans()),
        chain_with_kv=draw(st.booleans()),
        hands_over=draw(st.booleans()),
    )


@st.composite
def specs(draw: st.DrawFn) -> CacheSpec:
    """Pools so small that everything is pushed out now and then."""
    snapshots = draw(st.none() | states())
    room = 0 if snapshots is None else snapshots.tokens_each * (snapshots.private + 1)
    return CacheSpec(
        pool_tokens=room + draw(st.integers(12, 30)) * PAGE + draw(st.integers(0, PAGE - 1)),
        page_tokens=PAGE,
        chunk_tokens=CHUNK,
        cut_is_use=draw(st.booleans()),
        snapshots=snapshots,
        host=draw(HOSTS),
    )


@dataclass(eq=False)
class Running:
    """A request under way, as the test knows it."""

    seat: Seat
    words: tuple[int, ...]
    prompt_tokens: int
    answer_tokens: int
    written: int = 0

    @property
    def left(self) -> int:
        return max(0, self.prompt_tokens - self.seat.read_tokens)


def pick(who: int, among: list[Running]) -> Running:
    return among[who % len(among)]


class Requests(RuleBasedStateMachine):
    """Requests in any interleaving; what any of them finds has been read by one before."""

    cache: Any
    anyway = False

    def start(self, cache: EngineCache | SlotCache, most_tokens: int) -> None:
        self.cache, self.most_tokens = cache, most_tokens
        self.known: set[tuple[int, ...]] = set()
        self.running: list[Running] = []
        self.now = 0.0

    def learn(self, words: tuple[int, ...], tokens: int) -> None:
        self.known.update(words[:n] for n in range(1, tokens // PAGE + 1))

    def tick(self) -> float:
        self.now += 1
        return self.now

    @rule(words=WORDS, more=st.integers(0, PAGE - 1), answer=st.integers(1, 2 * GRID))
    def enter(self, words: list[int], more: int, answer: int) -> None:
        tokens = len(words) * PAGE + more
        if tokens + answer > self.most_tokens and not self.anyway:
            return
        prompt = blocks(words)
        found = self.cache.find(prompt, tokens)
        self.judge(tuple(words), tokens, found)

        more_arguments = {"anyway": True} if self.anyway else {}
        seat = self.cache.enter(prompt, tokens, answer, self.tick(), **more_arguments)

        if seat is None:
            assert self.running, "one that fits gets a seat when nobody else has one"
            assert self.cache.find(prompt, tokens) == found, "being refused changes nothing"
            return
        assert seat.hit == found, "looking tells the truth"
        assert seat.read_tokens == found.tokens
        self.running.append(Running(seat, tuple(words), tokens, answer))

    def judge(self, words: tuple[int, ...], tokens: int, hit: Hit) -> None:
        assert hit.tokens == hit.depth * PAGE
        assert hit.tokens < tokens, "the last token is always read"
        assert hit.tokens <= hit.known_tokens
        assert 0 <= hit.host_tokens <= hit.tokens
        known = hit.known_tokens // PAGE
        assert not known or words[:known] in self.known, "nothing is found that was never read"

    @rule(words=WORDS, more=st.integers(0, PAGE - 1), answer=st.integers(1, 2 * GRID))
    def serve(self, words: list[int], more: int, answer: int) -> None:
        """A whole request while the others stand still."""
        before = len(self.running)
        self.enter(words, more, answer)
        if len(self.running) > before:
            each = self.running[-1]
            while each.left:
                self.forward_some(each, CHUNK)
            self.write_some(each, answer)
            self.leave_now(each, kept=True)

    @precondition(lambda self: any(each.left for each in self.running))
    @rule(who=WHO, pages=st.integers(1, CHUNK // PAGE))
    def forward(self, who: int, pages: int) -> None:
        self.forward_some(pick(who, [each for each in self.running if each.left]), pages * PAGE)

    def forward_some(self, each: Running, tokens: int) -> None:
        self.cache.forward(each.seat, min(each.left, tokens), self.tick())
        self.learn(each.words, each.seat.read_tokens)

    @precondition(lambda self: any(not each.left for each in self.running))
    @rule(who=WHO, tokens=st.integers(1, 2 * GRID))
    def write(self, who: int, tokens: int) -> None:
        self.write_some(pick(who, [each for each in self.running if not each.left]), tokens)

    def write_some(self, each: Running, tokens: int) -> None:
        tokens = min(tokens, each.answer_tokens - each.written)
        if tokens:
            self.cache.write(each.seat, tokens)
            each.written += tokens

    @precondition(lambda self: any(each.written for each in self.running))
    @rule(who=WHO, kept=st.booleans())
    def leave(self, who: int, kept: bool) -> None:
        self.leave_now(pick(who, [each for each in self.running if each.written]), kept=kept)

    def leave_now(self, each: Running, *, kept: bool) -> None:
        self.running.remove(each)
        tokens = each.prompt_tokens + each.written
        words = each.words + (each.words[0],) * (tokens // PAGE - len(each.words))
        self.cache.leave(each.seat, self.tick(), blocks(words) if kept else None)
        if kept:
            self.learn(words, tokens - 1)

    @precondition(lambda self: any(not each.written for each in self.running))
    @rule(who=WHO)
    def abort(self, who: int) -> None:
        each = pick(who, [each for each in self.running if not each.written])
        self.running.remove(each)

        self.cache.leave(each.seat, self.tick())

    @precondition(lambda self: not self.running)
    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.known.clear()

        assert self.cache.used_tokens == 0

    def teardown(self) -> None:
        for each in self.running:
            self.cache.leave(each.seat, self.tick())
        self.running.clear()
        self.adds_up()

    def adds_up(self) -> None:
        raise NotImplementedError


class InATree(Requests):
    """SGLang and vLLM: pools of tokens and snapshots, one pool for both, and a host tier."""

    cache: EngineCache

    @initialize(spec=specs())
    def begin(self, spec: CacheSpec) -> None:
        assert spec.pool_tokens is not None
        states = spec.snapshots
        room = 0 if states is None else states.tokens_each * (states.private + 1)
        self.start(EngineCache(spec), spec.pool_tokens - room)

    def judge(self, words: tuple[int, ...], tokens: int, hit: Hit) -> None:
        super().judge(words, tokens, hit)
        node = self.cache.match(blocks(words)).node
        path = {each.ends[-1]: each for each in node.path()} if node is not None else {}
        most = min(hit.known_tokens, tokens - 1)
        if self.cache.spec.snapshots is None:
            assert hit.tokens == most // PAGE * PAGE
            return
        live = [end for end, each in path.items() if end <= most and (each.snapshot or each.host_snapshot)]
        assert hit.tokens == max(live, default=0), "the deepest live snapshot"
        assert hit.host_state == (hit.tokens > 0 and not path[hit.tokens].snapshot)

    @rule(words=WORDS, depth=st.integers(0, 10), how=st.sampled_from(("trim", "prune", "expire", "evict")))
    def forget(self, words: list[int], depth: int, how: str) -> None:
        if how == "trim":
            self.cache.trim(blocks(words), depth)
        elif how == "prune":
            self.cache.prune(blocks(words), depth)
        elif how == "expire":
            self.cache.expire(self.now - 4 * depth)
        else:
            self.cache.evict_one()

    @invariant()
    def adds_up(self) -> None:
        check(self.cache, [each.seat for each in self.running])
        if not self.anyway:
            check_promises(self.cache)

    def teardown(self) -> None:
        super().teardown()
        assert self.cache.held_tokens == self.cache.private_tokens == self.cache.locked_snapshots == 0
        assert self.cache._reserved_tokens == 0


class AsABelief(InATree):
    """A router's model of a replica refuses nobody: what was sent was sent, and the pool may turn out another size."""

    anyway = True

    @rule(pages=st.none() | st.integers(4, 40))
    def resize(self, pages: int | None) -> None:
        self.cache.pool_tokens = None if pages is None else pages * PAGE
        # It is kept from the next request on.
        seat = self.cache.enter(blocks([8]), PAGE, 1, self.tick(), anyway=True)
        assert seat is not None
        self.cache.leave(seat, self.now)


class InSlots(Requests):
    """llama.cpp: a few sequences, checkpoints, and idle ones in server memory."""

    @initialize(
        slots=st.integers(1, 3),
        checkpoints=st.none() | st.integers(1, 3),
        host=st.integers(0, 20),
        tail=st.sampled_from((0, PAGE, GRID + 1)),
    )
    def begin(self, slots: int, checkpoints: int | None, host: int, tail: int) -> None:
        spec = SlotSpec(
            slots=slots,
            slot_tokens=20 * PAGE,
            page_tokens=PAGE,
            chunk_tokens=CHUNK,
            checkpoints=checkpoints,
            checkpoint_tokens=GRID,
            tail_tokens=tail,
            host_tokens=host * PAGE,
        )
        self.start(SlotCache(spec), spec.slot_tokens)

    @invariant()
    def adds_up(self) -> None:
        check_slots(self.cache, [each.seat for each in self.running])


InATree.TestCase.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None, suppress_health_check=SLOW
)
AsABelief.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=40, deadline=None, suppress_health_check=SLOW
)
InSlots.TestCase.settings = settings(
    max_examples=examples(50), stateful_step_count=40, deadline=None, suppress_health_check=SLOW
)
TestInATree = InATree.TestCase
TestAsABelief = AsABelief.TestCase
TestInSlots = InSlots.TestCase


# -- larger pools ----------------------------------------------------------------------------------------------------


def reused(spec: CacheSpec, history: list[list[int]]) -> list[int | None]:
    """How many pages each of the prompts reuses, one after the other; None where there was no room for it."""
    cache = EngineCache(spec)
    hits = [cache.serve(blocks(words), len(words) * PAGE + 1, now) for now, words in enumerate(history)]
    return [None if hit is None else hit.depth for hit in hits]


@given(specs(), st.lists(WORDS, max_size=12))
@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW)
def test_equal_histories_give_equal_caches(spec: CacheSpec, history: list[list[int]]) -> None:
    """
    Nothing depends on where in memory a run lies.
    """
    assert reused(spec, history) == reused(spec, history)


@given(st.integers(13, 20), st.integers(1, 8), st.lists(WORDS, max_size=14))
@settings(max_examples=examples(50), deadline=None, suppress_health_check=SLOW)
def test_of_attention_layers_alone_a_larger_pool_never_turns_a_hit_into_a_miss(
    pages: int, more: int, history: list[list[int]]
) -> None:
    """
    Least recent use, leaves first, has the inclusion property, although whole runs go at a time.
    """
    small = CacheSpec(pool_tokens=pages * PAGE, page_tokens=PAGE, chunk_tokens=CHUNK)
    large = replace(small, pool_tokens=(pages + more) * PAGE)

    for less, much in zip(reused(small, history), reused(large, history), strict=True):
        assert less is not None
        assert much is not None
        assert less <= much


HYBRID = CacheSpec(
    pool_tokens=100 * PAGE,
    page_tokens=PAGE,
    chunk_tokens=2 * PAGE,
    snapshots=Snapshots(slots=3, grid_tokens=PAGE, private=1),
)
"""One slot for the request, the others for snapshots; a forward reads two pages."""


def test_more_slots_may_turn_a_hit_into_a_miss() -> None:
    """
    A hit makes its own snapshot young and none before it; whoever misses saves them all anew.

    With two snapshots the first prompt misses when it comes back, is read again, and leaves one at its second page for
    the last. With three it hits at its third page; the one at its second has made room for the stranger, and the last
    misses. So a prediction of hits cannot be a bound on the pool: it has to follow what happened.
    """
    history = [[1, 1, 0], [0, 0, 0], [1, 1, 0], [1, 1]]
    assert HYBRID.snapshots is not None
    more = replace(HYBRID, snapshots=replace(HYBRID.snapshots, slots=4))

    assert reused(HYBRID, history) == [0, 0, 0, 2]
    assert reused(more, history) == [0, 0, 3, 0]


def test_a_larger_token_pool_may_turn_a_hit_into_a_miss() -> None:
    """
    Two evictions that know nothing of each other: what one has taken, the other need not take.

    In ten pages the second prompt pushes out the end of the first, and with it a snapshot. In eleven the end stays, so
    the second prompt's slot is the oldest one's, at page 2, where the last prompt would have resumed.
    """
    history = [[1, 1, 1, 1, 1, 1, 1, 1, 0], [0], [1, 1]]
    assert HYBRID.snapshots is not None
    small = replace(HYBRID, pool_tokens=10 * PAGE, snapshots=replace(HYBRID.snapshots, slots=6))

    assert reused(small, history) == [0, 0, 2]
    assert reused(replace(small, pool_tokens=11 * PAGE), history) == [0, 0, 0]
