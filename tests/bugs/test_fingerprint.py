"""What decides where a prompt belongs, and that its bytes stay what they are."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

import pytest

from ramjet.core.fingerprint import fingerprint
from ramjet.core.prompt import read
from tests.bugs import case
from tests.bugs.wire import ask, body_for, request
from tests.rig import ramjet
from tests.scripted import Connection, Seen, scripted_engine

CHAT = "/v1/chat/completions"


@case(20)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_a_nonce_in_the_first_line_does_not_lose_the_conversation(path: str) -> None:
    """
    Five turns, a new nonce each: one replica, the bytes untouched, and the cold turns named with their cause.
    """
    usage = {"prompt_tokens": 30_000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 48}}

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(json.dumps({"usage": usage}).encode())

    async with scripted_engine(script) as engine, ramjet({"a": engine.url, "b": f"{engine.url}/b"}) as front:
        went = set()
        for turn in range(1, 6):
            nonce = f"x-anthropic-billing-header: cc_version=2.1; cch={os.urandom(3).hex()[:5]};"
            stable = "You are a careful agent. " * 4_800
            fields = json.loads(body_for(path, *(f"turn {number}" for number in range(turn))))
            if path == CHAT:
                fields["messages"].insert(0, {"role": "system", "content": f"{nonce}\n{stable}"})
            else:
                fields["system"] = [{"type": "text", "text": nonce}, {"type": "text", "text": stable}]
            raw = json.dumps(fields).encode()
            went.add((await ask(front.url, request(path, raw))).header("x-ramjet-replica"))
            assert engine.seen[-1].body == raw

        assert len(went) == 1
        assert [record.turn for record in front.records] == [1, 2, 3, 4, 5]
        assert {record.cold_cause for record in front.records[1:]} == {"prefix_changed"}
        assert front.metric("ramjet_turns_total", temperature="cold") == 4


ODD = (
    b'{ "stream":%s, "temperature":1e3,"top_p":1.0, "seed":12345678901234567890,\r\n'
    b'"tools":[{"type":"function","function":{"parameters":{"z":1,"a":{"y":[],"b":null}},"name":"t"}}],'
    b'"messages":[{"content":"\\u00e9 \xc3\xa9 \\ud83d\\ude00","cache_control":{"type":"ephemeral"},"role":"user"}],'
    b'"model":"old","model":"m" }\n'
)


@case(22)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses", "/inference/v1/x"])
async def test_the_body_arrives_as_it_was_written(path: str, stream: bool) -> None:
    """
    Order, numbers, escapes, doubled keys and the last newline; where usage is asked for, nothing but that is added.
    """
    raw = ODD % (b"true" if stream else b"false")
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front:
        await ask(front.url, request(path, raw))

        added = b'"stream_options":{"include_usage":true},' if stream and path == CHAT else b""
        assert len(engine.seen[0].body) == len(raw) + len(added)
        assert engine.seen[0].body.replace(added, b"", 1) == raw


def chain(*messages: dict[str, Any], **more: Any) -> list[int]:
    raw = json.dumps({"model": "m", "messages": messages, **more}).encode()
    return list(fingerprint(read(raw, "chat"), 7).usable.hashes)


@case(22)
def test_the_order_of_keys_is_not_part_of_the_prompt() -> None:
    tool = {"type": "function", "function": {"name": "t", "parameters": {"a": 1, "b": {"c": 2, "d": 3}}}}
    turned = {"function": {"parameters": {"b": {"d": 3, "c": 2}, "a": 1}, "name": "t"}, "type": "function"}
    message = {"role": "user", "content": "x" * 900}

    assert chain(message, tools=[tool]) == chain(dict(reversed(message.items())), tools=[turned])
    assert chain(message, tools=[tool]) != chain(message)


def picture(number: int) -> str:
    return f"data:image/png;base64,{number:08d}" + "A" * 2_000_000


PARTS: dict[str, Any] = {
    "image": lambda number: [
        {"type": "image_url", "image_url": {"url": picture(number)}},
        {"type": "text", "text": "describe"},
    ],
    "audio": lambda number: [
        {"type": "input_audio", "input_audio": {"data": picture(number), "format": "wav"}},
        {"type": "text", "text": "describe"},
    ],
    "tool_result": lambda number: [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": f"{number} " * 300}]}
    ],
    "tool_use": lambda number: [{"type": "tool_use", "id": "t", "name": "read", "input": {"path": f"{number} " * 300}}],
}


@case(23)
@pytest.mark.parametrize("kind", PARTS)
async def test_whatever_a_message_is_made_of_tells_conversations_apart(kind: str) -> None:
    """
    Twenty that differ in nothing but one part: spread over both replicas, and the second turn returns.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url, "b": f"{engine.url}/b"}) as front:
        homes = []
        for number in range(20):
            messages: list[dict[str, Any]] = [{"role": "user", "content": PARTS[kind](number)}]
            for _ in range(2):
                raw = json.dumps({"model": "m", "messages": messages}).encode()
                homes.append((await ask(front.url, request(CHAT, raw))).header("x-ramjet-replica"))
                messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "go on"}]

        assert homes[::2] == homes[1::2]
        assert min(homes.count("a"), homes.count("b")) >= 10
        assert len({record.conversation for record in front.records}) == 20


