"""What is believed of a replica, and what entering it would cost others."""

from __future__ import annotations

from array import array
from itertools import count

import pytest
import xxhash

from ramjet.core.beliefs import KNOWN_S, Belief
from ramjet.core.cache import Blocks
from ramjet.core.capacity import Capacity
from ramjet.core.losses import Prices
from ramjet.core.pace import Pace
from ramjet.core.pools import Pools

BLOCK = 256
OTHER, MINE = object(), object()
LATER = count(0, int(KNOWN_S) + 1)


def prompt(name: str, tokens: int, *, shared_tokens: int = 0) -> Blocks:
    """A prompt of full blocks; the first `shared_tokens` are the same for every name."""
    hashes, chain = array("Q"), xxhash.xxh3_64()
    for start in range(0, tokens, BLOCK):
        chain.update(b"shared" if start < shared_tokens else name.encode())
        hashes.append(chain.intdigest())
    return Blocks(hashes, array("I", range(BLOCK, tokens + 1, BLOCK)))


def hold(belief: Belief, name: str, tokens: int, now: float = 0.0, owner: object = OTHER) -> None:
    """A conversation's prompt was served there."""
    seat = belief.book(prompt(name, tokens), tokens, owner, now)
    belief.cache.leave(seat, now)


def harm(belief: Belief, name: str, tokens: int, chance: float = 1.0) -> float:
    """What a prompt of ours would cost others: a second for a thousand tokens, times the chance of a return."""
    outlook = belief.outlook(prompt(name, tokens), tokens)
    prices = Prices(
        worth=lambda owner: chance if owner is OTHER else 1.0,
        read_s=lambda start, end: (end - start) / 1_000,
    )
    # Each asks at a time of its own, so that nothing that was worked out before is used again.
    return belief.harm_s(outlook, tokens, MINE, prices, next(LATER), most_s=1_000.0)


@pytest.mark.parametrize(("chunk_tokens", "left"), [(2_048, 8_192), (None, 0)])
def test_what_an_engine_reads_at_once_goes_at_once(chunk_tokens: int | None, left: int) -> None:
    """
    SGLang loses the end of a prompt, a chunk of it. (A belief lost the whole prompt, whatever was known of the engine.)
    """
    belief = Belief(Pools(tokens=20_480, chunk_tokens=chunk_tokens))
    hold(belief, "mine", 10_240)

    hold(belief, "other", 12_288, 1.0)

    assert belief.outlook(prompt("mine", 10_240), 10_240).hit.tokens == left


def test_who_finds_room_harms_nobody() -> None:
    """
    40,960 of 102,400 tokens are taken, and 51,200 more fit.
    """
    belief = Belief(Pools(tokens=102_400))
    hold(belief, "other", 40_960)

    assert harm(belief, "mine", 51_200) == 0.0


def test_harm_is_what_would_go_times_the_chance_that_it_is_wanted_again() -> None:
    """
    Whoever was used least recently goes first, whole; half a chance is half the harm.
    """
    belief = Belief(Pools(tokens=102_400))
    for now, name in enumerate(("oldest", "older", "newest")):
        hold(belief, name, 25_600, float(now))

    assert harm(belief, "mine", 51_200) == pytest.approx(25.6)
    assert harm(belief, "mine", 51_200, chance=0.5) == pytest.approx(12.8)


def test_what_a_request_pushes_out_of_its_own_harms_nobody() -> None:
    """
    A conversation that was edited may take the place of its own past.
    """
    belief = Belief(Pools(tokens=51_200))
    hold(belief, "mine", 40_960, owner=MINE)

    assert harm(belief, "edited", 40_960) == 0.0


def test_what_runs_is_not_pushed_out() -> None:
    """
    The engine would let the newcomer wait: what is in use is no room.
    """
    belief = Belief(Pools(tokens=51_200))
    belief.book(prompt("running", 40_960), 40_960, OTHER, 0.0)

    assert harm(belief, "mine", 40_960) == 0.0
    assert not belief.fits(belief.outlook(prompt("mine", 40_960), 40_960), 40_960)


