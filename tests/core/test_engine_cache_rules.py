"""The habits of an engine's cache, one by one: where snapshots are saved, what goes when there is no room, what comes back.

A letter is a page of 4 tokens; a forward reads 16 tokens at most and snapshots lie on multiples of 8, so that a prompt
of 11 letters is the seed's prompt of 19,845 tokens in small.
"""

from __future__ import annotations

from typing import Any

import pytest

from ramjet.core.cache import CacheSpec, EngineCache, Hit, HostTier, Seat, SlotCache, SlotSpec, Snapshots
from tests.core.caches import PAGE, blocks, check

GRID, CHUNK = 2 * PAGE, 4 * PAGE


def hybrid(*, pool: int = 1_000, host: HostTier | None = None, **states: Any) -> EngineCache:
    """A model with recurrent layers: a token pool of so many pages, and a snapshot pool."""
    snapshots = Snapshots(**{"slots": 100, "grid_tokens": GRID, "private": 1} | states)
    return EngineCache(
        CacheSpec(pool_tokens=pool * PAGE, page_tokens=PAGE, chunk_tokens=CHUNK, snapshots=snapshots, host=host)
    )


def attention(*, pool: int = 1_000, host: HostTier | None = None) -> EngineCache:
    """A model of attention layers alone."""
    return EngineCache(CacheSpec(pool_tokens=pool * PAGE, page_tokens=PAGE, chunk_tokens=CHUNK, host=host))


def length(text: str) -> int:
    """A prompt's tokens: its pages and one more, for a prompt's last token is never reused."""
    return len(text) * PAGE + 1


class Clock:
    """Each thing happens a second after the last."""

    now = 0.0

    def __call__(self) -> float:
        Clock.now += 1
        return Clock.now


tick = Clock()


def enter(cache: EngineCache | SlotCache, text: str, answer_tokens: int = 1) -> Seat:
    seat = cache.enter(blocks(text), length(text), answer_tokens, tick())
    assert seat is not None
    return seat


def read(cache: EngineCache | SlotCache, seat: Seat) -> None:
    while left := seat.prompt_tokens - seat.read_tokens:
        cache.forward(seat, min(left, cache.spec.chunk_tokens), tick())


def serve(cache: EngineCache | SlotCache, text: str) -> Hit:
    """A request's whole life, chunk by chunk; its answer is not kept."""
    seat = enter(cache, text)
    read(cache, seat)
    cache.leave(seat, tick())
    return seat.hit


def find(cache: EngineCache | SlotCache, text: str) -> int:
    return cache.find(blocks(text), length(text)).tokens


def token_by_token() -> EngineCache:
    """SGLang's no_buffer: pages of one token, and no state but the last one of every forward; a letter is a token."""
    states = Snapshots(slots=100, grid_tokens=1, private=1, cap_first=False)
    return EngineCache(CacheSpec(pool_tokens=1_000, page_tokens=1, chunk_tokens=CHUNK, snapshots=states))


def find_token(cache: EngineCache, text: str) -> int:
    return cache.find(blocks(text, 1), len(text)).tokens


def answered(cache: EngineCache, prompt: str, reply: str) -> int:
    """A whole request, a letter a token; returns how much was reused."""
    seat = cache.enter(blocks(prompt, 1), len(prompt), len(reply), tick())
    assert seat is not None
    read(cache, seat)
    cache.write(seat, len(reply))
    cache.leave(seat, tick(), blocks(prompt + reply, 1))
    return seat.hit.tokens


def saved(cache: EngineCache) -> list[int]:
    """Lengths in tokens at which the device has a snapshot."""
    return sorted(node.ends[-1] for node in cache.snapshots)


# -- where snapshots are saved --------------------------------------------------------------------------------------


def test_every_forward_saves_one_snapshot_at_the_end_of_its_chunk_or_on_the_grid_before_the_tail() -> None:
    """
    The seed's 6,144, 12,288, 18,432 and 19,712 of 19,845.
    """
    cache = hybrid()

    serve(cache, "a" * 11)

    assert saved(cache) == [16, 32, 40]


