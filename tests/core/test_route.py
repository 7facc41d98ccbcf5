"""Where a request goes and why: rules, costs in seconds, ties, and what must never matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ramjet.core.policies import (
    BalanceCost,
    CrowdingCost,
    LeaveCost,
    LongPromptRule,
    PrefillCost,
    QueueCost,
    Reading,
    SpreadLongRule,
)
from ramjet.core.route import REASONS, Ask, Candidate, Cost, Rule, decide

COSTS: tuple[Cost, ...] = (PrefillCost(), QueueCost(), CrowdingCost(), BalanceCost(), LeaveCost())
RULES: tuple[Rule, ...] = (LongPromptRule(600_000, frozenset({"a", "b"})), SpreadLongRule())
POOL_TOKENS = 499_968


def ask(
    prompt_tokens: int = 20_000,
    *,
    body_bytes: int | None = None,
    conversation: int = 0,
    home: str | None = None,
    shared: Sequence[tuple[int, int]] = (),
) -> Ask:
    return Ask(
        body_bytes=4 * prompt_tokens if body_bytes is None else body_bytes,
        prompt_tokens=prompt_tokens,
        conversation=conversation,
        home=home,
        shared=shared,
    )


def at(
    replica: str,
    matched_tokens: int = 0,
    *,
    own_tokens: int | None = None,
    queue_s: float = 0.0,
    in_flight: int = 0,
    living: int = 0,
    long_tokens: int = 0,
    pool_tokens: int | None = None,
) -> Candidate:
    return Candidate(
        replica=replica,
        identity=f"http://{replica}:30000",
        matched_tokens=matched_tokens,
        own_tokens=matched_tokens if own_tokens is None else own_tokens,
        queue_s=queue_s,
        in_flight=in_flight,
        living=living,
        long_tokens=long_tokens,
        pool_tokens=pool_tokens,
    )


@dataclass(frozen=True)
class Queue:
    """A cost that is what the candidate's queue says, so that a test can set it."""

    name: str = "queue"
    breaks_ties: bool = False
    harm_weight: float = 0.0

    def seconds(self, ask: Ask, candidates: Sequence[Candidate]) -> list[float]:
        return [each.queue_s for each in candidates]


# -- what must never matter, and what must always add up --------------------------------------------------------------

NAMES = "abcdefgh"
CANDIDATES = st.lists(st.sampled_from(NAMES), min_size=1, max_size=8, unique=True).flatmap(
    lambda names: st.tuples(
        *(
            st.builds(
                at,
                st.just(name),
                st.sampled_from((0, 12_288, 17_000, 19_712)),
                own_tokens=st.sampled_from((0, 2_712)),
                queue_s=st.sampled_from((0.0, 0.04, 0.05, 3.35, 57.0)),
                in_flight=st.integers(0, 4),
                living=st.integers(0, 30),
                long_tokens=st.sampled_from((0, 0, 150_000, 290_000, 580_000)),
                pool_tokens=st.sampled_from((None, POOL_TOKENS)),
            )
            for name in names
        )
    )
)
ASKS = st.builds(
    ask,
    st.sampled_from((10, 19_845, 290_000)),
    body_bytes=st.sampled_from((100, 600_000)),
    conversation=st.integers(0, 2**64 - 1),
    home=st.sampled_from((None, *NAMES)),
    shared=st.sampled_from(((), ((17_000, 6),), ((8_000, 9), (17_000, 2)))),
)
RULE_SETS = st.sampled_from(((), RULES, RULES[:1], RULES[1:], RULES[::-1]))


@given(ask=ASKS, candidates=CANDIDATES, rules=RULE_SETS, chance=st.randoms(use_true_random=False))
def test_the_order_of_the_fleet_never_matters(
    ask: Ask, candidates: tuple[Candidate, ...], rules: Sequence[Rule], chance: object
) -> None:
    """
    The same replicas in another order give the same decision, down to its working.
    """
    shuffled = list(candidates)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]

    assert decide(ask, shuffled, rules=rules, costs=COSTS) == decide(ask, candidates, rules=rules, costs=COSTS)


