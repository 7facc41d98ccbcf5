"""A workload of the laboratory played in real time: HTTP clients, a real Ramjet, simulated replicas in their processes.

Real time is compressed: it passes `speed` times as fast, to the replicas by their own clock, to Ramjet and the clients by
a clock and a loop in a hurry. All times here are of that kind, as in the laboratory.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import multiprocessing
import selectors
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from typing import Any

import aiohttp
import msgspec

from ramjet.lab.loop import facts_of, simulate
from ramjet.lab.policies import Request
from ramjet.lab.production import POLICIES
from ramjet.lab.turns import BLOCK_TOKENS, Run, Turn, Workload
from ramjet.lab.workloads import WORKLOADS, build
from ramjet.replica.server import running_replica
from ramjet.sim.profile import Profile, Timing
from ramjet.sim.prompt import render_chat
from ramjet.sim.tokens import TOKEN_CHARACTERS
from tests.evidence.clients import Body, Clients, noise
from tests.soak.process import served

_OPENING = render_chat({"messages": [{"role": "system", "content": ""}]}).index("\n") + 1
"""Characters before the text of a system prompt."""

Messages = list[dict[str, str]]


# -- what clients say -----------------------------------------------------------------------------------------------


class Talk:
    """A conversation's messages, as the replica renders them: as many tokens as the workload says, and the same blocks.

    What conversations share is a system prompt. A prompt and its answer are how the next turn begins.
    """

    def __init__(self, number: int, shared: frozenset[Run]) -> None:
        self._number = number
        self._shared = shared
        self._blocks = 0
        self.messages: Messages = []

    def say(self, turn: Turn) -> None:
        """Let the client say what makes the next prompt.

        Raises:
            ValueError: messages cannot do that.
        """
        if turn.keep not in {0, self._blocks}:
            raise ValueError(f"the turn keeps {turn.keep} of {self._blocks} blocks, and messages are kept or dropped")
        if not turn.keep:
            system = "".join(map(_text_of, (run for run in turn.added if run in self._shared)))
            # Its newline begins the next block.
            self.messages = [{"role": "system", "content": system[_OPENING:]}] if system else []
        self._blocks = turn.keep + sum(count for _, count in turn.added)
        user = {"role": "user", "content": ""}
        missing = TOKEN_CHARACTERS * turn.prompt_tokens - len(render_chat({"messages": [*self.messages, user]}))
        if missing < 0:
            raise ValueError(f"a prompt of {turn.prompt_tokens} tokens has no room for a message")
        user["content"] = noise(f"{self._number} {self._blocks} {turn.prompt_tokens}", missing)
        self.messages.append(user)

    def hear(self, answer: str) -> None:
        """The replica has answered."""
        self.messages.append({"role": "assistant", "content": answer})


def shared_runs(workload: Workload) -> frozenset[Run]:
    """The runs with which several prompts begin."""
    first = Counter(
        run for each in workload.conversations for turn in each.turns if not turn.keep for run in turn.added
    )
    return frozenset(run for run, times in first.items() if times > 1)


def _text_of(run: Run) -> str:
    return noise(f"run {run[0]}", run[1] * BLOCK_TOKENS * TOKEN_CHARACTERS)


# -- the play -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One turn as its client saw it."""

    conversation: int
    turn: int
    """From 1."""
    arrived_at: float
    first_at: float
    prompt_tokens: int
    cached_tokens: int
    request_id: str

    @property
    def wait_s(self) -> float:
        """From its sending to its first token."""
        return self.first_at - self.arrived_at


async def play(workload: Workload, url: str, *, speed: float, until_s: float = math.inf) -> list[Seen]:
    """Be the workload's clients, in a closed loop; no turn is sent after `until_s`."""
    return await _Play(workload, url, speed, until_s).run()


