"""Made-up prompts have the wanted length, share what they should and nothing else."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramjet.probes.prompts import WORD_CHARACTERS, WORDS, Writer, branch, write
from tests.probes.replica import taught

LABELS = st.sampled_from(["a", "b", "session 1", "session 12"])


@settings(max_examples=30, deadline=None)
@example(short=1, more=4_095, label="a")
@given(short=st.integers(1, 9_000), more=st.integers(0, 9_000), label=LABELS)
def test_a_longer_text_begins_with_the_shorter(short: int, more: int, label: str) -> None:
    """
    However much is asked for, and in whatever order, a text grows at its end only.
    """
    longer = write("nonce", label, short + more)

    assert len(longer) == short + more
    assert longer.startswith(write("nonce", label, short))


def test_no_run_and_no_session_finds_the_prompts_of_another() -> None:
    """
    Texts of different nonces or labels differ within their first few tokens, so that not even a page of 16 is shared.
    """
    texts = [write(nonce, label, 4_000) for nonce in ("one", "two") for label in ("a", "b", "session 1", "session 2")]
    page = 16 * WORD_CHARACTERS

    assert all(one[:page] != other[:page] for one, other in combinations(texts, 2))


def test_words_are_many_and_all_of_one_length() -> None:
    """
    A byte draws them all equally, and each is four characters with its blank.
    """
    assert len(set(WORDS)) == len(WORDS) == 128
    assert {len(word) + 1 for word in WORDS} == {WORD_CHARACTERS}


@settings(max_examples=30, deadline=None)
@given(at=st.integers(1, 4_000), other=LABELS, length=st.integers(4_100, 9_000))
def test_a_branch_shares_exactly_what_it_should(at: int, other: str, length: int) -> None:
    """
    It is the trunk up to the fork, and differs from it in the very next character.
    """
    trunk = write("nonce", "trunk", 9_000)
    at -= at % WORD_CHARACTERS

    text = branch(trunk, at, write("nonce", other, length), length)

    assert text[:at] == trunk[:at]
    assert text[at] != trunk[at]
    assert len(text) == length


@settings(max_examples=30, deadline=None)
@given(
    characters=st.sampled_from([1, 2, 3.7, 4, 5.2]),
    template=st.integers(3, 120),
    tokens=st.integers(2_048, 400_000),
)
def test_lengths_are_right_once_an_engine_has_counted(characters: float, template: int, tokens: int) -> None:
    """
    Two short answers are enough to be within a quarter of a percent, and one of the wanted length within a token.
    """
    writer = taught(characters, template)

    def counted(text: str) -> int:
        return template + math.ceil(len(text) / characters)

    first = counted(writer.text("a", tokens))
    writer.learn(len(writer.text("a", tokens)), first)
    second = counted(writer.text("b", tokens))

    assert first == pytest.approx(tokens, rel=0.0025, abs=3)
    assert second == pytest.approx(tokens, abs=characters + 2)


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(2_048, 60_000), place=st.floats(0.1, 0.9))
def test_a_branch_leaves_at_most_where_it_was_asked_to(tokens: int, place: float) -> None:
    """
    What it shares, with all of the template's tokens, is no more than asked for and no more than those less.
    """
    writer = taught(4, 12)
    trunk = writer.text("trunk", tokens)
    at = int(place * tokens)

    text = writer.branch(trunk, at, "branch", tokens)

    shared = next(place for place, (one, other) in enumerate(zip(trunk, text, strict=False)) if one != other)
    assert at - 13 <= shared / 4 <= at


def test_before_any_answer_four_characters_are_a_token() -> None:
    """
    A guess that is good enough for the first, short prompt.
    """
    assert len(Writer("n").text("a", 1_010)) == 4_000