@given(ask=ASKS, candidates=CANDIDATES, rules=RULE_SETS)
def test_every_candidate_is_ranked_or_refused(
    ask: Ask, candidates: tuple[Candidate, ...], rules: Sequence[Rule]
) -> None:
    """
    Nobody is lost, nobody stands twice, and rules never refuse everybody.
    """
    decision = decide(ask, candidates, rules=rules, costs=COSTS)

    ranked = [scored.candidate.replica for scored in decision.ranked]
    assert Counter([*ranked, *decision.refused]) == Counter(candidate.replica for candidate in candidates)
    assert decision.chosen.candidate.replica == ranked[0]
    assert all(decision.refused.values())


@given(ask=ASKS, candidates=CANDIDATES, rules=RULE_SETS)
def test_every_reason_is_a_known_one(ask: Ask, candidates: tuple[Candidate, ...], rules: Sequence[Rule]) -> None:
    """
    The reason is a metric's label, and its values are fixed.
    """
    assert decide(ask, candidates, rules=rules, costs=COSTS).reason in REASONS


@given(ask=ASKS, candidates=CANDIDATES)
def test_the_choice_costs_at_most_a_tie_more_than_the_cheapest(ask: Ask, candidates: tuple[Candidate, ...]) -> None:
    """
    Totals are the sums of their working, never negative, and behind the tied ones they only rise.
    """
    ranked = decide(ask, candidates, costs=COSTS).ranked
    totals = [scored.total_s for scored in ranked]
    limit = min(totals) + max(0.05, 0.05 * min(totals))

    assert all(scored.total_s == pytest.approx(sum(scored.costs.values())) for scored in ranked)
    assert all(set(scored.costs) == {"prefill", "queue", "crowding", "balance", "leave"} for scored in ranked)
    assert all(seconds >= 0 for scored in ranked for seconds in scored.costs.values())
    assert totals[0] <= limit
    beyond = [total for total in totals if total > limit]
    assert totals[len(totals) - len(beyond) :] == beyond == sorted(beyond)


def test_a_fleet_without_replicas_is_no_choice() -> None:
    """
    Whoever asks must have somebody to choose from.
    """
    with pytest.raises(ValueError, match="no replica"):
        decide(ask(), [])


# -- ties -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cheap_s", "dear_s", "tied"),
    [(0.0, 0.05, True), (0.0, 0.051, False), (0.2, 0.249, True), (10.0, 10.5, True), (10.0, 10.51, False)],
)
def test_costs_within_50_ms_or_5_percent_are_a_tie(cheap_s: float, dear_s: float, tied: bool) -> None:
    """
    Then the deeper match of the conversation's own part decides, for the estimates are no better than that.
    """
    cheap, dear = at("a", 17_000, own_tokens=0, queue_s=cheap_s), at("b", 17_100, own_tokens=100, queue_s=dear_s)

    for number in range(20):
        decision = decide(ask(conversation=number), [cheap, dear], costs=[Queue()])
        assert decision.chosen.candidate.replica == ("b" if tied else "a")


def test_a_shared_match_is_no_reason_to_stay() -> None:
    """
    A system prompt that everybody has says nothing: among equals rendezvous decides, not who read it first.
    """
    chosen = Counter(
        decide(
            ask(conversation=number), [at("a", 17_000, own_tokens=0), at("b")], costs=[Queue()]
        ).chosen.candidate.replica
        for number in range(200)
    )

    assert min(chosen["a"], chosen["b"]) > 60


@given(conversation=st.integers(0, 2**64 - 1), gone=st.sampled_from("abcde"))
def test_a_removed_replica_moves_only_its_own_conversations(conversation: int, gone: str) -> None:
    """
    Rendezvous: everybody else's first choice stays as it was.
    """
    fleet = [at(name) for name in "abcde"]
    before = decide(ask(conversation=conversation), fleet, costs=COSTS)

    after = decide(ask(conversation=conversation), [each for each in fleet if each.replica != gone], costs=COSTS)

    expected = [scored.candidate.replica for scored in before.ranked if scored.candidate.replica != gone]
    assert [scored.candidate.replica for scored in after.ranked] == expected


def test_rendezvous_gives_every_replica_its_part() -> None:
    """
    2,000 conversations on five equal replicas: 400 each, give or take.
    """
    fleet = [at(name) for name in "abcde"]

    chosen = Counter(
        decide(ask(conversation=number), fleet, costs=COSTS).chosen.candidate.replica for number in range(2_000)
    )

    assert all(300 < chosen[name] < 500 for name in "abcde")


