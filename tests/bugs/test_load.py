"""Load and placement: what is counted, for how long, and what a replica is chosen for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ramjet.build import fleet_of, policy_of, replicas_of
from ramjet.config import ReplicaSettings
from ramjet.core.fingerprint import fingerprint
from ramjet.core.prompt import read
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Visit
from tests.bugs import case
from tests.bugs.wire import ENDPOINTS, WITH_PROMPT, ask, body_for, request, wire
from tests.evidence.test_long import play
from tests.memory import turn as memory_turn
from tests.pinning import converse
from tests.rig import Front, quick_engine, ramjet, settings_for
from tests.scripted import Connection, ScriptedEngine, Seen, answer_ok, scripted_engine

CHAT = "/v1/chat/completions"


class Routing:
    """A router with its requests held in hand; no socket, and time is a number."""

    def __init__(self, *names: str, **overrides: Any) -> None:
        # Whoever is sent is placed: who is held, and why, is another matter.
        routing = {"admission": {"mode": "off"}, **overrides.pop("routing", {})}
        self.settings = settings_for({name: f"http://{name}.test:1" for name in names}, routing=routing, **overrides)
        self.router = Router(fleet_of(self.settings), policy_of(self.settings))
        self.now = 0.0

    def send(self, *texts: str, read_at_once: bool = True) -> Visit:
        """Place a conversation's next turn; it runs until `end`."""
        self.now += 0.001
        raw = body_for(CHAT, *texts)
        prompt = read(raw, "chat")
        arrival = Arrival(
            request_id=str(self.now),
            endpoint="chat",
            body_bytes=len(raw),
            model="m",
            fingerprint=fingerprint(prompt, 1),
        )
        visit = self.router.arrive(arrival, self.now)
        assert self.router.place(visit, self.now) is not None
        if read_at_once:
            self.router.first_token(visit, self.now)
        return visit

    def end(self, *visits: Visit) -> None:
        """The answers have come."""
        for visit in visits:
            self.router.finish(visit, self.now, outcome="ok", status=200, usage=Usage())

    def add(self, name: str) -> None:
        """A replica joins."""
        for replica in replicas_of(ReplicaSettings(name=name, url=f"http://{name}.test:1"), self.settings):
            self.router.add(replica)


def where(visit: Visit) -> str:
    return visit.tried[-1]


def busy(routing: Routing, replica: str, count: int, tokens: int, *, read_at_once: bool) -> list[Visit]:
    """Requests of so many tokens that run at one replica, whatever the others would cost."""
    others = [each for each in routing.router.fleet if each.name != replica]
    for each in others:
        each.draining = True
    chance = random.Random(f"{replica} {count} {tokens}")
    visits = [routing.send(chance.randbytes(2 * tokens).hex(), read_at_once=read_at_once) for _ in range(count)]
    for each in others:
        each.draining = False
    assert {where(visit) for visit in visits} <= {replica}
    return visits


# -- what is counted ------------------------------------------------------------------------------------------------------


@case(1, 2)
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_load_is_counted_at_every_endpoint_before_an_answer(path: str) -> None:
    """
    Twenty at once with the same first 4 KB, none of them answered: all are counted, and no replica has none.
    """
    go = asyncio.Event()

    async def hold(connection: Connection, seen: Seen) -> None:
        await go.wait()
        await connection.answer(b"{}")

    async with scripted_engine(hold) as one, scripted_engine(hold) as two:
        async with ramjet({"a": one.url, "b": two.url}) as front, asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(ask(front.url, request(path, body_for(path, "x" * 4_096 + f" {number}"))))
            async with asyncio.timeout(10):
                while len(one.seen) + len(two.seen) < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

            assert sum(front.in_flight.values()) == 20
            assert min(front.in_flight.values()) >= 5
            assert front.metric("ramjet_in_flight") == 20
            go.set()
        assert sum(front.in_flight.values()) == 0