@case(23)
@pytest.mark.parametrize(
    "message",
    [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "user", "content": ""},
        {"role": "user"},
        {"role": "user", "content": []},
        {"role": "user", "content": [[]]},
        {"role": "user", "content": 7},
        {"role": None, "content": {"text": None}},
        {"content": [{"type": "text", "text": None}, {"type": None}, {"type": {"x": 1}}]},
    ],
    ids=repr,
)
async def test_no_shape_of_a_message_is_a_fault_of_ours(message: dict[str, Any]) -> None:
    async with scripted_engine() as engine, ramjet({"a": engine.url}) as front:
        raw = json.dumps({"model": "m", "messages": [message, {"role": "user", "content": "x"}]}).encode()

        assert (await ask(front.url, request(CHAT, raw))).status == 200
        assert engine.seen[0].body == raw


@case(23)
@pytest.mark.alone
def test_an_image_is_hashed_in_milliseconds() -> None:
    """
    2 MB of base64; the best of five, since the machine does other things too.
    """
    raw = json.dumps({"messages": [{"role": "user", "content": PARTS["image"](1)}]}).encode()
    took_s = []
    for _ in range(5):
        started_at = time.perf_counter()
        fingerprint(read(raw, "chat"), 7)
        took_s.append(time.perf_counter() - started_at)

    assert min(took_s) < 0.02


@case(24)
async def test_the_same_text_for_another_adapter_is_another_prompt() -> None:
    """
    It goes to the replica that serves the adapter, shares no cache with the base model's, and both stay apart.
    """

    def serving(*names: str) -> Any:
        async def script(connection: Connection, seen: Seen) -> None:
            listed = {"data": [{"id": name} for name in names]}
            await connection.answer(json.dumps(listed).encode() if seen.target == "/v1/models" else b"{}")

        return script

    async with scripted_engine(serving("base")) as one, scripted_engine(serving("base", "lora-a")) as two:
        async with ramjet({"a": one.url, "b": two.url}, watch=True, health={"interval_s": 0.05}) as front:
            async with asyncio.timeout(10):
                while not all(replica.models for replica in front.router.fleet):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            for model in ("base", "lora-a", "base", "lora-a"):
                fields = {**json.loads(body_for(CHAT, "x" * 20_000)), "model": model}
                await ask(front.url, request(CHAT, json.dumps(fields).encode()))

            base, adapter = front.records[::2], front.records[1::2]
            assert {record.replica for record in adapter} == {"b"}
            assert len({record.replica for record in base}) == 1
            assert adapter[0].matched_tokens == 0
            assert {record.conversation for record in base}.isdisjoint(record.conversation for record in adapter)
