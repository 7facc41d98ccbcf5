"""Journals of things that never happened: conversations of real text through the production router and simulated
replicas, in virtual time, kept as `ramjet serve` would have kept them.

    talks = [Talk(words="an agent", tokens=20_000, turns=[Says(tokens=300, think_s=20.0) for _ in range(5)])]
    records = recorded(tmp_path / "journal.db", talks, profile=GLM)

What is to happen several times, under other settings, is written down once: `script = Script(talks)`.

Bodies are JSON, read and hashed by the same code that serves; engines render and cut them in their own way.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from ramjet.core.fingerprint import fingerprint
from ramjet.core.fleet import Fleet, Replica
from ramjet.core.policies import Policy
from ramjet.core.pools import Pools
from ramjet.core.prompt import read
from ramjet.core.record import Record
from ramjet.core.sample import samples
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Visit
from ramjet.journal.store import Entry, Store
from ramjet.lab.loop import facts_of, play
from ramjet.lab.policies import Placements, Request
from ramjet.lab.production import SHIPPED, Routed, pools_of
from ramjet.lab.turns import Conversation, Turn, Workload, runs_of
from ramjet.sim.engine import Engine
from ramjet.sim.profile import GLM, Profile
from ramjet.sim.prompt import render_chat
from ramjet.sim.tokens import Prompt, write_answer

AT = 1_790_000_000.0
"""When it all began, seconds since 1970."""
SALT = "nobody's"
SAMPLE_S = 60.0
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Says:
    """One turn of a client."""

    tokens: int
    """What it adds to the prompt."""
    think_s: float = 10.0
    """From the end of the answer before."""
    answer_tokens: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation: its first prompt, and what is said then."""

    words: str
    """What its text is made from: equal words are equal text."""
    tokens: int
    turns: Sequence[Says] = ()
    """Those after the first."""
    start_s: float = 0.0
    answer_tokens: int = 100
    """Of the first turn."""
    system: tuple[str, int] | None = None
    """Words and tokens of a system prompt; `tokens` are those of the first message then."""
    stream: bool = True
    after: tuple[int, int] | None = None
    """It begins when this turn (conversation, turn from 0) has been answered, and `start_s` later."""
    forks: int | None = None
    """It begins with the prompt and answer of that turn of `after`'s conversation: a branch of it."""


def first_messages(talk: Talk) -> list[dict[str, Any]]:
    """What a conversation of its own begins with."""
    system = [] if talk.system is None else [{"role": "system", "content": text(*talk.system)}]
    return [*system, {"role": "user", "content": text(talk.words, talk.tokens)}]


def next_message(talk: Talk, number: int) -> dict[str, Any]:
    """What the client adds for a turn, from 1."""
    return {"role": "user", "content": text(f"{talk.words} {number}", talk.turns[number - 1].tokens)}


def text(words: str, tokens: int) -> str:
    """So many tokens of text without meaning."""
    return "".join(write_answer(xxhash.xxh3_64_intdigest(words.encode()), tokens))


class Script:
    """Conversations that are ready to be played, as often as wanted: their bodies read, hashed and cut into pages."""

    def __init__(self, talks: Sequence[Talk], page_tokens: int = GLM.page_tokens) -> None:
        self.page_tokens = page_tokens
        self.workload, self.arrivals = _workload(talks, page_tokens)


def recorded(
    path: Path,
    talks: Sequence[Talk] | Script,
    *,
    profile: Profile = GLM,
    replicas: int = 1,
    told: Callable[[Profile], Pools] | None = None,
    policy: Policy = SHIPPED,
    paces: Sequence[float] = (),
    on_turn: Callable[[], object] = lambda: None,
) -> list[Record]:
    """Let the conversations happen and keep a journal of them.

    Args:
        path: the journal.
        talks: the conversations.
        profile: the replicas.
        replicas: how many; their names are glm-1, glm-2 and so on.
        told: what Ramjet is told of their pools; None: what is true.
        policy: how it decides.
        paces: how much longer each takes to read.
        on_turn: called whenever a turn has ended.

    Returns the records in the order of their ends.
    """
    script = talks if isinstance(talks, Script) else Script(talks, profile.page_tokens)
    assert script.page_tokens == profile.page_tokens, "prompts are cut into the pages of the replicas"
    fleet = Fleet()
    for number in range(1, replicas + 1):
        pools = pools_of(facts_of(profile)) if told is None else told(profile)
        fleet.add(Replica(f"glm-{number}", f"http://glm-{number}", configured=pools))
    recording = _Recording(fleet, policy, script.arrivals, on_turn)
    engines = [Engine(_paced(profile, paces[number] if paces else 1.0), whole_runs=True) for number in range(replicas)]
    play(script.workload, recording, engines, reports_cached=profile.reports_cached)
    store = Store(path, SALT, days=36_500, megabytes=10_000)
    for now, those in recording.samples:
        store.write_samples(AT + now, those)
    store.write(recording.entries)
    store.close()
    return [each.record for each in recording.entries]