def test_a_forward_shorter_than_the_grid_saves_nothing() -> None:
    """
    A prompt that is sent again reads less than that.
    """
    cache = hybrid()
    serve(cache, "a" * 11)

    serve(cache, "a" * 11)

    assert saved(cache) == [16, 32, 40]


def test_the_grid_is_counted_from_where_the_forward_began() -> None:
    """
    A chunk that is shared with another prompt may begin anywhere.
    """
    cache = hybrid()
    seat = enter(cache, "a" * 8)

    cache.forward(seat, 3 * PAGE, tick())
    cache.forward(seat, 3 * PAGE, tick())

    assert saved(cache) == [8, 12 + 8]


def test_a_fork_takes_the_place_of_that_forwards_own_snapshot() -> None:
    """
    The first branch pays for it, the second one finds it.
    """
    cache = hybrid()
    serve(cache, "a" * 11)

    first = serve(cache, "aaaaaaa" + "b" * 4)

    assert (first.tokens, first.known_tokens) == (16, 28)
    assert saved(cache) == [16, 24, 32, 40, 40], "24 and not a second 32"
    assert find(cache, "aaaaaaa" + "c" * 4) == 24


def test_a_branch_whose_rest_fits_one_chunk_has_no_snapshot_at_its_tail() -> None:
    """
    Its next turn resumes at the fork again: one forward saves one snapshot.
    """
    cache = hybrid()
    serve(cache, "a" * 11)

    serve(cache, "aaaaaaab")

    assert find(cache, "aaaaaaab" + "b") == 24


def test_an_engine_that_saves_no_forks_has_the_tail_instead() -> None:
    """
    Then every branch there pays like the first.
    """
    cache = hybrid(forks=False)
    serve(cache, "a" * 11)

    serve(cache, "aaaaaaab")

    assert find(cache, "aaaaaaab" + "b") == 32
    assert find(cache, "aaaaaaac") == 16


def test_an_answer_saves_its_last_multiple_of_the_grid() -> None:
    """
    The next turn, which begins with prompt and answer, resumes there.
    """
    cache = hybrid()
    seat = enter(cache, "a" * 4, answer_tokens=15)
    read(cache, seat)
    cache.write(seat, 15)

    cache.leave(seat, tick(), blocks("a" * 4 + "b" * 4))

    assert saved(cache) == [16, 24]
    assert find(cache, "aaaabb" + "c") == 24
    assert cache.private_tokens == 0


def test_the_last_token_of_an_answer_was_never_read() -> None:
    """
    17 + 7 tokens are 24, and 23 of them have gone through the model.
    """
    cache = hybrid()
    seat = enter(cache, "a" * 4, answer_tokens=7)
    read(cache, seat)
    cache.write(seat, 7)

    cache.leave(seat, tick(), blocks("a" * 4 + "b" * 2))

    assert saved(cache) == [16]


def test_a_prompt_given_up_while_it_is_read_leaves_its_finished_chunks() -> None:
    """
    Whoever sends it again goes on from there.
    """
    cache = hybrid()
    seat = enter(cache, "a" * 11)
    cache.forward(seat, CHUNK, tick())

    cache.leave(seat, tick())

    assert find(cache, "a" * 11) == 16
    assert cache.used_tokens == 16
    check(cache, [])


def test_an_answer_may_have_a_coarser_grid_than_prompts() -> None:
    """
    SGLang's --mamba-track-interval: of 17 to 40 tokens 24 is one of its multiples, and 16 and 32 are the prompt's.
    """
    cache = hybrid(track_tokens=3 * GRID)
    seat = enter(cache, "a" * 4, answer_tokens=24)
    read(cache, seat)
    cache.write(seat, 24)

    cache.leave(seat, tick(), blocks("a" * 4 + "b" * 6))

    assert saved(cache) == [16, 24]


