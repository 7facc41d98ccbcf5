"""Chained hashes: what a follow-up keeps, what a difference changes, and what is not counted."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ramjet.core.fingerprint import Chain, Fingerprint, fingerprint
from ramjet.core.prompt import MEDIA_SIZE, Prompt, read

SEED = 0x5EED
LARGEST_BLOCK_BYTES = 4_096

SYSTEM = {"role": "system", "content": "You are a coding agent. " * 2_900}
"""About 17,000 tokens: the seed's system prompt and tool list."""
QUESTION = {"role": "user", "content": "Why did the cache forget 49,152 tokens?"}
ANSWER = {"role": "assistant", "content": "A prompt of 313,000 tokens wrote 51 snapshots into 28 slots."}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5_000}}


def prompt_of(endpoint: str = "chat", /, **fields: Any) -> Prompt:
    return read(json.dumps({"model": "glm", **fields}).encode(), endpoint)


def chat(*messages: Any, seed: int = SEED) -> Fingerprint:
    return fingerprint(prompt_of(messages=messages), seed)


def blocks(chain: Chain) -> list[tuple[int, int]]:
    return list(zip(chain.hashes, chain.ends, strict=True))


def common(one: Chain, other: Chain) -> int:
    """How many blocks two prompts have in common from the start."""
    pairs = zip(one.hashes, other.hashes, strict=False)
    return next((depth for depth, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def whole(chain: Chain) -> tuple[list[tuple[int, int]], int, int]:
    return blocks(chain), chain.head, chain.size_bytes


# -- prompts ----------------------------------------------------------------------------------------------------------

# Few words and many repeats, so that prompts often share a long beginning; long enough for blocks of every length.
TEXTS = st.builds(
    lambda word, times: word * times,
    st.sampled_from(("a", "agent ", "汉字 ", "12,288\n")),
    st.sampled_from((0, 1, 40, 255, 256, 300, 1_100, 5_000)),
)
PARTS = st.one_of(
    TEXTS.map(lambda text: {"type": "text", "text": text}),
    st.just(IMAGE),
    TEXTS.map(lambda text: {"type": "tool_result", "tool_use_id": "toolu_1", "content": text}),
)
CONTENTS = TEXTS | st.lists(PARTS, max_size=4)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(("user", "assistant", "tool")), "content": CONTENTS},
    optional={"tool_calls": st.just([{"id": "call_1", "function": {"name": "grep", "arguments": "{}"}}])},
)
SYSTEMS = st.lists(st.fixed_dictionaries({"role": st.just("system"), "content": CONTENTS}), max_size=2)
CONVERSATIONS = st.tuples(SYSTEMS, st.lists(MESSAGES, min_size=1, max_size=5)).map(lambda both: [*both[0], *both[1]])
TEXT_ONLY = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(("system", "user", "assistant")), "content": TEXTS}), max_size=5
)


def bodies(endpoint: str, messages: list[Any]) -> dict[str, Any]:
    tools = [{"name": "grep", "description": "Search.", "input_schema": {"type": "object"}}]
    shapes: dict[str, dict[str, Any]] = {
        "chat": {"messages": messages, "tools": [{"type": "function", "function": tools[0]}]},
        "messages": {"messages": messages, "tools": tools, "system": SYSTEM["content"]},
        "responses": {"input": messages, "tools": tools, "instructions": SYSTEM["content"]},
    }
    return shapes[endpoint]


@pytest.mark.parametrize("endpoint", ["chat", "messages", "responses"])
@given(turn=CONVERSATIONS, appended=st.lists(MESSAGES, max_size=4))
def test_a_follow_up_has_all_blocks_of_the_turn_before(endpoint: str, turn: list[Any], appended: list[Any]) -> None:
    """
    Whatever is appended, hashes, ends and head of what was there stay as they were.
    """
    before = fingerprint(prompt_of(endpoint, **bodies(endpoint, turn)), SEED).usable

    after = fingerprint(prompt_of(endpoint, **bodies(endpoint, [*turn, *appended])), SEED).usable

    assert blocks(after)[: len(before)] == blocks(before)
    assert after.head == before.head