def _paced(profile: Profile, pace: float) -> Profile:
    timing = profile.timing
    slower = replace(timing, read_token_s=pace * timing.read_token_s, read_squared_s=pace * timing.read_squared_s)
    return replace(profile, timing=slower)


class _Recording(Routed):
    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        arrivals: Sequence[Sequence[tuple[Arrival, int]]],
        on_turn: Callable[[], object],
    ) -> None:
        super().__init__(fleet, policy)
        self._arrivals = arrivals
        self._on_turn = on_turn
        self.entries: list[Entry] = []
        self.samples = [(0.0, samples(self.router, 0.0))]
        """What the replicas were, once a minute."""

    def tick(self, now: float) -> Placements:
        if now >= self.samples[-1][0] + SAMPLE_S:
            self.samples.append((now, samples(self.router, now)))
        return super().tick(now)

    def _arrival(self, request: Request) -> Arrival:
        return self._arrivals[request.conversation][request.turn - 1][0]

    def _usage(self, request: Request, prompt_tokens: int, cached_tokens: int | None) -> Usage:
        answer_tokens = self._arrivals[request.conversation][request.turn - 1][1]
        return Usage(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, completion_tokens=answer_tokens)

    def _ended(self, request: Request, visit: Visit, record: Record) -> None:
        self.entries.append(Entry(AT + request.arrived_at, record, visit.arrival))
        self._on_turn()


def _workload(talks: Sequence[Talk], page_tokens: int) -> tuple[Workload, list[list[tuple[Arrival, int]]]]:
    """The conversations for the loop, and what the proxy would have made of each request, with its answer's tokens."""
    numbers: dict[int, int] = {}
    conversations: list[Conversation] = []
    arrivals: list[list[tuple[Arrival, int]]] = []
    told: list[list[list[dict[str, Any]]]] = []
    for place, talk in enumerate(talks):
        conversation = Conversation(start_s=talk.start_s, after=talk.after, delay_s=talk.start_s)
        messages = first_messages(talk)
        if talk.after is not None and talk.forks is not None:
            messages = [*told[talk.after[0]][talk.forks], *messages]
        asked: list[tuple[Arrival, int]] = []
        after_turns: list[list[dict[str, Any]]] = []
        before: list[int] = []
        first = Says(tokens=talk.tokens, think_s=0.0, answer_tokens=talk.answer_tokens)
        for number, says in enumerate((first, *talk.turns)):
            if number:
                messages.append(next_message(talk, number))
            body = {"model": "glm", "stream": talk.stream, "messages": messages, "max_tokens": says.answer_tokens}
            prompt = Prompt(render_chat(body), page_tokens)
            answer = "".join(write_answer(prompt.seed, says.answer_tokens))
            pages = _numbered(prompt.blocks.hashes, numbers)
            whole = _numbered(prompt.followed_by(answer).hashes, numbers)
            keep = next((at for at, (a, b) in enumerate(zip(before, pages, strict=False)) if a != b), len(before))
            keep = min(keep, len(pages))
            turn = Turn(
                says.think_s,
                prompt.tokens,
                says.answer_tokens,
                keep,
                runs_of(pages[keep:]),
                runs_of(whole[len(pages) :]),
            )
            conversation.turns.append(turn)
            asked.append((_arrival(body, f"{place}-{number}"), says.answer_tokens))
            before = pages
            messages = [*messages, {"role": "assistant", "content": answer}]
            after_turns.append(messages)
            messages = list(messages)
        conversations.append(conversation)
        arrivals.append(asked)
        told.append(after_turns)
    hashes = array("Q", (number + 1 << 20 for number in range(len(numbers))))
    return Workload("recorded", conversations, hashes, page_tokens), arrivals


def _arrival(body: dict[str, Any], name: str) -> Arrival:
    """As the proxy hands it in."""
    raw = msgspec.json.encode(body)
    prompt = read(raw, "chat")
    return Arrival(
        request_id=name,
        endpoint="chat",
        body_bytes=len(raw),
        stream=prompt.stream,
        model=prompt.model,
        fingerprint=fingerprint(prompt, SEED),
    )


def _numbered(hashes: Sequence[int], numbers: dict[int, int]) -> list[int]:
    return [numbers.setdefault(each, len(numbers)) for each in hashes]
