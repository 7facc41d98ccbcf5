"""Requests reach the rank that was chosen for them, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ramjet.replica.server import Replica, running_replica
from ramjet.sim.profile import ATTENTION, GLM, VLLM_HYBRID, Profile
from tests.replica.support import attention, prompt
from tests.rig import Front, quick_engine, ramjet
from tests.scripted import Connection, Seen, dead_url, scripted_engine

CHAT = "/v1/chat/completions"
SPEED = 500
TALKS, TURNS = 17, 3
"""More talks than three of four ranks may have by their share, so that all four get some; and one more than four times
four, so that an engine that serves its ranks in turn never serves one twice in the same place."""


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as made:
        yield made


def chat(name: str, tokens: int, turn: int = 0, **more: Any) -> dict[str, Any]:
    """A talk's turn, counted from 0: each has all of the one before."""
    messages = [{"role": "user", "content": prompt(tokens, name)}]
    for number in range(turn):
        messages += [
            {"role": "assistant", "content": f"answer {number}"},
            {"role": "user", "content": prompt(300, f"{name}/{number}")},
        ]
    return {"model": "m", "messages": messages, "max_tokens": 2, **more}


async def homes(client: httpx.AsyncClient, front: Front) -> dict[str, set[str]]:
    """Play talks in turns; where each of them was served."""
    found: dict[str, set[str]] = {f"talk {number}": set() for number in range(TALKS)}
    for turn in range(TURNS):
        for name, where in found.items():
            answer = await client.post(front.url + CHAT, json=chat(name, 2_000, turn))
            assert answer.status_code == 200, answer.text
            where.add(answer.headers["x-ramjet-replica"])
    await front.settled()
    return found


def cached_share(front: Front) -> float:
    """Of the prompt tokens of all later turns, the part that engines reused."""
    later = [each.usage for each in front.records if (each.turn or 0) > 1]
    return sum(each.cached_tokens or 0 for each in later) / sum(each.prompt_tokens or 0 for each in later)


def read_at(front: Front) -> Counter[str]:
    """Prompt tokens of the requests that Ramjet has placed at each replica."""
    found = Counter[str]()
    for each in front.records:
        found[each.replica or ""] += each.usage.prompt_tokens or 0
    return found


def engines_of(replica: Replica) -> Counter[str]:
    """Prompt tokens that each of its ranks has seen."""
    return Counter({f"a.{rank}": each.prompt_tokens_total for rank, each in enumerate(replica.engines)})


