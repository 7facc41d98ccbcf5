"""What the laboratory plays: conversations whose turns come when clients would send them.

W0 to W9 are the workloads of the study behind the routing rule (docs/design.md), draw for draw: a seed gives the
conversations that it gave there, but for the few sub-agents of recorded sessions, which the study took to share their
parent's system prompt. The others are whole published traces. A workload is a value, made from a `random.Random` that
the caller seeds.

Prompts are blocks of 256 tokens. A block is a number, and equal numbers stand for equal blocks behind equal prefixes,
as a chained hash does.
"""

from __future__ import annotations

import gzip
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from random import Random
from typing import Any

import msgspec

from ramjet.core.cache import SlotSpec
from ramjet.sim.profile import ATTENTION, GLM, PROFILES, Profile

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


# -- prompts that grow ----------------------------------------------------------------------------------------------


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
class _Fleet:
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


def _pair(rng: Random, ids: Ids) -> list[Conversation]:
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


class _Swarm:
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


# -- traces ---------------------------------------------------------------------------------------------------------


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
class _ClaudeCode:
    """Recorded Claude Code sessions: so many places, in each of which four sessions follow one another."""

    places: int
    sessions_each: int = 4
    most_turns: int = 60
    most_tokens: int = 440_000
    """Agents with a longer request are left out: they would fit no replica."""
    most_think_s: float = 600.0
    least_turns: int = 8

    def __call__(self, rng: Random, ids: Ids) -> list[Conversation]:
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
class _Mooncake:
    """Requests at the times of a Mooncake trace, each a conversation of its own: who belongs together is not said."""

    trace: str
    stretch: float
    """Times as slow as it was recorded."""
    window_s: float | None = None
    """A part of so long that begins anywhere in the first 2,400 s; None: all of it, and the seed changes nothing."""

    def __call__(self, rng: Random, ids: Ids) -> list[Conversation]:
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


def _lmcache(rng: Random, ids: Ids) -> list[Conversation]:
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


def runs_of(numbers: Sequence[int]) -> tuple[Run, ...]:
    """Numbers as runs: the first of each, and how many follow one another from there."""
    runs: list[Run] = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return tuple(runs)


# -- all of them ----------------------------------------------------------------------------------------------------


def paged(profile: Profile) -> Profile:
    """A replica whose cache works in blocks of 256 tokens, as the workloads are written."""
    cache = profile.cache
    if isinstance(cache, SlotSpec):
        return replace(profile, cache=replace(cache, page_tokens=BLOCK_TOKENS))
    states = cache.snapshots
    if states is not None:
        states = replace(states, grid_tokens=max(1, states.grid_tokens // BLOCK_TOKENS) * BLOCK_TOKENS)
    return replace(profile, cache=replace(cache, page_tokens=BLOCK_TOKENS, snapshots=states))


TOKENS = paged(ATTENTION)
"""The study's replica without snapshots: 499,968 tokens, 32 running."""
SLOTS = replace(paged(GLM.with_flags(states_per_path=2)), name="glm-5.3-flash-tp2, cap 2", max_running=28 // 4)
"""The study's replica with snapshots: 28 slots, two a path, and as many running as have four of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a workload is made, and what it is meant to be played on."""

    name: str
    about: str
    replicas: int
    profile: Profile
    make: Callable[[Random, Ids], list[Conversation]]


_ALL = (
    Recipe(
        name="W0",
        about="32 agents of 4 apps, 12 % long: fits easily",
        replicas=4,
        profile=TOKENS,
        make=_Fleet(agents=32, apps=4, think_s=20, span_s=1800, long_share=0.12),
    ),
    Recipe(
        name="W1",
        about="24 agents of 4 apps on half the replicas: mild pressure on the token pools",
        replicas=2,
        profile=TOKENS,
        make=_Fleet(agents=24, apps=4, think_s=20, span_s=1500, long_share=0.12),
    ),
    Recipe(
        name="W2",
        about="88 agents of 6 apps: twice the tokens that the pools hold",
        replicas=4,
        profile=TOKENS,
        make=_Fleet(agents=88, apps=6, think_s=30, span_s=2000, long_share=0.12),
    ),
    Recipe(
        name="W3",
        about="40 agents of 4 apps, short turns: snapshot pools pressed, 2 replicas",
        replicas=2,
        profile=SLOTS,
        make=_Fleet(agents=40, apps=4, think_s=20, span_s=1500, long_share=0.03, growth_log=5.7),
    ),
    Recipe(
        name="W4",
        about="200 agents of 12 apps, short turns: snapshot pools pressed, 8 replicas",
        replicas=8,
        profile=SLOTS,
        make=_Fleet(agents=200, apps=12, think_s=30, span_s=1800, long_share=0.04, growth_log=5.7),
    ),
    Recipe(
        name="W5",
        about="the seed's pair: two conversations of 290,000 tokens, six of 20,000",
        replicas=2,
        profile=SLOTS,
        make=_pair,
    ),
    Recipe(
        name="W6",
        about="a swarm: 64 developers with coding agents, sub-agents and compaction",
        replicas=6,
        profile=TOKENS,
        make=lambda rng, ids: _Swarm(rng, ids).play(),
    ),
    Recipe(
        name="W7",
        about="recorded Claude Code sessions, 20 at a time",
        replicas=4,
        profile=TOKENS,
        make=_ClaudeCode(places=20),
    ),
    Recipe(
        name="W8",
        about="recorded Claude Code sessions, 44 at a time: twice the tokens that the pools hold",
        replicas=4,
        profile=TOKENS,
        make=_ClaudeCode(places=44),
    ),
    Recipe(
        name="W9",
        about="20 minutes of Mooncake's chat trace at 1/1.4 of its pace",
        replicas=8,
        profile=TOKENS,
        make=_Mooncake(trace="mooncake-conversation", stretch=1.4, window_s=1200),
    ),
    Recipe(
        name="mooncake_conversation",
        about="the whole hour of Mooncake's chat trace at 1/1.4 of its pace",
        replicas=8,
        profile=TOKENS,
        make=_Mooncake(trace="mooncake-conversation", stretch=1.4),
    ),
    Recipe(
        name="mooncake_synthetic",
        about="Mooncake's synthetic trace at half its pace: Poisson arrivals over public data sets",
        replicas=8,
        profile=TOKENS,
        make=_Mooncake(trace="mooncake-synthetic", stretch=2.0),
    ),
    Recipe(
        name="lmcache_agents",
        about="LMCache's agent traces: 69 sessions of magagent, mini-swe-agent and tau-bench",
        replicas=2,
        profile=TOKENS,
        make=_lmcache,
    ),
)

WORKLOADS = {each.name: each for each in _ALL}
"""By name, for the command line."""

REPLICAS = {name: paged(profile) for name, profile in PROFILES.items()}
"""What `--profile` may put in the place of a workload's own replicas."""


@lru_cache(maxsize=2)
def build(name: str, seed: int) -> Workload:
    """A workload by name. Equal seeds give equal conversations, and those of the study."""
    ids = Ids()
    conversations = WORKLOADS[name].make(Random(seed * 1000 + sum(map(ord, name))), ids)
    return Workload(name, conversations, hashes_of(ids.used))


def hashes_of(blocks: int) -> array[int]:
    """The hashes of so many block numbers: an odd multiplier spreads them over 64 bits and keeps them apart (Fibonacci
    hashing)."""
    return array("Q", ((number + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1 for number in range(blocks)))