def test_where_only_the_last_state_is_saved_it_lies_at_ends_of_forwards_and_of_answers() -> None:
    """
    SGLang's no_buffer: ends of chunks, of the prompt and of the answer, at any token.
    """
    cache = token_by_token()

    answered(cache, "prompt of 22 tokens...", " and nine")

    assert saved(cache) == [16, 22, 30]
    assert find_token(cache, "prompt of 22 tokens... and nin, and more") == 30


def test_where_only_the_last_state_is_saved_a_prompt_that_is_sent_again_resumes_at_a_chunk() -> None:
    """
    The state at its end is one token too far on: the last token is always read.
    """
    cache = token_by_token()
    answered(cache, "prompt of 22 tokens...", " and nine")

    assert find_token(cache, "prompt of 22 tokens...") == 16
    assert answered(cache, "prompt of 22 tokens...", " and ten") == 16
    assert saved(cache) == [16, 22, 29, 30], "and saves no state where there is one"


def test_a_prompt_of_which_all_is_known_has_its_fork_before_its_last_token() -> None:
    """
    Its last page ends at a multiple of the grid, and its last token is read anyway.
    """
    cache = hybrid(per_path=1)
    serve(cache, "a" * 11)

    seat = cache.enter(blocks("a" * 10), 10 * PAGE, 1, tick())

    assert seat is not None
    assert (seat.hit.tokens, seat.fork_tokens) == (0, 32)


def test_a_run_is_cut_where_a_prompt_leaves_it() -> None:
    """
    Though it can resume earlier only: what the other prompt has behind that point goes alone.
    """
    cache = hybrid(slots=4, forks=False, chain_with_kv=False)
    serve(cache, "a" * 8)

    cache.leave(enter(cache, "a" * 6 + "b"), tick())
    serve(cache, "cccc")
    serve(cache, "dddd")

    hit = cache.find(blocks("a" * 8), length("a" * 8))
    assert (hit.tokens, hit.known_tokens) == (16, 24)


def test_attention_layers_alone_resume_at_any_page() -> None:
    """
    Each token's entry stands on its own; only the last token is always read.
    """
    cache = attention()
    serve(cache, "a" * 11)

    assert find(cache, "aaaaa" + "b") == 20
    assert cache.find(blocks("a" * 11), 11 * PAGE).tokens == 40


# -- the cap on one path ---------------------------------------------------------------------------------------------


def test_the_cap_drops_the_shallowest_and_keeps_the_newest() -> None:
    """
    Their KV stays.
    """
    cache = hybrid(per_path=2)

    serve(cache, "a" * 20)

    assert saved(cache) == [64, 80]
    assert cache.tokens == 80


def test_the_cap_spares_forks() -> None:
    """
    Where two conversations part is where a third will.
    """
    cache = hybrid(per_path=1)
    serve(cache, "a" * 11)

    serve(cache, "aaaaaa" + "b" * 14)

    assert saved(cache) == [24, 40, 80]


