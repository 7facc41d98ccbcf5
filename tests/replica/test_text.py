"""A request as a simulated engine's prompt: rendering, tokens, pages, and the answer that is made up."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.sim.prompt import render_chat, render_messages, render_raw, render_responses
from ramjet.sim.tokens import MEDIA_TOKENS, Prompt, blocks_of, write_answer
from tests.replica.support import ask


@given(st.text(max_size=700), st.text(max_size=700), st.sampled_from([1, 16, 64]))
def test_a_longer_text_keeps_the_pages_of_its_beginning(start: str, end: str, page: int) -> None:
    """
    Only full pages count, what follows never changes them, and it does not matter in how many parts a text came.
    """
    short, long = Prompt(start, page), blocks_of(start + end, page)

    assert long.hashes[: len(short.blocks)] == short.blocks.hashes
    assert short.blocks.tokens(len(short.blocks)) == len(start) // (4 * page) * page
    assert short.followed_by(end).hashes == long.hashes
    assert short.followed_by(end).ends == long.ends


def test_letters_beyond_ascii_change_no_page_before_them() -> None:
    """
    A page is 256 characters, however many bytes they are.
    """
    plain, accented = blocks_of("a" * 1_024, 64), blocks_of("a" * 767 + "é" + "a" * 256, 64)

    assert len(plain) == len(accented) == 4
    assert plain.hashes[:2] == accented.hashes[:2]
    assert plain.hashes[2:] != accented.hashes[2:]


def test_a_long_prompt_is_hashed_in_milliseconds() -> None:
    """
    290,000 tokens, 1.2 MB of text: 2 ms here, and not 30 on the slowest machine.
    """
    text = "".join(chr(97 + at % 26) for at in range(1_160_000))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        assert len(blocks_of(text, 64)) == 4_531
        took.append(time.perf_counter() - began)

    assert min(took) < 0.03


CALL = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}
USE = {"type": "tool_use", "id": "call_1", "name": "read_file", "input": {"path": "a"}}


@pytest.mark.parametrize(
    ("render", "body", "answered"),
    [
        (
            render_chat,
            {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]},
            [
                {"role": "assistant", "content": "The answer.", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "result"},
            ],
        ),
        (
            render_messages,
            {"system": "Be brief.", "messages": [{"role": "user", "content": "Hello"}]},
            [
                {"role": "assistant", "content": [{"type": "text", "text": "The answer."}, USE]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "result"}]},
            ],
        ),
        (
            render_responses,
            {"instructions": "Be brief.", "input": [{"role": "user", "content": "Hello"}]},
            [
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "The answer.", "annotations": []}],
                },
                {"type": "function_call", "call_id": "call_1", "name": "read_file", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_1", "output": "result"},
            ],
        ),
    ],
)
def test_a_prompt_and_its_answer_begin_the_next_turn(
    render: Any, body: dict[str, Any], answered: list[dict[str, Any]]
) -> None:
    """
    A client that repeats the answer finds it in the cache, in every dialect.
    """
    history = "input" if "input" in body else "messages"
    tools = {"tools": [{"type": "function", "name": "read_file"}]}

    first = render(body | tools)
    second = render(body | tools | {history: body[history] + answered})

    assert second.startswith(first + "The answer.")
    assert first.startswith("<|tools|>")
    assert "result" in second


def test_an_image_costs_the_same_whatever_its_size_and_differs_by_content() -> None:
    """
    A thousand tokens each; another image is another prompt from there on.
    """

    def picture(data: str) -> str:
        url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return render_chat({"messages": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, url]}]})

    small, large = picture("AAAA"), picture("BBBB" * 100_000)

    assert len(small) == len(large) == len(render_chat(ask("Look:"))) + 4 * MEDIA_TOKENS
    assert small != large


def test_marks_of_anthropics_cache_change_nothing() -> None:
    """
    Clients move `cache_control` from turn to turn; it is no part of the prompt.
    """
    mark = {"cache_control": {"type": "ephemeral"}}
    part, tool = {"type": "text", "text": "Hello"}, {"name": "read_file", "input_schema": {}}

    plain = render_messages({"tools": [tool], "messages": [{"role": "user", "content": [part]}]})
    marked = render_messages({"tools": [tool | mark], "messages": [{"role": "user", "content": [part | mark]}]})

    assert plain == marked


@pytest.mark.parametrize("wrong", [None, "", [], [1, "a"], ["a", "b"], [-1], [2**32], {}, 5, [True]])
def test_a_prompt_that_is_none_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"prompt|token ids"):
        render_raw(wrong)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "tool_calls", "function", "input", "output", "arguments"]
            ),
            inner | st.sampled_from(["text", "image", "tool_use", "tool_result", "function_call"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_body_is_worse_than_refused(value: object) -> None:
    """
    Whatever JSON a client sends, rendering ends in a text or in a ValueError.
    """
    for render, name in ((render_chat, "messages"), (render_messages, "messages"), (render_responses, "input")):
        try:
            text = render({name: value, "tools": value, "system": value, "instructions": value})
        except ValueError:
            continue
        assert text.endswith("<|assistant|>\n")


def test_answers_are_words_of_four_characters_a_token_without_blanks_at_the_ends() -> None:
    """
    A client that trims the answer before it repeats it loses nothing.
    """
    answer = write_answer(7, 20)

    assert all(len(token) == 4 for token in answer)
    assert "".join(answer).strip() == "".join(answer)
    assert write_answer(7, 5) == answer[:5]
    assert write_answer(8, 20) != answer
