"""The workloads: what is in them, and that they are the study's."""

from __future__ import annotations

from functools import cache
from importlib import resources

import pytest

from ramjet.lab.turns import BLOCK_TOKENS, Workload
from ramjet.lab.workloads import SLOTS, TOKENS, WORKLOADS, build

CONVERSATIONS = {"W0": 32, "W1": 24, "W2": 88, "W3": 40, "W4": 200, "W5": 8, "lmcache_agents": 69}
"""Where the number is fixed."""

TURNS = {
    "W0": 1_200, "W1": 920, "W2": 3_400, "W3": 1_550, "W4": 7_450, "W5": 240, "W6": 8_600, "W7": 3_450, "W8": 7_900,
    "W9": 4_350, "mooncake_conversation": 12_031, "mooncake_synthetic": 3_993, "lmcache_agents": 1_619,
}  # fmt: skip
"""The study's counts, means over its seeds; for the traces their lines."""

STUDY = {
    # name: conversations, turns, different blocks, longest turn; of seed 11, from the study's own generator
    "W0": (32, 1_249, 13_460, 305_220),
    "W3": (40, 1_570, 9_119, 250_343),
    "W5": (8, 240, 3_678, 334_200),
    "W6": (749, 8_904, 83_026, 111_032),
    "W9": (4_256, 4_256, 136_282, 125_053),
}


@cache
def built(name: str) -> Workload:
    """Of seed 1; most of the time here goes into making them."""
    return build(name, 1)


def prompts(workload: Workload) -> list[list[int]]:
    """Every prompt as its block numbers."""
    made = []
    for conversation in workload.conversations:
        blocks: list[int] = []
        for turn in conversation.turns:
            assert turn.keep <= len(blocks)
            blocks = blocks[: turn.keep]
            for first, count in turn.added:
                blocks.extend(range(first, first + count))
            made.append(blocks)
    return made


def test_every_workload_is_counted_here() -> None:
    """
    A workload that nobody expects is not shipped.
    """
    assert set(TURNS) == set(WORKLOADS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_as_large_as_it_says(name: str) -> None:
    """
    Conversations and turns are those of the study, give or take what the seed changes.
    """
    workload = built(name)

    assert workload.turns == pytest.approx(TURNS[name], rel=0.2)
    assert len(workload.conversations) == CONVERSATIONS.get(name, len(workload.conversations))
    assert workload.most_tokens <= WORKLOADS[name].profile.most_tokens


@pytest.mark.parametrize("name", STUDY)
def test_a_seed_gives_what_it_gave_in_the_study(name: str) -> None:
    """
    The same draws in the same order, so that its figures can be compared with ours.
    """
    made = build(name, 11)

    assert (len(made.conversations), made.turns, len(made.hashes), made.most_tokens) == STUDY[name]


@pytest.mark.parametrize("name", ["W0", "W5", "lmcache_agents"])
def test_equal_seeds_give_equal_conversations(name: str) -> None:
    """
    And other seeds give others.
    """
    first, again, other = (build.__wrapped__(name, seed) for seed in (1, 1, 2))

    assert first.conversations == again.conversations
    assert first.conversations != other.conversations


@pytest.mark.parametrize("name", ["W1", "W6", "W7", "W9", "lmcache_agents"])
def test_equal_blocks_stand_behind_equal_prefixes(name: str) -> None:
    """
    Before a block there is always the same one, as with chained hashes: caches rely on it.
    """
    before: dict[int, int] = {}

    for blocks in prompts(built(name)):
        for one, other in zip([-1, *blocks], blocks, strict=False):
            assert before.setdefault(other, one) == one


@pytest.mark.parametrize("name", ["W1", "W5", "W6", "W7", "W9", "lmcache_agents"])
def test_blocks_and_tokens_agree(name: str) -> None:
    """
    A prompt has no more full blocks than its tokens fill, and lacks at most what its trace rounds off.
    """
    workload = built(name)
    turns = [turn for conversation in workload.conversations for turn in conversation.turns]

    for turn, blocks in zip(turns, prompts(workload), strict=True):
        assert 0 <= turn.prompt_tokens // BLOCK_TOKENS - len(blocks) <= 1
        end = len(blocks) + sum(count for _, count in turn.answer)
        assert end <= (turn.prompt_tokens + turn.answer_tokens) // BLOCK_TOKENS
        assert turn.answer_tokens > 0
        assert turn.think_s >= 0


@pytest.mark.parametrize("name", ["W6", "W7"])
def test_what_sets_a_conversation_off_comes_to_pass(name: str) -> None:
    """
    Each begins at a time, or after a turn that exists and does not wait for it.
    """
    conversations = built(name).conversations

    for number, each in enumerate(conversations):
        if each.after is not None:
            assert each.after[1] < len(conversations[each.after[0]].turns)
            assert each.after[0] != number
        if each.awaited_by is not None:
            assert each.after is not None
            assert each.awaited_by[0] == each.after[0]
            assert each.after[1] < each.awaited_by[1] < len(conversations[each.awaited_by[0]].turns)


def test_sub_agents_do_not_share_their_parents_head() -> None:
    """
    They have a system prompt of their own, in the trace as here. (The study took them to share it.)
    """
    conversations = built("W7").conversations
    children = [each for each in conversations if each.after is not None and each.delay_s == 1.0]

    assert children
    for each in children:
        assert each.after is not None
        parent = conversations[each.after[0]]
        assert each.turns[0].added[0][0] != parent.turns[0].added[0][0]


def test_the_replicas_are_the_studys() -> None:
    """
    Pools of 499,968 tokens and 32 running, or 28 slots, two a path, and 7 running; blocks of 256 tokens.
    """
    assert TOKENS.page_tokens == SLOTS.page_tokens == BLOCK_TOKENS
    assert (TOKENS.max_running, SLOTS.max_running) == (32, 7)
    assert TOKENS.most_tokens == SLOTS.most_tokens == 499_968


def test_every_trace_says_where_it_is_from() -> None:
    """
    What is shipped names its source and its licence.
    """
    data = resources.files("ramjet.lab") / "data"
    readme = (data / "README.md").read_text(encoding="utf-8")
    traces = [each.name for each in data.iterdir() if each.name.endswith(".gz")]

    assert len(traces) == 4
    for trace in traces:
        line = next(line for line in readme.splitlines() if line.startswith(f"| `{trace}`"))
        assert line.endswith("Apache-2.0 |")