class _Play(Clients):
    def __init__(self, workload: Workload, url: str, speed: float, until_s: float) -> None:
        super().__init__(workload, url, speed, until_s)
        shared = shared_runs(workload)
        self._talks = [Talk(number, shared) for number in range(len(workload.conversations))]
        self._seen: list[Seen] = []

    async def run(self) -> list[Seen]:
        await self.play()
        return self._seen

    async def turn(self, session: aiohttp.ClientSession, conversation: int, late_s: float) -> None:
        """Send it, and note what its client saw."""
        turn, number, _ = self.clients.send(conversation)
        talk = self._talks[conversation]
        talk.say(turn)
        body = {
            "model": "any",
            "messages": talk.messages,
            "max_tokens": turn.answer_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        raw, head = msgspec.json.encode(body), {"content-type": "application/json"}
        arrived_at = self.now()
        async with session.post(self.url, data=Body(raw), headers=head) as answer:
            pieces = [await answer.content.readany()]
            first_at = self.now()
            if answer.status != 200:
                raise RuntimeError(f"conversation {conversation}, turn {number}: {answer.status} {pieces[0]!r}")
            while piece := await answer.content.readany():
                pieces.append(piece)
        said, usage = _read(b"".join(pieces))
        if (usage["prompt_tokens"], usage["completion_tokens"]) != (turn.prompt_tokens, turn.answer_tokens):
            raise RuntimeError(f"conversation {conversation}, turn {number}: {usage} instead of {turn}")
        talk.hear(said)
        self._seen.append(
            Seen(
                conversation=conversation,
                turn=number,
                arrived_at=arrived_at,
                first_at=first_at,
                prompt_tokens=usage["prompt_tokens"],
                cached_tokens=(usage["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"],
                request_id=answer.headers.get("x-request-id", ""),
            )
        )


def _read(stream: bytes) -> tuple[str, dict[str, Any]]:
    """What was said, and the usage at the end."""
    chunks = [msgspec.json.decode(line[6:]) for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    said = (each["delta"]["content"] for chunk in chunks for each in chunk["choices"])
    return "".join(filter(None, said)), chunks[-1]["usage"]


# -- in processes of their own --------------------------------------------------------------------------------------


def _replicas(profile: Profile, count: int, speed: float, pipe: Connection) -> None:
    """Replicas, until the pipe is closed at its other end."""

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            running = [running_replica(profile, speed=speed, whole_runs=True) for _ in range(count)]
            pipe.send([(await stack.enter_async_context(each)).url for each in running])
            await asyncio.get_running_loop().run_in_executor(None, pipe.poll, None)

    # Its timers are finer than uvloop's, which are whole milliseconds.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(serve())


@contextlib.contextmanager
def replicas(profile: Profile, count: int, speed: float) -> Iterator[list[str]]:
    """Simulated replicas; their URLs."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_replicas, args=(profile, count, speed, there), daemon=True)
    process.start()
    there.close()
    try:
        yield here.recv()
    finally:
        here.close()
        process.join()


def settings_for(profile: Profile, urls: Sequence[str]) -> dict[str, Any]:
    """Ramjet's configuration: what the laboratory's is told, and else the defaults."""
    facts = facts_of(profile)
    told = {
        "pool_tokens": facts.pool_tokens,
        "snapshot_slots": facts.slots,
        "snapshots_per_path": facts.per_path,
        "chunk_tokens": facts.chunk_tokens,
    }
    return {
        "replicas": [{"name": str(number), "url": url, **told} for number, url in enumerate(urls)],
        # Often enough, and else a probe in the twinkling of an eye.
        "health": {"interval_s": 60.0},
    }


# -- a play as figures ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """A workload played once. Times are means over its turns."""

    turns: int
    wait_s: float
    held_s: float
    cached_share: float
    beside_s: float
    """What half of the turns waited for longer than they were held and took to read: for others, and in real time for HTTP,
    hashing, and a processor."""


def real(name: str, seed: int, speed: float, until_s: float = math.inf) -> Play:
    """Play one of the laboratory's workloads in real time.

    Raises:
        RuntimeError: something went wrong on the way: Ramjet has logged more than requests.
    """
    recipe = WORKLOADS[name]

    async def through_ramjet(urls: Sequence[str], directory: Path) -> tuple[list[Seen], list[dict[str, Any]]]:
        program = ("-m", "tests.evidence.hurry", str(speed))
        async with served(settings_for(recipe.profile, urls), directory, program=program) as ramjet:
            seen = await play(build(name, seed), ramjet.url, speed=speed, until_s=until_s)
            await ramjet.in_flight()
            return seen, list(ramjet.lines())

    with replicas(recipe.profile, recipe.replicas, speed) as urls, tempfile.TemporaryDirectory() as directory:
        seen, lines = asyncio.run(through_ramjet(urls, Path(directory)))
    if wrong := [line for line in lines if line["level"] != "info"]:
        raise RuntimeError(f"{name}, seed {seed}: {wrong[0]}")
    held_s = {line["request_id"]: line["held_s"] for line in lines if line["event"] == "request"}
    turns = [(each.wait_s, held_s[each.request_id], each.prompt_tokens, each.cached_tokens) for each in seen]
    return _figures(recipe.profile.timing, turns)


def virtual(name: str, seed: int, secret: int, until_s: float = math.inf) -> Play:
    """Play it in virtual time, with hashes of their own for each `secret`, as each Ramjet has them."""
    recipe = WORKLOADS[name]
    factory = POLICIES["ramjet"]
    done = simulate(build(name, seed), factory, secret, replicas=recipe.replicas, profile=recipe.profile)
    turns = [
        (_since(each, each.first_at), _since(each, each.placed_at), each.prompt_tokens, each.cached_tokens or 0)
        for each in done
        if each.arrived_at < until_s
    ]
    return _figures(recipe.profile.timing, turns)


def _since(request: Request, at: float | None) -> float:
    assert at is not None
    return at - request.arrived_at


def _figures(timing: Timing, turns: Iterable[tuple[float, float, int, int]]) -> Play:
    """From each turn's wait, the part of it that it was held, and its tokens, those cached last."""
    waits_s, held_s, prompt_tokens, cached_tokens = zip(*turns, strict=True)
    alone_s = (
        timing.overhead_s + timing.read_s(cached, prompt)
        for cached, prompt in zip(cached_tokens, prompt_tokens, strict=True)
    )
    return Play(
        turns=len(waits_s),
        wait_s=fmean(waits_s),
        held_s=fmean(held_s),
        cached_share=sum(cached_tokens) / sum(prompt_tokens),
        beside_s=median(map(lambda wait, held, alone: wait - held - alone, waits_s, held_s, alone_s)),
    )