def test_the_last_snapshot_of_a_conversation_is_worth_all_that_it_has() -> None:
    """
    With slots pressed, the token pool three quarters empty: a resident loses everything with its one snapshot.
    """
    belief = Belief(Pools(tokens=400_000, slots=8, per_path=1, private=3))
    for now in range(4):
        hold(belief, f"other {now}", 5_120, float(now))

    # Three for itself and one for its snapshot, of which four are free: nobody goes. One more, and the oldest does.
    assert harm(belief, "mine", 5_120) == 0.0
    hold(belief, "one more", 5_120, 9.0)
    assert harm(belief, "mine", 5_120) == pytest.approx(5.12)


def test_without_facts_nothing_is_ever_pushed_out() -> None:
    """
    Nobody knows how much there is, so nobody can say what is too much.
    """
    belief = Belief(Pools())
    for number in range(50):
        hold(belief, f"other {number}", 51_200)

    assert harm(belief, "mine", 512_000) == 0.0
    assert belief.fits(belief.outlook(prompt("mine", 512_000), 512_000), 512_000)


def report(belief: Belief, name: str, tokens: int, cached_tokens: int, now: float, *, answer_tokens: int = 0) -> None:
    """A conversation's prompt was sent there, and this much of it was reused."""
    blocks = prompt(name, tokens)
    sought = belief.sought(belief.outlook(blocks, tokens))
    hold(belief, name, tokens, now)
    belief.report(
        blocks, tokens, sought=sought, cached_tokens=cached_tokens, owner=OTHER, now=now, answer_tokens=answer_tokens
    )


def test_reports_teach_how_much_of_the_pool_conversations_get() -> None:
    """
    Less than half of what was believed: the pool is 5 % smaller. All of it: it grows again, slowly.
    """
    belief = Belief(Pools(tokens=100_000))
    hold(belief, "other", 40_960)
    report(belief, "other", 40_960, 1_000, now=1.0)
    assert belief.pool_tokens == 100_000  # it was not full

    hold(belief, "another", 40_960, 2.0)
    report(belief, "other", 40_960, 1_000, now=3.0)
    assert belief.pool_tokens == 95_000

    report(belief, "other", 40_960, 40_700, now=4.0)
    assert belief.pool_tokens == 95_190


def test_a_replica_that_keeps_what_was_believed_gone_is_believed() -> None:
    """
    Its pool grows by 2 % for such a find, by 10 % for another one with no loss between, up to 1.3 times what was said.
    """
    belief = Belief(Pools(tokens=100_000))
    sizes = []
    for now in range(60):
        report(belief, f"conversation {now % 6}", 20_480, 20_224 if now >= 6 else 0, float(now))
        sizes.append(belief.pool_tokens)

    assert sizes[6:9] == [102_000, 112_200, 123_420]
    assert sizes[-1] is not None
    assert 122_880 <= sizes[-1] <= 130_000


def test_a_loss_between_two_finds_makes_the_second_one_the_first_again() -> None:
    """
    What is lost and found by turns is about as large as it is taken for.
    """
    capacity = Capacity(100_000)
    sizes = []
    for teach in (capacity.outlived, lambda: capacity.lost(90_000), capacity.outlived, capacity.outlived):
        teach()
        sizes.append(capacity.size)

    assert sizes == [102_000, 96_900, 98_838, 108_721]


def test_what_was_never_there_teaches_nothing_when_it_is_found() -> None:
    """
    A prompt that others sent past Ramjet says nothing of how large the pool is.
    """
    belief = Belief(Pools(tokens=100_000))
    for now in range(20):
        report(belief, f"other {now}", 10_240, 10_240, float(now))

    assert belief.pool_tokens == 100_000


