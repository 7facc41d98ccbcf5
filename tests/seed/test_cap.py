"""The section "Keeping two snapshots per conversation": what a cap per path saves, and what it costs."""

from __future__ import annotations

import pytest

from tests.seed.replica import Replica, prompt, sessions


def survivors(replica: Replica) -> int:
    """How many of six sessions are still cached after one 308,000-token prompt."""
    replica.send_all(sessions(6))
    replica.send(prompt(308_000, "one long prompt"))
    return sum(back.warm for back in replica.send_all(sessions(6)))


def hits(replica: Replica, count: int) -> int:
    """How many of so many sessions hit when they are sent again in a loop, from its second round on."""
    for _ in range(2):
        replica.send_all(sessions(count))
    return sum(back.warm for back in replica.send_all(sessions(count)))


def test_with_a_cap_of_four_all_six_sessions_stay_cached_through_the_long_prompt() -> None:
    """
    "Each came back in 0.15 to 0.30 seconds with 99.6% of its prompt reused."
    """
    replica = Replica(per_path=4)
    replica.send_all(sessions(6))

    replica.send(prompt(308_000, "one long prompt"))

    for back in replica.send_all(sessions(6)):
        assert round(back.share, 3) == 0.996
        assert 0.15 <= back.waited_s <= 0.30


@pytest.mark.parametrize(
    ("cap_first", "private", "survive"),
    [(True, 3, 6), (False, 3, 5), (False, 2, 6), (True, 4, 0), (False, 4, 0)],
)
def test_a_cap_of_four_beside_the_long_prompt_is_a_matter_of_one_slot(
    *, cap_first: bool, private: int, survive: int
) -> None:
    """
    "All six sessions stayed cached": if the cap drops a snapshot before the new one takes its slot (the default here),
    or if a request has two slots of its own and not three. One slot decides between all, one lost, and none.
    """
    assert survivors(Replica(per_path=4, cap_first=cap_first, private=private)) == survive


@pytest.mark.parametrize("cap_first", [True, False])
@pytest.mark.parametrize("private", [2, 3, 4])
def test_a_cap_of_two_is_no_matter_of_a_slot(*, cap_first: bool, private: int) -> None:
    """
    The setting that the post ends with keeps all six under every one of those assumptions.
    """
    assert survivors(Replica(per_path=2, cap_first=cap_first, private=private)) == 6


def test_a_session_produces_four_snapshots() -> None:
    """
    "A 20,000-token session produces four snapshots (three chunk ends and its tail)."
    """
    replica = Replica()

    replica.send_all(sessions(1))

    assert replica.snapshots == [6_144, 12_288, 18_432, 19_968]


@pytest.mark.parametrize("per_path", [None, 4])
def test_with_four_snapshots_each_six_sessions_fit(per_path: int | None) -> None:
    """
    "With about 24 slots free and four snapshots each, a replica held six such sessions."
    """
    assert hits(Replica(per_path=per_path), 6) == 6


@pytest.mark.parametrize("per_path", [None, 4])
def test_twelve_sessions_in_a_loop_miss_every_time(per_path: int | None) -> None:
    """
    "Re-sending twelve sessions in a loop missed every time, because each request evicted the snapshots the next needed."
    """
    assert hits(Replica(per_path=per_path), 12) == 0


def test_with_a_cap_of_two_the_same_twelve_sessions_all_stay_cached() -> None:
    """
    "A cap of two halves the cost of each conversation."
    """
    assert hits(Replica(per_path=2), 12) == 12


@pytest.mark.parametrize(("per_path", "fit"), [(None, 7), (2, 13)])
def test_one_more_session_fits_and_two_more_lose_everything(per_path: int | None, fit: int) -> None:
    """
    The post's figures count 24 slots where the pool gives 25 between requests, and a session that has lost its chunk
    ends still hits at its tail. Beyond that, a loop over too many is the worst case of least recent use: nobody hits.
    """
    assert hits(Replica(per_path=per_path), fit) == fit
    assert hits(Replica(per_path=per_path), fit + 1) == 0


def test_a_branch_off_an_old_conversation_resumes_earlier_under_a_cap() -> None:
    """
    "Keeping fewer snapshots on each path leaves fewer of them to choose from."
    """
    old = prompt(60_000, "an old conversation")
    branch = old.first(50_000).plus(2_000, "another way")

    resumed = {}
    for per_path in (None, 4, 2):
        replica = Replica(per_path=per_path)
        replica.send(old)
        resumed[per_path] = replica.send(branch).cached_tokens

    assert resumed == {None: 49_152, 4: 49_152, 2: 0}


def test_a_conversation_that_goes_on_at_its_end_loses_nothing_to_a_cap() -> None:
    """
    "Our agents almost always extend the conversation from its end, so we accepted that and set the cap to two."
    """
    old = prompt(60_000, "an old conversation")

    for per_path in (None, 2):
        replica = Replica(per_path=per_path)
        replica.send(old)
        assert replica.send(old.plus(2_000, "the next turn")).cached_tokens == 59_904