def test_a_replica_is_known_by_its_url_and_not_by_its_name() -> None:
    """
    Two routers may name a replica differently and still agree.
    """
    renamed = [Candidate(replica=f"glm-{name}", identity=f"http://{name}:30000") for name in "abc"]

    for number in range(50):
        one = decide(ask(conversation=number), [at(name) for name in "abc"], costs=[Queue()]).chosen.candidate
        other = decide(ask(conversation=number), renamed, costs=[Queue()]).chosen.candidate
        assert one.identity == other.identity


# -- reasons ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "candidates", "reason", "chosen"),
    [
        (ask(home="b"), [at("a"), at("b", 19_712)], "affinity", "b"),
        (ask(home="b"), [at("a"), at("b", 19_712, queue_s=57.0)], "load", "a"),
        (ask(), [at("a", queue_s=1.0), at("b")], "new", "b"),
        (Ask(body_bytes=9, prompt_tokens=2, has_prompt=False), [at("a", queue_s=1.0), at("b")], "no_prompt", "b"),
        (ask(home="a"), [at("a", 19_712)], "only", "a"),
        # Back home although another was believed to hold a little more: that is no flight from load.
        (ask(home="a"), [at("a", 19_000), at("b", 19_200, own_tokens=0)], "affinity", "a"),
    ],
)
def test_a_decision_says_why(asked: Ask, candidates: list[Candidate], reason: str, chosen: str) -> None:
    """
    Each reason is what an operator would have said.
    """
    decision = decide(asked, candidates, costs=COSTS)

    assert (decision.reason, decision.chosen.candidate.replica) == (reason, chosen)


def test_a_follow_up_waits_for_its_replica_as_long_as_reading_anew_would_take() -> None:
    """
    The seed's 100,000-token turn costs 17 s to read: 10 s of queue are worth it, 30 s are not.
    """
    turn = ask(100_000, home="a")

    assert decide(turn, [at("a", 98_600, queue_s=10), at("b")], costs=COSTS).chosen.candidate.replica == "a"
    assert decide(turn, [at("a", 98_600, queue_s=30), at("b")], costs=COSTS).chosen.candidate.replica == "b"


# -- rules ------------------------------------------------------------------------------------------------------------

LONG = LongPromptRule(600_000, frozenset({"b"}))


def test_long_prompts_go_only_where_they_may() -> None:
    """
    The seed's rule, on: from 600,000 bytes on the second replica serves, however busy it is.
    """
    fleet = [at("a", 149_000), at("b", queue_s=57.0)]

    long = decide(ask(150_000, body_bytes=600_000), fleet, rules=[LONG], costs=COSTS)
    ordinary = decide(ask(149_999, body_bytes=599_999), fleet, rules=[LONG], costs=COSTS)

    assert (long.chosen.candidate.replica, long.reason) == ("b", "long_prompt")
    assert long.refused == {"a": "request of 600,000 bytes is kept to b"}
    assert (ordinary.chosen.candidate.replica, ordinary.reason) == ("a", "affinity")
    assert not ordinary.refused


def test_a_rule_that_changed_nothing_is_not_the_reason() -> None:
    """
    Where it would have gone anyway, it went there for its own reason.
    """
    decision = decide(ask(body_bytes=600_000), [at("a"), at("b", 19_712), at("c")], rules=[LONG], costs=COSTS)

    assert decision.reason == "affinity"
    assert set(decision.refused) == {"a", "c"}


def test_long_prompts_spill_when_their_replicas_cannot_serve() -> None:
    """
    A rule that would refuse everybody gives way, and says so.
    """
    decision = decide(ask(body_bytes=600_000), [at("a"), at("c")], rules=[LONG], costs=COSTS)

    assert decision.reason == "long_prompt_spill"
    assert not decision.refused
    assert len(decision.ranked) == 2


def test_without_the_rule_long_prompts_go_where_they_are_held() -> None:
    """
    Off is the default.
    """
    decision = decide(ask(290_000, home="a"), [at("a", 286_000), at("b")], costs=COSTS)

    assert (decision.chosen.candidate.replica, decision.reason) == ("a", "affinity")


