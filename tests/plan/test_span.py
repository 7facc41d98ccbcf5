"""What a journal's requests are taken for: who waited for whom, how long prompts are in tokens, and what counts."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.fingerprint import Chain, Fingerprint
from ramjet.core.record import Record
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival
from ramjet.plan.span import Entry, Span, span_of


def entry(
    at: float,
    hashes: list[int],
    *,
    tokens: int | None = None,
    cached: int | None = 0,
    answer: int | None = 10,
    **more: Any,
) -> Entry:
    """A request whose blocks have 1,000 bytes each, and 20 bytes behind the last."""
    ends = [1_000 * (number + 1) for number in range(len(hashes))]
    size = 1_000 * len(hashes) + 20
    prompt = Chain(array("Q", hashes), array("Q", ends), 1, size)
    record = Record(
        **{
            "request_id": f"{at}",
            "endpoint": "chat",
            "conversation": "c",
            "turn": 1,
            "stream": True,
            "replica": "glm-1",
            "estimated_tokens": 777,
            "ttft_s": 1.0,
            "duration_s": 2.0,
            "usage": Usage(prompt_tokens=tokens, cached_tokens=cached, completion_tokens=answer),
            **more,
        }
    )
    arrival = Arrival(request_id=f"{at}", endpoint="chat", body_bytes=size, fingerprint=Fingerprint(prompt, prompt))
    return Entry(at, record, arrival)


def waits(span: Span) -> list[tuple[int | None, float]]:
    return [(each.after, round(each.gap_s, 6)) for each in span.requests]


def test_a_replica_that_turned_out_to_have_ranks_is_those() -> None:
    """
    What it served before that was known is played like anything else.
    """
    span = span_of([entry(100, [1], replica="a"), entry(105, [2], replica="a.1"), entry(110, [3], replica="10.0.0.7")])

    assert span.replicas == ["10.0.0.7", "a.1"]
    assert len(span.requests) == 3


def test_a_turn_waits_for_the_answer_before_it() -> None:
    """
    The first keeps its time, counted from the span's beginning; the next has the gap since the end of that answer.
    """
    span = span_of([entry(100, [1]), entry(105, [1, 2]), entry(110, [1, 2, 3])])

    assert [each.at_s for each in span.requests] == [0, 5, 10]
    assert waits(span) == [(None, 0), (0, 3), (1, 3)]


def test_turns_beside_one_another_wait_for_the_same_answer() -> None:
    """
    Two that came before either had ended are two branches; whoever comes then waited for the last of them to end.
    """
    first, one, other = entry(100, [1]), entry(103, [1, 2]), entry(103.5, [1, 3], duration_s=6.0)

    span = span_of([first, one, other, entry(112, [1, 3, 4])])

    assert waits(span) == [(None, 0), (0, 1), (0, 1.5), (2, 2.5)]


def test_conversations_do_not_wait_for_each_other() -> None:
    """
    Who has no prompt that could be read is nobody's turn and keeps its time.
    """
    span = span_of([entry(100, [1]), entry(103, [2], conversation="other"), entry(106, [3], conversation=None)])

    assert waits(span) == [(None, 0)] * 3


def test_a_turn_that_came_as_the_answer_ended_waited_for_it() -> None:
    """
    Two clocks took the times: a hundredth of a second is nothing.
    """
    assert waits(span_of([entry(100, [1]), entry(101.99, [1, 2])])) == [(None, 0), (0, 0)]


def test_blocks_end_where_the_engine_counted() -> None:
    """
    Tokens of a first prompt are spread by bytes; what a later one adds is exactly what its count adds.
    """
    span = span_of([entry(100, [1, 2], tokens=505), entry(105, [1, 2, 3], tokens=1_515, turn=2)])

    assert list(span.requests[0].blocks.ends) == [250, 500]
    # 1,015 tokens more for 1,020 bytes: the new block is 1,000 of these.
    assert list(span.requests[1].blocks.ends) == [250, 500, 500 + 1_000 * 1_015 // 1_020]


def test_a_count_that_cannot_be_true_is_no_measure() -> None:
    """
    A longer prompt of fewer tokens: the new block gets what blocks have elsewhere.
    """
    span = span_of([entry(100, [1, 2], tokens=505), entry(105, [1, 2, 3], tokens=400, turn=2)])

    assert span.requests[1].blocks.ends[2] == 500 + int(1_000 * 905 / 5_040)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 100_000)), min_size=1, max_size=30))
def test_what_two_prompts_share_ends_at_one_token(prompts: list[tuple[int, int, int]]) -> None:
    """
    Whatever engines count, a block ends at one token in all prompts that have it, and later blocks end later.
    """
    entries = [
        entry(10.0 * number, [*range(100 * root, 100 * root + length)], tokens=tokens)
        for number, (root, length, tokens) in enumerate(prompts)
    ]

    ends: dict[int, int] = {}
    for each in span_of(entries).requests:
        assert list(each.blocks.ends) == sorted(each.blocks.ends)
        for block, end in zip(each.blocks.hashes, each.blocks.ends, strict=True):
            assert ends.setdefault(block, end) == end


def test_what_no_replica_read_is_left_out_and_counted() -> None:
    """
    By reason; nothing waits for it.
    """
    span = span_of(
        [
            entry(100, [1]),
            entry(101, [2], outcome="shed", replica=None),
            entry(103, [3], outcome="http_5xx"),
            entry(104, [4], outcome="client_disconnect", ttft_s=None),
            entry(105, []),
            entry(106, [1, 5]),
        ]
    )

    assert dict(span.left_out) == {"not served": 2, "broken off before its first token": 1, "no blocks": 1}
    assert waits(span) == [(None, 0), (0, 4)]


def test_what_was_not_reported_is_guessed_and_counted() -> None:
    """
    A prompt is as long as Ramjet took it for; an answer as long as others of its time, and where nobody saw that, typical.
    """
    known = [entry(10.0 * number, [number], tokens=500, answer=101, duration_s=2.0) for number in range(3)]
    span = span_of(
        [
            *known,
            entry(50, [50], tokens=None, answer=None, duration_s=3.0),
            entry(60, [60], tokens=500, answer=None, ttft_s=None, stream=False),
        ]
    )

    assert span.requests[3].prompt_tokens == 777
    assert span.requests[3].answer_tokens == 201
    assert span.requests[4].answer_tokens == 101
    assert dict(span.guessed) == {"prompt_tokens": 1, "completion_tokens": 2}


def test_what_found_something_older_is_played_and_not_counted() -> None:
    """
    A turn whose conversation began before the span, and a first prompt of which more was found than anybody had sent.
    """
    span = span_of(
        [
            entry(100, [1], tokens=5_000, turn=7, cached=4_900),
            entry(110, [2], tokens=5_000, cached=4_900, conversation="other"),
            entry(120, [1, 3], tokens=6_000, turn=8, cached=4_900),
            entry(130, [4], tokens=5_000, cached=100, conversation="third"),
        ]
    )

    assert [each.counts for each in span.requests] == [False, False, True, True]
    assert span.guessed["began_before"] == 2


def test_what_came_before_the_time_fills_caches_only() -> None:
    """
    It is played, and not counted.
    """
    span = span_of([entry(100, [1]), entry(105, [1, 2], turn=2)], since=105)

    assert [each.counts for each in span.requests] == [False, True]


def test_answers_that_come_back_in_another_form_are_noticed() -> None:
    """
    Long answers of which nothing was found though the prompt before was: nothing of an answer is reused.
    """

    def talk(found: int) -> Span:
        return span_of(
            entry(
                10.0 * turn,
                [*range(turn + 1)],
                tokens=10_000 + 2_000 * turn,
                answer=1_000,
                turn=turn + 1,
                cached=10_000 + 2_000 * (turn - 1) + found if turn else 0,
            )
            for turn in range(8)
        )

    assert talk(-100).fresh_answers
    assert not talk(900).fresh_answers