def test_a_loss_while_somebody_reads_the_same_teaches_nothing() -> None:
    """
    Of two prompts that come at once, the second finds what the first has read by then: that is no want of room.
    """
    belief = Belief(Pools(tokens=100_000))
    belief.book(prompt("other", 40_960), 40_960, OTHER, 0.0)

    report(belief, "other", 40_960, 6_100, now=1.0)
    assert belief.pool_tokens == 100_000


def test_one_prompt_that_lost_its_snapshots_does_not_take_those_of_others() -> None:
    """
    They went one by one, with slots short and tokens not: what grew from the same prompt is still believed.
    """
    belief = Belief(Pools(tokens=400_000, slots=12, private=3))
    for now, name in enumerate(("one", "other")):
        hold(belief, name, 5_120, float(now))
        blocks = prompt(name, 10_240, shared_tokens=4_096)
        belief.cache.leave(belief.book(blocks, 10_240, OTHER, float(now)), float(now))
    one, other = (prompt(name, 10_240, shared_tokens=4_096) for name in ("one", "other"))
    before = belief.outlook(other, 10_240).hit.tokens
    sought = belief.sought(belief.outlook(one, 10_240))
    assert before == sought.tokens == 10_240

    belief.report(one, 10_240, sought=sought, cached_tokens=0, owner=OTHER, now=5.0)
    assert belief.outlook(other, 10_240).hit.tokens == before
    assert belief.outlook(one, 10_240).hit.tokens == 10_240


def test_slots_that_nobody_told_are_counted_once_the_token_pool_explains_no_loss() -> None:
    """
    Counts on the grid alone say little: where pages are large, all of them are. Losses far from a full pool say the rest.
    """
    belief = Belief(Pools(tokens=1_000_000))
    for now in range(6):
        report(belief, "kept", 20_480, 20_480, float(now))
    seen = [(belief.has_snapshots, belief.most_running, belief.pool_tokens)]

    for now in range(6, 13):
        report(belief, "lost", 20_480, 0, float(now))
    seen.append((belief.has_snapshots, belief.most_running, belief.pool_tokens))

    report(belief, "beside the grid", 20_480, 320, 13.0)
    seen.append((belief.has_snapshots, belief.most_running, belief.pool_tokens))
    assert seen == [(True, None, 1_000_000), (True, 1, 1_000_000), (False, None, 1_000_000)]
    assert not belief.cache.snapshots


@pytest.mark.parametrize(("grid_tokens", "answer_tokens", "slots"), [(1, 8, 1), (1, 1, 0), (256, 8, 0), (256, 300, 1)])
def test_an_answer_leaves_a_snapshot_too(grid_tokens: int, answer_tokens: int, slots: int) -> None:
    """
    SGLang saves the state at an answer's end, or at the last grid point before it: ten conversations, whose prompts take
    two of 28 slots each, take three where their answers have one, and then the first of them has gone.
    """
    belief = Belief(Pools(tokens=131_072, slots=28, private=1, chunk_tokens=512, grid_tokens=grid_tokens))
    names = [f"conversation {number}" for number in range(10)]
    for now, name in enumerate(names):
        report(belief, name, 1_024, 0, float(now), answer_tokens=answer_tokens)

    kept = [name for name in names if belief.outlook(prompt(name, 1_536), 1_536).hit.tokens]
    assert belief.cache.used_slots == min(28, 10 * (2 + slots))
    assert kept == names[-9:] if slots else kept == names


def test_an_answer_takes_no_slot_where_a_conversation_has_a_cap() -> None:
    """
    It has as many as the cap allows, whatever of them are its answers'.
    """
    belief = Belief(Pools(tokens=131_072, slots=28, private=1, per_path=2, chunk_tokens=512, grid_tokens=1))
    for now in range(5):
        report(belief, "one", 1_024 + 512 * now, 0, float(now), answer_tokens=8)

    assert belief.cache.used_slots == 2


# -- how fast it reads ----------------------------------------------------------------------------------------------------


