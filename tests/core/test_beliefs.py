"""What is believed of a replica, and what entering it would cost others."""

from __future__ import annotations

from array import array
from itertools import count

import pytest
import xxhash

from ramjet.core.beliefs import KNOWN_S, Belief, Pace
from ramjet.core.cache import Blocks
from ramjet.core.losses import Prices
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


def test_reports_teach_how_much_of_the_pool_conversations_get() -> None:
    """
    Less than half of what was believed: the pool is 5 % smaller, and what grew from there is forgotten.
    """
    belief = Belief(Pools(tokens=100_000))
    blocks = prompt("other", 40_960)
    hold(belief, "other", 40_960)

    belief.report(blocks, 40_960, believed_tokens=40_960, cached_tokens=1_000, owner=OTHER, now=1.0)
    assert belief.pool_tokens == 95_000

    belief.report(blocks, 40_960, believed_tokens=40_960, cached_tokens=40_700, owner=OTHER, now=2.0)
    assert belief.pool_tokens == 95_200


def test_a_replica_that_keeps_more_than_it_should_is_believed() -> None:
    """
    It found far more than it was said to hold: up to 1.3 times, whatever the configuration says.
    """
    belief = Belief(Pools(tokens=100_000))
    for now in range(60):
        name = f"other {now}"
        hold(belief, name, 10_240)
        belief.report(prompt(name, 40_960), 40_960, believed_tokens=0, cached_tokens=40_000, owner=OTHER, now=now)

    assert belief.pool_tokens == 130_000


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
