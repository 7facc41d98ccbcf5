"""The pure half of the simulated replica: rendering, tokens, reuse and seconds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.demo.engine import Engine, Profile, write_answer
from ramjet.demo.prompt import render_chat, render_messages, render_raw, render_responses
from ramjet.demo.tokens import MEDIA_TOKENS, blocks_of
from tests.demo.support import ask, prompt

PROFILE = Profile(pool_tokens=640)


@pytest.mark.parametrize(("tokens", "seconds"), [(20_000, 3.3), (100_000, 17.0), (313_000, 57.0)])
def test_reading_takes_as_long_as_on_the_seeds_hardware(tokens: int, seconds: float) -> None:
    """
    The seed's three cold turns, and the same ten times faster at speed 10.
    """
    assert Profile().prefill_s(tokens, 0) == pytest.approx(seconds, rel=0.02)
    assert Profile(speed=10).prefill_s(tokens, 0) == pytest.approx(seconds / 10, rel=0.02)


def test_what_is_reused_is_not_read() -> None:
    """
    Reading in two parts costs what reading at once costs.
    """
    profile = Profile()

    parts = profile.prefill_s(60_000, 0) + profile.prefill_s(100_000, 60_000)

    assert parts == pytest.approx(profile.prefill_s(100_000, 0))


@given(st.text(max_size=700), st.text(max_size=700))
def test_a_longer_text_keeps_the_blocks_of_its_beginning(start: str, end: str) -> None:
    """
    Only full blocks count, and what follows never changes them.
    """
    short, long = blocks_of(start), blocks_of(start + end)

    assert long.hashes[: len(short)] == short.hashes
    assert short.tokens(len(short)) == len(start) // 256 * 64


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


def run(engine: Engine, text: str, now: float = 0.0) -> int:
    """One request from start to end; returns the tokens it reused."""
    with engine.accept(text, 16) as work:
        assert engine.start(work, now) is not None
        engine.prefilled(work, now)
        engine.finish(work, now)
    return work.cached_tokens


def test_the_last_token_is_always_read() -> None:
    """
    A whole repeat reuses all but one token: 639 of 640.
    """
    engine = Engine(Profile())

    assert [run(engine, prompt(640)), run(engine, prompt(640))] == [0, 639]


def test_a_prompt_waits_until_it_fits_beside_what_runs() -> None:
    """
    Running requests lock what they use; the pool is never promised twice.
    """
    engine = Engine(PROFILE)
    with engine.accept(prompt(400, "one"), 16) as one, engine.accept(prompt(400, "two"), 16) as two:
        assert engine.start(one, 0) is not None
        engine.prefilled(one, 0)
        refused = engine.start(two, 0)
        assert (engine.running, engine.waiting, engine.held_tokens) == (1, 1, 384)
        one.__exit__(None, None, None)
        assert engine.start(two, 0) is not None

    assert refused is None
    assert engine.held_tokens == 0


def test_a_shared_prefix_is_held_once() -> None:
    """
    Two running requests with one system prompt lock its room once.
    """
    engine = Engine(PROFILE)
    shared = prompt(320, "shared")
    with engine.accept(shared + prompt(64, "one"), 16) as one, engine.accept(shared + prompt(64, "two"), 16) as two:
        for work in (one, two):
            assert engine.start(work, 0) is not None
            engine.prefilled(work, 0)
        held = engine.held_tokens

    assert held == 320 + 2 * 64
    assert two.cached_tokens == 320


WORKS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 640), st.integers(0, 3)), max_size=20)


@given(WORKS)
def test_whatever_happens_nothing_stays_held(works: list[tuple[int, int, int]]) -> None:
    """
    Requests that end at any point, waiting, reading, writing or done, give back all they took; the pool is kept.
    """
    engine = Engine(PROFILE)
    for now, (name, tokens, steps) in enumerate(works):
        with engine.accept(prompt(tokens, str(name)), 16) as work:
            if steps > 0:
                engine.start(work, now)
            if steps > 1:
                engine.prefilled(work, now)
            if steps > 2:
                engine.finish(work, now)

        assert engine.cache.tokens <= PROFILE.pool_tokens
        assert engine.held_tokens == 0
        assert not engine.works
    while engine.cache.evict_one():
        pass
    assert engine.cache.tokens == 0
