"""The simulated replica over HTTP: what it keeps, how long it takes, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ramjet.core.cache import EngineCache
from ramjet.replica.server import Replica
from ramjet.sim.profile import ATTENTION, Timing
from tests.replica.support import FAST, ask, attention, client, openai_client, prompt, quick, until


async def leave(replica: Replica, path: str, body: dict[str, Any], when: Callable[[], bool]) -> None:
    """Send a request and close the socket as soon as `when` holds."""
    _, host, port = replica.url.replace("//", "").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: replica\r\nContent-Length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    await until(when)
    writer.close()
    await writer.wait_closed()


# -- the cache --------------------------------------------------------------------------------------------------------


async def test_the_second_turn_reports_what_the_first_left() -> None:
    """
    Prompt and answer of the first turn are there for the second, to the last full page that was read.
    """
    async with quick() as replica, openai_client(replica) as sdk:
        question: Any = {"role": "user", "content": prompt(1_000)}
        first = await sdk.chat.completions.create(model="demo", messages=[question], max_tokens=128)
        more: list[Any] = [
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": prompt(100)},
        ]
        second = await sdk.chat.completions.create(model="demo", messages=[question, *more], max_tokens=16)

    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert first.usage.completion_tokens == 128
    # The answer's last token was generated and never read.
    whole_pages = (first.usage.prompt_tokens + 128 - 1) // 64 * 64
    assert second.usage.prompt_tokens_details.cached_tokens == whole_pages


async def test_two_prompts_of_more_than_half_a_pool_evict_each_other() -> None:
    """
    The seed's pair, alternating. A run of pages that nothing branches off goes as a whole, so nothing is found.
    """
    async with quick(attention(pool_tokens=1_024)) as replica, client(replica.url) as http:

        async def cached(name: str) -> int:
            answer = await http.post("/generate", json={"text": prompt(600, name), "sampling_params": {}})
            return int(answer.json()["meta_info"]["cached_tokens"])

        alone = [await cached("one"), await cached("one")]
        pair = [await cached("two"), await cached("one"), await cached("two")]

        assert replica.engine.cache.used_tokens <= 1_024
    assert alone == [0, 576]
    assert pair == [0, 0, 0]


# -- time -------------------------------------------------------------------------------------------------------------


async def first_token_s(http: httpx.AsyncClient, text: str) -> float:
    began = time.perf_counter()
    async with http.stream("POST", "/v1/chat/completions", json=ask(text, max_tokens=1, stream=True)) as response:
        lines = [line async for line in response.aiter_lines() if line]
    assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
    return time.perf_counter() - began


async def test_the_first_token_waits_for_the_unread_part_alone() -> None:
    """
    Cold, it takes what the formula says; on the next turn, what the formula says of the rest. Ten times as fast.
    """
    async with quick(speed=10) as replica, client(replica.url) as http:
        small = await first_token_s(http, prompt(2_000, "small"))
        cold = await first_token_s(http, prompt(20_000, "large"))
        warm = await first_token_s(http, prompt(20_000, "large") + prompt(2_000))

    # Never faster than the formula; slower by what a busy machine costs.
    assert expected_s(0, 2_000) * 0.99 < small < expected_s(0, 2_000) + 1
    assert expected_s(0, 20_000) * 0.99 < cold < expected_s(0, 20_000) + 1
    assert expected_s(20_000, 22_000) * 0.99 < warm < expected_s(0, 20_000) * 0.9


def expected_s(cached_tokens: int, prompt_tokens: int) -> float:
    """At ten times the speed."""
    return (ATTENTION.timing.overhead_s + ATTENTION.timing.read_s(cached_tokens, prompt_tokens)) / 10


async def test_prompts_are_read_in_order_of_arrival() -> None:
    """
    A short prompt behind a long one waits for it.
    """
    ended: list[str] = []
    async with quick(speed=10) as replica, client(replica.url) as http, asyncio.TaskGroup() as group:

        async def send(name: str, tokens: int) -> None:
            await http.post("/generate", json={"text": prompt(tokens, name), "sampling_params": {"max_new_tokens": 1}})
            ended.append(name)

        for sent, (name, tokens) in enumerate((("first", 20_000), ("second", 7_000), ("third", 100)), start=1):
            group.create_task(send(name, tokens))
            await until(lambda sent=sent: replica.requests == sent)  # type: ignore[misc]

    assert ended == ["first", "second", "third"]


async def test_a_prompt_without_room_waits_until_a_running_one_has_left() -> None:
    """
    The pool of a real engine is not promised twice either.
    """
    profile = attention(pool_tokens=640, timing=Timing(step_s=5.0, step_request_s=0.0))
    async with quick(profile) as replica, client(replica.url) as http, asyncio.TaskGroup() as group:
        began = time.perf_counter()
        params = {"max_new_tokens": 41}
        one = group.create_task(http.post("/generate", json={"text": prompt(400, "one"), "sampling_params": params}))
        await until(lambda: replica.engine.running == 1)
        params = {"max_new_tokens": 1}
        two = group.create_task(http.post("/generate", json={"text": prompt(400, "two"), "sampling_params": params}))
        await two
        waited = time.perf_counter() - began

    assert waited >= 40 * 5.0 / FAST
    assert {one.result().status_code, two.result().status_code} == {200}


# -- clients that leave -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_prompt_is_read_ends_with_the_chunk(path: str, stream: bool) -> None:
    """
    The next prompt need not wait for the 36 seconds that reading would have taken; what was read stays, in whole chunks.
    """
    async with quick(speed=10) as replica, client(replica.url) as http:
        body = ask(prompt(200_000), input=prompt(200_000), stream=stream)
        await leave(replica, path, body, lambda: replica.engine.running == 1)
        await until(lambda: replica.in_flight == 0)
        cache = replica.engine.cache
        kept, held = cache.used_tokens, cache.held_tokens

        wait = await first_token_s(http, prompt(100, "next"))

        assert replica.engine.aborted_total == 1
    assert kept in {0, 6_144, 2 * 6_144}
    assert held == 0
    assert wait < 0.5


async def test_a_client_that_leaves_the_queue_lets_the_others_move_up() -> None:
    """
    Giving up while waiting harms neither the one that reads nor the ones behind.
    """
    async with quick(speed=10) as replica, client(replica.url) as http:
        async with asyncio.TaskGroup() as group:
            params = {"max_new_tokens": 1}
            one = group.create_task(http.post("/generate", json={"text": prompt(10_000), "sampling_params": params}))
            await until(lambda: replica.in_flight == 1)
            await leave(replica, "/generate", {"text": prompt(300_000)}, lambda: replica.engine.waiting == 1)
            three = group.create_task(http.post("/generate", json={"text": prompt(50), "sampling_params": params}))
        assert replica.in_flight == 0

    assert {one.result().status_code, three.result().status_code} == {200}


async def test_a_client_that_leaves_while_the_answer_comes_leaves_its_prompt() -> None:
    """
    What was read is kept, what was not finished is not.
    """
    async with quick(attention(timing=Timing(step_s=200.0))) as replica:
        body = {"text": prompt(640), "stream": True, "sampling_params": {"max_new_tokens": 200}}
        await leave(replica, "/generate", body, lambda: replica.engine.written_tokens_total == 1)
        await until(lambda: replica.in_flight == 0)

        assert replica.engine.cache.used_tokens == 640
        assert replica.engine.cache.held_tokens == 0


async def test_clients_that_leave_at_any_moment_leave_nothing_behind() -> None:
    """
    Half a request sent, waiting, being read, being answered: when all have gone the replica is as if new.
    """
    chance = random.Random(1)
    async with quick(attention(pool_tokens=4_096), speed=10) as replica, client(replica.url) as http:

        async def come_and_go(number: int) -> None:
            body = {"text": prompt(chance.randrange(64, 2_000), str(number)), "stream": True}
            gone_at = asyncio.get_running_loop().time() + chance.uniform(0, 0.3)
            await leave(replica, "/generate", body, lambda: asyncio.get_running_loop().time() > gone_at)

        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(come_and_go(number))
        await until(lambda: replica.in_flight == 0)
        after = await http.post("/generate", json={"text": prompt(4_000, "after")})
        await until(lambda: replica.in_flight == 0)
        cache = replica.engine.cache
        assert isinstance(cache, EngineCache)

        assert (cache.running, cache.held_tokens, cache.private_tokens) == (0, 0, 0)
        while cache.evict_one():
            pass
        assert cache.tokens == 0
    assert after.status_code == 200


async def test_shutting_down_does_not_wait_for_requests() -> None:
    """
    A replica stops at once, as one that is killed does; its clients see the connection end.
    """

    async def broken(url: str) -> None:
        async with client(url) as http:
            with pytest.raises(httpx.HTTPError):
                await http.post("/generate", json={"text": prompt(300_000)})

    async with asyncio.TaskGroup() as group:
        async with quick(speed=1) as replica:
            group.create_task(broken(replica.url))
            await until(lambda: replica.engine.running == 1)
            began = time.perf_counter()
        stopped_s = time.perf_counter() - began

    assert stopped_s < 5