def test_a_fork_off_the_grid_is_not_spared() -> None:
    """
    SGLang looks at the snapshot's own run: at page 6 one other follows, and at page 7, where two do, there is none.
    """
    cache = hybrid(per_path=1)
    serve(cache, "a" * 11)

    serve(cache, "aaaaaaa" + "b" * 14)

    assert saved(cache) == [40, 84 // GRID * GRID]


def test_the_cap_spares_what_a_running_request_stands_on() -> None:
    """
    And takes it once nobody does.
    """
    cache = hybrid(per_path=1)
    serve(cache, "aaaa")
    seat = enter(cache, "aaaa" + "b")

    serve(cache, "a" * 8)
    while_it_runs = saved(cache)
    cache.leave(seat, tick())
    serve(cache, "a" * 12)

    assert while_it_runs == [16, 32]
    assert saved(cache) == [48]


def test_the_cap_counts_one_path_and_not_the_tree() -> None:
    """
    Other conversations keep theirs.
    """
    cache = hybrid(per_path=2)

    for text in ("a", "b", "c"):
        serve(cache, text * 8)

    assert saved(cache) == [16, 16, 16, 32, 32, 32]


@pytest.mark.parametrize(("cap_first", "strangers"), [(True, 16), (False, 0)])
def test_a_cap_before_the_slot_is_taken_spares_a_stranger(*, cap_first: bool, strangers: int) -> None:
    """
    Four slots: one private, the stranger's, and two at the cap. The third snapshot needs a fifth, or the cap first.
    """
    cache = hybrid(slots=4, per_path=2, cap_first=cap_first)
    serve(cache, "bbbb")

    serve(cache, "a" * 12)

    assert find(cache, "bbbb") == strangers


def test_the_cap_may_find_the_snapshot_before_still_in_use() -> None:
    """
    Where it comes after the slot, a request that is read still stands on what it saved last.
    """
    cache = hybrid(per_path=1, cap_first=False)

    serve(cache, "a" * 12)

    assert saved(cache) == [32, 48]


# -- slots -----------------------------------------------------------------------------------------------------------


def test_a_running_request_holds_its_private_slots_and_the_snapshot_it_started_from() -> None:
    """
    The seed's "about four": three and one.
    """
    cache = hybrid(private=3)
    serve(cache, "aaaa")

    seat = enter(cache, "aaaa" + "b")

    assert cache.busy_slots == 4
    cache.leave(seat, tick())
    assert cache.busy_slots == 0


def test_many_requests_share_one_snapshot() -> None:
    """
    Each copies it into a slot of its own.
    """
    cache = hybrid(private=3)
    serve(cache, "aaaa")

    seats = [enter(cache, "aaaa" + each) for each in "bcd"]

    assert cache.locked_snapshots == 1
    assert cache.busy_slots == 1 + 3 * 3
    check(cache, seats)


def test_requests_wait_when_there_are_no_slots_for_one_more() -> None:
    """
    Each needs its private ones and one for a snapshot, whether or not it has it yet.
    """
    cache = hybrid(slots=8, private=3)
    seats = [enter(cache, "aaaa"), enter(cache, "bbbb")]

    assert cache.enter(blocks("cccc"), length("cccc"), 1, tick()) is None
    cache.leave(seats[0], tick())
    enter(cache, "cccc")


def test_a_request_takes_its_slots_from_the_snapshots_used_longest_ago() -> None:
    """
    Two of three are left beside it.
    """
    cache = hybrid(slots=5, private=1)
    for text in ("aaaa", "bbbb", "cccc", "dddd"):
        serve(cache, text)

    enter(cache, "eeee")
    enter(cache, "ffff")

    assert [find(cache, text) for text in ("aaaa", "bbbb", "cccc", "dddd")] == [0, 16, 16, 16]


def test_using_a_snapshot_makes_it_young_and_not_those_before_it() -> None:
    """
    A conversation keeps its tail, and loses its chunk ends first.
    """
    cache = hybrid(slots=5)
    serve(cache, "a" * 8)
    serve(cache, "bbbb")
    serve(cache, "a" * 8)

    serve(cache, "cccc")
    serve(cache, "dddd")

    assert saved(cache) == [16, 16, 16, 32]
    assert find(cache, "a" * 8) == 32
    assert find(cache, "aaaa") == 0
    assert find(cache, "bbbb") == 16


def test_a_leaf_that_loses_its_snapshot_goes_with_its_kv_and_so_does_the_chain_above() -> None:
    """
    Nothing can resume there: SGLang gives the tokens back.
    """
    cache = hybrid(slots=4)
    serve(cache, "a" * 9)

    for text in ("b", "c", "d"):
        serve(cache, text * 4)

    assert saved(cache) == [16, 16, 16]
    assert cache.find(blocks("a" * 9), length("a" * 9)).known_tokens == 0
    assert cache.tokens == 3 * 16


def test_a_request_that_ends_with_its_prompt_may_hand_over_its_own_slot() -> None:
    """
    Two slots: its own, and one that the stranger's snapshot keeps.
    """
    cache = hybrid(slots=2, hands_over=True)
    serve(cache, "bb")

    serve(cache, "aa")

    assert saved(cache) == [8, 8]


def test_a_request_that_goes_on_with_an_answer_keeps_its_own_slot() -> None:
    """
    So the stranger's snapshot makes room for the new one.
    """
    cache = hybrid(slots=2, hands_over=True)
    serve(cache, "bb")

    seat = enter(cache, "aa", answer_tokens=2)
    read(cache, seat)

    assert saved(cache) == [8]
    assert find(cache, "bb") == 0


@pytest.mark.parametrize(("rule", "kept_tokens"), [({"chain_with_kv": False}, 16), ({"tail_with_kv": False}, 32)])
def test_kv_may_outlive_its_last_snapshot(rule: dict[str, Any], kept_tokens: int) -> None:
    """
    In SGLang 0.5.23 the leaf goes with its KV, and what is then a leaf without a snapshot waits for the token pool to be
    short; without either rule all of it stays, which nobody can use, and the pool looks fuller.
    """
    cache = hybrid(slots=4, **rule)
    serve(cache, "a" * 9)

    for text in ("b", "c", "d"):
        serve(cache, text * 4)

    hit = cache.find(blocks("a" * 9), length("a" * 9))
    assert (hit.tokens, hit.known_tokens) == (0, kept_tokens)
    assert cache.tokens == kept_tokens + 3 * 16


def test_an_inner_run_loses_its_snapshot_and_keeps_its_kv() -> None:
    """
    What comes after it still needs that.
    """
    cache = hybrid(slots=4)
    serve(cache, "a" * 12)

    serve(cache, "bbbb")

    assert saved(cache) == [16, 32, 48]
    assert find(cache, "aaaa") == 0
    assert find(cache, "a" * 12) == 48
    assert cache.tokens == 48 + 16


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_what_was_read_at_once_goes_at_once() -> None:
    """
    SGLang makes a run of every chunk, also where nobody watches it chunk by chunk. (A belief lost a whole prompt, of which
    the engine had let go of the end alone.)
    """
    cache = attention(pool=14)
    cache.serve(blocks("a" * 10), length("a" * 10), tick())

    cache.serve(blocks("bbbb"), length("bbbb"), tick())

    assert [find(cache, text) for text in ("a" * 10, "bbbb")] == [32, 16]


def test_a_leaf_that_loses_its_kv_loses_its_snapshot_too() -> None:
    """
    The least recently used leaf goes first, whatever its snapshot is worth.
    """
    cache = hybrid(pool=20)
    serve(cache, "a" * 8)
    serve(cache, "b" * 8)

    serve(cache, "c" * 4)

    assert saved(cache) == [16, 16, 16, 32]
    assert [find(cache, text) for text in ("a" * 8, "b" * 8, "c" * 4)] == [16, 32, 16]
    check(cache, [])


def test_what_a_running_request_stands_on_is_not_evicted() -> None:
    """
    Others go first, however young they are.
    """
    cache = hybrid(pool=20)
    serve(cache, "a" * 8)
    seat = enter(cache, "a" * 8 + "c")
    serve(cache, "b" * 8)

    serve(cache, "d" * 8)

    assert find(cache, "a" * 8) == 32
    assert find(cache, "b" * 8) == 0
    check(cache, [seat])


@pytest.mark.parametrize(("cut_is_use", "left"), [(True, [32, 0]), (False, [20, 16])])
def test_what_a_prompt_leaves_behind_may_count_as_used(*, cut_is_use: bool, left: list[int]) -> None:
    """
    SGLang: whoever branches off a conversation makes all of it young, for the run is cut there.
    """
    cache = EngineCache(CacheSpec(pool_tokens=13 * PAGE, page_tokens=PAGE, chunk_tokens=CHUNK, cut_is_use=cut_is_use))
    serve(cache, "a" * 8)
    serve(cache, "b" * 4)

    serve(cache, "aaaaa" + "c")

    assert [find(cache, text) for text in ("a" * 8, "b" * 4)] == left


def test_the_last_token_of_an_answer_takes_no_room() -> None:
    """
    It is told and never read.
    """
    cache = attention()
    seat = enter(cache, "aa", answer_tokens=3)
    read(cache, seat)

    used = [cache.used_tokens]
    for _ in range(3):
        cache.write(seat, 1)
        used.append(cache.used_tokens)

    assert used == [9, 9, 10, 11]


def test_a_request_waits_until_prompt_and_answer_have_room() -> None:
    """
    Nobody has to be thrown out later.
    """
    cache = attention(pool=20)
    seat = enter(cache, "a" * 8, answer_tokens=40)

    assert cache.enter(blocks("bb"), length("bb"), 1, tick()) is None
    cache.leave(seat, tick())
    enter(cache, "bb")


def test_what_two_running_requests_share_is_counted_once() -> None:
    """
    Twenty pages hold two prompts of thirteen that have twelve in common.
    """
    cache = attention(pool=20)
    serve(cache, "a" * 12)

    seats = [enter(cache, "a" * 12 + "b"), enter(cache, "a" * 12 + "c")]

    assert cache.held_tokens == 48
    check(cache, seats)


def test_snapshots_in_the_token_pool_compete_with_tokens_by_age() -> None:
    """
    vLLM has one pool for both.
    """
    cache = hybrid(pool=20, slots=None, tokens_each=2 * PAGE, tail_with_kv=False)
    serve(cache, "a" * 8)
    assert cache.used_tokens == 8 * PAGE + 2 * (2 * PAGE)

    serve(cache, "b" * 4)

    assert cache.used_tokens <= 20 * PAGE
    assert find(cache, "b" * 4) == 16
    assert find(cache, "a" * 8) == 32
    assert find(cache, "aaaa") == 0, "the oldest snapshot made room, and its KV stayed"
    check(cache, [])


# -- the host tier ---------------------------------------------------------------------------------------------------


def host(policy: Any, *, pages: int = 100, slots: int = 100, usable: float = 1.0) -> HostTier:
    return HostTier(tokens=pages * PAGE, slots=slots, policy=policy, usable=usable)


def test_write_through_copies_every_snapshot_when_it_is_saved() -> None:
    """
    Also those that the cap drops from the device right after.
    """
    cache = hybrid(per_path=2, host=host("write_through"))

    serve(cache, "a" * 20)

    assert (len(cache.snapshots), cache.host_snapshots) == (2, 5)
    assert cache.host_tokens == cache.tokens == 80


def test_write_back_copies_what_the_device_lets_go() -> None:
    """
    And nothing before.
    """
    cache = hybrid(pool=10, host=host("write_back"))
    serve(cache, "a" * 8)
    before = cache.host_tokens

    serve(cache, "b" * 8)

    assert before == 0
    assert cache.host_tokens == 32
    assert cache.host_snapshots == 2


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_what_was_evicted_comes_back_from_the_host(policy: str) -> None:
    """
    Tokens and the state at their end; after that it is on the device again.
    """
    cache = hybrid(pool=10, host=host(policy))
    serve(cache, "a" * 8)
    serve(cache, "b" * 8)

    back = serve(cache, "a" * 8)

    assert back.tokens == back.host_tokens == 32
    assert back.host_state
    assert cache.find(blocks("a" * 8), length("a" * 8)) == Hit(8, 32, 32)
    check(cache, [])


def test_tokens_without_a_state_are_dead_weight_on_the_host() -> None:
    """
    A hit needs both.
    """
    cache = hybrid(pool=10, host=host("write_back", slots=0))
    serve(cache, "a" * 8)

    serve(cache, "b" * 8)

    hit = cache.find(blocks("a" * 8), length("a" * 8))
    assert (hit.tokens, hit.known_tokens) == (0, 32)


def test_a_state_may_come_back_alone() -> None:
    """
    The cap took it from the device, where its tokens still are.
    """
    cache = hybrid(per_path=1, host=host("write_through"))
    serve(cache, "a" * 8)

    hit = serve(cache, "aaaa" + "b")

    assert (hit.tokens, hit.host_tokens, hit.host_state) == (16, 0, True)


def test_the_host_frees_leaf_by_leaf_what_the_device_no_longer_has() -> None:
    """
    The beginning of a prompt stays longest, as on the device.
    """
    cache = hybrid(pool=10, host=host("write_back", pages=12))
    serve(cache, "a" * 8)
    serve(cache, "b" * 8)
    assert find(cache, "a" * 8) == 32

    serve(cache, "c" * 8)

    assert [find(cache, text * 8) for text in "abc"] == [16, 32, 32]
    check(cache, [])


def test_a_host_full_of_copies_of_what_the_device_has_takes_no_more() -> None:
    """
    Such copies are not freed.
    """
    cache = hybrid(host=host("write_through", pages=8))
    serve(cache, "a" * 8)

    serve(cache, "b" * 8)

    assert cache.host_tokens == 32


def test_the_oldest_state_without_a_device_copy_makes_room_for_the_next() -> None:
    """
    Whoever is read may stand on it. (A prompt of more chunks than the host has slots kept its first ones, not its tail.)
    """
    cache = hybrid(per_path=1, host=host("write_through", slots=3))

    serve(cache, "a" * 16)

    assert cache.host_snapshots == 3
    assert [find(cache, "a" * pages) for pages in (4, 8, 12, 16)] == [0, 32, 48, 64]


def test_a_share_of_the_host_may_be_all_that_copies_get() -> None:
    """
    The knob for what no model of the tier explains.
    """
    cache = hybrid(pool=10, host=host("write_back", pages=8, slots=2, usable=0.5))
    serve(cache, "a" * 8)

    serve(cache, "b" * 8)

    assert (cache.host_tokens, cache.host_snapshots) == (16, 1)


def test_forgetting_a_run_forgets_what_only_the_host_has_of_its_continuations() -> None:
    """
    They could never be reached again. (They were left behind, and every count was wrong from then on.)
    """
    cache = attention(pool=9, host=host("write_back", pages=4))
    serve(cache, "a" * 6)
    serve(cache, "b" * 4)
    assert cache.find(blocks("a" * 6), length("a" * 6)).host_tokens

    while cache.evict_one():
        check(cache, [])

    assert cache.nodes == 0


# -- a belief about one ----------------------------------------------------------------------------------------------


def test_who_was_seated_without_room_gives_it_back_when_it_leaves() -> None:
    """
    A belief cannot refuse what has been sent. (The pool stayed too full until somebody else came.)
    """
    cache = hybrid(pool=4, slots=2)
    seat = cache.enter(blocks("a" * 8), length("a" * 8), 1, tick(), anyway=True)
    assert seat is not None
    cache.read(seat, tick())
    assert cache.used_tokens > 4 * PAGE

    cache.leave(seat, tick())

    assert cache.used_tokens <= 4 * PAGE
    assert cache.used_slots <= 2


def test_a_correction_leaves_those_who_run_on_what_they_stand_on() -> None:
    """
    What a running request has read the engine has. (Its tokens were forgotten under it, and it fell when it went on.)
    """
    cache = attention()
    seat = enter(cache, "a" * 12)
    cache.forward(seat, CHUNK, tick())
    serve(cache, "aaaabbbb")

    cache.trim(blocks("aaaabbbb"), 2)

    assert find(cache, "aaaabbbb") == 16
    read(cache, seat)
    cache.leave(seat, tick())
    assert find(cache, "a" * 12) == 48
    check(cache, [])


def test_nothing_is_left_after_a_restart() -> None:
    """
    On the device or on the host.
    """
    cache = hybrid(host=host("write_through"))
    serve(cache, "a" * 8)

    cache.clear()

    assert cache.find(blocks("a" * 8), length("a" * 8)) == Hit(0, 0, 0)
    assert cache.used_tokens == cache.host_tokens == cache.host_snapshots == cache.used_slots == 0
    check(cache, [])


# -- llama.cpp: a few sequences ---------------------------------------------------------------------------------------


def slots(**facts: Any) -> SlotCache:
    """Two sequences with checkpoints 8 tokens apart, the last of them 4 tokens before the prompt's end."""
    usual = {"slots": 2, "slot_tokens": 400, "checkpoint_tokens": GRID, "tail_tokens": PAGE}
    return SlotCache(SlotSpec(page_tokens=PAGE, chunk_tokens=CHUNK, **(usual | facts)))


def answer(cache: SlotCache, text: str, more: str = "") -> int:
    """Serve a prompt and let it answer; returns how much was reused."""
    seat = enter(cache, text, answer_tokens=max(1, len(more) * PAGE))
    read(cache, seat)
    cache.write(seat, max(1, len(more) * PAGE))
    cache.leave(seat, tick(), blocks(text + more))
    return seat.hit.tokens


def test_a_prompt_goes_to_the_sequence_it_is_most_like() -> None:
    """
    And reuses what they have in common.
    """
    cache = slots()
    answer(cache, "system" + "a" * 10)
    answer(cache, "other" + "b" * 10)

    assert answer(cache, "system" + "a" * 12) == 64
    assert answer(cache, "other" + "b" * 12) == 60


def test_a_sequence_that_shares_too_little_is_left_alone() -> None:
    """
    The oldest one makes way instead.
    """
    cache = slots(least_alike=0.5)
    answer(cache, "old" * 4)
    answer(cache, "a" * 10)

    assert answer(cache, "a" + "b" * 9) == 0

    assert find(cache, "a" * 10) == 40
    assert find(cache, "old" * 4) == 0


def test_a_slot_has_one_request_at_a_time() -> None:
    """
    The third waits for one of two to end.
    """
    cache = slots()
    first, _second = enter(cache, "aaaa"), enter(cache, "aaaa")

    assert cache.enter(blocks("aaaa"), length("aaaa"), 1, tick()) is None
    cache.leave(first, tick())
    enter(cache, "aaaa")


def test_a_recurrent_model_goes_on_where_its_sequence_ended() -> None:
    """
    Its state stands there. 4 x 4 + 1 + 8 tokens were there, of which the last was never read.
    """
    cache = slots(checkpoints=3)

    answer(cache, "aaaa", "bb")

    assert find(cache, "aaaabb" + "c") == 24


def test_a_recurrent_model_that_leaves_its_sequence_resumes_at_a_checkpoint() -> None:
    """
    Checkpoints: at 16, and at 28, which is a page before the prompt's end.
    """
    cache = slots(checkpoints=3)
    answer(cache, "a" * 8, "b" * 4)

    assert find(cache, "a" * 8 + "c") == 28
    assert find(cache, "a" * 6 + "c") == 16


def test_beyond_its_oldest_checkpoint_everything_is_read_anew() -> None:
    """
    llama.cpp says "forcing full prompt re-processing".
    """
    cache = slots(checkpoints=1)
    answer(cache, "a" * 12, "b" * 4)

    assert find(cache, "a" * 6 + "c" * 6) == 0
    assert find(cache, "a" * 11 + "c") == 44


def test_an_idle_sequence_waits_in_server_memory() -> None:
    """
    It comes back when a prompt is most like it.
    """
    cache = slots(slots=1, host_tokens=400)
    answer(cache, "a" * 10)
    answer(cache, "b" * 10)

    found = cache.find(blocks("a" * 10), length("a" * 10))
    back = enter(cache, "a" * 10).hit

    assert found == back, "looking says what comes from the host. (It said that nothing does.)"
    assert back.tokens == back.host_tokens == 40


def test_who_comes_back_leaves_its_room_to_the_one_that_makes_way() -> None:
    """
    Memory for one idle sequence. (The one that was wanted was thrown out for the other, and the replica fell.)
    """
    cache = slots(slots=1, host_tokens=44)
    answer(cache, "a" * 10)
    answer(cache, "b" * 10)

    assert answer(cache, "a" * 10) == 40

    assert find(cache, "b" * 10) == 40


def test_server_memory_forgets_the_sequence_used_longest_ago() -> None:
    """
    And nothing in slots counts against it.
    """
    cache = slots(slots=1, host_tokens=84)
    for text in "abcd":
        answer(cache, text * 10)

    assert [find(cache, text * 10) for text in "abcd"] == [0, 40, 40, 40]
