"""A simulated replica's APIs, with the official SDKs as its clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from ramjet.replica.server import BODY_LIMIT_BYTES, Replica
from ramjet.sim.profile import LLAMA_CPP, VLLM_HYBRID, Profile
from tests.replica.support import ask, attention, client, frames, openai_client, prompt, quick, until


def anthropic_client(replica: Replica) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=replica.url, api_key="none", max_retries=0, _strict_response_validation=True
    )


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
    async with quick() as replica, client(replica.url) as http:
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
    async with quick() as replica, openai_client(replica) as sdk:
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
    async with quick() as replica, openai_client(replica, strict=False) as sdk:
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
    async with quick() as replica, anthropic_client(replica) as sdk:
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
    async with quick() as replica, anthropic_client(replica) as sdk:
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
    async with quick() as replica, openai_client(replica) as sdk:
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
    async with quick() as replica, openai_client(replica) as sdk:
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
    async with quick(speed=1) as replica, client(replica.url) as http:
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
    async with quick() as replica, client(replica.url) as http:
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
    async with quick(attention(answer_tokens=40)) as replica, client(replica.url) as http:

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
    async with quick() as one, quick() as two:
        for replica in (one, two):
            async with client(replica.url) as http:
                body = (await http.post("/v1/chat/completions", json=ask("Hello"))).json()
                texts.append(body["choices"][0]["message"]["content"])
        assert one.url != two.url

    assert texts[0] == texts[1]


# -- usage ---------------------------------------------------------------------------------------------------------------


async def test_a_complete_miss_drops_the_field_on_openais_endpoints() -> None:
    """
    As with SGLang: null stands for "nothing was reused" as much as for "not reported".
    """
    async with quick() as replica, openai_client(replica) as sdk:
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
    async with quick(attention(reports_cached=False)) as replica, client(replica.url) as http:
        for _ in range(2):
            chat = (await http.post("/v1/chat/completions", json=ask(prompt(200)))).json()
            message = (await http.post("/v1/messages", json=ask(prompt(200)))).json()
            raw = (await http.post("/generate", json={"text": prompt(200)})).json()
        info = (await http.get("/server_info")).json()

    assert chat["usage"]["prompt_tokens_details"] is None
    assert message["usage"] == {"input_tokens": chat["usage"]["prompt_tokens"], "output_tokens": 16}
    assert raw["meta_info"]["cached_tokens"] == 192
    assert info["enable_cache_report"] is False


# -- refusals and reports ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b'{"messages": []}', b"\xff", b"[" * 100_000])
async def test_a_body_that_is_not_understood_is_refused(raw: bytes) -> None:
    """
    400 with an error object in SGLang's shape, and nothing is left inside.
    """
    async with quick() as replica, client(replica.url) as http:
        answer = await http.post("/v1/chat/completions", content=raw)

        assert (replica.requests, replica.in_flight) == (1, 0)
    assert answer.status_code == 400
    assert (answer.json()["object"], answer.json()["type"]) == ("error", "BadRequestError")


async def test_the_sdks_raise_their_own_errors() -> None:
    """
    A prompt longer than the pool is a bad request to both of them, and so is one whose answer would not fit.
    """
    message: Any = {"role": "user", "content": prompt(700)}
    async with quick(attention(pool_tokens=640)) as replica:
        async with openai_client(replica) as sdk:
            with pytest.raises(
                openai.BadRequestError, match=r"The input \(706 tokens\) is longer than .* \(640 tokens\)"
            ):
                await sdk.chat.completions.create(model="demo", messages=[message])
            with pytest.raises(openai.BadRequestError, match="maximum context length of 640 tokens"):
                await sdk.completions.create(model="demo", prompt=prompt(600), max_tokens=41)
            with pytest.raises(openai.BadRequestError, match="max_tokens"):
                await sdk.chat.completions.create(model="demo", messages=[message], max_tokens=0)
            with pytest.raises(openai.BadRequestError, match="stores no responses"):
                await sdk.responses.create(model="demo", input="Hello", previous_response_id="resp_1")
        async with anthropic_client(replica) as other:
            with pytest.raises(anthropic.BadRequestError, match="is longer than"):
                await other.messages.create(model="demo", messages=[message], max_tokens=8)


async def test_bodies_of_up_to_64_mib_are_read() -> None:
    """
    A large image is a thousand tokens; a body above the limit gets 413.
    """
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (BODY_LIMIT_BYTES - 1_000)}}
    async with quick() as replica, client(replica.url) as http:
        body = {"messages": [{"role": "user", "content": [image]}]}
        large = await http.post("/v1/chat/completions", json=body)
        larger = await http.post("/v1/chat/completions", content=b" " * (BODY_LIMIT_BYTES + 1))

    assert large.json()["usage"]["prompt_tokens"] < 1_100
    assert larger.status_code == 413
    assert "67,108,864" in larger.json()["message"]


# -- other engines ----------------------------------------------------------------------------------------------------


async def test_vllm_counts_whole_blocks_and_says_zero_of_a_miss() -> None:
    """
    Blocks of 528 tokens, and no null that could mean two things.
    """
    async with quick(VLLM_HYBRID) as replica, openai_client(replica) as sdk:
        usages = [(await sdk.completions.create(model="m", prompt=prompt(2_000))).usage for _ in range(2)]

    details = [usage.prompt_tokens_details for usage in usages if usage is not None]
    assert [each.cached_tokens for each in details if each is not None] == [0, 3 * 528]


async def test_llama_cpp_has_timings_beside_its_usage() -> None:
    """
    Streamed or not; its first chunk has a null where others have an empty text.
    """
    body = ask(prompt(300), max_tokens=4)
    async with quick(LLAMA_CPP) as replica, client(replica.url) as http:
        whole = (await http.post("/v1/chat/completions", json=body)).json()
        streamed = await http.post(
            "/v1/chat/completions", json=body | {"stream": True, "stream_options": {"include_usage": True}}
        )

    chunks = frames(streamed.text)
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert (whole["timings"]["cache_n"], whole["timings"]["predicted_n"]) == (0, 4)
    assert whole["timings"]["prompt_ms"] > 0
    assert chunks[0]["choices"][0]["delta"]["content"] is None
    assert chunks[-1]["timings"]["cache_n"] == chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 304


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (VLLM_HYBRID, r"maximum context length is \d+ tokens"),
        (LLAMA_CPP, r"exceeds the available context size \(131072 tokens\)"),
    ],
)
async def test_each_engine_refuses_in_its_own_words(profile: Profile, message: str) -> None:
    """
    A prompt that does not fit is a bad request, and `/generate` is SGLang's alone.
    """
    async with quick(profile) as replica, openai_client(replica) as sdk, client(replica.url) as http:
        with pytest.raises(openai.BadRequestError, match=message):
            await sdk.completions.create(model="m", prompt=prompt(600_000))
        elsewhere = await http.post("/generate", json={"text": "abc"})

    assert elsewhere.status_code == 404
