"""From a span to a workload of the laboratory: conversations as chains of turns, prompts as pages of the engine."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ramjet.core.cache import Blocks
from ramjet.lab.policies import Request
from ramjet.lab.turns import Conversation, Ids, Run, Turn, Workload, hashes_of
from ramjet.plan.span import Asked, Span

OFF = 0.02
"""By how much clients are slower or faster from play to play; nobody would notice."""


@dataclass(frozen=True, slots=True)
class Playable:
    """A workload, and where in the span each turn of each conversation is from."""

    workload: Workload
    places: Sequence[Sequence[int]]

    def place_of(self, request: Request) -> int:
        """Where in the span a request of the loop's is from."""
        return self.places[request.conversation][request.turn - 1]


def playable(span: Span, page_tokens: int, play: int = 0) -> Playable:
    """Make a workload whose prompts are cut into pages of so many tokens.

    The first play has the gaps as they were; in each other clients take up to `OFF` more or less time, by its number.
    """
    chance = Random(play)
    requests = span.requests
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for place, each in enumerate(requests):
        children[each.after].append(place)
    pages = _Pages(requests, page_tokens, fresh_answers=span.fresh_answers)
    answered_by = [_goes_on(requests, place, children[place]) for place in range(len(requests))]
    pages.write(answered_by)
    conversations: list[Conversation] = []
    places: list[list[int]] = []
    at: dict[int, tuple[int, int]] = {}
    for place, each in enumerate(requests):
        before = None if each.after is None else at[each.after]
        gap_s = each.gap_s * (1 + chance.uniform(-OFF, OFF)) if play else each.gap_s
        if before is not None and children[each.after][0] == place:
            # The first to come goes on with the chain that the answer was in...
            number, after = before[0], each.after
        else:
            # ...and who comes beside it begins one of its own, a gap after the same answer.
            number, after = len(conversations), None
            conversations.append(Conversation(start_s=each.at_s, after=before, delay_s=gap_s))
            places.append([])
        turn = pages.turn(place, after, think_s=0.0 if after is None else gap_s)
        conversations[number].turns.append(turn)
        places[number].append(place)
        at[place] = number, len(conversations[number].turns) - 1
    workload = Workload(span.name, conversations, hashes_of(pages.ids.used), page_tokens)
    return Playable(workload, places)


def _goes_on(requests: Sequence[Asked], place: int, after: Sequence[int]) -> int | None:
    """The request that begins with all of a prompt, and so with its answer too."""
    blocks = requests[place].blocks
    depth = len(blocks)
    for each in after:
        other = requests[each].blocks
        if depth and len(other) > depth and other.hashes[depth - 1] == blocks.hashes[depth - 1]:
            return each
    return None


class _Pages:
    """Prompts as runs of page numbers: a page is named by the block that it ends in."""

    def __init__(self, requests: Sequence[Asked], page_tokens: int, *, fresh_answers: bool) -> None:
        self.ids = Ids()
        self._requests = requests
        self._page = page_tokens
        self._fresh_answers = fresh_answers
        self._runs: dict[int, Run] = {}
        """The pages that end in a block."""
        self._prompts: list[tuple[Run, ...]] = []
        self._answers: list[tuple[Run, ...]] = []

    def write(self, goes_on: Sequence[int | None]) -> None:
        """Number all pages. A prompt's last tokens, behind its last block, are as in the prompt that goes on with it."""
        for each in self._requests:
            self._number(each.blocks)
        prompts: list[list[Run]] = [[]] * len(self._requests)
        answers: list[list[Run]] = [[]] * len(self._requests)
        for place in reversed(range(len(self._requests))):
            each, later = self._requests[place], goes_on[place]
            full = each.prompt_tokens // self._page
            end = max(full, (each.prompt_tokens + each.answer_tokens) // self._page)
            following = [] if later is None else prompts[later]
            runs = self._blocks(each.blocks, full)
            runs += _part(following, _count(runs), full)
            runs += self._new(full - _count(runs))
            prompts[place] = runs
            answer = [] if self._fresh_answers else _part(following, full, end)
            answers[place] = answer + self._new(end - full - _count(answer))
        self._prompts = [_joined(each) for each in prompts]
        self._answers = [_joined(each) for each in answers]

    def turn(self, place: int, after: int | None, *, think_s: float) -> Turn:
        """A request as the turn that follows another in its chain; None: the chain's first."""
        each, runs = self._requests[place], self._prompts[place]
        keep = 0 if after is None else _alike(self._prompts[after], runs)
        return Turn(
            think_s=think_s,
            prompt_tokens=each.prompt_tokens,
            answer_tokens=each.answer_tokens,
            keep=keep,
            added=_joined(_part(runs, keep, _count(runs))),
            answer=self._answers[place],
        )

    def _number(self, blocks: Blocks) -> None:
        known = bisect_left(range(len(blocks)), 1, key=lambda at: blocks.hashes[at] not in self._runs)
        start = blocks.tokens(known) // self._page
        for block, end in zip(blocks.hashes[known:], blocks.ends[known:], strict=True):
            self._runs[block] = self.ids.new(end // self._page - start)
            start = end // self._page

    def _blocks(self, blocks: Blocks, full: int) -> list[Run]:
        """The pages that a prompt's blocks fill, at most so many."""
        depth = bisect_right(blocks.ends, full * self._page + self._page - 1)
        runs = [self._runs[block] for block in blocks.hashes[: depth + 1]]
        return _part(runs, 0, full)

    def _new(self, count: int) -> list[Run]:
        return [self.ids.new(count)] if count > 0 else []


def _count(runs: Sequence[Run]) -> int:
    return sum(count for _, count in runs)


def _part(runs: Sequence[Run], start: int, end: int) -> list[Run]:
    """The pages from `start` to `end`, as far as there are so many."""
    found, at = [], 0
    for first, count in runs:
        low, high = max(start, at), min(end, at + count)
        if low < high:
            found.append((first + low - at, high - low))
        at += count
        if at >= end:
            break
    return found


def _joined(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The same pages in as few runs as there can be."""
    joined: list[Run] = []
    for first, count in runs:
        if count and joined and sum(joined[-1]) == first:
            joined[-1] = joined[-1][0], joined[-1][1] + count
        elif count:
            joined.append((first, count))
    return tuple(joined)


def _alike(one: Sequence[Run], other: Sequence[Run]) -> int:
    """How many pages two prompts begin with alike, in whatever runs."""
    alike, left, right = 0, [*reversed(one)], [*reversed(other)]
    while left and right:
        (first, count), (other_first, other_count) = left.pop(), right.pop()
        if first != other_first:
            break
        same = min(count, other_count)
        alike += same
        if count > same:
            left.append((first + same, count - same))
        if other_count > same:
            right.append((first + same, other_count - same))
    return alike
