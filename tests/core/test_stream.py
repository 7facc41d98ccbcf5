"""What is read from a stream, and what of it reaches the client, wherever the network cuts it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core import stream as streams
from ramjet.core.stream import MOST_HELD_BYTES, MOST_LINE_BYTES, JsonObserver, SseObserver
from ramjet.core.usage import Usage
from tests.core.line_by_line import LineByLine
from tests.effort import examples


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
    long = sse({"choices": [{"text": "x" * (3 * MOST_LINE_BYTES)}]}, done=False)
    stream = sse(chunk(content="a"), done=False) + long + sse(ASKED_USAGE)

    usage_at = len(stream) - len(sse(ASKED_USAGE))
    for hide in (False, True):
        observer, out = run(stream, [*range(0, len(stream), 65_536), usage_at], hide_usage=hide)
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


WORDS = [
    "",
    "a",
    "汉",
    "\n",
    " ",
    '"usage"',
    '"usage":null',
    '"error"',
    "error:",
    "\nerror: x",
    '"meta_info"',
    "x" * 90,
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=3).map("".join)
COUNTS = st.sampled_from([None, {}, USAGE, {"prompt_tokens": 3}, {"input_tokens": 7}, {"output_tokens": 2}, "none"])
META = st.fixed_dictionaries({}, optional={"prompt_tokens": st.integers(0, 9), "cached_tokens": st.integers(0, 9)})
CHUNKS = st.one_of(
    st.builds(lambda text, usage: {**chunk(content=text), "usage": usage}, TEXTS, st.none() | COUNTS),
    st.builds(lambda text: {"choices": [{"text": text}]}, TEXTS),
    st.builds(lambda usage: {"id": "c", "choices": [], "usage": usage}, COUNTS),
    st.builds(lambda usage: {"type": "message_start", "message": {"usage": usage}}, COUNTS),
    st.builds(lambda text: {"type": "content_block_delta", "delta": {"text": text}}, TEXTS),
    st.builds(lambda text: {"type": "response.output_text.delta", "delta": text}, TEXTS),
    st.builds(lambda usage: {"type": "response.completed", "response": {"usage": usage, "error": None}}, COUNTS),
    st.just({"type": "response.failed"}),
    st.builds(lambda text, meta: {"text": text, "meta_info": meta}, TEXTS, META),
    st.builds(lambda text, of: {"error": {"message": text}, **of}, TEXTS, st.sampled_from([{}, {"choices": []}])),
    st.builds(lambda text: {"object": "error", "message": text}, TEXTS),
)  # fmt: skip
DULL = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}'
LINES = st.one_of(
    *[st.just(DULL)] * 4,
    st.builds(
        lambda event, separators, space: f"data:{space}{json.dumps(event, separators=separators, ensure_ascii=False)}",
        CHUNKS, st.sampled_from([(",", ":"), (", ", ": ")]), st.sampled_from(["", " "]),
    ),
    st.sampled_from([
        "data: [DONE]", "data:", "data: {", "event: message", "id: 1", ": ping", ': "usage" "meta_info" "error"', "error: out of memory",
        "data: error: x", 'x "meta_info"', " error:", "data: " + "x" * 300, ": " + "y" * 300, 'data: {"choices":[],"usage":{"prompt_tokens":1}}',
    ]),
)  # fmt: skip


FIRST = [
    chunk(content="a"),
    {"type": "response.output_text.delta", "delta": "a"},
    {"text": "a", "meta_info": {"cached_tokens": 1}},
]


@st.composite
def streams_as_they_come(draw: st.DrawFn) -> list[bytes]:
    """Events of all engines, of one line or several, or without an end, and ended in one way or in many, in pieces."""
    end = draw(st.sampled_from([*["\n"] * 6, "\r\n", "\r", None]))
    end_of = st.just(end) if end else st.sampled_from(["\n", "\r\n", "\r"])
    lines = [sse(draw(st.sampled_from(FIRST)), done=False)] if draw(st.integers(0, 3)) else []
    for line in draw(st.lists(LINES, min_size=2, max_size=12)):
        blanks = draw(st.sampled_from([1, 1, 1, 0, 0, 2]))
        lines.append((line + draw(end_of) + "".join(draw(end_of) for _ in range(blanks))).encode())
    if draw(st.booleans()):  # as engines write them, or nearly
        return [piece for line in lines for piece in ([line] if draw(st.booleans()) else [line[:-1], line[-1:]])]
    stream = b"".join(lines) + draw(st.sampled_from([b"", b"", b"data: {", b"\n", b"\r"]))
    places = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=draw(st.sampled_from([4, 30])))))
    return [stream[start:stop] for start, stop in pairwise([0, *places, len(stream)])]


@pytest.mark.parametrize("hide_usage", [False, True])
@given(
    pieces=streams_as_they_come(),
    most_line_bytes=st.sampled_from([MOST_LINE_BYTES, 250, 100]),
    most_held_bytes=st.sampled_from([MOST_HELD_BYTES, 250, 100]),
    at_once_bytes=st.sampled_from([8_192, 100, 1]),
)
@settings(max_examples=examples(400))
def test_a_piece_seen_as_a_whole_tells_the_same_as_line_by_line(
    hide_usage: bool, pieces: list[bytes], most_line_bytes: int, most_held_bytes: int, at_once_bytes: int
) -> None:
    """
    After every piece the client has the same bytes, and the first token, errors and usage are known at the same moment.
    """
    bounds: dict[str, Any] = {
        "MOST_LINE_BYTES": most_line_bytes,
        "MOST_HELD_BYTES": most_held_bytes,
        "_AT_ONCE_BYTES": min(at_once_bytes, most_line_bytes),
    }
    with patch.multiple(streams, **bounds):
        quick, slow = SseObserver(hide_usage=hide_usage), LineByLine(hide_usage=hide_usage)
        for now, piece in enumerate(pieces):
            assert quick.feed(piece, float(now)) == slow.feed(piece, float(now))
            assert (quick.first_token_at, quick.error, quick.usage) == (slow.first_token_at, slow.error, slow.usage)
        assert quick.close() == slow.close()
    assert (quick.first_token_at, quick.error, quick.usage) == (slow.first_token_at, slow.error, slow.usage)


def test_events_without_news_are_not_looked_into() -> None:
    """
    Not even with a null for usage in every one, or all that SGLang has to say; and many at once are not read by lines.
    """
    token = sse({"choices": [{"delta": {"content": "error: \n none"}}], "usage": None}, done=False)
    told = sse({"text": "ab", "meta_info": {"prompt_tokens": 9, "cached_tokens": 4}}, done=False)
    for event in (token.replace(b'"usage": null', b'"usage":null'), told):
        observer = SseObserver(hide_usage=True)
        observer.feed(event, 0.0)
        with patch.object(observer, "_read", side_effect=AssertionError("read by lines")):
            assert observer.feed(event * 99, 1.0) == event * 99
        with patch.object(streams, "_decode", side_effect=AssertionError("looked into")):
            out = [observer.feed(piece, 1.0) for piece in (event[:70], event[70:] + event[:20], event[20:-1], b"\n")]
        assert out == [b"", event, b"", event]
        observer.close()
        assert observer.usage == (Usage(prompt_tokens=9, cached_tokens=4) if event is told else None)