@given(given=st.text(min_size=1, max_size=9).map(lambda text: text * 200), more=st.text(max_size=2_000))
@pytest.mark.parametrize(("endpoint", "field"), [("completions", "prompt"), ("generate", "text")])
def test_a_longer_raw_prompt_has_all_full_blocks_of_the_shorter(
    endpoint: str, field: str, given: str, more: str
) -> None:
    """
    Text without messages is cut by its length alone.
    """
    assume(len(given.encode()) >= 256)
    before = fingerprint(prompt_of(endpoint, **{field: given}), SEED).usable

    after = fingerprint(prompt_of(endpoint, **{field: given + more}), SEED).usable

    assert blocks(after)[: len(before)] == blocks(before)


@given(one=TEXT_ONLY, other=TEXT_ONLY)
def test_after_a_difference_no_block_is_ever_equal_again(one: list[Any], other: list[Any]) -> None:
    """
    A hash names everything before it: equal blocks behind unequal ones do not count, for the engine cannot reuse them.
    """
    left, right = chat(*one).usable, chat(*other).usable
    same = common(left, right)

    assert not set(left.hashes[same:]) & set(right.hashes[same:])
    assert blocks(left)[:same] == blocks(right)[:same]


def test_the_same_tail_behind_another_head_shares_nothing() -> None:
    """
    One changed word at the front, and all of 17,000 tokens are read anew.
    """
    one = chat(SYSTEM, QUESTION)
    other = chat({**SYSTEM, "content": "you" + SYSTEM["content"][3:]}, QUESTION)

    assert common(one.usable, other.usable) == 0
    assert not set(one.usable.hashes) & set(other.usable.hashes)


@pytest.mark.parametrize("field", ["model", "lora_path", "cache_salt"])
def test_another_namespace_shares_nothing(field: str) -> None:
    """
    The same text under another model, adapter or salt is another prompt from its first block on.
    """
    one, other = (
        fingerprint(prompt_of(messages=[SYSTEM, QUESTION], **{field: value}), SEED).usable for value in ("a", "b")
    )

    assert not set(one.hashes) & set(other.hashes)


@given(messages=CONVERSATIONS, seeds=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2, unique=True))
def test_another_seed_changes_everything_but_the_lengths(messages: list[Any], seeds: list[int]) -> None:
    """
    Who does not know the deployment's secret cannot aim at a hash.
    """
    one, other = (chat(*messages, seed=seed).usable for seed in seeds)

    assert not set(one.hashes) & set(other.hashes)
    assert (one.ends, one.head, one.size_bytes) == (other.ends, other.head, other.size_bytes)


# -- the head ---------------------------------------------------------------------------------------------------------


def test_the_head_reaches_to_the_end_of_the_first_question() -> None:
    """
    Everybody's system prompt plus one's own first question: what two turns of one conversation always share.
    """
    first = chat(SYSTEM, QUESTION).usable
    later = chat(SYSTEM, QUESTION, ANSWER, {"role": "user", "content": "And now? " * 100}).usable

    assert first.head == len(first) == later.head < len(later)
    assert later.ends[later.head - 1] == first.size_bytes


def test_conversations_that_differ_in_their_first_question_have_another_head() -> None:
    """
    The blocks of the system prompt are shared, the head's last block is not.
    """
    one, other = chat(SYSTEM, QUESTION).usable, chat(SYSTEM, {**QUESTION, "content": "Why?"}).usable

    assert one.hashes[one.head - 1] != other.hashes[other.head - 1]
    assert common(one, other) == one.head - 1 > 0


@pytest.mark.parametrize("system", ["Be brief.", "You are a coding agent. " * 2_900])
@pytest.mark.parametrize("endpoint", ["chat", "messages", "responses"])
def test_a_preamble_is_what_comes_before_the_first_question(endpoint: str, system: str) -> None:
    """
    Tools and system prompt, however short: the same behind any question, another with another of them.
    """

    def preamble(question: Any, system: str = system, **more: Any) -> int | None:
        asked = [{"role": "user", "content": question}]
        bodies: dict[str, Any] = {
            "chat": {"messages": [{"role": "system", "content": system}, *asked]},
            "messages": {"messages": asked, "system": system},
            "responses": {"input": asked, "instructions": system},
        }
        return fingerprint(prompt_of(endpoint, **bodies[endpoint], **more), SEED).identity.preamble

    one = preamble("Why?")

    assert one is not None
    assert preamble("How? " * 5_000) == preamble([{"type": "text", "text": "Why?"}, IMAGE]) == one
    assert preamble("Why?", f"{system} Really.") != one
    assert preamble("Why?", tools=[{"name": "grep"}]) != one
    assert preamble("Why?", model="other") != one


