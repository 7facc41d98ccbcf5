"""The router as a whole: real prompts in, decisions and records out, and nothing left over at the end."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from ramjet.core.admission import Terms
from ramjet.core.fingerprint import fingerprint
from ramjet.core.fleet import Fleet, Replica, State
from ramjet.core.hints import hashed
from ramjet.core.policies import (
    BalanceCost,
    CrowdingCost,
    LeaveCost,
    LongPromptRule,
    Policy,
    PrefillCost,
    QueueCost,
    SpreadLongRule,
)
from ramjet.core.pools import Pools
from ramjet.core.prompt import read
from ramjet.core.record import OUTCOMES, Record
from ramjet.core.router import Router
from ramjet.core.slices import cuts
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Visit

SEED = 0x5EED
COSTS = (PrefillCost(), QueueCost(), CrowdingCost(), BalanceCost(), LeaveCost())
NOTHING = Usage()


def fleet(*names: str, pool_tokens: int | None = None) -> Fleet:
    made = Fleet()
    for name in names:
        made.add(Replica(name, f"http://{name}:30000", configured=Pools(tokens=pool_tokens)))
    return made


def router(*names: str, pool_tokens: int | None = None, **policy: Any) -> Router:
    rules = policy.pop("rules", (SpreadLongRule(),))
    policy.setdefault("terms", Terms(mode="off"))
    return Router(fleet(*(names or ("a", "b")), pool_tokens=pool_tokens), Policy(rules=rules, costs=COSTS, **policy))


def text(tokens: int, name: str = "") -> str:
    """About so many tokens of text, which another name makes another text from its first word on."""
    return (f"{name} " + "cache " * tokens)[: 4 * tokens]


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def arrival(
    *messages: Any, endpoint: str = "chat", name: str = "r", session: str | None = None, **fields: Any
) -> Arrival:
    body = json.dumps({"model": "glm", "messages": messages, **fields}).encode()
    prompt = read(body, endpoint)
    return Arrival(
        request_id=name,
        endpoint=endpoint,
        body_bytes=len(body),
        model=prompt.model,
        fingerprint=fingerprint(prompt, SEED),
        hint=None if session is None else hashed(("x-session-id", session), SEED),
        cuts=cuts(prompt, endpoint),
    )


def start(to: Router, given: Arrival, now: float = 0.0) -> Visit:
    """A request that has arrived and been placed."""
    visit = to.arrive(given, now)
    assert to.place(visit, now) is not None
    return visit


def end(to: Router, visit: Visit, now: float = 0.0, usage: Usage | None = NOTHING) -> Record:
    """The request's first token came, and its answer ended well."""
    to.first_token(visit, now)
    return to.finish(visit, now, outcome="ok", status=200, usage=usage)


def serve(to: Router, given: Arrival, now: float = 0.0, usage: Usage | None = NOTHING) -> Record:
    return end(to, start(to, given, now), now, usage)


def idle(to: Router) -> bool:
    return all((replica.in_flight, replica.queue_s) == (0, 0.0) for replica in to.fleet)


def placed(visits: list[Visit]) -> Counter[str]:
    return Counter(visit.lease.replica.name for visit in visits if visit.lease is not None)