# -- where requests go ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", [ATTENTION, VLLM_HYBRID, GLM], ids=lambda profile: profile.name)
async def test_a_conversation_stays_on_its_rank(client: httpx.AsyncClient, profile: Profile) -> None:
    """
    Four ranks reuse as much as four replicas, and talks spread over all; an engine left alone finds a turn by chance.
    """
    ranks = profile.with_flags(ranks=4)
    async with contextlib.AsyncExitStack() as stack:
        alone = [await stack.enter_async_context(running_replica(profile, speed=SPEED)) for _ in range(4)]
        async with ramjet({f"r{number}": each.url for number, each in enumerate(alone)}) as front:
            assert all(len(where) == 1 for where in (await homes(client, front)).values())
            share = cached_share(front)

        replica = await stack.enter_async_context(running_replica(ranks, speed=SPEED))
        async with ramjet({"a": {"url": replica.url, "ranks": 4}}) as front:
            found = await homes(client, front)
            assert all(len(where) == 1 for where in found.values())
            assert set.union(*found.values()) == {"a.0", "a.1", "a.2", "a.3"}
            assert cached_share(front) == share > 0.7
            assert engines_of(replica) == read_at(front)

        left_alone = await stack.enter_async_context(running_replica(ranks, speed=SPEED))
        async with ramjet({"a": {"url": left_alone.url, "ranks": 1}}) as front:
            await homes(client, front)
            assert cached_share(front) < 0.1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hello"}]}),
        (CHAT, {"messages": [{"role": "user", "content": "hello"}], "stream": True}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/responses", {"input": "hello"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}),
        ("/generate", {"text": "hello"}),
        ("/generate", {"text": "hello", "stream": True}),
    ],
    ids=["chat", "stream", "completions", "responses", "messages", "generate", "generate stream"],
)
async def test_every_api_reaches_the_rank_that_was_chosen(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    """
    By the header, or by a field of the body where SGLang reads no header.
    """
    async with running_replica(attention(ranks=3), speed=SPEED) as replica:
        async with ramjet({"a": {"url": replica.url, "ranks": 3}}) as front:
            for number in range(9):
                said = json.loads(json.dumps(body).replace("hello", f"{number} " * 400))
                answer = await client.post(front.url + path, json={"model": "m", **said})
                assert answer.status_code == 200, answer.text
            await front.settled()

            assert engines_of(replica) == read_at(front)
            assert sum(1 for tokens in read_at(front).values() if tokens) == 3


async def test_two_long_conversations_are_kept_apart(client: httpx.AsyncClient) -> None:
    """
    One rank's pool holds one of them: each goes to a rank of its own, and all later turns find their prompt.
    """
    async with running_replica(attention(pool_tokens=40_960, ranks=2), speed=SPEED) as replica:
        settings = {"url": replica.url, "ranks": 2, "pool_tokens": 40_960}
        async with ramjet({"a": settings}, routing={"spread_long": {"tokens": 20_000}}) as front:
            where: list[set[str]] = [set(), set()]
            for turn in range(3):
                for number, found in enumerate(where):
                    answer = await client.post(front.url + CHAT, json=chat(f"long {number}", 25_000, turn))
                    found.add(answer.headers["x-ramjet-replica"])
            await front.settled()

            assert sorted(where, key=sorted) == [{"a.0"}, {"a.1"}]
            assert cached_share(front) > 0.9


# -- what is sent -----------------------------------------------------------------------------------------------------


async def answers(connection: Connection, _seen: Seen) -> None:
    await connection.answer(b'{"data": []}')


def ranks_in(seen: Seen) -> list[str]:
    return [value for name, value in seen.headers if name.lower() == "x-data-parallel-rank"]


async def test_a_clients_own_header_is_replaced(client: httpx.AsyncClient) -> None:
    """
    Ramjet has booked what it decided; where it does not route by rank it has no opinion.
    """
    raw = json.dumps(chat("x", 100))
    head = {"X-Data-Parallel-Rank": "7", "content-type": "application/json"}
    async with scripted_engine(answers) as engine:
        for ranks, said in ((2, {"0", "1"}), (1, {"7"})):
            engine.seen.clear()
            async with ramjet({"a": {"url": engine.url, "ranks": ranks}}) as front:
                await asyncio.gather(*(client.post(front.url + CHAT, content=raw, headers=head) for _ in range(4)))
                (header,) = {len(ranks_in(seen)) for seen in engine.seen}

            assert header == 1
            assert {value for seen in engine.seen for value in ranks_in(seen)} <= said
            assert {seen.body for seen in engine.seen} == {raw.encode()}


async def test_a_clients_own_field_is_left_as_it_is(client: httpx.AsyncClient) -> None:
    """
    Else the body has one field more, at its front, and the rest of its bytes are the client's.
    """
    plain, own = b' {"text": "h\xc3\xa9llo"}', b'{"text": "hello", "routed_dp_rank": 1}'
    async with scripted_engine(answers) as engine:
        async with ramjet({"a": {"url": engine.url, "ranks": 2}}) as front:
            for raw in (plain, own):
                await client.post(f"{front.url}/generate", content=raw)

    rank = ranks_in(engine.seen[0])[0].encode()
    assert [seen.body for seen in engine.seen] == [b' {"routed_dp_rank":%s,"text": "h\xc3\xa9llo"}' % rank, own]


async def test_starts_of_a_long_prompt_are_read_by_the_rank_that_gets_it(client: httpx.AsyncClient) -> None:
    """
    Each start is a request of its own, and would be of no use to another rank.
    """
    async with running_replica(attention(ranks=3), speed=SPEED) as replica:
        slices = {"slices": {"enabled": True, "seconds": 1}}
        async with ramjet({"a": {"url": replica.url, "ranks": 3}}, routing=slices) as front:
            body = {"text": prompt(40_000), "sampling_params": {"max_new_tokens": 2}}
            answer = await client.post(f"{front.url}/generate", json=body)
            await front.settled()

    (record,) = front.records
    assert answer.status_code == 200
    assert record.slices > 1
    assert [name for name, tokens in engines_of(replica).items() if tokens] == [record.replica]


async def test_models_are_asked_for_once_a_url(client: httpx.AsyncClient) -> None:
    """
    All ranks serve the same.
    """
    async with scripted_engine(answers) as engine:
        async with ramjet({"a": {"url": engine.url, "ranks": 4}}) as front:
            answer = await client.get(f"{front.url}/v1/models")

    assert (answer.status_code, len(engine.seen)) == (200, 1)


async def test_a_key_and_usage_are_those_of_the_replica(client: httpx.AsyncClient) -> None:
    """
    What the configuration says of a replica holds for each of its ranks.
    """
    async with scripted_engine(answers) as engine:
        settings = {"url": engine.url, "ranks": 2, "api_key": "the-replicas-key", "ask_usage": True}
        async with ramjet({"a": settings}) as front:
            await client.post(front.url + CHAT, json=chat("x", 100, stream=True))

    (seen,) = engine.seen
    assert seen.header("authorization") == "Bearer the-replicas-key"
    assert json.loads(seen.body)["stream_options"] == {"include_usage": True}


# -- what fails -------------------------------------------------------------------------------------------------------


async def test_a_replica_that_is_gone_takes_all_of_its_ranks_along(client: httpx.AsyncClient) -> None:
    """
    The first request that finds nobody there goes to another replica, and the next ones go there at once.
    """
    async with contextlib.AsyncExitStack() as dies, running_replica(ATTENTION, speed=SPEED) as other:
        replica = await dies.enter_async_context(running_replica(attention(ranks=4), speed=SPEED))
        async with ramjet({"a": {"url": replica.url, "ranks": 4}, "b": other.url}) as front:
            found = await homes(client, front)
            assert len(set.union(*found.values())) > 2
            await dies.aclose()
            front.records.clear()

            for name in found:
                answer = await client.post(front.url + CHAT, json=chat(name, 2_000, TURNS))
                assert (answer.status_code, answer.headers["x-ramjet-replica"]) == (200, "b")
            await front.settled()

            assert Counter(each.attempts for each in front.records) == {2: 1, 1: TALKS - 1}
            assert all(front.router.resident_tokens(f"a.{rank}") == 0 for rank in range(4))
            assert front.router.fleet.status == "degraded"


async def test_the_retry_is_not_for_another_rank_of_a_dead_url(client: httpx.AsyncClient) -> None:
    """
    Where there is no other URL the client is told at once.
    """
    async with ramjet({"a": {"url": dead_url(), "ranks": 4}}) as front:
        answer = await client.post(front.url + CHAT, json=chat("x", 100))
        await front.settled()

    (record,) = front.records
    assert (answer.status_code, record.outcome, record.attempts) == (502, "upstream_connect", 1)


async def test_a_rank_that_is_full_is_replaced_by_another(client: httpx.AsyncClient) -> None:
    """
    Each has a queue of its own, so that one of them has no room says nothing of the others.
    """

    async def full_at_first(connection: Connection, _seen: Seen) -> None:
        status = 503 if len(engine.seen) == 1 else 200
        await connection.answer(b"{}", status=status)

    async with scripted_engine(full_at_first) as engine:
        async with ramjet({"a": {"url": engine.url, "ranks": 2}}) as front:
            answer = await client.post(front.url + CHAT, json=chat("x", 100))

    assert answer.status_code == 200
    assert {value for seen in engine.seen for value in ranks_in(seen)} == {"0", "1"}


async def test_a_rank_is_no_part_of_an_ordinary_replica(client: httpx.AsyncClient) -> None:
    """
    Without ranks nothing is sent that names one.
    """
    async with quick_engine() as plain, scripted_engine(answers) as engine:
        async with ramjet({"a": engine.url, "b": plain.url}) as front:
            for number in range(4):
                await client.post(front.url + CHAT, json=chat(str(number), 500))

    assert engine.seen
    assert [ranks_in(seen) for seen in engine.seen] == [[]] * len(engine.seen)
