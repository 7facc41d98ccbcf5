"""The simulated replica over HTTP: the official SDKs and plain sockets as its clients."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest

from ramjet.demo.engine import Profile
from ramjet.demo.replica import BODY_LIMIT_BYTES, Replica, running_replica
from tests.demo.support import FAST, ask, client, frames, prompt, until


def openai_client(replica: Replica, *, strict: bool = True) -> openai.AsyncOpenAI:
    """Unlike a user's, it refuses what does not have the documented shape, instead of passing it on."""
    return openai.AsyncOpenAI(
        base_url=f"{replica.url}/v1", api_key="none", max_retries=0, _strict_response_validation=strict
    )


def anthropic_client(replica: Replica) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=replica.url, api_key="none", max_retries=0, _strict_response_validation=True
    )


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
    Prompt and answer of the first turn are there for the second, to the last full block.
    """
    async with running_replica(FAST) as replica, openai_client(replica) as sdk:
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
    whole_blocks = (first.usage.prompt_tokens + 128) // 64 * 64
    assert second.usage.prompt_tokens_details.cached_tokens == whole_blocks


async def test_a_complete_miss_drops_the_field_on_openais_endpoints() -> None:
    """
    As with SGLang: null stands for "nothing was reused" as much as for "not reported".
    """
    async with running_replica(FAST) as replica, openai_client(replica) as sdk:
        chat = await sdk.chat.completions.create(**ask(prompt(200, "a")))
        text = await sdk.completions.create(model="demo", prompt=prompt(200, "b"))
        again = await sdk.completions.create(model="demo", prompt=prompt(200, "b"))

    assert chat.usage is not None
    assert chat.usage.prompt_tokens_details is None
    assert text.usage is not None
    assert text.usage.prompt_tokens_details is None
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == 192


async def test_a_replica_without_a_cache_report_says_nothing() -> None:
    """
    SGLang's default, which Ramjet must read as unknown: only `/generate` still tells.
    """
    async with running_replica(Profile(speed=1_000, report_cache=False)) as replica, client(replica.url) as http:
        for _ in range(2):
            chat = (await http.post("/v1/chat/completions", json=ask(prompt(200)))).json()
            message = (await http.post("/v1/messages", json=ask(prompt(200)))).json()
            raw = (await http.post("/generate", json={"text": prompt(200)})).json()
        info = (await http.get("/server_info")).json()

    assert chat["usage"]["prompt_tokens_details"] is None
    assert message["usage"] == {"input_tokens": chat["usage"]["prompt_tokens"], "output_tokens": 16}
    assert raw["meta_info"]["cached_tokens"] == 192
    assert info["enable_cache_report"] is False


async def test_two_prompts_of_more_than_half_a_pool_evict_each_other() -> None:
    """
    The seed's pair: alternating, each finds what the other left room for, and never all of itself.
    """
    async with running_replica(Profile(speed=1_000, pool_tokens=1_024)) as replica, client(replica.url) as http:

        async def cached(name: str) -> int:
            answer = await http.post("/generate", json={"text": prompt(600, name), "sampling_params": {}})
            return int(answer.json()["meta_info"]["cached_tokens"])

        alone = [await cached("one"), await cached("one")]
        pair = [await cached("two"), await cached("one"), await cached("two")]

        assert replica.cache.tokens <= 1_024
    assert alone == [0, 576]
    assert pair == [0, 448, 448]


async def test_flushing_empties_an_idle_cache_and_is_refused_while_requests_run() -> None:
    """
    What running requests use is not thrown away.
    """
    async with running_replica(Profile(speed=1.0)) as replica, client(replica.url) as http:
        await http.post("/generate", json={"text": prompt(100)})
        held = replica.cache.tokens
        flushed = await http.post("/flush_cache")
        after = replica.cache.tokens
        await leave(replica, "/generate", {"text": prompt(50_000)}, lambda: replica.in_flight == 1)
        await until(lambda: replica.in_flight == 0)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(http.post("/generate", json={"text": prompt(2_000)}))
            await until(lambda: replica.in_flight == 1)
            refused = await http.post("/flush_cache")

    assert (held, after) == (64, 0)
    assert flushed.status_code == 200
    assert refused.status_code == 400
    assert running.result().status_code == 200


# -- time -------------------------------------------------------------------------------------------------------------


async def first_token_s(http: httpx.AsyncClient, text: str) -> float:
    began = time.perf_counter()
    async with http.stream("POST", "/v1/chat/completions", json=ask(text, max_tokens=1, stream=True)) as response:
        lines = [line async for line in response.aiter_lines() if line]
    assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
    return time.perf_counter() - began


async def test_the_first_token_waits_for_the_unread_part_alone() -> None:
    """
    Cold, it takes what the formula says; on the next turn, what the formula says of the rest.
    """
    profile = Profile(speed=10)
    async with running_replica(profile) as replica, client(replica.url) as http:
        small = await first_token_s(http, prompt(2_000, "small"))
        cold = await first_token_s(http, prompt(20_000, "large"))
        warm = await first_token_s(http, prompt(20_000, "large") + prompt(2_000))

    # Never faster than the formula; slower by what a busy machine costs.
    assert profile.prefill_s(2_000, 0) * 0.99 < small < profile.prefill_s(2_000, 0) + 1
    assert profile.prefill_s(20_000, 0) * 0.99 < cold < profile.prefill_s(20_000, 0) + 1
    assert profile.prefill_s(22_000, 20_000) * 0.99 < warm < profile.prefill_s(20_000, 0) * 0.9


async def test_prompts_are_read_one_at_a_time_in_order_of_arrival() -> None:
    """
    A short prompt behind a long one waits for it.
    """
    profile = Profile(speed=10)
    sent: list[str] = []
    ended: list[str] = []
    async with running_replica(profile) as replica, client(replica.url) as http, asyncio.TaskGroup() as group:

        async def send(name: str, tokens: int) -> None:
            await http.post("/generate", json={"text": prompt(tokens, name), "sampling_params": {"max_new_tokens": 1}})
            ended.append(name)

        for name, tokens in (("first", 10_000), ("second", 100), ("third", 5_000)):
            sent.append(name)
            group.create_task(send(name, tokens))
            await until(lambda: replica.requests == len(sent))

    assert ended == sent


async def test_a_prompt_without_room_waits_until_a_running_one_has_left() -> None:
    """
    The pool of a real engine is not promised twice either.
    """
    profile = Profile(pool_tokens=640, speed=1_000, decode_s=5.0)
    async with running_replica(profile) as replica, client(replica.url) as http, asyncio.TaskGroup() as group:
        began = time.perf_counter()
        params = {"max_new_tokens": 41}
        one = group.create_task(http.post("/generate", json={"text": prompt(400, "one"), "sampling_params": params}))
        await until(lambda: replica.engine.running == 1)
        params = {"max_new_tokens": 1}
        two = group.create_task(http.post("/generate", json={"text": prompt(400, "two"), "sampling_params": params}))
        await two
        waited = time.perf_counter() - began

    assert waited >= 40 * profile.token_s
    assert {one.result().status_code, two.result().status_code} == {200}


# -- clients that leave -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_during_prefill_frees_the_place_and_leaves_nothing(path: str, stream: bool) -> None:
    """
    The next prompt need not wait for the 35 seconds that reading would have taken.
    """
    async with running_replica(Profile()) as replica, client(replica.url) as http:
        await http.post("/generate", json={"text": prompt(100), "sampling_params": {"max_new_tokens": 1}})
        before = replica.cache.tokens
        body = ask(prompt(200_000), input=prompt(200_000), stream=stream)
        await leave(replica, path, body, lambda: replica.engine.running == 1)
        await until(lambda: replica.in_flight == 0)
        after, held = replica.cache.tokens, replica.engine.held_tokens

        wait = await first_token_s(http, prompt(100, "next"))

    assert after == before
    assert held == 0
    assert wait < 5


async def test_a_client_that_leaves_the_queue_lets_the_others_move_up() -> None:
    """
    Giving up while waiting harms neither the one that reads nor the ones behind.
    """
    async with running_replica(Profile(speed=10)) as replica, client(replica.url) as http:
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
    profile = Profile(speed=1_000, decode_s=1_000.0)
    async with running_replica(profile) as replica:
        body = {"text": prompt(640), "stream": True, "sampling_params": {"max_new_tokens": 200}}
        await leave(replica, "/generate", body, lambda: replica.cache.tokens == 640)
        await until(lambda: replica.in_flight == 0)

        assert replica.cache.tokens == 640
        assert replica.engine.held_tokens == 0


async def test_clients_that_leave_at_any_moment_leave_nothing_behind() -> None:
    """
    Half a request sent, waiting, being read, being answered: when all have gone the replica is as if new.
    """
    chance = random.Random(1)
    async with running_replica(Profile(speed=10, pool_tokens=4_096)) as replica, client(replica.url) as http:

        async def come_and_go(number: int) -> None:
            body = {"text": prompt(chance.randrange(64, 2_000), str(number)), "stream": True}
            gone_at = asyncio.get_running_loop().time() + chance.uniform(0, 0.3)
            await leave(replica, "/generate", body, lambda: asyncio.get_running_loop().time() > gone_at)

        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(come_and_go(number))
        await until(lambda: replica.in_flight == 0)
        after = await http.post("/generate", json={"text": prompt(4_000, "after")})
        while replica.cache.evict_one():
            pass

        assert replica.engine.held_tokens == 0
        assert replica.cache.tokens == 0
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
        async with running_replica(Profile()) as replica:
            group.create_task(broken(replica.url))
            await until(lambda: replica.engine.running == 1)
            began = time.perf_counter()
        stopped_s = time.perf_counter() - began

    assert stopped_s < 5
    assert (replica.in_flight, replica.engine.held_tokens) == (0, 0)


# -- the dialects -----------------------------------------------------------------------------------------------------

RAW: dict[str, Any] = {"text": prompt(300), "sampling_params": {"max_new_tokens": 24}}
DIALECTS: list[tuple[str, dict[str, Any], Callable[[dict[str, Any]], Any]]] = [
    ("/v1/chat/completions", ask(prompt(300), max_tokens=24), lambda body: body.get("usage")),
    ("/v1/completions", {"prompt": prompt(300), "max_tokens": 24}, lambda body: body.get("usage")),
    (
        "/v1/responses",
        {"input": prompt(300), "max_output_tokens": 24},
        lambda body: body.get("response", body).get("usage"),
    ),
    ("/v1/messages", ask(prompt(300), max_tokens=24), lambda body: body.get("usage")),
    ("/generate", RAW, lambda body: {k: v for k, v in body.get("meta_info", {}).items() if k.endswith("_tokens")}),
]


@pytest.mark.parametrize(("path", "body", "usage"), DIALECTS, ids=[path for path, *_ in DIALECTS])
async def test_streamed_or_not_the_usage_is_the_same(path: str, body: dict[str, Any], usage: Any) -> None:
    """
    Cold and warm, in every dialect.
    """
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with running_replica(FAST) as replica, client(replica.url) as http:
        cold = usage((await http.post(path, json=body)).json())
        warm = usage((await http.post(path, json=body)).json())
        await http.post("/flush_cache")
        seen = []
        for _ in range(2):
            answer = await http.post(path, json=streamed)
            assert answer.headers["content-type"] == "text/event-stream"
            seen.append([usage(payload) for payload in frames(answer.text) if usage(payload)][-1])

        assert replica.in_flight == 0
    assert seen == [cold, warm]
    assert cold != warm


async def test_openais_chat_stream_ends_with_usage_only_if_it_was_asked_for() -> None:
    """
    The role comes with the first token; the last chunk has no choices and the usage.
    """
    async with running_replica(FAST) as replica, openai_client(replica) as sdk:
        stream = await sdk.chat.completions.create(
            **ask(prompt(100)), max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        plain = [chunk async for chunk in await sdk.chat.completions.create(**ask(prompt(100)), stream=True)]

    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    assert [bool(chunk.choices) for chunk in chunks] == [True] * 7 + [False]
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all(chunk.usage is None and chunk.choices for chunk in plain)


async def test_openais_text_completions_stream() -> None:
    """
    The pieces of a stream are the answer that comes without one.
    """
    # Not strict: every engine's chunks have no finish_reason before the last, and the SDK's type forgets that.
    async with running_replica(FAST) as replica, openai_client(replica, strict=False) as sdk:
        whole = await sdk.completions.create(model="demo", prompt=prompt(80), max_tokens=9)
        stream = await sdk.completions.create(model="demo", prompt=prompt(80), max_tokens=9, stream=True)
        pieces = [chunk.choices[0].text async for chunk in stream]

    assert "".join(pieces) == whole.choices[0].text
    assert len(whole.choices[0].text) == 9 * 4


async def test_anthropics_usage_leaves_out_what_was_reused() -> None:
    """
    Read, reused and created tokens add up to the prompt.
    """
    message: Any = {"role": "user", "content": prompt(300)}
    async with running_replica(FAST) as replica, anthropic_client(replica) as sdk:
        cold = (await sdk.messages.create(model="demo", messages=[message], max_tokens=8)).usage
        warm = await sdk.messages.create(model="demo", messages=[message], max_tokens=8)

    assert (cold.cache_read_input_tokens, cold.output_tokens) == (0, 8)
    assert warm.usage.cache_read_input_tokens == 256
    assert warm.usage.input_tokens + 256 == cold.input_tokens
    assert warm.stop_reason == "max_tokens"
    assert warm.content[0].type == "text"


async def test_anthropics_stream_has_every_event_in_order() -> None:
    """
    The SDK builds from the events the message that comes without a stream.
    """
    message: Any = {"role": "user", "content": prompt(300)}
    async with running_replica(FAST) as replica, anthropic_client(replica) as sdk:
        events = await sdk.messages.create(model="demo", messages=[message], max_tokens=3, stream=True)
        kinds = [event.type async for event in events]
        whole = await sdk.messages.create(model="demo", messages=[message], max_tokens=3)
        async with sdk.messages.stream(model="demo", messages=[message], max_tokens=3) as stream:
            built = await stream.get_final_message()

    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert built.usage == whole.usage
    assert built.content[0].model_dump(exclude_none=True) == whole.content[0].model_dump(exclude_none=True)


async def test_openais_responses_report_reuse_among_the_inputs_details() -> None:
    """
    A miss is a 0 here, for the field is not optional.
    """
    async with running_replica(FAST) as replica, openai_client(replica) as sdk:
        cold = await sdk.responses.create(model="demo", input=prompt(300), max_output_tokens=8)
        turn: list[Any] = [{"role": "user", "content": prompt(300)}, *cold.output, {"role": "user", "content": "More"}]
        warm = await sdk.responses.create(model="demo", input=turn, max_output_tokens=8)

    assert cold.usage is not None
    assert warm.usage is not None
    assert cold.usage.input_tokens_details.cached_tokens == 0
    assert warm.usage.input_tokens_details.cached_tokens == 256
    assert cold.usage.total_tokens == cold.usage.input_tokens + 8
    assert (cold.status, len(cold.output_text)) == ("incomplete", 32)


async def test_openais_responses_stream_is_what_the_sdk_expects() -> None:
    """
    Numbered events from created to completed, from which the SDK builds the same answer.
    """
    async with running_replica(FAST) as replica, openai_client(replica) as sdk:
        whole = await sdk.responses.create(model="demo", input=prompt(80), max_output_tokens=4)
        events = [
            event
            async for event in await sdk.responses.create(
                model="demo", input=prompt(80), max_output_tokens=4, stream=True
            )
        ]
        async with sdk.responses.stream(model="demo", input=prompt(80), max_output_tokens=4) as stream:
            built = await stream.get_final_response()

    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds.count("response.output_text.delta") == 4
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert built.output_text == whole.output_text


async def test_a_response_opens_before_the_prompt_is_read() -> None:
    """
    Bytes that are no first token: whoever measures TTFT by the first byte is wrong here.
    """
    body = {"input": prompt(300_000), "stream": True}
    async with running_replica(Profile()) as replica, client(replica.url) as http:
        async with http.stream("POST", "/v1/responses", json=body) as response:
            first = await anext(response.aiter_lines())
            reading = replica.engine.running
        await until(lambda: replica.in_flight == 0)

    assert first == "event: response.created"
    assert reading in {0, 1}


async def test_sglangs_generate_takes_text_or_ids_and_tells_in_meta_info() -> None:
    """
    Each frame repeats the text so far with its counts; the last one says why it ended.
    """
    ids = {"input_ids": list(range(130)), "sampling_params": {"max_new_tokens": 3}}
    async with running_replica(FAST) as replica, client(replica.url) as http:
        await http.post("/generate", json=ids)
        whole = (await http.post("/generate", json=ids)).json()
        streamed = await http.post("/generate", json=ids | {"stream": True})

    assert whole["meta_info"] | {"id": ""} == {
        "id": "",
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": 130,
        "completion_tokens": 3,
        "cached_tokens": 128,
    }
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert [frame["text"] for frame in frames(streamed.text)] == [whole["text"][: 4 * n] for n in (1, 2, 3)]
    assert [frame["meta_info"]["completion_tokens"] for frame in frames(streamed.text)] == [1, 2, 3]


async def test_an_answer_ends_by_itself_unless_the_request_ends_it_before() -> None:
    """
    16 tokens by default, `max_tokens` where given, the model's own end where that comes first.
    """
    async with running_replica(Profile(speed=1_000, answer_tokens=40)) as replica, client(replica.url) as http:

        async def ends(**more: Any) -> tuple[int, str]:
            body = (await http.post("/v1/chat/completions", json=ask("Hello", **more))).json()
            return body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]

        assert await ends() == (16, "length")
        assert await ends(max_tokens=None) == (16, "length")
        assert await ends(max_completion_tokens=30, max_tokens=5) == (30, "length")
        assert await ends(max_tokens=100) == (40, "stop")
        assert await ends(max_tokens=100, ignore_eos=True) == (100, "length")


async def test_the_same_prompt_gets_the_same_answer_from_every_replica() -> None:
    """
    Text depends on the prompt alone, so a conversation is the same wherever it goes.
    """
    texts = []
    async with running_replica(FAST) as one, running_replica(FAST) as two:
        for replica in (one, two):
            async with client(replica.url) as http:
                body = (await http.post("/v1/chat/completions", json=ask("Hello"))).json()
                texts.append(body["choices"][0]["message"]["content"])
        assert one.url != two.url

    assert texts[0] == texts[1]


# -- refusals and reports ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b'{"messages": []}', b"\xff", b"[" * 100_000])
async def test_a_body_that_is_not_understood_is_refused_in_openais_shape(raw: bytes) -> None:
    """
    400 with an error object, and nothing is left inside.
    """
    async with running_replica(FAST) as replica, client(replica.url) as http:
        answer = await http.post("/v1/chat/completions", content=raw)

        assert (replica.requests, replica.in_flight) == (1, 0)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_the_sdks_raise_their_own_errors() -> None:
    """
    A prompt longer than the pool is a bad request to both of them.
    """
    message: Any = {"role": "user", "content": prompt(700)}
    async with running_replica(Profile(pool_tokens=640)) as replica:
        async with openai_client(replica) as sdk:
            with pytest.raises(openai.BadRequestError, match="exceeds the token pool of 640"):
                await sdk.chat.completions.create(model="demo", messages=[message])
            with pytest.raises(openai.BadRequestError, match="max_tokens"):
                await sdk.chat.completions.create(model="demo", messages=[message], max_tokens=0)
            with pytest.raises(openai.BadRequestError, match="stores no responses"):
                await sdk.responses.create(model="demo", input="Hello", previous_response_id="resp_1")
        async with anthropic_client(replica) as other:
            with pytest.raises(anthropic.BadRequestError, match="exceeds the token pool"):
                await other.messages.create(model="demo", messages=[message], max_tokens=8)


async def test_bodies_of_up_to_64_mib_are_read() -> None:
    """
    A large image is a thousand tokens; a body above the limit gets 413.
    """
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (BODY_LIMIT_BYTES - 1_000)}}
    async with running_replica(FAST) as replica, client(replica.url) as http:
        body = {"messages": [{"role": "user", "content": [image]}]}
        large = await http.post("/v1/chat/completions", json=body)
        larger = await http.post("/v1/chat/completions", content=b" " * (BODY_LIMIT_BYTES + 1))

    assert large.json()["usage"]["prompt_tokens"] < 1_100
    assert larger.status_code == 413
    assert "67,108,864" in larger.json()["error"]["message"]


async def test_what_it_says_about_itself() -> None:
    """
    The parts of SGLang's reports that Ramjet reads.
    """
    async with running_replica(FAST) as replica, openai_client(replica) as sdk, client(replica.url) as http:
        for _ in range(2):
            await http.post("/generate", json={"text": prompt(200)})
        health = await http.get("/health")
        info = (await http.get("/server_info")).json()
        lines = (await http.get("/metrics")).text.splitlines()
        names = [model.id async for model in sdk.models.list()]

    assert (health.status_code, health.content) == (200, b"")
    assert (info["max_total_num_tokens"], info["enable_cache_report"]) == (499_968, True)
    assert isinstance(info["version"], str)
    assert names == ["demo"]
    assert 'sglang:num_running_reqs{model_name="demo"} 0' in lines
    assert 'sglang:num_queue_reqs{model_name="demo"} 0' in lines
    assert 'sglang:token_usage{model_name="demo"} 0.0' in lines
    assert 'sglang:prompt_tokens_total{model_name="demo"} 400' in lines
    assert 'sglang:cached_tokens_total{model_name="demo",cache_source="device"} 192' in lines


async def test_metrics_count_what_waits_and_what_runs() -> None:
    """
    One is read, another waits.
    """
    told = asyncio.Event()
    async with running_replica(Profile()) as replica, client(replica.url) as http, asyncio.TaskGroup() as group:
        for name in ("one", "two"):
            group.create_task(leave(replica, "/generate", {"text": prompt(200_000, name)}, told.is_set))
        await until(lambda: replica.in_flight == 2)
        lines = (await http.get("/metrics")).text.splitlines()
        told.set()
        await until(lambda: replica.in_flight == 0)

    assert 'sglang:num_running_reqs{model_name="demo"} 1' in lines
    assert 'sglang:num_queue_reqs{model_name="demo"} 1' in lines