def place(home: str | None, other: str, *, pool_tokens: int | None = None, tokens: int = 290_000) -> tuple[str, str]:
    """Where a long conversation goes next while another one of the same length lives at `other`."""
    fleet = [
        at(
            name,
            tokens - 4_000 if name == home else 0,
            long_tokens=tokens if name == other else 0,
            pool_tokens=pool_tokens,
        )
        for name in "ab"
    ]
    decision = decide(ask(tokens, home=home), fleet, rules=[SpreadLongRule()], costs=COSTS)
    return decision.chosen.candidate.replica, decision.reason


@pytest.mark.parametrize("pool_tokens", [None, POOL_TOKENS])
def test_two_long_conversations_end_apart_and_stay(pool_tokens: int | None) -> None:
    """
    The seed's pair: 2 x 290,000 tokens in one pool of 499,968 evict each other. One leaves once, and then never again.
    """
    homes = {"one": "a", "two": "a"}
    moves = 0

    for _ in range(10):
        for each, other in (("one", "two"), ("two", "one")):
            to, _reason = place(homes[each], homes[other], pool_tokens=pool_tokens)
            moves += to != homes[each]
            homes[each] = to

    assert set(homes.values()) == {"a", "b"}
    assert moves == 1


def test_a_new_long_conversation_goes_where_no_other_lives() -> None:
    """
    Also to the busier replica, and the rule is the reason only if it changed the choice.
    """
    assert place(None, "a")[0] == "b"
    assert place(None, "b")[0] == "a"
    assert {place(None, "a")[1], place(None, "b")[1]} <= {"spread_long", "new"}


def test_a_pool_with_room_for_both_needs_no_spreading() -> None:
    """
    Moving costs a minute of reading: who fits stays.
    """
    assert place("a", "a", pool_tokens=600_000) == ("a", "affinity")
    assert place("a", "a", pool_tokens=POOL_TOKENS)[0] == "b"


def test_ordinary_conversations_are_not_spread() -> None:
    """
    Below 150,000 tokens the rule says nothing.
    """
    assert place("a", "a", tokens=149_999) == ("a", "affinity")


@pytest.mark.parametrize(("elsewhere", "to"), [(290_000, "a"), (150_000, "a"), (149_000, "b"), (0, "b")])
def test_only_half_the_crowd_elsewhere_is_worth_reading_anew(elsewhere: int, to: str) -> None:
    """
    With 300,000 tokens of others at home, a minute of reading pays where there is room, and not for a little less.
    """
    fleet = [at("a", 286_000, long_tokens=300_000), at("b", long_tokens=elsewhere)]

    decision = decide(ask(290_000, home="a"), fleet, rules=[SpreadLongRule()], costs=COSTS)

    assert decision.chosen.candidate.replica == to


def test_more_long_conversations_than_replicas_do_not_wander() -> None:
    """
    Five on three replicas: each moves at most once, and then no replica is empty.
    """
    homes = dict.fromkeys(range(5), "a")
    moves: Counter[int] = Counter()

    for _ in range(6):
        for each, home in homes.items():
            others = Counter(other for key, other in homes.items() if key != each)
            fleet = [at(name, 286_000 * (name == home), long_tokens=290_000 * others[name]) for name in "abc"]
            to = decide(ask(290_000, home=home), fleet, rules=[SpreadLongRule()], costs=COSTS).chosen.candidate.replica
            moves[each] += to != home
            homes[each] = to

    assert max(moves.values()) <= 1
    assert sorted(Counter(homes.values()).values()) in ([1, 2, 2], [1, 1, 3])


# -- costs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "seconds"), [(20_000, 3.35), (100_000, 17), (313_000, 57)])
def test_reading_takes_what_the_seed_measured(tokens: int, seconds: float) -> None:
    """
    3.35 s for 20,000 tokens, about 17 s for 100,000, 57 s for 313,000.
    """
    assert Reading().seconds(0, tokens) == pytest.approx(seconds, rel=0.02)


@given(st.lists(st.integers(0, 500_000), min_size=3, max_size=3).map(sorted))
def test_reading_in_two_steps_takes_as_long_as_in_one(edges: list[int]) -> None:
    """
    Seconds add up, and what is there costs nothing.
    """
    start, middle, end = edges
    reading = Reading()

    in_two = reading.seconds(start, middle) + reading.seconds(middle, end)

    assert in_two == pytest.approx(reading.seconds(start, end))
    assert reading.seconds(end, start) == 0.0


