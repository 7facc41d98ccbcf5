"""Conversations that were recorded: published traces, whole or in part."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from random import Random
from typing import Any

import msgspec

from ramjet.lab.turns import BLOCK_TOKENS, Conversation, Ids, Turn, runs_of


def _lines(name: str) -> Iterator[dict[str, Any]]:
    """The objects of a packed trace; data/README.md says where they are from and what is in them."""
    with (resources.files("ramjet.lab") / "data" / f"{name}.jsonl.gz").open("rb") as packed, gzip.open(packed) as file:
        for line in file:
            yield msgspec.json.decode(line)


class _Agent:
    """The requests of one agent of a recorded session, and how long its tool list and system prompt are."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.head = (int(header["tools"]), int(header["system"]))
        self.began_s = float(header.get("t", 0.0))
        self.requests: list[dict[str, Any]] = []

    def fits(self, most_tokens: int, most_turns: int) -> bool:
        """Whether no request is too long."""
        return all(each["in"] + each["out"] <= most_tokens for each in self.requests[:most_turns])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeCode:
    """Recorded Claude Code sessions: so many places, in each of which four sessions follow one another."""

    places: int
    sessions_each: int = 4
    most_turns: int = 60
    most_tokens: int = 440_000
    """Agents with a longer request are left out: they would fit no replica."""
    most_think_s: float = 600.0
    least_turns: int = 8

    def __call__(self, rng: Random, ids: Ids) -> list[Conversation]:
        """Its conversations."""
        sessions: list[dict[int, _Agent]] = []
        for line in _lines("claude-code-agentic"):
            if "conv" in line:
                sessions.append({0: _Agent(line)})
            elif "sub" in line:
                sessions[-1][line["sub"]] = _Agent(line)
            else:
                sessions[-1][line["a"]].requests.append(line)
        rng.shuffle(sessions)
        blocks = _SharedHeads(ids)
        conversations: list[Conversation] = []
        last_at = [-1] * self.places
        taken = 0
        for agents in sessions:
            if taken >= self.places * self.sessions_each:
                break
            main = agents.pop(0)
            if len(main.requests[: self.most_turns]) < self.least_turns or not self._fits(main):
                continue
            place, index = taken % self.places, len(conversations)
            taken += 1
            if last_at[place] < 0:
                conversation = Conversation(start_s=rng.uniform(0, 600))
            else:
                after = (last_at[place], len(conversations[last_at[place]].turns) - 1)
                conversation = Conversation(after=after, delay_s=rng.expovariate(1 / 60))
            last_at[place] = index
            blocks.new_session()
            conversation.turns = self._turns(main, blocks)
            conversations.append(conversation)
            conversations += self._children(index, main, list(agents.values()), blocks)
        return conversations

    def _children(
        self, index: int, main: _Agent, agents: Sequence[_Agent], blocks: _SharedHeads
    ) -> Iterator[Conversation]:
        """Each begins after the last turn of the main agent that was sent before it."""
        sent_s = [each["t"] for each in main.requests[: self.most_turns]]
        for agent in agents:
            turn = next((turn for turn, at in enumerate(sent_s) if at > agent.began_s), len(sent_s)) - 1
            if agent.requests and self._fits(agent) and 0 <= turn < len(sent_s) - 1:
                turns = self._turns(agent, blocks)
                yield Conversation(after=(index, turn), delay_s=1.0, turns=turns)

    def _fits(self, agent: _Agent) -> bool:
        return agent.fits(self.most_tokens, self.most_turns)

    def _turns(self, agent: _Agent, blocks: _SharedHeads) -> list[Turn]:
        requests = agent.requests[: self.most_turns]
        prompts = list(blocks.prompts(agent.head, requests))
        turns: list[Turn] = []
        before: list[int] = []
        for number, request in enumerate(requests):
            prompt = prompts[number]
            after = prompts[number + 1] if number + 1 < len(prompts) else []
            keep = _shared(before, prompt) if number else 0
            think_s = 2.0 if request["think"] is None else request["think"]  # the median of those that are known
            rest = len(prompt) * BLOCK_TOKENS + request["in"] % BLOCK_TOKENS + request["out"]
            end = max(len(prompt), rest // BLOCK_TOKENS)
            if after[: len(prompt)] == prompt and len(after) >= end:
                answer = runs_of(after[len(prompt) : end])
            else:
                answer = (blocks.ids.new(end - len(prompt)),) if end > len(prompt) else ()
            turn = Turn(
                think_s=min(self.most_think_s, max(0.0, think_s)) if number else 0.0,
                prompt_tokens=max(request["in"], len(prompt) * BLOCK_TOKENS),
                answer_tokens=max(1, request["out"]),
                keep=keep,
                added=runs_of(prompt[keep:]),
                answer=answer,
            )
            turns.append(turn)
            before = prompt
        return turns


class _SharedHeads:
    """Blocks of 64 tokens, numbered within a session, as blocks of 256 that sessions have in common.

    Tool list and system prompt are taken to be the same wherever both have the same length; the trace does not say.
    """

    SMALL_TOKENS = 64
    EACH = BLOCK_TOKENS // SMALL_TOKENS

    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        self._heads: dict[tuple[tuple[int, int], int], int] = {}
        self._own: dict[int, int] = {}

    def new_session(self) -> None:
        """Numbers mean other blocks from now on."""
        self._own = {}

    def prompts(self, head: tuple[int, int], requests: Sequence[dict[str, Any]]) -> Iterator[list[int]]:
        """The blocks of each request in turn."""
        small: list[int] = []
        blocks: list[int] = []
        for request in requests:
            keep = request["keep"]
            small = small[:keep]
            for first, count in request["add"]:
                small.extend(range(first, first + count))
            blocks = blocks[: keep // self.EACH]
            # A block of 256 is named by its last 64: those numbers are chained too.
            for last in range(len(blocks) * self.EACH + self.EACH - 1, len(small), self.EACH):
                blocks.append(self._block(head, last, small[last]))
            yield blocks

    def _block(self, head: tuple[int, int], last: int, number: int) -> int:
        if last < sum(head) // self.SMALL_TOKENS:
            if (head, last) not in self._heads:
                self._heads[head, last] = self.ids.new(1)[0]
            return self._heads[head, last]
        if number not in self._own:
            self._own[number] = self.ids.new(1)[0]
        return self._own[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mooncake:
    """Requests at the times of a Mooncake trace, each a conversation of its own: who belongs together is not said."""

    trace: str
    stretch: float
    """Times as slow as it was recorded."""
    window_s: float | None = None
    """A part of so long that begins anywhere in the first 2,400 s; None: all of it, and the seed changes nothing."""

    def __call__(self, rng: Random, ids: Ids) -> list[Conversation]:
        """Its conversations."""
        begin_s = 0 if self.window_s is None else rng.randrange(0, 2400)
        end_s = math.inf if self.window_s is None else begin_s + self.window_s
        halves: dict[int, int] = {}
        conversations = []
        for line in _lines(self.trace):
            at_s = line["t"] / 1000
            if not begin_s <= at_s < end_s:
                continue
            prompt: list[int] = []
            for first, count in line["add"]:
                for number in range(first, first + count):
                    if number not in halves:
                        # Blocks of 512 tokens, two of ours.
                        halves[number] = ids.new(2)[0]
                    prompt += [halves[number], halves[number] + 1]
            del prompt[line["in"] // BLOCK_TOKENS :]
            rest = (line["in"] + line["out"]) // BLOCK_TOKENS - len(prompt)
            answer = (ids.new(rest),) if rest > 0 else ()
            turn = Turn(0.0, line["in"], max(1, line["out"]), 0, runs_of(prompt), answer)
            conversations.append(Conversation(start_s=(at_s - begin_s) * self.stretch, turns=[turn]))
        return conversations


def lmcache(rng: Random, ids: Ids) -> list[Conversation]:
    """Three kinds of agents that begin within a minute. A token is taken for four characters, a block for 1,024.

    The trace has no service times: what an answer took there is taken for 0.6 s and 50 tokens a second, as in W6, and
    the rest of the time between two requests for thinking.
    """
    conversations: list[Conversation] = []
    blocks: list[int] = []
    own: dict[int, int] = {}
    at_s = 0.0
    for line in _lines("lmcache-agents"):
        if "app" in line:
            conversations.append(Conversation(start_s=rng.uniform(0, 60)))
            blocks, own = [], {}
            continue
        turns = conversations[-1].turns
        served_s = 0.6 + turns[-1].answer_tokens / 50 if turns else 0.0
        think_s = max(0.0, line["t"] - at_s - served_s) if turns else 0.0
        at_s = line["t"]
        before, blocks = blocks, blocks[: line["keep"]]
        for first, count in line["add"]:
            for number in range(first, first + count):
                if number not in own:
                    own[number] = ids.new(1)[0]
                blocks.append(own[number])
        prompt_tokens = max(1, line["in_chars"] // 4)
        blocks = blocks[: prompt_tokens // BLOCK_TOKENS]
        answer_tokens = max(1, line["out_chars"] // 4)
        keep, rest = _shared(before, blocks), (prompt_tokens + answer_tokens) // BLOCK_TOKENS - len(blocks)
        answer = (ids.new(rest),) if rest else ()
        turns.append(Turn(think_s, prompt_tokens, answer_tokens, keep, runs_of(blocks[keep:]), answer))
    return conversations


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many blocks two prompts begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