class Talk:
    """A conversation that grows by an answer and a question each turn, as agents' do."""

    def __init__(self, name: str, tokens: int, system: str = "") -> None:
        self.name = name
        self.messages = [{"role": "system", "content": system}] * bool(system) + [user(text(tokens, name))]

    def arrival(self) -> Arrival:
        return arrival(*self.messages, name=self.name)

    def grow(self, tokens: int = 300) -> None:
        number = len(self.messages)
        answer = assistant(text(tokens // 2, f"{self.name} {number}"))
        self.messages += [answer, user(text(tokens // 2, f"{self.name} {number + 1}"))]


# -- placing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [20, 20_000])
@pytest.mark.parametrize(("replicas", "each"), [("ab", 6), ("abc", 4), ("abcd", 3)])
def test_a_burst_is_spread_before_anything_completes(replicas: str, each: int, tokens: int) -> None:
    """
    Twelve different prompts at one moment on two replicas: six each, for choosing and booking are one step.
    """
    to = router(*replicas)

    visits = [start(to, Talk(f"agent {number}", tokens).arrival()) for number in range(12)]

    assert placed(visits) == dict.fromkeys(replicas, each)


def test_a_burst_that_shares_a_system_prompt_is_spread_too() -> None:
    """
    Twelve agents with the seed's 17,000-token system prompt: both replicas read it once and share the work.
    """
    to, system = router(), text(17_000, "system")

    visits = [start(to, Talk(f"agent {number}", 1_000, system).arrival()) for number in range(12)]

    assert max(placed(visits).values()) <= 7


def test_every_turn_goes_back_to_the_replica_that_holds_the_prompt() -> None:
    """
    Twelve conversations of ten turns on three replicas: none ever moves, whatever else is running.
    """
    to = router("a", "b", "c")
    talks = [Talk(f"agent {number}", 2_000) for number in range(12)]
    homes: dict[str, set[str | None]] = {talk.name: set() for talk in talks}

    for turn in range(10):
        visits = [start(to, talk.arrival(), now=turn * 30.0) for talk in talks]
        for talk, visit in zip(talks, visits, strict=True):
            record = end(to, visit, now=turn * 30.0 + 10)
            homes[talk.name].add(record.replica)
            assert record.turn == turn + 1
            assert not record.moved
            assert turn == 0 or record.reason == "affinity"
            talk.grow()

    assert all(len(home) == 1 for home in homes.values())
    assert idle(to)


def test_the_seeds_pair_ends_on_two_replicas_and_stays_there() -> None:
    """
    Two conversations of 290,000 tokens that grow by 4,000 a turn, and six of 20,000 beside them.
    """
    to = router(pool_tokens=499_968)
    talks = [Talk(f"long {number}", 290_000) for number in range(2)] + [Talk(f"agent {n}", 20_000) for n in range(6)]
    homes: dict[str, list[str | None]] = {talk.name: [] for talk in talks}

    for turn in range(3):
        for talk in talks:
            homes[talk.name].append(serve(to, talk.arrival(), now=60.0 * turn).replica)
            talk.grow(4_000)

    assert all(len(set(home)) == 1 for home in homes.values())
    assert homes["long 0"] != homes["long 1"]


def test_the_follow_up_of_a_raw_prompt_is_the_next_turn() -> None:
    """
    Agents on SGLang's own endpoint, or on completions, have conversations too: the longer text continues the shorter.
    """
    to, prompt = router(), text(2_000, "Once upon a time")
    homes = set()

    for turn in range(5):
        record = serve(to, arrival(endpoint="generate", text=prompt), now=float(turn))
        homes.add(record.replica)
        assert record.turn == turn + 1
        prompt += text(500, f"and then {turn}")

    assert len(homes) == 1
    assert to.conversations.living == 1


def test_raw_prompts_that_only_begin_alike_are_two_conversations() -> None:
    """
    The same examples in front of every task make no conversation of them.
    """
    to, examples = router(), text(2_000, "Examples")

    records = [
        serve(to, arrival(endpoint="completions", prompt=examples + text(500, f"task {number}"))) for number in range(4)
    ]

    assert [record.turn for record in records] == [1, 1, 1, 1]
    assert to.conversations.living == 4


def test_two_routers_place_new_conversations_alike() -> None:
    """
    One secret, the same fleet in another order: they agree without talking.
    """
    one, other = router("a", "b", "c"), router("c", "a", "b")

    for number in range(30):
        given = Talk(f"agent {number}", 500).arrival()
        assert serve(one, given).replica == serve(other, given).replica


def test_users_with_the_same_first_prompt_are_spread() -> None:
    """
    Eight users of one short prompt are eight conversations and go to both replicas; without hints they look like one
    that repeats itself.
    """
    system = {"role": "system", "content": text(100, "system")}
    for hinted, most in ((True, 5), (False, 8)):
        to = router()

        records = [
            serve(to, arrival(system, user("Good morning!"), session=str(number) if hinted else None), number)
            for number in range(8)
        ]

        assert max(Counter(record.replica for record in records).values()) == most
        assert to.conversations.living == len({record.conversation for record in records}) == (8 if hinted else 1)


def test_two_routers_place_users_with_the_same_first_prompt_alike() -> None:
    """
    The hint is hashed with the secret that they share.
    """
    one, other = router("a", "b", "c", "d"), router("d", "c", "b", "a")

    for number in range(20):
        given = arrival(user("Good morning!"), session=str(number))
        assert serve(one, given).replica == serve(other, given).replica


def test_a_conversation_goes_home_after_compaction() -> None:
    """
    Its summary is its next turn there, and what it shares with nobody is charged to nobody else.
    """
    to, talk = router(), Talk("agent", 2_000, system=text(17_000, "system"))
    records = []
    for now in (0, 60, 120):
        records.append(serve(to, arrival(*talk.messages, session="s"), now))
        talk.grow(20_000)
    summary = [talk.messages[0], user(text(2_000, "summary"))]

    visit = start(to, arrival(*summary, session="s"), 180)
    shared = visit.shared
    records.append(end(to, visit, 180))

    assert {record.conversation for record in records} == {records[0].conversation}
    assert [record.turn for record in records] == [1, 2, 3, 4]
    assert {record.replica for record in records} == {records[0].replica}
    assert not visit.in_parallel
    assert {conversations for _, conversations in shared} == {1}
    assert to.conversations.living == 1


def test_what_has_no_prompt_is_spread_by_load_alone() -> None:
    """
    Embeddings and unreadable bodies: no conversation, no turn, and the queue still counts.
    """
    to = router()
    visits = [start(to, Arrival(request_id=f"r{number}", endpoint="other", body_bytes=900)) for number in range(12)]

    records = [end(to, visit) for visit in visits]

    assert Counter(record.replica for record in records) == {"a": 6, "b": 6}
    assert {(record.conversation, record.turn, record.reason) for record in records} == {(None, None, "no_prompt")}
    assert idle(to)
    assert to.conversations.living == 0


def test_only_replicas_that_list_the_model_get_its_requests() -> None:
    """
    A replica that has not said what it serves may serve anything; a model nobody lists is the engines' to refuse.
    """
    to = router("a", "b", "c")
    to.fleet["a"].models = frozenset({"glm"})
    to.fleet["b"].models = frozenset({"qwen"})

    def served(model: str | None) -> set[str | None]:
        return {serve(to, arrival(user(f"{model} {n}" * 200), model=model)).replica for n in range(30)}

    assert served("glm") == {"a", "c"}
    assert served("qwen") == {"b", "c"}
    assert served("nobody's") == {"a", "b", "c"}
    assert served(None) == {"a", "b", "c"}


def test_who_is_down_or_draining_gets_nothing() -> None:
    """
    While one replica can serve, it serves.
    """
    to = router("a", "b", "c")
    to.fleet["a"].state, to.fleet["b"].draining = State.DOWN, True

    assert {serve(to, Talk(f"agent {n}", 500).arrival()).replica for n in range(10)} == {"c"}


def test_when_nobody_is_up_trying_beats_refusing() -> None:
    """
    Health may be wrong about all of them; a replica that drains stays out of it.
    """
    to = router("a", "b", "c")
    for replica in to.fleet:
        replica.state = State.DOWN
    to.fleet["b"].draining = True

    records = [serve(to, Talk(f"agent {n}", 500).arrival()) for n in range(10)]

    assert {record.replica for record in records} == {"a", "c"}
    assert {record.reason for record in records} == {"fail_open"}


def test_with_all_replicas_draining_there_is_nobody() -> None:
    """
    An operator who drains everything means it.
    """
    to = router()
    for replica in to.fleet:
        replica.draining = True
    visit = to.arrive(Talk("agent", 500).arrival(), 0)

    assert to.place(visit, 0) is None
    record = to.finish(visit, 1, outcome="no_replica", status=503)

    assert (record.replica, record.reason, record.attempts) == (None, None, 0)
    assert record.temperature == "first"


def test_without_affinity_nothing_is_believed_to_match() -> None:
    """
    Plain load balancing, to compare with: a conversation goes wherever fewer are.
    """
    to, talk = router(affinity=False), Talk("agent", 20_000)
    record = serve(to, talk.arrival())
    assert record.replica is not None
    other = next(each.name for each in to.fleet if each.name != record.replica)
    to.fleet[record.replica].line_up("another", 1.0, 0)
    talk.grow()

    again = serve(to, talk.arrival())

    assert (again.replica, again.matched_tokens, again.moved) == (other, 0, True)


def test_a_retry_goes_to_the_other_replica() -> None:
    """
    The first choice is not asked twice, and after everybody was tried there is nobody.
    """
    to = router()
    visit = start(to, Talk("agent", 500).arrival())
    assert visit.lease is not None
    first = visit.lease.replica.name

    to.failed(visit, 1)
    second = to.place(visit, 1)
    assert second is not None
    assert (second.replica.name, second.reason) == (next(name for name in "ab" if name != first), "retry")
    to.failed(visit, 1)

    assert to.place(visit, 2) is None
    assert to.finish(visit, 3, outcome="upstream_connect", status=502).attempts == 2
    assert idle(to)


def test_who_may_not_go_somewhere_never_does() -> None:
    """
    Not even home; and where it may go nowhere it is told so, and nothing is left in the books.
    """
    to = router("a", "b", "c")
    first = arrival(user(text(20_000)))
    home = serve(to, first, 0).replica
    visit = to.arrive(arrival(user(text(20_000)), assistant("ok"), user("go on")), 1)
    visit.shunned.add(f"http://{home}:30000")
    lease = to.place(visit, 1)

    assert lease is not None
    assert lease.replica.name != home
    end(to, visit, 2)
    nowhere = to.arrive(first, 3)
    nowhere.shunned.update(to.fleet.urls)
    assert to.place(nowhere, 3) is None
    assert nowhere.held_since is None
    assert to.finish(nowhere, 3, outcome="no_replica", status=503).replica is None
    assert idle(to)


def test_who_is_carried_elsewhere_is_booked_there() -> None:
    """
    The one is as if nobody had been sent there, the other holds the prompt, and the record names it.
    """
    to = router("a", "b", "c")
    given = arrival(user(text(20_000)))
    visit = start(to, given, 0)
    assert visit.lease is not None
    other = next(name for name in "abc" if name != visit.lease.replica.name)
    lease = to.carried(visit, other, 1)

    assert lease is not None
    assert [each.in_flight for each in to.fleet] == [int(each.name == other) for each in to.fleet]
    record = end(to, visit, 2)
    assert (record.replica, record.reason, record.attempts) == (other, "retry", 2)
    assert [bool(to.resident_tokens(name)) for name in "abc"] == [name == other for name in "abc"]
    assert idle(to)


def test_who_is_carried_to_nobody_knows_where_is_nowhere() -> None:
    """
    The place is given back, and the end of it is as good as any other; but what was reused there says nothing of where it
    was sent first.
    """
    to = router("a", "b")
    visit = start(to, arrival(user(text(20_000))), 0)

    assert to.carried(visit, "z", 1) is None
    assert idle(to)
    usage = Usage(prompt_tokens=20_000, cached_tokens=19_000)
    assert end(to, visit, 2, usage).outcome == "ok"
    assert idle(to)
    assert [to.resident_tokens(name) for name in "ab"] == [0, 0]
    # Nor that it is one that reports what it reuses.
    assert serve(to, arrival(user(text(5_000, "new"))), 3, Usage(prompt_tokens=5_000)).usage.cached_tokens is None


def test_what_ends_at_a_replica_that_was_let_go_is_no_word_of_one_that_came_under_its_name() -> None:
    """
    That the old one reported what it reused says nothing of the new one.
    """
    to = router("a")
    visit = start(to, arrival(user(text(5_000))), 0)
    to.remove("a")
    end(to, visit, 1, Usage(prompt_tokens=5_000, cached_tokens=64))
    to.add(Replica("a", "http://a:30001"))

    assert serve(to, arrival(user(text(5_000, "new"))), 2, Usage(prompt_tokens=5_000)).usage.cached_tokens is None


def test_a_record_tells_the_whole_visit() -> None:
    """
    Everything the log line needs is there, with times from the request's arrival on.
    """
    to, talk = router(), Talk("agent", 20_000)
    serve(to, talk.arrival(), usage=Usage(prompt_tokens=19_845, cached_tokens=0))
    talk.grow()
    visit = start(to, talk.arrival(), now=100.0)
    to.first_token(visit, 101.5)
    to.first_token(visit, 107.0)

    usage = Usage(prompt_tokens=20_145, cached_tokens=19_712, completion_tokens=7)
    record = to.finish(visit, 110.0, outcome="ok", status=200, usage=usage)

    assert (record.request_id, record.endpoint, record.model, record.turn) == ("agent", "chat", "glm", 2)
    assert (record.ttft_s, record.duration_s, record.attempts, record.status) == (1.5, 10.0, 1, 200)
    assert (record.usage, record.temperature, record.moved) == (usage, "warm", False)
    assert set(record.costs) == {"prefill", "queue", "crowding", "balance", "leave"}
    assert record.conversation is not None
    assert len(record.conversation) == 12
    assert record.reason == "affinity"


# -- the ledger -------------------------------------------------------------------------------------------------------


def test_a_lease_is_given_back_once_however_often_it_is_released() -> None:
    """
    Return, error and cancellation may all try.
    """
    to = router()
    visit = start(to, Talk("agent", 20_000).arrival())
    lease = visit.lease
    assert lease is not None
    assert (lease.replica.in_flight, lease.replica.queue_s) == (1, lease.reading_s)

    lease.read(1.0)
    assert (lease.replica.in_flight, lease.replica.queue_s) == (1, 0.0)
    for _ in range(3):
        lease.release(2.0)

    assert (lease.replica.in_flight, lease.replica.queue_s) == (0, 0.0)


def test_a_replica_is_free_again_when_the_prompt_has_been_read() -> None:
    """
    Those behind wait for its reading, not for its writing.
    """
    to = router("a")
    visit = start(to, Talk("agent", 100_000).arrival())
    assert 15 < to.fleet["a"].queue_s < 20

    to.first_token(visit, 17)

    assert (to.fleet["a"].queue_s, to.fleet["a"].in_flight) == (0.0, 1)


def test_a_replica_reads_whether_or_not_anybody_looks() -> None:
    """
    Ten of the seventeen seconds of a 100,000-token prompt have passed unseen: seven are left for whoever comes.
    """
    to = router("a")
    start(to, replace(Talk("one", 100_000).arrival(), stream=True), now=0.0)
    start(to, replace(Talk("two", 100_000).arrival(), stream=True), now=0.0)
    alone_s, both_s = to.fleet["a"].queue_s / 2, to.fleet["a"].queue_s

    assert to.fleet["a"].queue_at(10.0) == pytest.approx(both_s - 10.0)
    assert to.fleet["a"].queue_at(10.0) == to.fleet["a"].queue_at(10.0)
    assert to.fleet["a"].queue_at(1_000.0) == pytest.approx(alone_s)


def test_the_next_prompt_is_read_from_when_the_one_before_was() -> None:
    """
    The first token of one is where the reading of the other begins, and so is the end of one that failed.
    """
    to = router("a")
    visits = [start(to, replace(Talk(name, 100_000).arrival(), stream=True)) for name in ("one", "two", "three")]
    alone_s = to.fleet["a"].queue_s / 3

    to.first_token(visits[0], 17.0)
    assert to.fleet["a"].queue_at(20.0) == pytest.approx(2 * alone_s - 3.0)

    to.failed(visits[1], 21.0)
    assert to.fleet["a"].queue_at(25.0) == pytest.approx(alone_s - 4.0)


class Ledger(RuleBasedStateMachine):
    """The router against a dict: any interleaving of requests, failures, restarts and time passing."""

    def __init__(self) -> None:
        super().__init__()
        terms = Terms(mode="off", cold_s=0.1)
        self.router = router("a", "b", "c", memory_bytes=24_000, horizon_s=500.0, terms=terms, slice_s=0.05)
        self.now = 0.0
        self.open: dict[Visit, tuple[str, float] | None] = {}
        """Where each request is, and the seconds of reading that are still ahead of it there."""
        self.talks = [Talk(f"agent {number}", 900, text(700, "system") if number < 4 else "") for number in range(6)]

    def visit(self, data: st.DataObject, *, leased: bool | None = None) -> Visit | None:
        visits = [visit for visit, place in self.open.items() if leased is None or (place is not None) is leased]
        return data.draw(st.sampled_from(visits)) if visits else None

    @rule(number=st.integers(0, 6), grow=st.booleans())
    def arrive(self, number: int, grow: bool) -> None:
        if number == 6:
            given = Arrival(request_id=f"r{self.now}", endpoint="other", body_bytes=3_000, stream=True)
        else:
            if grow:
                self.talks[number].grow(400)
            given = replace(self.talks[number].arrival(), stream=True)
        self.open[self.router.arrive(given, self.now)] = None

    @rule(number=st.integers(0, 5))
    def edit(self, number: int) -> None:
        talk = self.talks[number]
        talk.messages = [*talk.messages[:-1], user(text(200, f"edited at {self.now}"))]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        visit = self.visit(data, leased=False)
        if visit is not None:
            serving = [each.name for each in self.router.fleet if each.serving] or ["a", "b", "c"]
            untried = set(serving) - set(visit.tried)
            lease = self.router.place(visit, self.now)
            assert (lease.replica.name in untried) if lease is not None else not untried
            if lease is None:
                self.open[visit] = None
            else:
                reading_s = lease.starts[0].read_s if lease.starts else lease.reading_s
                self.open[visit] = lease.replica.name, reading_s

    @precondition(lambda self: self.open)
    @rule(data=st.data(), taken=st.booleans(), cached=st.sampled_from((None, 0, 1_500)))
    def read_start(self, data: st.DataObject, taken: bool, cached: int | None) -> None:
        visit = self.visit(data, leased=True)
        if visit is not None and visit.lease is not None and visit.lease.starts:
            if taken:
                self.router.start_read(visit, self.now, Usage(prompt_tokens=900, cached_tokens=cached))
            else:
                self.router.send_whole(visit, self.now)
            lease = visit.lease
            left_s = self.router.offers.read_s(lease.belief, lease.read_tokens, visit.prompt_tokens)
            reading_s = lease.starts[0].read_s if lease.starts else left_s
            assert reading_s > 0
            self.open[visit] = lease.replica.name, reading_s

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        visit = self.visit(data, leased=True)
        if visit is not None and visit.lease is not None and not visit.lease.starts:
            place = self.open[visit]
            assert place is not None
            self.router.first_token(visit, self.now)
            self.open[visit] = (place[0], 0.0)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        visit = self.visit(data, leased=True)
        # No replica fails a request whose first token has come: it is cut, which is an end.
        if visit is not None and visit.first_token_at is None:
            self.router.failed(visit, self.now)
            self.open[visit] = None

    @precondition(lambda self: self.open)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), cached=st.sampled_from((None, 0, 1_500, 10**9)))
    def finish(self, data: st.DataObject, outcome: str, cached: int | None) -> None:
        visit = self.visit(data)
        assert visit is not None
        usage = None if cached is None else Usage(prompt_tokens=2_000, cached_tokens=cached)
        record = self.router.finish(visit, self.now, outcome=outcome, status=200, usage=usage)
        assert record.outcome == outcome
        del self.open[visit]

    @rule(replica=st.sampled_from("abc"))
    def restart(self, replica: str) -> None:
        self.router.restarted(replica)
        assert self.router.resident_tokens(replica) == 0

    @rule(replica=st.sampled_from("abc"), up=st.booleans())
    def health(self, replica: str, up: bool) -> None:
        self.router.fleet[replica].state = State.UP if up else State.DOWN

    @rule(seconds=st.sampled_from((0.1, 10.0, 400.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def every_place_is_counted(self) -> None:
        places = [place for place in self.open.values() if place is not None]
        for replica in self.router.fleet:
            here = [reading_s for name, reading_s in places if name == replica.name]
            assert replica.in_flight == len(here)
            assert replica.queue_s == pytest.approx(sum(here), abs=1e-5)
            assert any(here) or replica.queue_s == 0.0

    @invariant()
    def every_living_conversation_is_counted_at_its_home(self) -> None:
        known = self.router.conversations
        assert +known.living_at == Counter(each.home for each in known if each.home is not None)
        assert min(known.living_at.values(), default=0) >= 0
        running = Counter(visit.turn.conversation for visit in self.open if visit.turn is not None)
        assert {each: each.running for each in known if each.running} == running

    @invariant()
    def long_conversations_are_counted_by_their_tokens(self) -> None:
        known = self.router.conversations
        for least_tokens in (1, 900, 1_500, 2_048):
            tokens = Counter[str]()
            for each in known:
                if each.home is not None and each.tokens >= least_tokens:
                    tokens[each.home] += each.tokens
            assert known.long_tokens(least_tokens, None) == tokens

    @invariant()
    def what_is_held_is_held_by_the_living(self) -> None:
        known = self.router.conversations
        holders = Counter(node for each in known if each.holding and each.tail is not None for node in each.tail.path())
        for node in known.history._order:
            assert node.holders == holders[node]

    def teardown(self) -> None:
        for visit in self.open:
            self.router.finish(visit, self.now, outcome="client_disconnect", status=None)
        assert idle(self.router)
        self.router.arrive(Arrival(request_id="late", endpoint="other", body_bytes=1), self.now + 1_000)
        assert self.router.conversations.living == 0
        assert not any(self.router.resident_tokens(replica.name) for replica in self.router.fleet)
        assert not any(node.holders for node in self.router.conversations.history._order)


Ledger.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedger = Ledger.TestCase


# -- beliefs ----------------------------------------------------------------------------------------------------------


def believed(to: Router, given: Arrival) -> dict[str, int]:
    """Tokens of a prompt that each replica is believed to hold."""
    visit = to.arrive(given, 0)
    matched = {each.replica: each.matched_tokens for each in to.offers.candidates(visit, to.offers.able(visit), {}, 0)}
    to.finish(visit, 0, outcome="client_disconnect", status=None)
    return matched


def test_what_was_served_is_believed_to_be_there() -> None:
    """
    On the replica that served it, and nowhere else.
    """
    to, talk = router(), Talk("agent", 20_000)
    record = serve(to, talk.arrival())

    matched = believed(to, talk.arrival())

    assert matched.pop(str(record.replica)) == pytest.approx(20_000, rel=0.01)
    assert list(matched.values()) == [0]


def test_a_report_of_nothing_cached_trims_what_grew_from_there() -> None:
    """
    The seed's six sessions: the engine reused none of one, so the others' shared system prompt was gone as well.
    """
    to, system = router("a"), text(17_000, "system")
    one, two = Talk("one", 3_000, system), Talk("two", 3_000, system)
    for talk in (one, two):
        serve(to, talk.arrival())
    before = believed(to, two.arrival())["a"]
    one.grow()

    serve(to, one.arrival(), usage=Usage(prompt_tokens=20_300, cached_tokens=0))

    assert before > 19_000
    assert believed(to, one.arrival())["a"] > 19_000
    # Read anew for the first, the system prompt is there again, and the second's own part is not.
    assert 16_000 < believed(to, two.arrival())["a"] < 17_500


def test_a_report_of_all_cached_changes_nothing() -> None:
    """
    19,712 of 19,845 is all that an engine with pages can reuse.
    """
    to, talk, other = router("a"), Talk("agent", 20_000), Talk("other", 20_000)
    for each in (talk, other):
        serve(to, each.arrival())
    before = to.resident_tokens("a")

    serve(to, talk.arrival(), usage=Usage(prompt_tokens=19_845, cached_tokens=19_712))

    assert to.resident_tokens("a") == before
    assert believed(to, other.arrival())["a"] > 19_000


def test_a_replica_that_is_removed_while_it_reads_costs_its_request_nothing() -> None:
    """
    The first token comes from a replica that the fleet no longer knows, and the answer ends as any other.
    """
    to = router()
    visit = start(to, replace(Talk("agent", 20_000).arrival(), stream=True))
    assert visit.lease is not None

    to.remove(visit.lease.replica.name)

    assert end(to, visit, 4.0).ttft_s == 4.0


def test_who_is_held_from_the_first_instant_on_is_said_to_have_waited() -> None:
    """
    Time 0 is a time: a wait that begins then counts in full.
    """
    to = router("a", terms=Terms())
    first = start(to, replace(Talk("first", 20_000).arrival(), stream=True), 0.0)
    second = to.arrive(replace(Talk("second", 20_000).arrival(), stream=True), 0.0)
    assert to.place(second, 0.0) is None

    to.first_token(first, 3.0)

    assert to.admit(3.0, quick=True) == [second]
    assert second.held_s == 3.0


def test_a_restart_forgets_everything_that_replica_held() -> None:
    """
    The next turn is read anew anyway, so it may go wherever fewer wait.
    """
    to, talks = router(), [Talk(f"agent {number}", 2_000) for number in range(8)]
    homes = {talk.name: serve(to, talk.arrival()).replica for talk in talks}

    to.restarted("a")

    for talk in talks:
        matched = believed(to, talk.arrival())
        assert (matched["a"], matched["b"] > 0) == (0, homes[talk.name] == "b")


def test_a_replica_is_not_believed_to_hold_what_it_never_read() -> None:
    """
    The client left before the first token: what was booked is taken back, what was there before stays.
    """
    to, talk = router("a"), Talk("agent", 20_000)
    serve(to, talk.arrival())
    before = believed(to, talk.arrival())
    talk.grow(20_000)
    visit = start(to, talk.arrival())

    to.finish(visit, 1, outcome="client_disconnect", status=None)

    assert believed(to, talk.arrival()) == before


def test_a_request_that_failed_does_not_take_along_what_others_read() -> None:
    """
    Of two agents that start with the same system prompt one gives up; the replica still read it for the other.
    """
    to, system = router("a"), text(17_000, "system")
    one, two = Talk("one", 1_000, system), Talk("two", 1_000, system)
    gives_up, stays = start(to, one.arrival()), start(to, two.arrival())
    to.first_token(stays, 3)

    to.finish(gives_up, 4, outcome="client_disconnect", status=None)
    end(to, stays, 5)

    assert believed(to, two.arrival())["a"] > 17_500


def test_a_conversation_that_failed_is_served_as_if_nothing_had_happened() -> None:
    """
    The replica that holds it refused once, nobody else took it: the next try is the same turn, and goes home.
    """
    to, talk = router(), Talk("agent", 20_000)
    home = serve(to, talk.arrival()).replica
    talk.grow()
    visit = start(to, talk.arrival())
    to.failed(visit, 1)
    to.place(visit, 1)
    to.failed(visit, 1)
    to.finish(visit, 2, outcome="upstream_connect", status=502)

    record = serve(to, talk.arrival(), 3)

    assert (record.replica, record.turn, record.reason, record.moved) == (home, 2, "affinity", False)


# -- what engines report ----------------------------------------------------------------------------------------------


def cached_of(to: Router, endpoint: str, usage: Usage | None, name: str = "agent") -> int | None:
    given = arrival(user(text(500, name)), endpoint=endpoint)
    return serve(to, given, usage=usage).usage.cached_tokens


def test_a_field_that_was_there_before_is_0_where_it_is_left_out() -> None:
    """
    SGLang drops `cached_tokens` where a prompt missed completely: after one report its absence is a complete miss.
    """
    to = router("a")
    missed = Usage(prompt_tokens=500, completion_tokens=1)

    assert cached_of(to, "chat", missed) is None
    assert cached_of(to, "chat", Usage(prompt_tokens=500, cached_tokens=448)) == 448
    assert cached_of(to, "chat", missed) == 0


def test_without_a_usage_object_nothing_is_concluded() -> None:
    """
    A stream that was not asked for usage says nothing, whatever was reported before.
    """
    to = router("a")
    cached_of(to, "chat", Usage(prompt_tokens=500, cached_tokens=448))

    assert cached_of(to, "chat", None) is None
    assert cached_of(to, "chat", Usage(completion_tokens=1)) is None


def test_what_one_endpoint_or_replica_reports_says_nothing_of_another() -> None:
    """
    Engines differ, and so do the answers of one engine's endpoints.
    """
    to = router("a")
    cached_of(to, "chat", Usage(prompt_tokens=500, cached_tokens=448))
    assert cached_of(to, "messages", Usage(prompt_tokens=500)) is None

    to.add(Replica("b", "http://b:30000"))
    to.fleet["a"].state = State.DOWN

    assert cached_of(to, "chat", Usage(prompt_tokens=500)) is None


def test_a_dropped_field_after_a_cold_turn_is_a_cold_turn() -> None:
    """
    The seed's complete miss is seen as one, though the engine did not write the number.
    """
    to, talk = router("a"), Talk("agent", 20_000)
    serve(to, talk.arrival(), usage=Usage(prompt_tokens=19_845, cached_tokens=256))
    talk.grow()

    record = serve(to, talk.arrival(), usage=Usage(prompt_tokens=20_145))

    assert (record.usage.cached_tokens, record.temperature, record.cold_cause) == (0, "cold", "unknown")


@given(tokens=st.integers(64, 400_000), size=st.integers(300, 20_000), name=st.text("abc", max_size=5))
@settings(max_examples=60)
def test_the_length_of_a_known_prompt_is_known_exactly(tokens: int, size: int, name: str) -> None:
    """
    What the conversation's last prompt took the engine has said: sent again, its length is that number.
    """
    to, given = router("a"), arrival(user(name + "x" * size))
    serve(to, given, usage=Usage(prompt_tokens=tokens))

    assert start(to, given).prompt_tokens == tokens


def test_only_what_is_new_is_estimated() -> None:
    """
    19,845 tokens are known; the 300 appended ones are guessed by what the model's text was seen to take.
    """
    to, talk = router("a"), Talk("agent", 20_000)
    serve(to, talk.arrival(), usage=Usage(prompt_tokens=19_845))
    talk.grow(300)

    assert start(to, talk.arrival()).prompt_tokens == pytest.approx(20_145, abs=20)


def test_a_model_whose_tokens_are_short_is_learned() -> None:
    """
    2 bytes a token instead of the usual 4: after some answers new conversations are taken for what they are.
    """
    to = router("a")
    for number in range(30):
        given = Talk(f"agent {number}", 1_000).arrival()
        assert given.fingerprint is not None
        serve(to, given, usage=Usage(prompt_tokens=given.fingerprint.usable.size_bytes // 2))

    assert start(to, Talk("new", 1_000).arrival()).prompt_tokens == pytest.approx(2_000, rel=0.05)


@pytest.mark.parametrize("tokens", [1, 2**32, 2**40, 10**18])
def test_an_absurd_count_breaks_nothing(tokens: int) -> None:
    """
    An engine that reports nonsense costs its conversation an estimate, and no request.
    """
    to, talk = router("a"), Talk("agent", 2_000)
    serve(to, talk.arrival(), usage=Usage(prompt_tokens=tokens, cached_tokens=tokens))
    talk.grow()

    record = serve(to, talk.arrival())

    assert (record.turn, record.replica) == (2, "a")


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.01, 10.0], ids=["all alive", "most past"])
def test_memory_is_bounded_and_the_newest_are_remembered(seconds: float) -> None:
    """
    A thousand conversations where there is room for some dozens: the oldest are forgotten, the newest go home.
    """
    bound = 200_000
    to = router("a", "b", memory_bytes=bound)
    talks = [Talk(f"agent {number}", 1_000) for number in range(1_000)]

    homes = {}
    for number, talk in enumerate(talks):
        homes[talk.name] = serve(to, talk.arrival(), now=number * seconds).replica
        assert to.memory_bytes < bound + 10_000

    now = len(talks) * seconds
    for talk in talks[-20:]:
        talk.grow()
        record = serve(to, talk.arrival(), now)
        assert (record.turn, record.replica, record.reason) == (2, homes[talk.name], "affinity")
    assert serve(to, talks[0].arrival(), now).turn == 1


def test_memory_is_bounded_while_everything_runs() -> None:
    """
    What running turns hold may not be forgotten, but what replicas are believed to hold may.
    """
    bound = 100_000
    to = router("a", "b", memory_bytes=bound)
    for number in range(40):
        serve(to, Talk(f"past {number}", 1_000).arrival(), now=float(number))
    running = [start(to, Talk(f"running {number}", 1_000).arrival(), now=100.0) for number in range(30)]

    for visit in running:
        end(to, visit, now=200.0)
    serve(to, Talk("last", 1_000).arrival(), now=201.0)

    assert to.memory_bytes < bound + 10_000
    assert idle(to)


def test_what_a_replica_was_not_asked_for_in_an_hour_is_believed_gone() -> None:
    """
    The history still knows the conversation, and the belief does not.
    """
    to, talk = router("a", horizon_s=3_600.0), Talk("agent", 2_000)
    serve(to, talk.arrival(), now=0)
    talk.grow()

    record = serve(to, talk.arrival(), now=3_601)

    assert (record.turn, record.matched_tokens) == (2, 0)
    assert record.reusable_tokens is not None
    assert record.reusable_tokens > 1_500


def test_the_long_prompt_rule_is_applied_where_it_is_set() -> None:
    """
    By the body's size, as the seed's was.
    """
    to = router(rules=(LongPromptRule(600_000, frozenset({"b"})),))

    records = [serve(to, Talk(f"long {number}", 160_000).arrival()) for number in range(3)]

    assert {record.replica for record in records} == {"b"}
