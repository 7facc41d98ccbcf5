"""What a workload is: conversations whose turns come when clients would send them.

Prompts are blocks of 256 tokens. A block is a number, and equal numbers stand for equal blocks behind equal prefixes,
as a chained hash does.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 256

Run = tuple[int, int]
"""Consecutive block numbers: the first, and how many."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation, as a client would send it."""

    think_s: float
    """From the end of the answer before to this request."""
    prompt_tokens: int
    answer_tokens: int
    keep: int
    """Blocks that its prompt has in common with the one before..."""
    added: tuple[Run, ...]
    """...and those that follow them."""
    answer: tuple[Run, ...]
    """The full blocks that the answer completes."""


@dataclass(slots=True)
class Conversation:
    """A row of turns, and what sets it off."""

    start_s: float = 0.0
    """When its first turn comes, unless it comes `after` something."""
    after: tuple[int, int] | None = None
    """It begins when this turn (conversation, turn from 0) has been answered..."""
    delay_s: float = 0.0
    """...and so much later."""
    awaited_by: tuple[int, int] | None = None
    """The turn that is not sent before this conversation is over: an agent waits for its sub-agents."""
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations, ready to be played."""

    name: str
    conversations: Sequence[Conversation]
    hashes: array[int]
    """The 64-bit hash of each block number."""
    block_tokens: int = BLOCK_TOKENS

    @property
    def turns(self) -> int:
        """Turns of all conversations."""
        return sum(len(each.turns) for each in self.conversations)

    @property
    def most_tokens(self) -> int:
        """The longest prompt with its answer."""
        return max(turn.prompt_tokens + turn.answer_tokens for each in self.conversations for turn in each.turns)


class Ids:
    """Block numbers nobody has used."""

    def __init__(self) -> None:
        self.used = 0

    def new(self, count: int) -> Run:
        """So many of them."""
        first = self.used
        self.used += count
        return first, count


def runs_of(numbers: Sequence[int]) -> tuple[Run, ...]:
    """Numbers as runs: the first of each, and how many follow one another from there."""
    runs: list[Run] = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return tuple(runs)


def hashes_of(blocks: int) -> array[int]:
    """The hashes of so many block numbers: an odd multiplier spreads them over 64 bits and keeps them apart (Fibonacci
    hashing)."""
    return array("Q", ((number + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1 for number in range(blocks)))