def test_an_answer_that_shows_no_first_token_teaches_only_that_a_replica_is_faster() -> None:
    """
    It says how long reading took at most.
    """
    pace = Pace()
    for _ in range(3):
        pace.learn(2.0, 30.0, at_most=True)
    assert pace.factor == 1.0

    for _ in range(3):
        pace.learn(2.0, 0.22, at_most=True)
    assert pace.factor == pytest.approx(0.1)


def test_what_a_first_token_waits_for_beside_the_reading_is_no_pace() -> None:
    """
    A replica as fast as the formula answers 0.2 s later than that, and is not believed slower for it.
    """
    pace = Pace()
    for expected_s in (0.5, 1.0, 5.0, 0.1):
        pace.learn(expected_s, expected_s + 0.2)

    assert pace.factor == pytest.approx(1.0)


def test_a_replica_that_is_not_known_is_taken_for_one_of_the_others() -> None:
    """
    Until it has been seen twice itself.
    """
    pace = Pace()
    pace.expect(0.1)
    assert pace.factor == pytest.approx(0.1)

    for _ in range(2):
        pace.learn(2.0, 4.4)
    pace.expect(0.1)
    assert pace.factor == pytest.approx(2.0)


# -- pages, and states that only the engine knows of ----------------------------------------------------------------------


@pytest.mark.parametrize(("page_tokens", "lost"), [(None, True), (64, True), (1_056, False)])
def test_what_is_less_than_a_block_was_not_lost(page_tokens: int | None, lost: bool) -> None:
    """
    Of 2,048 tokens an engine with blocks of 1,056 may reuse none, and has lost nothing: its pool is as large as before.
    """
    belief = Belief(Pools(tokens=100_000, page_tokens=page_tokens))
    hold(belief, "short", 2_048)
    hold(belief, "other", 92_160, now=1.0)
    report(belief, "short", 2_048, 0, now=2.0)

    assert (belief.pool_tokens != 100_000) is lost


@pytest.mark.parametrize("states_in_pool", [None, False, True])
def test_a_zero_is_no_loss_where_only_the_engine_knows_where_states_lie(states_in_pool: bool | None) -> None:
    """
    vLLM's hybrid models reuse nothing where no state lies on the way: what others have of the prompt is still there.
    """
    belief = Belief(Pools(tokens=400_000, states_in_pool=states_in_pool))
    for name in ("one", "other"):
        seat = belief.book(prompt(name, 20_480, shared_tokens=10_240), 20_480, OTHER, 0.0)
        belief.cache.leave(seat, 0.0)
    blocks = prompt("one", 20_480, shared_tokens=10_240)
    sought = belief.sought(belief.outlook(blocks, 20_480))
    belief.report(blocks, 20_480, sought=sought, cached_tokens=0, owner=OTHER, now=1.0)

    found = belief.outlook(prompt("other", 20_480, shared_tokens=10_240), 20_480)
    assert found.hit.tokens == (20_480 if states_in_pool else 10_240)


def test_but_one_that_the_pool_explains_is_a_loss_there_too() -> None:
    """
    Nearly all of the pool has been used since.
    """
    belief = Belief(Pools(tokens=100_000, states_in_pool=True))
    hold(belief, "one", 20_480)
    hold(belief, "other", 71_680, now=1.0)
    report(belief, "one", 20_480, 0, now=2.0)

    assert (belief.pool_tokens or 0) < 100_000


def test_what_is_not_known_stays_unknown_and_the_usual_applies_last() -> None:
    """
    The configuration, then the engine, then the seed's replicas.
    """
    given, said = Pools(tokens=400_000, private=2), Pools(tokens=499_968, private=1, grid_tokens=64)
    known = given.over(said)

    assert known == Pools(tokens=400_000, private=2, grid_tokens=64)
    assert (known.private_slots, known.grid, known.chunk, known.page) == (2, 64, 6_144, 1)
    assert (Pools().private_slots, Pools().grid) == (3, 256)
    assert Pools(private=0).private_slots == 0