def test_what_starts_with_a_question_has_no_preamble() -> None:
    """
    Nor has a raw prompt, or nothing at all.
    """
    assert chat(QUESTION, SYSTEM, ANSWER).usable.preamble is None
    assert chat().usable.preamble is None
    assert chat(SYSTEM).usable.preamble is None
    assert fingerprint(prompt_of("completions", prompt="Once upon a time"), SEED).usable.preamble is None


@pytest.mark.parametrize("content", ["", "x", "x" * 249])
def test_a_head_ends_a_block_however_short_it_is(content: str) -> None:
    """
    A first question of one word is told from another.
    """
    first = chat({"role": "user", "content": content}).usable

    assert list(first.ends) == [first.size_bytes]
    assert first.head == 1


def test_a_prompt_shorter_than_a_block_has_one_block() -> None:
    """
    It can be told from all but an identical one.
    """
    one, other = (fingerprint(prompt_of("completions", prompt=text), SEED).usable for text in ("one", "other"))

    assert len(one) == len(other) == 1
    assert one.hashes != other.hashes


def test_an_empty_prompt_has_no_blocks() -> None:
    """
    There is nothing to recognise.
    """
    chain = fingerprint(prompt_of("chat", messages=[]), SEED).usable

    assert (len(chain), chain.head, chain.size_bytes) == (0, 0, 0)


# -- sizes ------------------------------------------------------------------------------------------------------------


@given(messages=SYSTEMS | CONVERSATIONS)
def test_ends_rise_and_reach_the_prompts_end_but_for_less_than_a_block(messages: list[Any]) -> None:
    """
    Every block has a length, and no byte of the prompt is counted twice or lost.
    """
    prompt = prompt_of(messages=messages)
    chain = fingerprint(prompt, SEED).usable

    assert all(end < later for end, later in pairwise((0, *chain.ends)))
    assert chain.size_bytes == prompt.size_bytes
    assert (
        chain.size_bytes - LARGEST_BLOCK_BYTES - MEDIA_SIZE < (chain.ends[-1] if chain.ends else 0) <= chain.size_bytes
    )
    assert 0 <= chain.head <= len(chain)


@pytest.mark.parametrize("images", [1, 2, 8])
@pytest.mark.parametrize("text", ["", "What is this?", "What is this? " * 400])
def test_an_image_counts_4096(images: int, text: str) -> None:
    """
    About 1,000 tokens each, not the bytes of their base64, and not nothing.
    """
    parts = [{"type": "text", "text": "Look: "}, *[IMAGE] * images, {"type": "text", "text": text}]

    chain = chat({"role": "user", "content": parts}).usable

    assert chain.size_bytes == len(f"user\0Look: {text}\1") + images * 4_096
    assert chain.ends[-1] == chain.size_bytes


def test_another_image_is_another_prompt_from_there_on() -> None:
    """
    What lies before the image stays shared.
    """
    other_image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,B"}}
    one = chat(SYSTEM, {"role": "user", "content": [IMAGE]}, ANSWER).usable
    other = chat(SYSTEM, {"role": "user", "content": [other_image]}, ANSWER).usable

    assert common(one, other) == len(chat(SYSTEM, {"role": "user", "content": []}).usable) - 1
    assert one.ends == other.ends


@pytest.mark.parametrize(("size_bytes", "least", "most"), [(1_200_000, 293, 320), (600_000, 146, 175)])
def test_a_long_prompt_has_a_bounded_number_of_blocks(size_bytes: int, least: int, most: int) -> None:
    """
    The seed's long conversation, 1.2 MB, is some 300 blocks: it is remembered in 4 KB.
    """
    assert least <= len(chat({"role": "user", "content": "x" * size_bytes}).usable) <= most


def test_many_short_messages_do_not_make_many_blocks() -> None:
    """
    A message's end ends a block only where the block has 256 bytes.
    """
    chain = chat(*[{"role": "user", "content": "x"}] * 10_000).usable

    assert len(chain) <= chain.size_bytes / 256 + 1


# -- how text is cut --------------------------------------------------------------------------------------------------


def cut(text: str, at: list[int]) -> list[dict[str, str]]:
    edges = [0, *sorted(min(edge, len(text)) for edge in at), len(text)]
    return [{"type": "text", "text": text[start:end]} for start, end in pairwise(edges)]


