"""What is read of a request: what renders alike, what does not, and what cannot be read at all."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.prompt import ENDPOINTS, MEDIA_SIZE, Prompt, Unreadable, endpoint_of, read
from tests.effort import examples

SYSTEM = {"role": "system", "content": "You are a coding agent."}
QUESTION = {"role": "user", "content": "Why did the cache forget 49,152 tokens?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": '{"for":"mamba"}'}}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "grep", "description": "Search.", "parameters": {"type": "object"}},
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 50_000}}


def chat(*messages: Any, **more: Any) -> Prompt:
    return read(json.dumps({"model": "glm", "messages": messages, **more}).encode(), "chat")


def asked(endpoint: str, **fields: Any) -> Prompt:
    return read(json.dumps({"model": "glm", **fields}).encode(), endpoint)


def rendering(prompt: Prompt) -> tuple[bytes, bytes, int, list[int], list[int]]:
    """Everything that routing can tell of a prompt, however it is cut into pieces."""
    messages, heads, at = [], [], 0
    for piece in prompt.pieces:
        at += piece.size
        if piece.ends_message:
            messages.append(at)
        if piece.ends_head:
            heads.append(at)
    return prompt.namespace, b"".join(piece.data for piece in prompt.pieces), prompt.size_bytes, messages, heads


def unmarked(prompt: Prompt) -> bytes:
    return b"".join(piece.data for piece in prompt.pieces)


# -- alike ------------------------------------------------------------------------------------------------------------


@given(
    text=st.text(max_size=200), role=st.sampled_from(["system", "developer", "user", "assistant", "tool", "système"])
)
def test_a_string_and_a_list_with_one_text_part_are_the_same_prompt(text: str, role: str) -> None:
    """
    How text is wrapped leaves no trace, whatever it says and whoever says it.
    """
    plain = chat({"role": role, "content": text})
    wrapped = chat({"role": role, "content": [{"type": "text", "text": text}]})

    assert rendering(plain) == rendering(wrapped)


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_the_three_names_of_a_text_part_mean_the_same(kind: str) -> None:
    """
    The responses API calls a text part by other names than the chat API.
    """
    part = {"type": kind, "text": "hello", "annotations": []}

    assert rendering(chat({"role": "user", "content": [part]})) == rendering(chat({"role": "user", "content": "hello"}))


def test_the_order_of_keys_never_matters() -> None:
    """
    Clients that write the same message with its keys in another order continue the same conversation.
    """
    one = chat(QUESTION, {"role": "assistant", "content": None, "tool_calls": [CALL]}, tools=[TOOL])
    call = dict(reversed(CALL.items()))
    other = chat(
        dict(reversed(QUESTION.items())),
        {"tool_calls": [call], "content": None, "role": "assistant"},
        tools=[{"function": dict(reversed(TOOL["function"].items())), "type": "function"}],
    )

    assert rendering(one) == rendering(other)


def test_a_cache_marker_may_move_from_turn_to_turn() -> None:
    """
    Anthropic's clients mark the last messages of every turn anew; the prompt is the same.
    """
    marker = {"type": "ephemeral"}
    text = {"type": "text", "text": "Go on."}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "28 slots"}

    marked = asked(
        "messages",
        system=[{"type": "text", "text": "You are.", "cache_control": marker}],
        tools=[{"name": "grep", "input_schema": {}, "cache_control": marker}],
        messages=[
            {"role": "user", "content": [text]},
            {"role": "user", "content": [{**result, "cache_control": marker}]},
        ],
    )
    moved = asked(
        "messages",
        system="You are.",
        tools=[{"name": "grep", "input_schema": {}}],
        messages=[
            {"role": "user", "content": [{**text, "cache_control": marker}], "cache_control": marker},
            {"role": "user", "content": [result]},
        ],
    )

    assert rendering(marked) == rendering(moved)


@pytest.mark.parametrize("field", ["name", "tool_calls", "refusal", "audio", "function_call", "reasoning_content"])
def test_a_null_field_is_no_field(field: str) -> None:
    """
    SDKs send back what they were given, nulls included.
    """
    assert rendering(chat({**QUESTION, field: None})) == rendering(chat(QUESTION))


@pytest.mark.parametrize("field", ["id", "status", "cache_control"])
def test_what_no_template_renders_makes_no_difference(field: str) -> None:
    """
    Identifiers of messages and items are never part of a prompt.
    """
    assert rendering(chat({**QUESTION, field: "msg_1"})) == rendering(chat({**QUESTION, field: "msg_2"}))


def test_a_system_prompt_is_the_same_wherever_the_api_puts_it() -> None:
    """
    Top-level `system`, `instructions` and a system message at the front are rendered alike.
    """
    in_front = chat(SYSTEM, QUESTION)
    top_level = asked("messages", system=SYSTEM["content"], messages=[QUESTION])
    in_parts = asked("messages", system=[{"type": "text", "text": SYSTEM["content"]}], messages=[QUESTION])
    instructions = asked("responses", instructions=SYSTEM["content"], input=[QUESTION])

    assert rendering(in_front) == rendering(top_level) == rendering(in_parts) == rendering(instructions)


def test_the_input_of_responses_may_be_a_string() -> None:
    """
    A string is one message of the user.
    """
    assert rendering(asked("responses", input="hello")) == rendering(
        asked("responses", input=[{"role": "user", "content": "hello"}])
    )


@pytest.mark.parametrize("prompt", ["Once upon", [79, 1_203, 2_205]])
def test_a_completion_may_have_one_prompt_in_a_list(prompt: Any) -> None:
    """
    One prompt in a list is that prompt, as text or as token ids.
    """
    assert rendering(asked("completions", prompt=[prompt])) == rendering(asked("completions", prompt=prompt))


def test_generate_takes_text_or_token_ids() -> None:
    """
    SGLang's own endpoint: a token id counts four bytes, and a null `text` is none.
    """
    ids = list(range(19_845))

    by_ids = asked("generate", input_ids=ids)

    assert by_ids.size_bytes == 4 * 19_845
    assert rendering(by_ids) == rendering(asked("generate", input_ids=ids, text=None))
    assert rendering(by_ids) == rendering(asked("completions", prompt=ids))
    assert unmarked(asked("generate", text="hello")) == b"hello"


def test_bytes_may_come_in_any_buffer() -> None:
    """
    A bytearray is read as bytes are.
    """
    body = json.dumps({"messages": [QUESTION]}).encode()

    assert read(bytearray(body), "chat") == read(body, "chat")


def test_numbers_are_never_spelled_otherwise() -> None:
    """
    What a message carries beside its content is rendered with all its digits.
    """
    number = 123456789012345678901234567890

    assert str(number).encode() in unmarked(chat({**QUESTION, "metadata": {"n": number}}))


# -- different --------------------------------------------------------------------------------------------------------

DIFFERENT: dict[str, tuple[list[Any], list[Any]]] = {
    "text": ([QUESTION], [{**QUESTION, "content": "Why?"}]),
    "role": ([QUESTION], [{**QUESTION, "role": "assistant"}]),
    "system or developer": ([SYSTEM], [{**SYSTEM, "role": "developer"}]),
    "order of messages": ([SYSTEM, QUESTION], [QUESTION, SYSTEM]),
    "one message or two": (
        [{"role": "user", "content": "ab"}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    ),
    "image": (
        [{"role": "user", "content": [IMAGE]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,B"}}]}],
    ),
    "image or text": (
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}],
    ),
    "tool call": (
        [{"role": "assistant", "content": None, "tool_calls": [CALL]}],
        [{"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {"name": "ls", "arguments": ""}}]}],
    ),
    "order of tool calls": (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "a"}}, {"function": {"name": "b"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "b"}}, {"function": {"name": "a"}}]}],
    ),
    "tool result's owner": (
        [{"role": "tool", "tool_call_id": "call_1", "content": "x"}],
        [{"role": "tool", "tool_call_id": "call_2", "content": "x"}],
    ),
    "reasoning": ([{**QUESTION, "reasoning_content": "hm"}], [{**QUESTION, "reasoning_content": "well"}]),
    "name": ([{**QUESTION, "name": "ann"}], [{**QUESTION, "name": "bob"}]),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_the_engine_reads_otherwise_is_another_prompt(what: str) -> None:
    """
    Nothing that a template renders is lost.
    """
    one, other = DIFFERENT[what]

    assert unmarked(chat(*one)) != unmarked(chat(*other))


@pytest.mark.parametrize("tools", [None, [], [TOOL, TOOL], [{**TOOL, "strict": True}]], ids=["null", "0", "2", "other"])
def test_other_tools_are_another_prompt(tools: Any) -> None:
    """
    Tools are rendered before everything else, so they decide the whole prefix.
    """
    assert unmarked(chat(QUESTION, tools=[TOOL])) != unmarked(chat(QUESTION, tools=tools))
    assert unmarked(chat(QUESTION, tools=[TOOL])).startswith(b"tools\0")


@pytest.mark.parametrize("field", ["model", "lora_path", "cache_salt", "extra_key"])
def test_the_same_text_in_another_namespace_shares_nothing(field: str) -> None:
    """
    Engines keep the caches of models, adapters and salts apart.
    """
    one, other = chat(QUESTION, **{field: "a"}), chat(QUESTION, **{field: "b"})

    assert one.namespace != other.namespace
    assert unmarked(one) == unmarked(other)


@pytest.mark.parametrize("field", ["temperature", "max_tokens", "user", "metadata", "seed", "stream", "stream_options"])
def test_what_is_no_prompt_changes_no_prompt(field: str) -> None:
    """
    How an answer is sampled and sent has no part in the prefix.
    """
    assert rendering(chat(QUESTION, **{field: 1})) == rendering(chat(QUESTION))


def test_media_counts_for_what_it_is_worth_to_the_engine() -> None:
    """
    An image is about 1,000 tokens, whether its base64 takes 1 KB or 5 MB.
    """
    small = chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "A" * 1_000}}]})
    large = chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "A" * 5_000_000}}]})

    assert small.size_bytes == large.size_bytes == len(b"user\0") + MEDIA_SIZE + len(b"\1")


@pytest.mark.parametrize("role", ["user", "usér", "用户"])
@pytest.mark.parametrize("content", ["hello", [{"type": "text", "text": "hello"}], None])
def test_text_counts_for_its_bytes(role: str, content: Any) -> None:
    """
    Without media the prompt's size is the length of its bytes, in any alphabet.
    """
    prompt = chat({"role": role, "content": content})

    assert prompt.size_bytes == len(unmarked(prompt))


def test_the_head_ends_with_the_first_message_that_is_not_the_systems() -> None:
    """
    System and developer messages belong to many conversations; the first question begins one.
    """
    head = chat(SYSTEM, {**SYSTEM, "role": "developer"}, QUESTION)

    prompt = chat(SYSTEM, {**SYSTEM, "role": "developer"}, QUESTION, {"role": "assistant", "content": "x"}, QUESTION)

    assert rendering(prompt)[4] == [head.size_bytes]


@pytest.mark.parametrize(
    ("given", "stream"), [({"stream": True}, True), ({"stream": False}, False), ({"stream": 1}, False), ({}, False)]
)
def test_only_true_asks_for_a_stream(given: dict[str, Any], stream: bool) -> None:
    """
    What is not plainly a stream is treated as none, which changes no byte.
    """
    assert chat(QUESTION, **given).stream is stream


def test_stream_options_are_handed_on_as_they_came() -> None:
    """
    Null and absent are told apart.
    """
    assert chat(QUESTION).stream_options is msgspec.UNSET
    assert chat(QUESTION, stream_options=None).stream_options is None
    assert chat(QUESTION, stream_options={"include_usage": False}).stream_options == {"include_usage": False}


@pytest.mark.parametrize(("given", "model"), [("glm", "glm"), (None, None), (7, None), (["glm"], None)])
def test_a_model_is_a_name_or_unknown(given: Any, model: str | None) -> None:
    """
    A model that is no string is the engine's to refuse.
    """
    assert chat(QUESTION, model=given).model == model


# -- unreadable -------------------------------------------------------------------------------------------------------

GENERATING = ("chat", "messages", "responses", "completions", "generate")

NAMES = st.sampled_from(
    ("messages", "role", "content", "type", "text", "tools", "functions", "function", "name", "system", "input",
     "instructions", "prompt", "input_ids", "image_url", "tool_calls", "stream", "stream_options", "model", "id")
)  # fmt: skip
WORDS = st.sampled_from(("user", "system", "developer", "text", "input_text", "image_url", "tool_use", "file", "héllo"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(), inner, max_size=4),
    max_leaves=20,
)
# Arbitrary JSON is nearly always refused at once; these have the right form and anything inside.
PARTS = st.fixed_dictionaries({}, optional={"type": WORDS | JSON, "text": st.text() | JSON, "image_url": JSON})
MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": WORDS | JSON, "content": st.text() | st.lists(PARTS | JSON) | JSON})
    | JSON,
    max_size=4,
)
NEARLY = st.fixed_dictionaries(
    {"messages": MESSAGES, "input": MESSAGES | JSON, "prompt": JSON, "text": JSON, "input_ids": JSON},
    optional={"tools": st.lists(JSON) | JSON, "system": JSON | st.lists(PARTS), "model": JSON, "instructions": JSON},
)


@given(body=JSON | NEARLY, endpoint=st.sampled_from(GENERATING))
@settings(max_examples=examples(100))
def test_whatever_json_comes_is_read_or_unreadable(body: Any, endpoint: str) -> None:
    """
    No shape of JSON raises anything but Unreadable, and what is read has a size.
    """
    try:
        prompt = read(json.dumps(body).encode(), endpoint)
    except Unreadable:
        return

    assert all(piece.size >= 0 for piece in prompt.pieces)


@given(body=st.binary(max_size=200), endpoint=st.sampled_from(GENERATING))
def test_whatever_bytes_come_are_read_or_unreadable(body: bytes, endpoint: str) -> None:
    """
    Bytes that are no JSON, or no UTF-8, are forwarded without a prompt.
    """
    for wrapped in (body, b'{"messages":' + body + b"}", b'{"messages":[{"role":"user","content":"' + body + b'"}]}'):
        try:
            read(wrapped, endpoint)
        except Unreadable:
            continue


@pytest.mark.parametrize("kind", ["[]", "{}", '["text"]', '{"text":1}'])
def test_a_part_whose_type_is_no_string_is_read_or_unreadable(kind: str) -> None:
    """
    A list or an object where a name should be is no reason to fail.
    """
    body = f'{{"messages":[{{"role":"user","content":[{{"type":{kind},"text":"x"}}]}}]}}'

    try:
        prompt = read(body.encode(), "chat")
    except Unreadable:
        return
    assert prompt.pieces


@pytest.mark.parametrize(
    "around",
    [
        "%s",
        '{"messages":%s}',
        '{"messages":[{"role":"user","content":%s}]}',
        '{"messages":[{"role":"user","content":[{"type":"x","text":%s}]}]}',
        '{"messages":[{"type":%s}]}',
        '{"messages":[],"model":%s}',
        '{"messages":[],"tools":%s}',
        '{"messages":[{"role":"user","content":"x","extra":%s}]}',
    ],
)
def test_nesting_at_any_depth_is_read_or_unreadable(around: str) -> None:
    """
    From a few brackets over the interpreter's own limit to 100,000 of them.
    """
    for depth in (*range(800, 1_020, 2), 5_000, 100_000):
        body = around % ("[" * depth + "]" * depth)
        try:
            read(body.encode(), "chat")
        except Unreadable:
            continue


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"messages"',
        b"{}",
        b"[" * 100_000,
        b'\xef\xbb\xbf{"messages":[{"role":"user","content":"x"}]}',
        b'{"messages":[{"role":"user","content":NaN}]}',
        b'{"messages":[{"role":"user","content":Infinity}]}',
        b'{"messages":[{"role":"user","content":"x","n":1e400}]}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"x"}]',
        b'{"messages":null}',
        b'{"messages":["hello"]}',
        b'{"messages":[{"role":"user","content":[7]}]}',
        b'{"messages":[{"role":"user","content":[null]}]}',
    ],
)
def test_what_is_no_chat_is_unreadable(body: bytes) -> None:
    """
    Each of these is forwarded as it came, and the engine says what is wrong with it.
    """
    with pytest.raises(Unreadable):
        read(body, "chat")


@pytest.mark.parametrize(
    "prompt", [None, "absent", 7, [], {}, [True], [-1], [1 << 32], [1, "a"], ["a", "b"], [[1], [2]], [["a"]], [1.5]]
)
@pytest.mark.parametrize(("endpoint", "field"), [("completions", "prompt"), ("generate", "input_ids")])
def test_what_is_no_single_prompt_is_unreadable(endpoint: str, field: str, prompt: Any) -> None:
    """
    A batch has no one prefix, and a token id has 32 bits.
    """
    with pytest.raises(Unreadable):
        asked(endpoint, **({} if prompt == "absent" else {field: prompt}))


@pytest.mark.parametrize("endpoint", ["embeddings", "models", "other", "", "no such"])
def test_only_what_generates_has_a_prompt(endpoint: str) -> None:
    """
    Embeddings use no prefix cache.
    """
    with pytest.raises(Unreadable, match="no prompt"):
        read(b'{"messages":[],"input":"x","prompt":"x"}', endpoint)


# -- names of paths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/chat/completions/", "chat"),
        ("/v1/chat/completions?a=/v1/messages", "chat"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "other"),
        ("/v1/responses", "responses"),
        ("/generate", "generate"),
        ("/v1/models", "models"),
        ("/v2/chat/completions", "other"),
        ("", "other"),
        ("?", "other"),
    ],
)
def test_a_path_has_a_name(path: str, name: str) -> None:
    """
    Slash and query at its end are no part of it.
    """
    assert endpoint_of(path) == name


@given(path=st.text() | st.sampled_from(sorted(ENDPOINTS)).flatmap(lambda known: st.text().map(known.__add__)))
def test_clients_cannot_make_the_names_of_paths_grow(path: str) -> None:
    """
    Whatever path is asked for, logs and metrics see one of eight names.
    """
    assert endpoint_of(path) in {*ENDPOINTS.values(), "other"}
