"""Asking where a request would go: the answer is what then happens, and nobody can tell afterwards that somebody asked."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramjet.core.admission import Obstacle, Terms
from ramjet.core.causes import CAUSES
from ramjet.core.decisions import Decisions
from ramjet.core.policies import Policy
from ramjet.core.record import SIZE_CLASSES
from ramjet.core.route import REASONS
from ramjet.core.router import Router
from ramjet.core.visit import Arrival, Lease, Visit
from ramjet.core.working import MOST_REPLICAS, explain, waiting
from ramjet.picture import Picture
from tests.core.test_router import Talk, arrival, end, serve, start, text, user
from tests.core.test_router import router as made
from tests.core.test_traces import ANY_TIME, FLEETS, POLICIES, EagerRouter, events
from tests.core.traces import TALKS, Event, Player, drawn, router


@given(
    pools=FLEETS,
    policy=st.sampled_from(POLICIES),
    trace=events(ANY_TIME),
    asked=st.lists(st.tuples(st.integers(0, TALKS - 1), st.floats(0, 1)), min_size=1, max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_who_asks_or_watches_changes_nothing(
    pools: list[int], policy: Policy, trace: list[Event], asked: list[tuple[int, float]]
) -> None:
    """
    Every decision, every entry and every record is the same with and without questions in between, at any moment.
    """
    one, other = Player(router(pools, policy)), Player(router(pools, policy))
    picture = Picture(other.router)
    other.router.on_placed = picture.placed

    for event in trace:
        for talk, part in asked:
            at = other.now + part * event[1]
            explain(other.router, other._arrival(talk), at)
            dict(picture.parts(at, 0.0, "ok"))
        assert one.play(event) == other.play(event)
    assert one.router.memory_bytes == other.router.memory_bytes


class Asked(EagerRouter):
    """Asks about every request before it comes, and compares."""

    told: dict[str, Any]

    def arrive(self, arrival: Arrival, now: float) -> Visit:
        self._tidy(now)
        self.told = explain(self, arrival, now)
        visit = super().arrive(arrival, now)
        assert (self.told["conversation"] or {}).get("turn") == visit.number
        assert self.told["prompt_tokens"] == visit.prompt_tokens
        return visit

    def place(self, visit: Visit, now: float) -> Lease | None:
        first, told = not visit.tried, self.told
        lease = super().place(visit, now)
        if first and lease is None:
            assert (told["decision"] is None) is (visit.held_since is None)
            assert told["admission"] is None or told["admission"]["way"] in {"paid", "held"}
        elif first and lease is not None:
            held = told["admission"]["way"] != "free"
            rows = {each["replica"]: each for each in told["decision"]["replicas"]}
            row, scored = rows[lease.replica.name], lease.scored
            # That it comes back teaches how likely others are to, and only then: what these would lose is a little off.
            certain = {name: seconds for name, seconds in scored.costs.items() if name != "crowding"}
            assert {name: row["costs"][name] for name in certain} == pytest.approx(certain, abs=1e-3)
            assert row["total_s"] == pytest.approx(scored.total_s, rel=0.2, abs=0.1)
            if self.policy.terms.mode != "off":
                assert visit.would_hold is held
            expected = rows[told["decision" if held else "admission"]["replica"]]
            assert expected is row or expected["total_s"] == pytest.approx(row["total_s"], rel=0.2, abs=0.1)
            assert row["matched_tokens"] == scored.candidate.matched_tokens
            # Whether a rule that refused somebody made the difference may hang on those prices.
            assert lease.reason in {told["decision"]["reason"], "room", "fail_open"} or told["decision"]["refused"]
        return lease


@given(pools=FLEETS, policy=st.sampled_from(POLICIES), seed=st.integers(0, 1 << 32))
@example(pools=[1, 0, 0, 0], policy=POLICIES[7], seed=0)  # a branch lives where it left, as soon as it has come
@settings(max_examples=30, deadline=None)
def test_the_answer_is_what_then_happens(pools: list[int], policy: Policy, seed: int) -> None:
    """
    Where it goes, at what price, for what reason, as whose turn, and whether it is held.
    """
    player = Player(router(pools, policy, kind=Asked))

    for event in drawn(seed, 50):
        player.play(event)


def test_a_conversation_that_is_known_is_named() -> None:
    """
    The next turn has its number and its home; another opening is a new one; what was never said is not guessed.
    """
    to, talk = made(), Talk("talk", 20_000)
    serve(to, talk.arrival(), 1.0)
    talk.grow()

    known = explain(to, talk.arrival(), 5.0)
    new = explain(to, arrival(user(text(3_000, "another"))), 5.0)
    blind = explain(to, Arrival(request_id="r", endpoint="other", body_bytes=4_000), 5.0)

    home = to.fleet.replicas[known["conversation"]["home"]].name
    assert (known["conversation"]["known"], known["conversation"]["turn"], known["conversation"]["idle_s"]) == (
        True,
        2,
        4,
    )
    assert (known["decision"]["replica"], known["decision"]["reason"]) == (home, "affinity")
    assert {each["replica"] for each in known["decision"]["replicas"]} == {"a", "b"}
    assert known["decision"]["replicas"][0]["matched_tokens"] > 19_000
    assert (new["conversation"]["known"], new["conversation"]["turn"], new["decision"]["reason"]) == (False, 1, "new")
    assert (blind["conversation"], blind["decision"]["reason"], blind["prompt_tokens"]) == (None, "no_prompt", 1_000)
    assert {blind["admission"]["way"], new["admission"]["way"]} == {"free"}
    assert (to.conversations.living, to.fleet[home].in_flight) == (1, 0)


def test_what_a_rule_refuses_is_told_with_its_reason() -> None:
    to = made("a", "b", pool_tokens=200_000)
    serve(to, arrival(user(text(160_000, "one"))), 0.0)

    told = explain(to, arrival(user(text(170_000, "two"))), 1.0)

    refused = told["decision"]["refused"]
    assert (told["decision"]["rules"], len(refused)) == (["spread_long"], 1)
    assert "long conversations" in next(iter(refused.values()))


def test_why_somebody_would_be_held_is_told() -> None:
    """
    A replica that reads a long prompt takes no second one; one that would lose more than is free may be paid for.
    """
    to = made("a", pool_tokens=60_000, terms=Terms(first_allowance_s=1.0))
    start(to, arrival(user(text(30_000, "one")), name="one"), 0.0)
    busy = explain(to, arrival(user(text(20_000, "two"))), 0.1)
    assert (busy["admission"]["way"], busy["admission"]["why"]) == ("held", "reading")

    waits = to.arrive(arrival(user(text(20_000, "two")), name="two"), 0.2)
    assert to.place(waits, 0.2) is None
    ((held, decision),) = to.held(0.3, 4)
    assert held is waits
    assert [row["obstacle"] for row in waiting(to, held, decision, 4)] == ["reading"]
    assert (
        explain(to, arrival(user(text(20_000, "three"))), 0.3)["decision"]["replicas"][0]["entry"]["obstacle"]
        == "reading"
    )


def test_what_may_be_paid_for_is_told_from_what_is_held() -> None:
    to = made("a", pool_tokens=40_000, terms=Terms())
    for at, name in ((0.0, "one"), (10.0, "two")):
        end(to, start(to, arrival(user(text(18_000, name)), name=name), at), at + 3.0)

    told = explain(to, arrival(user(text(18_000, "three"))), 20.0)

    assert (told["admission"]["way"], told["admission"]["replica"]) == ("paid", "a")
    entry = told["decision"]["replicas"][0]["entry"]
    assert (entry["way"], entry["obstacle"]) == ("paid", "dear")
    assert told["decision"]["replicas"][0]["harm_s"] > entry["free_upto_s"]


# -- the last decisions -------------------------------------------------------------------------------------------------


def watched(to: Router, most: int = 100) -> Decisions:
    decisions = Decisions(most)
    to.on_placed = decisions.placed
    return decisions


def test_a_decision_is_kept_with_its_working_and_its_end() -> None:
    """
    Seconds by term and replica, what became of it, and as JSON no word of the prompt.
    """
    to = made()
    decisions = watched(to)
    visit = start(to, arrival(user(text(20_000, "s3cret")), name="r1"), 1.0)
    assert decisions[1].detail()["record"] is None
    decisions.finished(end(to, visit, 4.0), 4.0)

    told = decisions[1].detail()

    assert (told["request_id"], told["reason"], told["record"]["outcome"]) == ("r1", "new", "ok")
    assert {each["replica"] for each in told["working"]["replicas"]} == {"a", "b"}
    assert set(told["working"]["replicas"][0]["costs"]) == {"prefill", "queue", "crowding", "balance", "leave"}
    assert b"s3cret" not in msgspec.json.encode(told)
    assert decisions[1].row()["outcome"] == "ok"


def test_one_that_failed_says_that_another_was_tried() -> None:
    to = made()
    decisions = watched(to)
    visit = start(to, arrival(user(text(2_000)), name="r1"), 1.0)
    to.failed(visit, 2.0)
    assert to.place(visit, 2.0) is not None
    decisions.finished(end(to, visit, 3.0), 3.0)

    assert [entry.row()["outcome"] for entry in decisions.newest_first] == ["ok", "tried_elsewhere"]
    assert decisions[2].row()["reason"] == "retry"


def test_the_oldest_go_and_ids_that_clients_repeat_do_no_harm() -> None:
    """
    A thousand requests under three names: so many entries are kept, and no index grows beside them.
    """
    to = made()
    decisions = watched(to, most=10)
    for number in range(1_000):
        visit = start(to, arrival(user(text(100, str(number))), name=f"r{number % 3}"), number)
        decisions.finished(end(to, visit, number + 0.5), number + 0.5)

    assert [entry.number for entry in decisions.newest_first] == list(range(1_000, 990, -1))
    assert len(decisions._last) <= 10


def test_one_that_nobody_could_serve_is_listed() -> None:
    to = made("a")
    decisions = watched(to)
    to.fleet["a"].draining = True
    visit = to.arrive(arrival(user("hi"), name="r1"), 0.0)
    assert to.place(visit, 0.0) is None
    decisions.finished(to.finish(visit, 1.0, outcome="no_replica", status=503), 1.0)

    assert (decisions[1].row()["replica"], decisions[1].row()["outcome"]) == (None, "no_replica")
    assert decisions[1].detail()["working"] is None


def test_of_a_large_fleet_the_cheapest_are_kept() -> None:
    to = made(*(f"r{number}" for number in range(40)))
    decisions = watched(to)
    start(to, arrival(user(text(2_000))), 1.0)

    told = decisions[1].detail()["working"]

    assert (len(told["replicas"]), told["not_shown"]) == (MOST_REPLICAS, 40 - MOST_REPLICAS)


# -- the picture --------------------------------------------------------------------------------------------------------


def test_residents_add_up_and_the_largest_are_named() -> None:
    """
    What is shared, the largest, and all others are together what the replica is believed to hold.
    """
    to = made("a")
    system = {"role": "system", "content": text(4_000, "system")}
    for number in range(100):
        serve(to, arrival(system, user(text(1_000 + 100 * number, f"talk {number}"))), float(number))
    parts = {name: msgspec.json.decode(part) for name, part in Picture(to).parts(200.0, 0.0, "ok")}

    told = parts["residents/a"]
    sizes = [row[1] for row in told["largest"]]
    assert sum(sizes) + told["others_tokens"] + told["shared_tokens"] == to.resident_tokens("a")
    assert sizes == sorted(sizes, reverse=True)
    assert (len(sizes), told["others"]) == (60, 40)
    assert 3_900 <= told["shared_tokens"] <= 4_200


def test_the_page_knows_every_word() -> None:
    """
    Causes, reasons, size classes and obstacles that the page puts into words or colours are all of those that there are.
    """
    script = (files("ramjet.admin") / "static" / "page.js").read_text()
    for name, words in (
        ("CAUSES", CAUSES),
        ("WHY", REASONS),
        ("CLASSES", SIZE_CLASSES),
        ("OBSTACLES", get_args(Obstacle)),
    ):
        said = script.partition(f"const {name} = {{")[2].partition("};")[0]
        assert [word for word in words if f"{word}:" not in said and f'"{word}":' not in said] == []