@given(text=TEXTS, at=st.lists(st.integers(0, 12_000), max_size=6), role=st.sampled_from(["system", "user"]))
def test_how_text_is_split_over_parts_never_matters(text: str, at: list[int], role: str) -> None:
    """
    One string or seven parts: the same blocks.
    """
    plain = chat({"role": role, "content": text}, QUESTION)
    split = chat({"role": role, "content": cut(text, at)}, QUESTION)

    assert whole(split.usable) == whole(plain.usable)


@given(text=TEXTS, at=st.lists(st.integers(0, 12_000), max_size=6))
def test_how_text_behind_an_image_is_split_never_matters(text: str, at: list[int]) -> None:
    """
    An image in front of the text changes nothing about that.
    """
    plain = chat({"role": "user", "content": [IMAGE, *cut(text, [])]}, QUESTION)
    split = chat({"role": "user", "content": [IMAGE, *cut(text, at)]}, QUESTION)

    assert whole(split.usable) == whole(plain.usable)


# -- volatile lines ---------------------------------------------------------------------------------------------------


def billing(nonce: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.0; cch={nonce};"


RULES = "You are a coding agent.\n" * 100


@pytest.mark.parametrize(
    "system",
    [
        lambda turn: f"{billing(turn)}\n{RULES}",
        lambda turn: [{"type": "text", "text": billing(turn)}, {"type": "text", "text": RULES}],
        lambda turn: [{"type": "text", "text": RULES}, {"type": "text", "text": billing(turn)}],
        lambda turn: f"{RULES}Current time: 12:{turn}:59\nBe brief.",
        lambda turn: f"Today is 2026-09-26 12:{turn}\n{RULES}",
    ],
    ids=["nonce", "nonce in a block", "nonce in the last block", "clock", "clock in front"],
)
@pytest.mark.parametrize("where", ["system message", "top level", "instructions"])
def test_a_volatile_line_changes_what_is_usable_and_not_who_it_is(system: Any, where: str) -> None:
    """
    The engine cannot reuse what follows the line; the conversation is still the same one.
    """

    def turn(name: str) -> Fingerprint:
        bodies = {
            "system message": ("chat", {"messages": [{"role": "system", "content": system(name)}, QUESTION]}),
            "top level": ("messages", {"system": system(name), "messages": [QUESTION]}),
            "instructions": ("responses", {"instructions": system(name), "input": [QUESTION]}),
        }
        endpoint, fields = bodies[where]
        return fingerprint(prompt_of(endpoint, **fields), SEED)

    one, other = turn("31"), turn("35")

    assert whole(one.identity) == whole(other.identity)
    assert one.identity.preamble == other.identity.preamble
    assert one.usable.hashes[-1] != other.usable.hashes[-1]
    assert one.usable.size_bytes == one.identity.size_bytes + one.usable.size_bytes - other.identity.size_bytes
    assert one.identity.size_bytes < one.usable.size_bytes


def test_what_lies_before_a_volatile_line_is_usable() -> None:
    """
    Only from the line on is it read anew.
    """
    one, other = (
        chat({"role": "system", "content": f"{RULES}Current time: 12:{minute}"}, QUESTION) for minute in (31, 35)
    )

    same = common(one.usable, other.usable)
    assert one.usable.ends[same - 1] > len(RULES) - LARGEST_BLOCK_BYTES / 4


def test_a_clock_in_a_question_is_content() -> None:
    """
    Only the system's lines are volatile; what a user says is what the conversation is about.
    """
    one, other = (chat({"role": "user", "content": f"The time is now 12:{minute}"}) for minute in (31, 35))

    assert one.identity.hashes != other.identity.hashes


def test_without_volatile_lines_there_is_one_chain() -> None:
    """
    The usual case costs one pass.
    """
    print_ = chat(SYSTEM, QUESTION)

    assert print_.identity is print_.usable


@given(
    turn=CONVERSATIONS,
    appended=st.lists(MESSAGES, max_size=3),
    minutes=st.tuples(st.integers(10, 59), st.integers(10, 59)),
)
def test_a_follow_up_with_a_new_nonce_continues_the_conversation(
    turn: list[Any], appended: list[Any], minutes: tuple[int, int]
) -> None:
    """
    By its identity a follow-up has all blocks of the turn before, whatever its clock says.
    """
    before, after = (
        chat({"role": "system", "content": f"Now: 12:{minute}\nYou are."}, *messages).identity
        for minute, messages in zip(minutes, (turn, [*turn, *appended]), strict=True)
    )

    assert blocks(after)[: len(before)] == blocks(before)
    assert after.head == before.head
