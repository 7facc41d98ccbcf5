"""Conversations that are made up: agents whose prompts grow, the seed's pair, a swarm of developers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ramjet.lab.turns import BLOCK_TOKENS, Conversation, Ids, Run, Turn


class _Prompt:
    """A prompt from turn to turn: what came before, its answer, and what the client adds."""

    def __init__(self, ids: Ids, shared: Sequence[Run], own_tokens: int) -> None:
        self._ids = ids
        self._blocks = sum(count for _, count in shared)
        self._added = [*shared]
        self._keep = 0
        self.tokens = self._blocks * BLOCK_TOKENS + own_tokens
        self._added += self._complete()

    def turn(self, think_s: float, answer_tokens: int, growth_tokens: int) -> Turn:
        """The request with the prompt as it stands; the next has this answer and so many tokens more."""
        keep, added, prompt_tokens = self._keep, tuple(self._added), self.tokens
        self._keep = self._blocks
        self.tokens += answer_tokens
        answer = self._complete()
        self.tokens += growth_tokens
        self._added = [*answer, *self._complete()]
        return Turn(think_s, prompt_tokens, answer_tokens, keep, added, tuple(answer))

    def _complete(self) -> list[Run]:
        """New numbers for the blocks that the prompt has grown to fill."""
        more = self.tokens // BLOCK_TOKENS - self._blocks
        self._blocks += more
        return [self._ids.new(more)] if more else []


def _answer_tokens(rng: Random) -> int:
    """Mostly a tool call or a sentence, one time in seven a file."""
    if rng.random() < 0.15:
        return int(min(2000, max(400, rng.lognormvariate(math.log(900), 0.5))))
    return int(min(400, max(32, rng.lognormvariate(math.log(120), 0.6))))


# -- the synthetic workloads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Agents of a few applications that share a system prompt each; some come with a long context."""

    agents: int
    apps: int
    think_s: float
    span_s: float
    """They begin within this time."""
    long_share: float
    growth_log: float = 6.9
    """Logarithm of the median growth in tokens: 6.9 is 992."""

    def __call__(self, rng: Random, ids: Ids) -> list[Conversation]:
        """Its conversations."""
        apps = [ids.new(rng.choice([8000, 17000, 20000]) // BLOCK_TOKENS) for _ in range(self.apps)]
        long = set(rng.sample(range(self.agents), round(self.agents * self.long_share)))
        conversations = []
        for agent in range(self.agents):
            app = rng.randrange(self.apps)
            own_tokens = rng.randint(100_000, 220_000) if agent in long else int(rng.lognormvariate(9.0, 0.8))
            conversation = Conversation(start_s=rng.uniform(0, self.span_s))
            prompt = _Prompt(ids, [apps[app]], max(256, own_tokens))
            for number in range(rng.randint(15, 60)):
                think_s = rng.expovariate(1 / self.think_s) if number else 0.0
                answer_tokens = _answer_tokens(rng)
                growth_tokens = int(min(12000, rng.lognormvariate(self.growth_log, 0.9))) + 256
                conversation.turns.append(prompt.turn(think_s, answer_tokens, growth_tokens))
            conversations.append(conversation)
        return conversations


def pair(rng: Random, ids: Ids) -> list[Conversation]:
    """The seed's pair: two conversations of 290,000 tokens, and six ordinary ones."""
    ids.new(17_000 // BLOCK_TOKENS)  # a system prompt in the study's draws that nobody came to use
    conversations = []
    for number in range(2):
        conversation = Conversation(start_s=number * 1.0 + rng.random())
        prompt = _Prompt(ids, [], 290_000)
        for turn in range(12):
            conversation.turns.append(prompt.turn(5 * rng.uniform(0.5, 1.5) if turn else 0.0, 200, 3800))
        conversations.append(conversation)
    for number in range(6):
        conversation = Conversation(start_s=2 + number * 0.5 + rng.random())
        prompt = _Prompt(ids, [], 20_000)
        for turn in range(36):
            conversation.turns.append(prompt.turn(5 * rng.uniform(0.5, 1.5) if turn else 0.0, 200, 400))
        conversations.append(conversation)
    return conversations


class Swarm:
    """Developers with coding agents: shared harness and repository prompts, sub-agents, compaction, pauses."""

    DEVELOPERS = 64
    DURATION_S = 900
    RAMP_S = 60
    COMPACTION_TOKENS = 110_000

    def __init__(self, rng: Random, ids: Ids) -> None:
        self._rng = rng
        self._ids = ids
        self._harnesses = [ids.new(int(18000 * factor) // BLOCK_TOKENS) for factor in (0.7, 1.0, 1.3)]
        self._repository_tokens = [
            int(max(1500, min(18000, rng.lognormvariate(math.log(6000), 0.5)))) for _ in range(6)
        ]
        self._repositories: dict[tuple[int, int], Run] = {}
        self.conversations: list[Conversation] = []

    def play(self) -> list[Conversation]:
        """Its conversations, each session after its developer's last."""
        for _ in range(self.DEVELOPERS):
            self._developer()
        return self.conversations

    def _developer(self) -> None:
        """One session after another, until the time is up."""
        spent_s, before = 0.0, -1
        start_s = self._rng.uniform(0, self.RAMP_S)
        while spent_s < self.DURATION_S:
            harness, repository = self._skewed(3, 1.6), self._skewed(6, 1.2)
            if (harness, repository) not in self._repositories:
                blocks = max(1, self._repository_tokens[repository] // BLOCK_TOKENS)
                self._repositories[harness, repository] = self._ids.new(blocks)
            if before < 0:
                conversation = Conversation(start_s=start_s)
            else:
                delay_s = min(300, max(2, self._rng.expovariate(1 / 20)))
                after = (before, len(self.conversations[before].turns) - 1)
                conversation = Conversation(after=after, delay_s=delay_s)
            before = len(self.conversations)
            self.conversations.append(conversation)
            shared = [self._harnesses[harness], self._repositories[harness, repository]]
            spent_s += 20 + self._session(before, harness, shared)

    def _session(self, index: int, harness: int, shared: Sequence[Run]) -> float:
        """Its turns and the sub-agents they start; returns about how many seconds it takes."""
        rng, turns, spent_s = self._rng, self.conversations[index].turns, 0.0
        prompt = _Prompt(self._ids, shared, int(self._about(600, 0.7, 50, 4000)))
        count = 1 + int(min(119, rng.expovariate(1 / 30)))
        children = []
        for number in range(count):
            think_s = self._pause() if number else 0.0
            answer_tokens = _answer_tokens(rng)
            turns.append(prompt.turn(think_s, answer_tokens, int(self._about(1500, 0.9, 80, 16000))))
            spent_s += think_s + answer_tokens / 50 + 0.6
            if prompt.tokens > self.COMPACTION_TOKENS:
                prompt = _Prompt(self._ids, shared, 2500)
            if rng.random() < 0.04:
                children += [(number, rng.randint(2, 5)) for _ in range(rng.randint(1, 3))]
        for number, length in children:
            child = Conversation(after=(index, number), delay_s=0.2)
            prompt = _Prompt(self._ids, [self._harnesses[harness]], int(self._about(600, 0.7, 50, 4000)))
            for turn in range(length):
                growth_tokens = (_answer_tokens(rng), int(self._about(750, 0.9, 40, 8000)))
                child.turns.append(prompt.turn(1.5 if turn else 0.0, *growth_tokens))
            if number + 1 < count:
                child.awaited_by = (index, number + 1)
            self.conversations.append(child)
        return spent_s

    def _pause(self) -> float:
        """A tool runs, or one time in twenty somebody reads what was written."""
        if self._rng.random() < 0.05:
            return min(240, max(10, self._rng.expovariate(1 / 45)))
        return self._about(2, 0.8, 0.3, 30)

    def _about(self, median: float, sigma: float, least: float, most: float) -> float:
        return min(most, max(least, self._rng.lognormvariate(math.log(median), sigma)))

    def _skewed(self, count: int, power: float) -> int:
        """One of so many, the first the most often."""
        return self._rng.choices(range(count), [1 / (each + 1) ** power for each in range(count)])[0]