def test_what_k_conversations_share_is_charged_at_a_kth() -> None:
    """
    A system prompt of 17,000 tokens read once serves four; the conversation's own 3,000 are charged in full.
    """
    reading, cost = Reading(), PrefillCost()
    shared = ask(20_000, shared=((17_000, 4),))

    (nothing,) = cost.seconds(shared, [at("a")])
    assert nothing == pytest.approx(reading.seconds(0, 17_000) / 4 + reading.seconds(17_000, 20_000))
    assert cost.seconds(shared, [at("a", 17_000)]) == pytest.approx([reading.seconds(17_000, 20_000)])
    (some,) = cost.seconds(shared, [at("a", 10_000)])
    assert some == pytest.approx(reading.seconds(10_000, 17_000) / 4 + reading.seconds(17_000, 20_000))
    assert cost.seconds(ask(20_000), [at("a")]) == pytest.approx([reading.seconds(0, 20_000)])
    assert cost.seconds(shared, [at("a", 20_000)]) == [0.0]


def test_a_shared_prompt_does_not_keep_everybody_where_it_was_read_first() -> None:
    """
    Twelve agents with one system prompt of 17,000 tokens: the thirteenth goes to the empty replica.
    """
    new = ask(17_100, shared=((17_000, 13),))

    decision = decide(new, [at("a", 17_000, own_tokens=0, living=12, in_flight=4), at("b")], costs=COSTS)

    assert (decision.chosen.candidate.replica, decision.reason) == ("b", "load")


def test_a_queue_costs_its_reading_and_a_little_for_each_request() -> None:
    """
    57 s of reading ahead, and 0.1 s for each of three requests.
    """
    assert QueueCost().seconds(ask(), [at("a", queue_s=57.0, in_flight=3)]) == pytest.approx([57.3])


def test_leaving_home_costs_two_seconds_while_it_holds_something_of_ones_own() -> None:
    """
    Requests at home are no reason to move, but for calls in parallel; a home that has lost everything is.
    """
    cost, home, other = LeaveCost(), at("a", 18_000, own_tokens=1_000), at("b")
    busy = replace(home, in_flight=30)
    parallel = replace(ask(home="a"), in_parallel=True)
    lost = at("a", 17_000, own_tokens=0)

    assert cost.seconds(ask(home="a"), [home, other]) == [0.0, 2.0]
    assert cost.seconds(ask(home="a"), [busy, other]) == pytest.approx([0.0, 5.0])
    assert cost.seconds(parallel, [busy, other]) == [0.0, 1.0]
    assert cost.seconds(ask(home="a"), [lost, other]) == [0.0, 0.0]
    assert cost.seconds(ask(home="gone"), [home, other]) == [0.0, 0.0]
    assert cost.seconds(ask(), [home, other]) == [0.0, 0.0]


def test_balance_charges_only_who_has_no_home() -> None:
    """
    A conversation is never driven out by it.
    """
    cost, fleet = BalanceCost(), [at("a", living=30), at("b", living=1)]

    assert cost.seconds(ask(home="a"), fleet) == [0.0, 0.0]
    assert cost.seconds(Ask(body_bytes=1, prompt_tokens=1, has_prompt=False), fleet) == [0.0, 0.0]
    # 32 living make a share of 17: at "a" the new one would be 14 too many.
    assert cost.seconds(ask(1_000), fleet) == pytest.approx([1.4, 0.0])


@given(
    replicas=st.integers(1, 8),
    conversations=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=100, unique=True),
)
@pytest.mark.parametrize("prompt_tokens", [1_000, 20_000, 100_000])
def test_first_placements_stay_within_a_share(replicas: int, conversations: list[int], prompt_tokens: int) -> None:
    """
    However rendezvous falls, no replica gets more than 5 % over its part, rounded up; also where reading takes so long
    that what balance charges is less than a tie.
    """
    living: Counter[str] = Counter()

    for number in conversations:
        fleet = [at(name, living=living[name]) for name in NAMES[:replicas]]
        chosen = decide(ask(prompt_tokens, conversation=number), fleet, costs=COSTS).chosen.candidate.replica
        living[chosen] += 1

    assert max(living.values()) <= ceil(1.05 * len(conversations) / replicas)
