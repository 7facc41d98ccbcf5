"""A prompt that is read at once leaves what one that is read chunk by chunk leaves, and loses what that loses."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.cache import Blocks, CacheSpec, EngineCache, Seat, Snapshots
from tests.core.caches import PAGE, blocks, check
from tests.effort import examples

SPECS = st.builds(
    CacheSpec,
    pool_tokens=st.sampled_from((30 * PAGE, 60 * PAGE)),
    page_tokens=st.just(1),
    chunk_tokens=st.sampled_from((2 * PAGE, 5 * PAGE, 5 * PAGE + 1)),
    reads_last=st.just(False),
    snapshots=st.one_of(
        st.none(),
        st.builds(
            Snapshots,
            slots=st.sampled_from((4, 6, 20)),
            private=st.just(1),
            grid_tokens=st.sampled_from((PAGE, 2 * PAGE)),
            per_path=st.integers(1, 3),
        ),
    ),
)
# Where prompts part is never where a chunk ends: a run that is cut there counts as used, and one that ends there does not.
WORDS = st.tuples(st.sampled_from(((), (90,) * 3, (91,) * 9)), st.integers(0, 5), st.integers(1, 24)).map(
    lambda each: [*each[0], *[each[1]] * each[2]]
)
EVENT = st.one_of(
    st.tuples(st.just("serve"), WORDS),
    st.tuples(st.just("serve"), WORDS),
    st.tuples(st.just("book"), WORDS),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("trim"), WORDS),
)


class Told(EngineCache):
    """Says what it lost, in order."""

    def __init__(self, spec: CacheSpec, *, at_once: bool) -> None:
        super().__init__(spec)
        self.at_once = at_once
        self.lost: list[tuple[list[int], str]] = []
        self.on_lost = lambda hashes, pool: self.lost.append((list(hashes), pool))
        self.seats: list[Seat] = []

    def play(self, event: tuple[str, object], now: float) -> None:
        """One event."""
        kind, what = event
        if kind in {"serve", "book"}:
            assert isinstance(what, list)
            seat = self.enter(blocks(what), PAGE * len(what) + 1, 0, now, anyway=True)
            assert seat is not None
            if self.at_once:
                self.read(seat, now)
            else:
                _read_in_chunks(self, seat, now)
            self.seats.append(seat)
        if kind == "serve" or (kind == "leave" and self.seats):
            self.leave(self.seats.pop(-1 if kind == "serve" else what % len(self.seats)), now)  # type: ignore[operator]
        if kind == "trim":
            assert isinstance(what, list)
            self.trim(blocks(what), len(what) // 2, "token_pool")


def _read_in_chunks(cache: EngineCache, seat: Seat, now: float) -> None:
    """The definition."""
    has_grown = False
    while (left := seat.prompt_tokens - seat.read_tokens) > 0:
        has_grown |= cache._forward(seat, min(left, cache.spec.chunk_tokens), now)
    if has_grown and seat.tail is not None:
        cache.touch(seat.tail, now)


def _holds(cache: EngineCache, prompts: Sequence[Blocks]) -> list[object]:
    found = [cache.look(each, each.ends[-1] + 1) for each in prompts]
    return [(match.depth, hit) for match, hit in found]


@given(spec=SPECS, events=st.lists(EVENT, min_size=4, max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_at_once_is_as_chunk_by_chunk(spec: CacheSpec, events: list[tuple[str, object]]) -> None:
    """
    In tokens and snapshots, in what is lost and for want of what, to the last block and in the same order.
    """
    one, other = Told(spec, at_once=True), Told(spec, at_once=False)
    prompts = [blocks(what) for _, what in events if isinstance(what, list)]

    for now, event in enumerate(events):
        one.play(event, float(now))
        other.play(event, float(now))

        check(one, one.seats)
        # What grew from one run goes in any order when that is forgotten.
        order = sorted if event[0] == "trim" else list
        assert order(one.lost) == order(other.lost)
        one.lost.clear()
        other.lost.clear()
        assert _holds(one, prompts) == _holds(other, prompts)
        assert (one.used_tokens, one.used_slots, one.held_tokens) == (
            other.used_tokens,
            other.used_slots,
            other.held_tokens,
        )
        assert one.nodes <= other.nodes
