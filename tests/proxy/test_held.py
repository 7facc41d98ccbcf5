"""Requests that Ramjet holds back, as their clients see it: real sockets, and the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from ramjet.core.admission import Terms
from ramjet.front.room import WaitingRoom
from tests.core.test_router import arrival, router, text, user
from tests.proxy.support import CHAT, body, held, until
from tests.rig import Front, QuickEngine, quick_engine, ramjet


@contextlib.asynccontextmanager
async def one_replica(**admission: Any) -> AsyncIterator[tuple[Front, QuickEngine, asyncio.Event]]:
    """Ramjet in front of one engine, which answers nobody before the event is set."""
    answer = asyncio.Event()

    async def when(_engine: QuickEngine) -> None:
        await answer.wait()

    async with quick_engine() as engine, ramjet({"a": engine.url}, routing={"admission": admission}) as front:
        engine.answer_when = when
        yield front, engine, answer
        answer.set()


async def test_a_second_cold_read_waits_in_ramjet_and_enters_when_the_first_is_done() -> None:
    """
    The engine sees one at a time; the second is answered as if nothing had been, and its record says how long it waited.
    """
    async with one_replica() as (front, engine, answer), httpx.AsyncClient(timeout=20) as client:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(client.post(front.url + CHAT, json=body("first", stream=True)))
            await until(lambda: engine.in_flight == 1)
            second = tasks.create_task(client.post(front.url + CHAT, json=body("second", stream=True)))
            await until(lambda: held(front) == 1)

            assert front.metric("ramjet_held") == 1
            assert engine.in_flight == 1
            answer.set()

        assert {first.result().status_code, second.result().status_code} == {200}
        waited = {record.held_s > 0 for record in front.records}
        assert waited == {True, False}
        assert held(front) == 0
        assert front.metric("ramjet_held_seconds_count") == 1


async def test_a_held_client_that_gives_up_costs_nothing() -> None:
    """
    With the official SDK's own time limit: no engine work, nothing in flight, nobody held, one record.
    """
    async with one_replica() as (front, engine, answer), httpx.AsyncClient(timeout=20) as client:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.post(front.url + CHAT, json=body("first", stream=True)))
            await until(lambda: engine.in_flight == 1)
            async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as sdk:
                with pytest.raises(openai.APITimeoutError):
                    await sdk.chat.completions.create(**body("second"), timeout=0.5)
            await until(lambda: not held(front))
            answer.set()

        await until(lambda: len(front.records) == 2)
        left = next(record for record in front.records if record.outcome == "client_disconnect")
        assert (left.replica, left.attempts) == (None, 0)
        assert engine.most_in_flight == 1
        assert front.in_flight == {"a": 0}
        assert front.router.admission.allowance_s("a") >= Terms().first_allowance_s


async def test_who_is_held_for_too_long_is_told_when_to_come_back() -> None:
    """
    429 with Retry-After and a code of its own; the engine never saw the request.
    """
    async with one_replica(max_hold_s=0.3) as (front, engine, answer), httpx.AsyncClient(timeout=20) as client:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.post(front.url + CHAT, json=body("first", stream=True)))
            await until(lambda: engine.in_flight == 1)
            refused = await client.post(front.url + CHAT, json=body("second"))
            answer.set()

        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "held_too_long")
        assert int(refused.headers["retry-after"]) >= 1
        assert "routing.admission.max_hold_s = 0.3 s" in refused.json()["error"]["message"]
        assert engine.most_in_flight == 1
        assert next(record for record in front.records if record.outcome == "shed").held_s > 0.2


@pytest.mark.parametrize(("mode", "would_hold"), [("off", 0), ("observe", 1)])
async def test_where_it_is_not_enforced_everything_is_placed_at_once(mode: str, would_hold: int) -> None:
    """
    Observing counts what would have been held, and changes nothing.
    """
    async with one_replica(mode=mode) as (front, engine, answer), httpx.AsyncClient(timeout=20) as client:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.post(front.url + CHAT, json=body("first", stream=True)))
            await until(lambda: engine.in_flight == 1)
            tasks.create_task(client.post(front.url + CHAT, json=body("second", stream=True)))
            await until(lambda: engine.in_flight == 2)
            answer.set()

        assert front.metric("ramjet_would_hold_total") == would_hold
        assert {record.held_s for record in front.records} == {0.0}


async def test_what_has_no_prompt_is_never_held() -> None:
    """
    A body that cannot be read goes to the engine at once, whatever is under way there, and the engine says what it is.
    """
    async with one_replica() as (front, engine, answer), httpx.AsyncClient(timeout=20) as client:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.post(front.url + CHAT, json=body("first", stream=True)))
            await until(lambda: engine.in_flight == 1)

            unreadable = await client.post(front.url + CHAT, content=b"x" * 100_000)

            assert (unreadable.status_code, unreadable.headers["x-ramjet-replica"]) == (500, "a")
            answer.set()

        assert {record.held_s for record in front.records} == {0.0}


async def test_who_is_held_when_ramjet_stops_is_still_served() -> None:
    """
    The drain waits for the held as for the others, and lets them in: by time alone, where nothing else happens.
    """
    answer = asyncio.Event()

    async def when(_engine: QuickEngine) -> None:
        await answer.wait()

    async with quick_engine() as engine, httpx.AsyncClient(timeout=20) as client, asyncio.TaskGroup() as tasks:
        engine.answer_when = when
        async with ramjet({"a": engine.url}, limits={"drain_s": 15}) as front:
            first = tasks.create_task(client.post(front.url + CHAT, json=body("first", tokens=14_000)))
            await until(lambda: engine.in_flight == 1)
            second = tasks.create_task(client.post(front.url + CHAT, json=body("second", tokens=14_000)))
            await until(lambda: held(front) == 1)
            # The first answer is no stream, so its reading is taken to be over when it should be: after 2.3 s.
            tasks.create_task(_when(lambda: engine.in_flight == 2, answer))

    assert {first.result().status_code, second.result().status_code} == {200}
    assert next(record.held_s for record in front.records if record.held_s) > 1


async def _when(condition: Any, then: asyncio.Event) -> None:
    await until(condition)
    then.set()


async def test_who_is_let_in_before_waiting_has_a_place() -> None:
    """
    As where whoever asks for it is told meanwhile that it may take longer.
    """
    to = router("a", terms=Terms())
    first = to.arrive(arrival(user(text(20_000, "first"))), 0)
    assert to.place(first, 0) is not None
    second = to.arrive(arrival(user(text(20_000, "second"))), 0)
    assert to.place(second, 0) is None
    to.first_token(first, 1)
    assert to.admit(1) == [second]

    assert await WaitingRoom(to).wait(second, lambda: None, None) is second.lease is not None


async def test_who_could_not_be_placed_again_has_none() -> None:
    """
    That it had one, where it failed, is over.
    """
    to = router("a", terms=Terms())
    visit = to.arrive(arrival(user(text(20_000))), 0)
    assert to.place(visit, 0) is not None
    to.failed(visit, 1)
    assert to.place(visit, 1) is None

    assert await WaitingRoom(to).wait(visit, lambda: None, None) is None
