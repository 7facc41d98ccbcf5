"""Who may enter now, and who is held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from ramjet.core.admission import Admission, Terms
from ramjet.core.route import Candidate, Scored

COLD_S = 5.0


def at(replica: str, total_s: float | None = None, **facts: Any) -> Scored:
    """A replica as one request sees it; its cost is what reading and harm make, unless given."""
    candidate = Candidate(replica=replica, identity=f"http://{replica}", **facts)
    total = candidate.read_s + candidate.harm_s if total_s is None else total_s
    return Scored(candidate, total)


def where(chosen: Scored | None) -> str | None:
    return None if chosen is None else chosen.candidate.replica


def poll(
    admission: Admission[str], now: float, *ranked: Scored, rank: Callable[[str], Sequence[Scored]] | None = None
) -> list[tuple[str, str]]:
    """Who enters at a time, and where."""
    entered: list[tuple[str, str]] = []
    look = rank or (lambda _: ranked)
    admission.poll(
        now,
        ["a", "b", "c", "d"],
        look,
        lambda who, chosen, _: entered.append((who, chosen.candidate.replica)),
        glance=lambda who: (replace(scored.candidate, harm_s=0.0) for scored in look(who)),
    )
    return entered


# -- at the door ------------------------------------------------------------------------------------------------------


def test_who_pushes_nobody_out_enters_the_cheapest() -> None:
    """
    Without harm admission changes nothing.
    """
    assert where(Admission[str]().choose([at("a", read_s=1.0), at("b", read_s=3.0)], None)) == "a"


@pytest.mark.parametrize(
    ("harm_s", "found_s", "read_s", "enters"),
    [
        (0.6, 0.0, 0.0, True),
        (0.8, 0.0, 0.0, False),
        (20.0, 1.0, 0.0, True),
        (22.0, 1.0, 0.0, False),
        (20.0, 6.0, 5.0, True),
        (22.0, 6.0, 5.0, False),
        (0.6, 5.0, 6.0, True),
        (0.8, 5.0, 6.0, False),
    ],
)
def test_entry_is_free_for_little_harm_or_little_compared_with_what_is_found(
    harm_s: float, found_s: float, read_s: float, enters: bool
) -> None:
    """
    0.7 s is free, and twenty for each second of its own that the conversation still finds beyond those it must read.
    """
    chosen = Admission[str]().choose([at("a", harm_s=harm_s, found_s=found_s, read_s=read_s)], None)

    assert (chosen is not None) is enters


def test_one_cold_read_at_a_time_is_on_its_way_to_a_replica() -> None:
    """
    A second goes to the next replica, and is held where each has one; a warm turn is never kept from its home by that.
    """
    admission = Admission[str]()
    busy, idle = at("a", read_s=COLD_S, cold_reads=1), at("b", read_s=COLD_S + 1)

    assert where(admission.choose([busy, idle], None)) == "b"
    assert admission.choose([busy], None) is None
    assert where(admission.choose([at("a", read_s=0.2, cold_reads=1)], "a")) == "a"


def test_a_short_cold_read_slips_in_between_the_slices_of_another() -> None:
    """
    One that takes no longer than those; where the other is sent whole, it waits.
    """
    admission = Admission[str]()

    assert where(admission.choose([at("a", read_s=3.3, cold_reads=1, between_s=4.5)], None)) == "a"
    assert admission.choose([at("a", read_s=5.0, cold_reads=1, between_s=4.5)], None) is None
    assert admission.choose([at("a", read_s=3.3, cold_reads=1)], None) is None


def test_a_warm_home_that_is_only_full_is_waited_for() -> None:
    """
    Its next place is worth more than another replica's first; a home that is no longer warm is not waited for.
    """
    admission = Admission[str]()
    elsewhere = at("b", read_s=3.0)

    assert admission.choose([at("a", read_s=0.2, is_full=True), elsewhere], "a") is None
    assert where(admission.choose([at("a", read_s=2.5, is_full=True), elsewhere], "a")) == "b"
    assert where(admission.choose([at("a", read_s=0.2, is_full=True), at("b", read_s=1.0)], "a")) == "b"


def test_nobody_enters_where_the_pool_has_no_room_beside_those_that_run() -> None:
    """
    The engine would only let it wait, at the head of everybody else.
    """
    assert Admission[str]().choose([at("a", fits=False)], None) is None


# -- those who wait -----------------------------------------------------------------------------------------------------


def test_the_held_enter_as_soon_as_entry_is_free() -> None:
    """
    First come, first served.
    """
    admission = Admission[str](Terms(first_allowance_s=0.0))
    for number, who in enumerate(("first", "second")):
        admission.hold(who, None, float(number))

    assert poll(admission, 2.0, at("a", harm_s=90.0)) == []
    assert poll(admission, 3.0, at("a", harm_s=0.5)) == [("first", "a"), ("second", "a")]
    assert len(admission) == 0


def test_what_pushes_others_out_is_paid_from_the_allowance() -> None:
    """
    Fifteen seconds at first: one swap of ten is paid, the next waits for the allowance to fill.
    """
    admission = Admission[str]()
    admission.hold("one", None, 0.0)
    admission.hold("two", None, 0.0)
    dear = at("a", harm_s=10.0)

    assert poll(admission, 0.0, dear) == [("one", "a")]
    assert admission.allowance_s("a") == pytest.approx(5.0)
    assert poll(admission, 25.0, dear) == []
    assert poll(admission, 28.0, dear) == [("two", "a")]


def test_the_allowance_fills_faster_when_somebody_has_waited_past_the_patience() -> None:
    """
    0.18 of the time, and up to 0.8 when the oldest has waited long.
    """
    admission = Admission[str](Terms(first_allowance_s=0.0))
    admission.hold("patient", None, 0.0)
    full = at("a", harm_s=50.0, cold_reads=1, read_s=COLD_S)

    poll(admission, 0.0, full)
    poll(admission, 10.0, full)
    before = admission.allowance_s("a")
    poll(admission, 200.0, full)
    poll(admission, 210.0, full)

    assert before == pytest.approx(1.8)
    assert admission.allowance_s("a") == Terms().most_allowance_s


def test_who_has_waited_reserves_an_allowance_that_others_may_not_spend() -> None:
    """
    After five minutes the large request keeps what fills up for it; a smaller one that comes later cannot take it.
    """
    admission = Admission[str](Terms(first_allowance_s=0.0, share=0.01, most_share=0.01))
    admission.hold("large", None, 0.0)
    admission.hold("small", None, 40.0)
    rankings = {"large": [at("a", harm_s=14.0)], "small": [at("a", harm_s=5.0)]}

    poll(admission, 0.0, rank=rankings.__getitem__)
    assert poll(admission, 301.0, rank=rankings.__getitem__) == []
    assert poll(admission, 700.0, rank=rankings.__getitem__) == []
    assert poll(admission, 1_450.0, rank=rankings.__getitem__) == [("large", "a")]


def test_a_replica_is_drained_for_who_fits_only_alone() -> None:
    """
    Nobody else enters there until it has.
    """
    admission = Admission[str]()
    admission.hold("huge", None, 0.0)
    poll(admission, 0.0, at("a", fits=False))
    poll(admission, 301.0, at("a", fits=False))

    assert admission.choose([at("a")], None) is None
    assert poll(admission, 302.0, at("a", fits=True)) == [("huge", "a")]
    assert where(admission.choose([at("a")], None)) == "a"


def test_who_gives_up_leaves_nothing_behind() -> None:
    """
    A reservation and a drain end with the one they were for.
    """
    admission = Admission[str]()
    admission.hold("huge", None, 0.0)
    poll(admission, 0.0, at("a", fits=False))
    poll(admission, 301.0, at("a", fits=False))

    assert admission.leave("huge")
    assert not admission.leave("huge")

    assert where(admission.choose([at("a")], None)) == "a"
    assert poll(admission, 302.0, at("a")) == []


class Door(RuleBasedStateMachine):
    """Admission against a list: any interleaving of requests, clients that leave, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission[int]()
        self.now = 0.0
        self.inside: list[int] = []
        self.left: set[int] = set()
        self.waiting: list[int] = []
        self.arrived = 0
        self.fleet: list[Scored] = []

    @rule(
        facts=st.lists(
            st.fixed_dictionaries(
                {
                    "read_s": st.sampled_from((0.1, 3.0, 50.0)),
                    "harm_s": st.sampled_from((0.0, 0.5, 15.0, 120.0)),
                    "found_s": st.sampled_from((0.0, 1.0)),
                    "fits": st.booleans(),
                    "is_full": st.booleans(),
                    "cold_reads": st.integers(0, 1),
                }
            ),
            max_size=4,
        )
    )
    def change(self, facts: list[dict[str, Any]]) -> None:
        self.fleet = sorted((at("abcd"[at_], **each) for at_, each in enumerate(facts)), key=lambda each: each.total_s)

    @rule(home=st.sampled_from((None, "a", "b")))
    def arrive(self, home: str | None) -> None:
        who = self.arrived = self.arrived + 1
        if self.admission.choose(self.fleet, home) is None:
            self.admission.hold(who, home, self.now)
            self.waiting.append(who)
        else:
            self.inside.append(who)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(self.waiting))
        assert self.admission.leave(who)
        self.waiting.remove(who)
        self.left.add(who)

    @rule(seconds=st.sampled_from((0.0, 1.0, 31.0, 301.0, 400.0)))
    def poll(self, seconds: float) -> None:
        self.now += seconds

        def enter(who: int, chosen: Scored, _: float) -> None:
            assert chosen in self.fleet
            assert chosen.candidate.fits
            assert not chosen.candidate.is_full
            self.waiting.remove(who)
            self.inside.append(who)

        self.admission.poll(
            self.now,
            "abcd",
            lambda _: self.fleet,
            enter,
            glance=lambda _: [replace(each.candidate, harm_s=0.0) for each in self.fleet],
        )

    @invariant()
    def nobody_is_forgotten(self) -> None:
        assert list(self.admission) == self.waiting
        assert sorted([*self.inside, *self.waiting, *self.left]) == list(range(1, self.arrived + 1))

    @invariant()
    def allowances_are_bounded(self) -> None:
        assert all(self.admission.allowance_s(name) <= Terms().most_allowance_s for name in "abcd")

    def teardown(self) -> None:
        """However badly it went: with room everywhere, everybody enters."""
        self.fleet = [at("a")]
        for _ in range(len(self.waiting) + 2):
            self.poll(301.0)
        assert not self.waiting


TestDoor = Door.TestCase


# -- looking takes time -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("waits_s", "looked_at"), [(1.0, []), (301.0, ["one"])])
def test_who_has_no_place_anywhere_is_not_ranked(waits_s: float, looked_at: list[str]) -> None:
    """
    What others would lose is dear to work out, and does not matter where no other long read may begin; but who waits
    for long has an allowance kept for them, and for that must be ranked.
    """
    admission: Admission[str] = Admission(Terms())
    admission.hold("one", None, 0.0)
    reading = at("a", read_s=COLD_S, cold_reads=1)
    ranked: list[str] = []

    def rank(who: str) -> list[Scored]:
        ranked.append(who)
        return [reading]

    admission.poll(waits_s, ["a"], rank, lambda *_: None, glance=lambda _: [reading.candidate])

    assert ranked == looked_at