@case(2)
async def test_a_burst_is_even_before_any_byte_has_come() -> None:
    """
    Twelve prompts of 32,000 tokens and silent engines: six each.
    """
    go = asyncio.Event()

    async def hold(connection: Connection, seen: Seen) -> None:
        await go.wait()
        await connection.answer(b"{}")

    async with scripted_engine(hold) as one, scripted_engine(hold) as two:
        async with (
            ramjet({"a": one.url, "b": two.url}, routing={"admission": {"mode": "off"}}) as front,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(12):
                tasks.create_task(ask(front.url, request(CHAT, body_for(CHAT, f"{number} " + "y" * 128_000))))
            async with asyncio.timeout(10):
                while len(one.seen) + len(two.seen) < 12:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

            assert front.in_flight == {"a": 6, "b": 6}
            go.set()


async def leave(front: Front, path: str, chance: random.Random) -> None:
    """A client that goes at a random moment."""
    raw = request(path, body_for(path, "z" * chance.choice((10, 50_000)), stream=chance.random() < 0.7))
    with contextlib.suppress(ConnectionError):
        async with wire(front.url) as line:
            line.send(raw if chance.random() < 0.8 else raw[: chance.randrange(len(raw))])
            with contextlib.suppress(TimeoutError):
                await line.reply(within_s=chance.choice((0.0, 0.003, 0.01, 0.03, 1.0)))


@case(3)
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_who_leaves_is_not_counted_any_more(path: str) -> None:
    """
    At any moment, at every endpoint, whatever the engine does meanwhile; and no count is ever negative.
    """
    lowest = 0

    async def moody(connection: Connection, seen: Seen) -> None:
        nonlocal lowest
        lowest = min(lowest, *front.in_flight.values())
        mood = random.Random(len(connection.reader._buffer) + len(front.records)).random()  # type: ignore[attr-defined]
        if mood < 0.2:
            connection.reset()
        elif mood < 0.3:
            await connection.send(b"garbage\r\n\r\n")
            connection.writer.close()
        elif mood < 0.5:
            await connection.answer(b"{}", status=500)
        else:
            await connection.start_stream()
            for _ in range(4):
                await connection.chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
                await asyncio.sleep(0.005)
            await connection.chunk(b"")

    async with scripted_engine(moody) as one, scripted_engine(moody) as two:
        async with ramjet({"a": one.url, "b": two.url}) as front:
            chance = random.Random(path)
            for _ in range(3):
                await asyncio.gather(*(leave(front, path, chance) for _ in range(20)))
            await front.settled()

            assert front.in_flight == {"a": 0, "b": 0}
            assert lowest == 0
            assert [replica.queue_s for replica in front.router.fleet] == [0.0, 0.0]
            assert front.metric("ramjet_in_flight") == 0
            assert "internal_error" not in {record.outcome for record in front.records}


@case(4)
def test_who_joins_gets_its_share_and_no_more() -> None:
    """
    Two replicas with twenty each, one that joins, thirty new: it is levelled, and nobody else moves.
    """
    routing = Routing("a", "b")
    running = [routing.send(f"conversation {number} " + "w" * 8_000) for number in range(40)]
    routing.add("c")
    new = Counter(where(routing.send(f"another {number} " + "w" * 8_000)) for number in range(30))

    assert new["c"] <= 25  # 70 requests over three are 23 or 24 each
    before = {number: where(visit) for number, visit in enumerate(running)}
    routing.end(*running)
    after = {number: where(routing.send(f"conversation {number} " + "w" * 8_000, "go on")) for number in before}
    assert sum(before[number] != after[number] for number in before) <= 2


@case(6)
async def test_what_everybody_shares_holds_nobody_together() -> None:
    """
    Forty conversations with one system prompt of 17,000 tokens: half of the first turns each, and then they stay.
    """
    async with quick_engine(answer_s=0.01) as one, quick_engine(answer_s=0.01) as two:
        async with ramjet({"a": one.url, "b": two.url}) as front:
            outcome = await converse(front, conversations=40, turns=3, shared_tokens=17_000)

    assert outcome.first_turn_excess(2) <= 1.3
    assert outcome.returned_share() >= 0.95


@case(7)
def test_a_placement_is_remembered_whatever_chose_it() -> None:
    """
    A conversation that load drove away is at home where it went, from 2 KB on; there is no length to be reached first.
    """
    routing = Routing("a", "b")
    texts = ["t" * 2_000]
    first = routing.send(*texts)
    home = where(first)
    routing.end(first)
    crowd = busy(routing, home, 6, 60_000, read_at_once=False)
    texts.append("u" * 2_000)
    driven = routing.send(*texts)
    assert where(driven) != home
    assert driven.lease is not None
    assert driven.lease.reason == "load"
    routing.end(driven, *crowd)
    for _ in range(8):
        texts.append("v" * 2_000)
        visit = routing.send(*texts)
        assert (where(visit), visit.lease and visit.lease.reason) == (where(driven), "affinity")
        routing.end(visit)


@case(8)
@pytest.mark.parametrize("read_at_once", [True, False])
def test_much_remembered_is_not_much_to_do(read_at_once: bool) -> None:
    """
    One replica works on ten long prompts, the other is idle and has fifty conversations from before: it gets the new one.
    """
    routing = Routing("a", "b")
    routing.end(*busy(routing, "b", 50, 2_000, read_at_once=True))
    routing.now += 400  # none of them lives any more; what is remembered stays
    busy(routing, "a", 10, 100_000, read_at_once=read_at_once)

    assert where(routing.send("something new " + "x" * 4_000)) == "b"


@case(9)
def test_who_is_hot_concerns_only_those_at_home_there() -> None:
    """
    With 30, 2 and 1 in flight a conversation of the second stays there; one of the first may go, and returns nowhere cold.
    """
    routing = Routing("a", "b", "c")
    warm = busy(routing, "b", 1, 20_000, read_at_once=True)
    hot = busy(routing, "a", 1, 20_000, read_at_once=True)
    routing.end(*warm, *hot)
    busy(routing, "a", 30, 5_000, read_at_once=False)
    busy(routing, "b", 2, 5_000, read_at_once=True)
    busy(routing, "c", 1, 5_000, read_at_once=True)
    of_b = random.Random("b 1 20000").randbytes(40_000).hex()
    of_a = random.Random("a 1 20000").randbytes(40_000).hex()

    assert where(routing.send(of_b, "go on")) == "b"
    assert where(routing.send(of_a, "go on")) in {"b", "c"}


@case(11)
@pytest.mark.parametrize("rule", [False, True])
async def test_two_long_conversations_do_not_evict_each_other(rule: bool) -> None:
    """
    Over simulated pools of 500,000 tokens: apart and cached by default; where a rule confines them, there exactly.
    """
    confine = {"long_prompt": {"enabled": True, "replicas": ["r1"]}, "spread_long": {"enabled": False}}
    went, cached = await play(3, 5, **({"routing": confine} if rule else {}))

    if rule:
        assert went["long-1"] == went["long-2"] == {"r1"}
    else:
        assert len(went["long-1"]) == len(went["long-2"]) == 1
        assert went["long-1"] != went["long-2"]
        assert cached["long"] >= 95


@case(11)
async def test_two_long_conversations_on_one_replica_are_worth_a_warning() -> None:
    """
    Where the rule confines a second one, at each of its turns, in log and metric; not for the first, nor apart, nor
    where the pool has room for both.
    """
    confine = {"long_prompt": {"enabled": True, "replicas": ["a"]}, "spread_long": {"enabled": False}}
    bodies = [body_for(CHAT, random.Random(seed).randbytes(400_000).hex()) for seed in (1, 2, 2)]

    async def warnings(routing: dict[str, Any], **pool: Any) -> tuple[list[Any], float]:
        async with quick_engine() as one, quick_engine() as two:
            async with ramjet({"a": {"url": one.url, **pool}, "b": two.url}, routing=routing) as front:
                for body in bodies:
                    await ask(front.url, request(CHAT, body))
                told = [record for record in front.records if record.confined_tokens]
                return told, front.metric("ramjet_long_confined_total", replica="a")

    told, counted = await warnings(confine)
    assert [(record.replica, record.confined_tokens > 190_000) for record in told] == [("a", True)] * 2
    assert counted == 2
    assert await warnings(confine, pool_tokens=500_000) == ([], 0)
    assert await warnings({}) == ([], 0)


@case(12)
@pytest.mark.parametrize("read_at_once", [False])
def test_load_is_work_and_not_a_number_of_requests(read_at_once: bool) -> None:
    """
    One prompt of 300,000 tokens weighs more than two of 1,000.
    """
    routing = Routing("a", "b", routing={"spread_long": {"enabled": False}})
    busy(routing, "a", 1, 300_000, read_at_once=read_at_once)
    busy(routing, "b", 2, 1_000, read_at_once=read_at_once)

    assert where(routing.send(random.Random(3).randbytes(200_000).hex())) == "b"


# -- whose turn it is ---------------------------------------------------------------------------------------------------


def agent_body(role: str, *texts: str) -> bytes:
    messages = [{"role": "system", "content": f"You are the {role}. " * 400}]
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]
    return json.dumps({"model": "m", "messages": messages[:-1]}).encode()


