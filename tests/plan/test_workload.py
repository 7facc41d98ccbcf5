"""A span as conversations of the laboratory: chains of turns, and prompts as pages that share what blocks share."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.cache import Blocks
from ramjet.lab.turns import Run, Workload
from ramjet.plan.span import Asked, Span
from ramjet.plan.workload import OFF, Playable, playable

PAGE = 64


def asked(
    hashes: Sequence[int],
    *,
    after: int | None = None,
    gap_s: float = 1.0,
    more: int = 10,
    answer: int = 200,
    at: float = 0.0,
) -> Asked:
    """A request whose blocks have 100 tokens each, and so many tokens behind the last."""
    ends = [100 * (number + 1) for number in range(len(hashes))]
    return Asked(
        name="",
        at_s=at,
        after=after,
        gap_s=gap_s,
        prompt_tokens=100 * len(hashes) + more,
        answer_tokens=answer,
        blocks=Blocks(array("Q", hashes), array("I", ends)),
    )


def made(*requests: Asked, fresh: bool = False) -> Playable:
    return playable(Span(name="made", requests=requests, fresh_answers=fresh), PAGE)


def numbers(runs: Sequence[Run]) -> list[int]:
    return [number for first, count in runs for number in range(first, first + count)]


def prompts(found: Workload) -> list[list[list[int]]]:
    """The pages of each turn's prompt, as the loop makes them."""
    return [_grown([(turn.keep, numbers(turn.added)) for turn in each.turns]) for each in found.conversations]


def _grown(steps: Sequence[tuple[int, list[int]]]) -> list[list[int]]:
    grown, prompt = [], list[int]()
    for keep, added in steps:
        prompt = prompt[:keep] + added
        grown.append(prompt)
    return grown


def test_a_conversation_is_a_chain_of_turns() -> None:
    """
    Its first turn keeps its time, and the others come a gap after the answer before.
    """
    found = made(asked([1, 2], at=5.0), asked([1, 2, 3], after=0, gap_s=4.0), asked([1, 2, 3, 4], after=1, gap_s=6.0))

    (one,) = found.workload.conversations
    assert (one.start_s, one.after) == (5.0, None)
    assert [turn.think_s for turn in one.turns] == [0, 4, 6]
    assert found.places == [[0, 1, 2]]


def test_a_branch_is_a_conversation_that_begins_with_the_answer_it_waited_for() -> None:
    """
    The first of two goes on with the chain, the other comes its own gap after the same answer.
    """
    found = made(
        asked([1]), asked([1, 2], after=0, gap_s=2.0), asked([1, 3], after=0, gap_s=2.5), asked([1, 3, 4], after=2)
    )

    chain, branch = found.workload.conversations
    assert [len(chain.turns), len(branch.turns)] == [2, 2]
    assert (branch.after, branch.delay_s) == ((0, 0), 2.5)
    assert found.places == [[0, 1], [2, 3]]


def test_prompts_share_the_pages_that_their_blocks_share() -> None:
    """
    300 tokens are four pages and a part of one.
    """
    found = made(asked([1, 2, 3, 4]), asked([1, 2, 3, 5]), asked([6, 7]))

    (one,), (other,), (third,) = prompts(found.workload)
    assert len(one) == len(other) == 410 // PAGE
    assert one[:4] == other[:4]
    assert not set(one[4:]) & set(other[4:])
    assert not set(third) & {*one, *other}


def test_a_prompt_and_its_answer_are_what_the_next_begins_with() -> None:
    """
    What lies behind the last block is too, where a turn goes on with all of it: an engine finds it again.
    """
    found = made(asked([1, 2], more=70, answer=150), asked([1, 2, 3, 4, 5], after=0))

    (conversation,) = found.workload.conversations
    (first, second), (turn, _) = prompts(found.workload)[0], conversation.turns
    assert len(first) == 270 // PAGE
    whole = first + numbers(turn.answer)
    assert len(whole) == (270 + 150) // PAGE
    assert second[: len(whole)] == whole


def test_answers_that_come_back_in_another_form_share_nothing() -> None:
    """
    The prompt is found again all the same.
    """
    found = made(asked([1, 2], answer=150), asked([1, 2, 3, 4, 5], after=0), fresh=True)

    (first, second), (turn, _) = prompts(found.workload)[0], found.workload.conversations[0].turns
    assert second[: len(first)] == first
    assert not set(numbers(turn.answer)) & set(second)


def test_plays_differ_in_what_clients_take_and_in_nothing_else() -> None:
    """
    By a fiftieth at most, and never in the first.
    """
    span = Span(name="made", requests=[asked([1]), asked([1, 2], after=0, gap_s=10.0)])

    gaps = [playable(span, PAGE, number).workload.conversations[0].turns[1].think_s for number in range(4)]

    assert gaps[0] == 10.0
    assert len(set(gaps)) == 4
    assert all(abs(gap - 10.0) <= 10.0 * OFF for gap in gaps)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(0, 99)), min_size=1, max_size=12
    )
)
def test_pages_are_shared_exactly_as_far_as_blocks(told: list[tuple[list[int], int]]) -> None:
    """
    Any prompts: all their pages are there, and two begin alike as far as whole pages of common blocks go.
    """
    # A block's hash names everything before it.
    chained = [[*accumulate(path, lambda chain, step: 2 * chain + step + 1, initial=1)] for path, _ in told]
    requests = [asked(chain, more=more) for chain, (_, more) in zip(chained, told, strict=True)]
    found = [prompt for (prompt,) in prompts(made(*requests).workload)]

    for one, each in enumerate(requests):
        assert len(found[one]) == each.prompt_tokens // PAGE
        for other in range(one):
            blocks = sum(a == b for a, b in zip(chained[one], chained[other], strict=False))
            pages = sum(a == b for a, b in zip(found[one], found[other], strict=False))
            assert pages == 100 * blocks // PAGE
