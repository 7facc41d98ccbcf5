"""Replay a published trace of coding agents through one simulated replica, and say how long that took.

    python benchmarks/sim_replay.py [--requests 50000] [--json]

Closed loop: a fixed number of conversations at once, each of which sends its next request when the last is answered and
its client has thought. A trace that ends is begun anew with other conversations. Answers are not kept in the cache,
since the trace does not say how their tokens fall into the next prompt's blocks.
"""

# It stands alone, as a benchmark does.
# ruff: noqa: INP001

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from time import perf_counter

import click

from ramjet.sim.engine import Engine, Job
from ramjet.sim.profile import PROFILES, Profile
from ramjet.sim.traces import TraceRequest, read

TRACE = Path(__file__).parents[1] / "ramjet" / "lab" / "data" / "claude-code-agentic.jsonl.gz"
PROFILE = "glm-5.3-flash-tp2"
STATES_PER_PATH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a replay has seen."""

    profile: str
    at_once: int
    requests: int
    conversations: int
    too_long: int
    """Requests that no replica of this profile could take, and that were left out."""
    prompt_tokens: int
    cached_share: float
    virtual_s: float
    seconds: float
    """What it took in fact; all else is the same in every run."""

    @property
    def requests_per_s(self) -> float:
        """The speed of the simulation."""
        return self.requests / self.seconds


class Replay:
    """Clients in virtual time, in front of one replica."""

    def __init__(self, profile: Profile, sessions: Iterator[Iterator[TraceRequest]]) -> None:
        self.engine = Engine(profile, whole_runs=True)
        self.sent = self.conversations = self.too_long = 0
        self._most_tokens = profile.most_tokens
        self._sessions = sessions
        self._places: list[Iterator[TraceRequest]] = []
        # When somebody sends next, and what; each place has one request here or in the engine.
        self._coming: list[tuple[float, int, TraceRequest]] = []
        self._place_of: dict[Job, int] = {}

    def run(self, requests: int, at_once: int) -> None:
        """Send so many requests, and wait until all are answered."""
        for place in range(at_once):
            self._places.append(iter(()))
            self._think(place, 0.0)
        while self.sent < requests:
            happens = self.engine.next_at
            if happens is not None and (not self._coming or happens < self._coming[0][0]):
                self._advance(happens)
                continue
            due, place, request = heapq.heappop(self._coming)
            self._advance(due)
            job = Job(request.blocks, request.prompt_tokens, max(1, request.answer_tokens))
            self.engine.submit(job, due)
            self._place_of[job] = place
            self.sent += 1
        while (happens := self.engine.next_at) is not None:
            self.engine.advance(happens)

    def _advance(self, now: float) -> None:
        for event in self.engine.advance(now):
            if event.kind == "end":
                self._think(self._place_of.pop(event.job), event.at)

    def _think(self, place: int, now: float) -> None:
        """The next request of a place is on its way: of the same conversation or, where that is over, of another."""
        while True:
            for request in self._places[place]:
                if request.prompt_tokens + max(1, request.answer_tokens) <= self._most_tokens:
                    heapq.heappush(self._coming, (now + (request.think_s or 0.0), place, request))
                    return
                self.too_long += 1
            self._places[place] = next(self._sessions)
            self.conversations += 1


def sessions(path: Path) -> Iterator[Iterator[TraceRequest]]:
    """The conversations of a trace, over and over; each time they are other ones."""
    for seed in count():
        with gzip.open(path) as lines:
            for conversation in read(lines):
                yield conversation.requests(seed)


def replay(requests: int, at_once: int) -> Result:
    """Replay so many requests of the trace."""
    profile = PROFILES[PROFILE].with_flags(states_per_path=STATES_PER_PATH)
    began = perf_counter()
    played = Replay(profile, sessions(TRACE))
    played.run(requests, at_once)
    seconds = perf_counter() - began
    engine = played.engine
    return Result(
        profile=f"{PROFILE} --states-per-path {STATES_PER_PATH}",
        at_once=at_once,
        requests=played.sent,
        conversations=played.conversations,
        too_long=played.too_long,
        prompt_tokens=engine.prompt_tokens_total,
        cached_share=engine.cached_tokens_total / engine.prompt_tokens_total,
        virtual_s=engine.now,
        seconds=seconds,
    )


@click.command()
@click.option("--requests", type=click.IntRange(min=1), default=50_000, show_default=True, help="How many to replay.")
@click.option("--at-once", type=click.IntRange(min=1), default=8, show_default=True, help="Conversations at a time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(requests: int, at_once: int, *, as_json: bool) -> None:
    """Replay a published trace through one simulated replica."""
    result = replay(requests, at_once)
    if as_json:
        click.echo(json.dumps(asdict(result) | {"requests_per_s": result.requests_per_s}))
        return
    click.echo(f"{result.requests:,} requests of {result.conversations} conversations, {at_once} at a time")
    click.echo(f"on {result.profile}; {result.too_long:,} too long for it were left out")
    click.echo(f"{result.seconds:.1f} s, {result.requests_per_s:,.0f} requests a second")
    click.echo(f"{result.cached_share:.1%} of {result.prompt_tokens:,} prompt tokens cached")
    click.echo(f"{result.virtual_s / 3_600:,.0f} virtual hours")


if __name__ == "__main__":
    main()
