"""Recorded sessions become requests whose blocks say what they have in common."""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path

import pytest

from ramjet.sim.traces import BLOCK_TOKENS, MAIN, TraceRequest, read

TRACE = Path(__file__).parents[2] / "ramjet" / "lab" / "data" / "claude-code-agentic.jsonl.gz"


def head(name: str, tools: int = 128, system: int = 64) -> str:
    """A conversation whose tools and system prompt are three blocks."""
    return f'{{"conv":"{name}","block":64,"tools":{tools},"system":{system}}}'


def request(tokens: int, keep: int, added: str, *, agent: str = "0", think: str = "2.5") -> str:
    return f'{{"a":{agent},"t":7.0,"in":{tokens},"out":5,"think":{think},"api":null,"keep":{keep},"add":{added}}}'


def requests(*lines: str, seed: int = 0) -> list[list[TraceRequest]]:
    return [list(each.requests(seed)) for each in read(lines)]


def shared(one: TraceRequest, other: TraceRequest) -> int:
    """How many blocks two prompts begin with."""
    pairs = zip(one.blocks.hashes, other.blocks.hashes, strict=False)
    return next((depth for depth, (a, b) in enumerate(pairs) if a != b), min(len(one.blocks), len(other.blocks)))


def test_a_request_says_what_was_recorded() -> None:
    """
    Sizes and times as they are; a prompt's last tokens, which fill no block, have none.
    """
    [[first]] = requests(head("one"), request(330, 0, "[[1,5]]"))

    assert (first.conversation, first.agent, first.at_s, first.think_s) == ("one", MAIN, 7.0, 2.5)
    assert (first.prompt_tokens, first.answer_tokens) == (330, 5)
    assert list(first.blocks.ends) == [64, 128, 192, 256, 320]
    assert len(set(first.blocks.hashes)) == 5


def test_an_unknown_think_time_is_unknown() -> None:
    """
    And not none.
    """
    [[first]] = requests(head("one"), request(320, 0, "[[1,5]]", think="null"))

    assert first.think_s is None


def test_a_prompt_keeps_what_it_had_and_goes_on_with_what_is_new() -> None:
    """
    The first four blocks of the request before, and two others.
    """
    [[first, second]] = requests(head("one"), request(320, 0, "[[1,5]]"), request(390, 4, "[[6,2]]"))

    assert shared(first, second) == 4
    assert len(second.blocks) == 6


def test_a_number_that_comes_back_is_the_same_block() -> None:
    """
    A client that goes back to an earlier prompt finds it.
    """
    [[first, _, third]] = requests(
        head("one"), request(320, 0, "[[1,5]]"), request(320, 3, "[[6,2]]"), request(320, 3, "[[4,2]]")
    )

    assert first.blocks.hashes == third.blocks.hashes


def test_conversations_share_tools_and_system_prompt_of_the_same_length_and_nothing_else() -> None:
    """
    Numbers are each conversation's own.
    """
    [[one], [same], [other]] = requests(
        head("one"), request(320, 0, "[[1,5]]"),
        head("same"), request(320, 0, "[[1,5]]"),
        head("other", tools=192), request(320, 0, "[[1,5]]"),
    )  # fmt: skip

    assert shared(one, same) == 3
    assert shared(one, other) == shared(same, other) == 0


def test_a_head_that_changes_within_a_conversation_is_its_own() -> None:
    """
    The client altered its tools: those with the old ones have nothing in common with that.
    """
    [[first, changed], [other]] = requests(
        head("one"), request(320, 0, "[[1,5]]"), request(320, 1, "[[6,4]]"),
        head("other"), request(320, 0, "[[1,5]]"),
    )  # fmt: skip

    assert shared(first, changed) == shared(changed, other) == 1
    assert shared(first, other) == 3


def test_a_sub_agent_has_a_head_and_prompts_of_its_own() -> None:
    """
    Its first request keeps nothing, and the main agent goes on with its own last one.
    """
    [[first, sub, again, last]] = requests(
        head("one"),
        request(320, 0, "[[1,5]]"),
        '{"sub":"agent_001","tools":64,"system":64,"t":5.0}',
        request(256, 0, "[[20,4]]", agent='"agent_001"'),
        request(320, 4, "[[24,1]]", agent='"agent_001"'),
        request(384, 5, "[[6,1]]"),
    )

    assert [each.agent for each in (first, sub, again, last)] == [MAIN, "agent_001", "agent_001", MAIN]
    assert shared(first, sub) == 0
    assert shared(sub, again) == 4
    assert shared(first, last) == 5


def test_another_seed_is_another_conversation_behind_the_same_head() -> None:
    """
    For a trace that is begun anew.
    """
    lines = (head("one"), request(320, 0, "[[1,5]]"))

    [[first]], [[second]] = requests(*lines), requests(*lines, seed=1)

    assert shared(first, second) == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((request(320, 0, "[[1,5]]"),), "begins with the head"),
        (('{"conv":"one","block":16,"tools":1,"system":1}',), "blocks of 16 tokens"),
        ((head("one"), request(320, 0, "[[1,9]]")), "320 tokens has 9 full blocks"),
        ((head("one"), "{"), "truncated"),
    ],
)
def test_what_is_no_trace_is_refused(lines: tuple[str, ...], message: str) -> None:
    """
    Naming what is wrong.
    """
    with pytest.raises(ValueError, match=message):
        requests(*lines)


def test_the_published_trace_is_what_its_readme_says() -> None:
    """
    Its first conversations, for all of them take a second: each prompt's blocks are its full ones, and nearly all of a
    conversation was there before.
    """
    reused = total = 0
    with gzip.open(TRACE) as lines:
        for conversation in islice(read(lines), 12):
            told = list(conversation.requests())
            assert len(told) == len(conversation)
            seen: set[int] = set()
            for each in told:
                assert each.blocks.tokens(len(each.blocks)) == each.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
                reused += sum(block in seen for block in each.blocks.hashes)
                total += len(each.blocks)
                seen.update(each.blocks.hashes)

    assert reused / total > 0.9