@case(14)
async def test_a_session_header_holds_nobody_together() -> None:
    """
    A parent and three children in parallel under one session: the children spread, the parent returns.
    """
    line = "X-Claude-Code-Session-Id: 2f4e"
    async with quick_engine(answer_s=0.2) as one, quick_engine(answer_s=0.2) as two:
        async with ramjet({"a": one.url, "b": two.url}) as front:
            parent = await ask(front.url, request(CHAT, agent_body("parent", "plan it"), line))
            async with asyncio.TaskGroup() as tasks:
                children = [
                    tasks.create_task(ask(front.url, request(CHAT, agent_body(f"child {n}", "do it"), line)))
                    for n in range(3)
                ]
            again = await ask(front.url, request(CHAT, agent_body("parent", "plan it", "go on"), line))

            homes = {child.result().header("x-ramjet-replica") for child in children}
            assert homes == {"a", "b"}
            assert again.header("x-ramjet-replica") == parent.header("x-ramjet-replica")
            assert len({record.conversation for record in front.records}) == 4


@case(15)
@pytest.mark.parametrize("header", ["", "X-Session-Id: s1"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", WITH_PROMPT)
async def test_the_second_turn_returns_at_every_endpoint_and_says_so(path: str, stream: bool, header: str) -> None:
    """
    Eight conversations, two turns: the same replica, in the header, in the record and in the metrics.
    """
    lines = [header] if header else []
    async with scripted_engine() as engine, ramjet({"a": engine.url, "b": f"{engine.url}/b"}) as front:
        for number in range(8):
            texts = [f"conversation {number} " + "x" * 3_000, "go on"]
            went = [
                (await ask(front.url, request(path, body_for(path, *texts[:turns], stream=stream), *lines))).header(
                    "x-ramjet-replica"
                )
                for turns in (1, 2)
            ]
            assert went[0] == went[1] == front.records[-1].replica
            assert (front.records[-1].turn, front.records[-1].reason) == (2, "affinity")
        assert front.metric("ramjet_decisions_total", reason="affinity") == 8
        assert front.metric("ramjet_decisions_total") == 16


@case(16)
async def test_two_proxies_agree_on_whom_they_have_never_seen() -> None:
    """
    The replicas in opposite order, turn 1 here and turn 2 there: most conversations return all the same.
    """
    async with scripted_engine() as one, scripted_engine() as two:
        urls = {"a": one.url, "b": two.url}
        async with ramjet(urls) as here, ramjet(dict(reversed(urls.items()))) as there:
            same = 0
            for number in range(50):
                text = f"conversation {number} " + "x" * 3_000
                first = await ask(here.url, request(CHAT, body_for(CHAT, text)))
                second = await ask(there.url, request(CHAT, body_for(CHAT, text, "go on")))
                same += first.header("x-ramjet-replica") == second.header("x-ramjet-replica")

            assert same >= 45


@contextlib.asynccontextmanager
async def on_port(engine: ScriptedEngine, port: int) -> AsyncIterator[int]:
    """An engine on a port of its own choosing, so that it can go and come back."""
    server = await asyncio.start_server(engine._serve, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await engine.close()


@case(18)
async def test_a_replica_that_goes_and_comes_back_moves_its_own_conversations_only() -> None:
    """
    No client sees an error; those of the others stay; those that moved stay where their cache now is.
    """
    health = {"interval_s": 0.05, "timeout_s": 0.5}
    gone = ScriptedEngine(answer_ok)
    async with scripted_engine() as one, scripted_engine() as three, contextlib.AsyncExitStack() as stack:
        async with on_port(gone, 0) as port:
            urls = {"a": one.url, "b": f"http://127.0.0.1:{port}", "c": three.url}
            front = await stack.enter_async_context(ramjet(urls, watch=True, health=health))
            first = await turns(front, 1)
        second = await turns(front, 2)
        assert [each.name for each in front.router.fleet.serving] == ["a", "c"]
        async with on_port(gone, port):
            async with asyncio.timeout(10):
                while len(front.router.fleet.serving) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            third = await turns(front, 3)

            moved = {number for number in first if first[number] == "b"}
            assert len(moved) >= 15
            assert all(second[number] == first[number] for number in first if number not in moved)
            assert {second[number] for number in moved} == {"a", "c"}
            assert third == second
            assert {record.outcome for record in front.records} == {"ok"}


async def turns(front: Front, number: int) -> dict[int, str | None]:
    went: dict[int, str | None] = {}
    for each in range(90):
        texts = [f"conversation {each} " + "x" * 3_000, *(f"turn {n}" for n in range(1, number))]
        reply = await ask(front.url, request(CHAT, body_for(CHAT, *texts)))
        assert reply.status == 200
        went[each] = reply.header("x-ramjet-replica")
    return went


@case(19)
def test_what_is_remembered_is_bounded_once_for_all() -> None:
    """
    One bound for the process, however many replicas; the newest conversations are still known.
    """
    urls = {name: f"http://{name}.test:1" for name in "abcd"}
    settings = settings_for(urls, beliefs={"memory_mb": 8})
    router = Router(fleet_of(settings), policy_of(settings))
    most, home = 0, ""
    for number in range(5_000):
        home, _ = memory_turn(router, number, number / 500)
        most = max(most, router.memory_bytes)
    again, matched = memory_turn(router, 4_999, 10.0, turns=2)

    assert 6 << 20 < most <= (8 << 20) + 10_000
    assert again == home
    assert matched > 10_000
