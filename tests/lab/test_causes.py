"""What Ramjet says made a turn cold, against simulated engines that know."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from ramjet.core.causes import CAUSES
from ramjet.core.pools import Pools
from ramjet.sim.profile import GLM, Profile
from tests.evidence.causes import (
    UNSEEN,
    World,
    everything,
    nothing,
    play,
    right_ratio,
    show,
    silent_restarts,
    tokens_only,
)


def test_cold_turns_get_their_cause(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Every cause is forced, many times and never twice alike; at least 95 % are told right, and none is always missed.
    """
    verdicts = play(10, 1, everything)
    with capsys.disabled():
        sys.stdout.write("\n" + show("all pools known", verdicts) + "\n")

    forced = Counter(each.truth for each in verdicts)
    right = Counter(each.truth for each in verdicts if each.said == each.truth)
    assert set(forced) == set(CAUSES) - {"unknown"}
    assert min(forced.values()) >= 20
    assert right_ratio(verdicts) >= 0.95
    assert min(right[truth] / forced[truth] for truth in forced) >= 0.75


@pytest.mark.parametrize(("told", "most_wrong"), [(tokens_only, 0.05), (nothing, 0.05)])
def test_without_facts_the_answer_is_unknown_rather_than_wrong(
    told: Callable[[Profile], Pools], most_wrong: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    What Ramjet did or saw itself is still told right; of the rest little is said, and what is said is right.
    """
    verdicts = play(6, 2, told)
    with capsys.disabled():
        sys.stdout.write("\n" + show(told.__name__, verdicts) + "\n")

    assert sum(each.said not in {each.truth, "unknown"} for each in verdicts) <= most_wrong * len(verdicts)
    own = [each for each in verdicts if each.truth in {"moved", "prefix_changed", "restart"}]
    assert right_ratio(own) >= 0.9


def test_the_seeds_story_is_told_by_the_log() -> None:
    """
    Six sessions, a prompt of 313,000 tokens from a different agent, the six again: all are cold, with 72 % of the token
    pool used, and each names the snapshots and the one that took them.
    """
    world = World(GLM, 1, random.Random(1), everything)
    sessions = [world.talk(20_000) for _ in range(6)]
    for each in sessions:
        world.send(each)
    long = world.send(world.talk(313_000))
    again = [world.send(each) for each in sessions]

    evidence = [record.cold_evidence or {} for record in again]
    assert [record.cold_cause for record in again] == ["snapshot_pool"] * 6
    assert [each["pushed_out_by"] for each in evidence] == [long.conversation] * 6
    assert [each["reported_tokens"] for each in evidence] == [0] * 6


def test_a_restart_that_nobody_saw_is_blamed_on_no_pool() -> None:
    """
    The engine has lost what both pools had room for: no arithmetic explains it, and none is tried.
    """
    verdicts = play(4, 3, everything, [silent_restarts])

    assert {each.truth for each in verdicts} == {UNSEEN}
    assert {each.said for each in verdicts} == {"unknown"}
