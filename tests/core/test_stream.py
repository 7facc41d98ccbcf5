"""What is read from a stream, and what of it reaches the client, wherever the network cuts it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.stream import MOST_LINE_BYTES, JsonObserver, SseObserver
from ramjet.core.usage import Usage


def sse(*events: Any, end: str = "\n\n", done: bool = True) -> bytes:
    frames = [event if isinstance(event, str) else "data: " + json.dumps(event) for event in events]
    return "".join(frame + end for frame in [*frames, *(["data: [DONE]"] if done else [])]).encode()


def chunk(**delta: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": delta}], "usage": None}


USAGE = {"prompt_tokens": 951, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 896}}
ASKED_USAGE = {"id": "c", "choices": [], "usage": USAGE}
SEEN = Usage(prompt_tokens=951, cached_tokens=896, completion_tokens=3)

CHAT = sse(
    chunk(role="assistant", content=""), chunk(content="héllo 汉字"), chunk(content='"usage": "error"'), ASKED_USAGE
)
SHAPES = {
    "chat": (CHAT, SEEN),
    "chat with CRLF": (CHAT.replace(b"\n", b"\r\n"), SEEN),
    "chat with CR": (CHAT.replace(b"\n", b"\r"), SEEN),
    "chat without a blank line at its end": (CHAT.rstrip(), SEEN),
    "reasoning": (sse(": ping", chunk(role="assistant"), chunk(reasoning_content="hm"), ASKED_USAGE), SEEN),
    "tool call": (sse(chunk(tool_calls=[{"index": 0, "function": {"name": "f"}}]), ASKED_USAGE), SEEN),
    "completions": (sse({"choices": [{"text": ""}]}, {"choices": [{"text": "x"}]}, ASKED_USAGE), SEEN),
    "anthropic": (
        sse(
            "event: message_start",
            {"type": "message_start", "message": {"usage": {"input_tokens": 10, "cache_read_input_tokens": 300,
                                                            "cache_creation_input_tokens": 5, "output_tokens": 1}}},
            {"type": "ping"},
            {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}},
            {"type": "message_delta", "usage": {"output_tokens": 7}},
            {"type": "message_stop"},
            done=False,
        ),
        Usage(prompt_tokens=315, cached_tokens=300, completion_tokens=7),
    ),
    "responses": (
        sse(
            {"type": "response.created", "response": {"usage": None}},
            {"type": "response.output_text.delta", "delta": "hi"},
            {"type": "response.completed", "response": {"usage": {
                "input_tokens": 20, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2}}},
            done=False,
        ),
        Usage(prompt_tokens=20, cached_tokens=0, completion_tokens=2),
    ),
    "generate": (
        sse(
            {"text": "", "meta_info": {"prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 0}},
            {"text": "ab", "meta_info": {"prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 2}},
        ),
        Usage(prompt_tokens=9, cached_tokens=4, completion_tokens=2),
    ),
}  # fmt: skip


def run(stream: bytes, cuts: list[int], *, hide_usage: bool = False) -> tuple[SseObserver, bytes]:
    observer, out, edges = SseObserver(hide_usage=hide_usage), b"", [0, *sorted(cut % len(stream) for cut in cuts)]
    for now, (start, end) in enumerate(zip(edges, [*edges[1:], len(stream)], strict=True)):
        out += observer.feed(stream[start:end], float(now))
    return observer, out + observer.close()


CUTS = st.lists(st.integers(0, 2_000), max_size=12)


@pytest.mark.parametrize("shape", SHAPES)
@given(cuts=CUTS)
def test_where_the_network_cuts_a_stream_never_matters(shape: str, cuts: list[int]) -> None:
    """
    Usage is read the same, and the client gets the same bytes, however they are split.
    """
    stream, usage = SHAPES[shape]

    observer, out = run(stream, cuts)

    assert out == stream
    assert observer.usage == usage
    assert observer.first_token_at is not None
    assert not observer.error


@pytest.mark.parametrize("shape", SHAPES)
@given(cuts=CUTS)
def test_a_usage_chunk_nobody_asked_for_is_hidden_and_nothing_else(shape: str, cuts: list[int]) -> None:
    """
    Wherever the stream is cut, exactly the chunk without choices is missing from what the client gets.
    """
    stream, usage = SHAPES[shape]
    for newline in (b"\r\n", b"\n", b"\r"):
        hidden = b"data: " + json.dumps(ASKED_USAGE).encode() + newline + newline
        if hidden in stream:
            break

    observer, out = run(stream, cuts, hide_usage=True)

    assert out == stream.replace(hidden, b"")
    assert observer.usage == usage


@pytest.mark.parametrize("shape", SHAPES)
def test_one_byte_at_a_time(shape: str) -> None:
    """
    The worst network there is: every byte in a packet of its own.
    """
    stream, usage = SHAPES[shape]

    observer, out = run(stream, list(range(1, len(stream))))

    assert (out, observer.usage) == (stream, usage)


@pytest.mark.parametrize(
    "first",
    [
        chunk(content="a"),
        chunk(reasoning_content="a"),
        chunk(reasoning="a"),
        chunk(tool_calls=[{"index": 0}]),
        {"choices": [{"text": "a"}]},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "a"}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.function_call_arguments.delta", "delta": "{"},
        {"text": "a", "meta_info": {}},
    ],
)
def test_the_first_token_is_the_first_thing_the_model_said(first: dict[str, Any]) -> None:
    """
    A role frame, a ping and an empty text come before it and do not count.
    """
    observer = SseObserver()

    observer.feed(sse(chunk(role="assistant", content=""), done=False), 0.1)
    observer.feed(b": ping\n\n", 0.5)
    observer.feed(sse({"type": "ping"}, {"type": "message_start", "message": {}}, done=False), 0.6)
    assert observer.first_token_at is None
    observer.feed(sse(first, done=False), 2.0)
    observer.feed(sse(chunk(content="later"), done=False), 3.0)

    assert observer.first_token_at == 2.0


def test_a_stream_without_a_token_has_no_first_token() -> None:
    observer, _ = run(sse(chunk(role="assistant", content=""), ASKED_USAGE), [])
    assert observer.first_token_at is None


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"error": {"message": "too long"}}, True),
        ({"type": "error", "error": {"type": "overloaded_error"}}, True),
        ({"type": "response.failed", "response": {}}, True),
        ({"error": None, "choices": []}, False),
        (chunk(content='an "error" in the text'), False),
    ],
)
def test_an_error_inside_a_stream_is_seen(event: dict[str, Any], error: bool) -> None:
    """
    Status 200 is no success when the stream says otherwise, and a text about errors is none.
    """
    for before in ([], [chunk(content="x")]):
        observer, _ = run(sse(*before, event), [])
        assert observer.error is error


def test_a_line_longer_than_any_sane_one_is_passed_on_and_what_follows_is_read() -> None:
    """
    20 MB of log probabilities in one line cost no memory, and the usage after it is found.
    """
    long = b"data: " + json.dumps(chunk(content="x" * (3 * MOST_LINE_BYTES))).encode() + b"\n\n"
    stream = sse(chunk(content="a"), done=False) + long + sse(ASKED_USAGE)

    for hide in (False, True):
        observer, out = run(stream, list(range(0, len(stream), 65_536)), hide_usage=hide)
        assert observer.usage == SEEN
        assert len(out) >= len(long)
        assert (out == stream) is not hide


@given(cuts=st.lists(st.integers(0, 400), max_size=6))
def test_an_answer_in_one_piece_is_read_at_its_end(cuts: list[int]) -> None:
    body = json.dumps({"choices": [{"message": {"content": "hi"}}], "usage": USAGE}).encode()
    observer, edges = JsonObserver(), [0, *sorted(cut % len(body) for cut in cuts), len(body)]
    out = b"".join(observer.feed(body[start:end], 0) for start, end in pairwise(edges))

    observer.close()

    assert (out, observer.usage, observer.first_token_at) == (body, SEEN, None)


@given(cuts=st.lists(st.integers(0, 140_000), max_size=4))
def test_what_is_too_long_to_be_held_back_is_never_hidden(cuts: list[int]) -> None:
    """
    Its length decides, and not how much of it had come when it was looked at.
    """
    long = {**ASKED_USAGE, "note": "x" * 70_000}
    stream = sse(chunk(content="a"), long, ASKED_USAGE)

    observer, out = run(stream, cuts, hide_usage=True)

    assert out == sse(chunk(content="a"), long)
    assert observer.usage == SEEN


def test_of_a_huge_answer_only_the_end_is_kept_and_read() -> None:
    """
    The usage stands at the end, as engines write it.
    """
    body = json.dumps({"choices": [{"logprobs": "x" * 9_000_000}], "usage": USAGE}).encode()
    observer = JsonObserver()
    for start in range(0, len(body), 65_536):
        observer.feed(body[start : start + 65_536], 0)

    observer.close()

    assert observer.usage == SEEN


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        (None, None),
        ({"prompt_tokens": 9}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": {}}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": True}}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 49_152}}, 49_152),
    ],
)
def test_unknown_is_never_taken_for_zero(usage: Any, cached: int | None) -> None:
    observer = JsonObserver()
    observer.feed(json.dumps({"usage": usage}).encode(), 0)
    observer.close()

    assert (observer.usage.cached_tokens if observer.usage else None) == cached
