"""Plays a span under other settings: the production router, simulated replicas, virtual time.

found = replay(span, maker.make("a cap of two", {"per_path": 2}))
found.figures.mean_wait_s
kept(seen(span), replay(span, maker.make("as it was")).outcomes, found.outcomes)
"""

from __future__ import annotations

import signal
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from ramjet.core.fleet import Fleet
from ramjet.core.record import Record
from ramjet.core.router import Policy
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Visit
from ramjet.lab.loop import play
from ramjet.lab.policies import Request
from ramjet.lab.production import Routed, arrival_of
from ramjet.lab.workloads import BLOCK_TOKENS
from ramjet.plan.figures import Figures, Outcome, figures, outcome_of
from ramjet.plan.setup import SettingsError, Setup
from ramjet.plan.span import Asked, Span
from ramjet.plan.workload import Playable, playable
from ramjet.sim.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What became of a span under some settings."""

    name: str
    outcomes: Sequence[Outcome]
    """Of each of its requests, in the span's order."""
    figures: Figures


def replay(span: Span, setup: Setup) -> Replay:
    """Play a span; equal spans and settings give equal outcomes.

    Raises:
        SettingsError: a request is longer than a replica can take.
        RuntimeError: the router holds requests and lets none go.
    """
    # A journal's blocks are the router's, and the engine has its pages; a trace's blocks are the laboratory's for both.
    profiles = setup.profiles(None if span.observed else BLOCK_TOKENS)
    play_of = playable(span, profiles[0].page_tokens)
    most = play_of.workload.most_tokens
    least = min(profile.most_tokens for profile in profiles)
    if most > least:
        raise SettingsError(
            f"a request of {most:,} tokens, its answer included, fits no replica that takes {least:,} at most: give more "
            "tokens, or another span"
        )
    policy = Replaying(setup.fleet(), setup.policy, span, play_of)
    servers = [Engine(profile, whole_runs=True) for profile in profiles]
    requests = play(play_of.workload, policy, servers, reports_cached=profiles[0].reports_cached)
    outcomes: list[Outcome | None] = [None] * len(span.requests)
    for request in requests:
        place, record = policy.place_of(request), policy.records[request.number]
        assert request.first_at is not None
        assert request.ended_at is not None
        wait_s = request.first_at - request.arrived_at
        outcome = outcome_of(record, request.prompt_tokens, wait_s, request.ended_at)
        outcomes[place] = replace(outcome, name=span.requests[place].name)
    found = [each for each in outcomes if each is not None]
    return Replay(name=setup.name, outcomes=found, figures=figures(span, found))


class Replaying(Routed):
    """The production router, to which requests come as they came then."""

    def __init__(self, fleet: Fleet, policy: Policy, span: Span, play_of: Playable) -> None:
        super().__init__(fleet, policy)
        self._span = span
        self._turns = play_of.places
        self._heads: dict[int, int] = {}
        self.records: dict[int, Record] = {}
        """By the number of the request."""

    def place_of(self, request: Request) -> int:
        """Where in the span a request is from."""
        return self._turns[request.conversation][request.turn - 1]

    def _asked(self, request: Request) -> Asked:
        return self._span.requests[self.place_of(request)]

    def _arrival(self, request: Request) -> Arrival:
        arrival = self._asked(request).arrival
        if arrival is None:
            return arrival_of(request, self._heads)
        assert arrival.fingerprint is not None
        # Where its messages ended the journal does not say: it may be cut at any block.
        return replace(arrival, cuts=arrival.fingerprint.usable.ends[:-1])

    def _depths(self, request: Request, visit: Visit) -> list[int]:
        asked = self._asked(request)
        if asked.arrival is None:
            return super()._depths(request, visit)
        assert visit.lease is not None
        return [bisect_right(request.blocks.ends, asked.blocks.ends[start.cut]) for start in visit.lease.starts]

    def _usage(self, request: Request, prompt_tokens: int, cached_tokens: int | None) -> Usage:
        answer_tokens = self._asked(request).answer_tokens
        return Usage(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, completion_tokens=answer_tokens)

    def _ended(self, request: Request, visit: Visit, record: Record) -> None:  # noqa: ARG002 - others look at it
        self.records[request.number] = record


# -- what would have been kept ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Cold turns that other settings would have kept warm, by the names of the requests."""

    cold: Sequence[str]
    """Those that were cold..."""
    explained: Sequence[str]
    """...those of them that a replay of what held then finds cold too..."""
    kept: Sequence[str]
    """...and those of these that the other settings keep. Of the rest nothing is known."""


def kept(then: Sequence[Outcome], as_it_was: Sequence[Outcome], otherwise: Sequence[Outcome]) -> Kept:
    """Count which cold turns other settings would have kept; all three are of one span, in its order."""
    cold, explained, found = [], [], []
    for seen, again, other in zip(then, as_it_was, otherwise, strict=True):
        if seen.temperature != "cold":
            continue
        cold.append(seen.name)
        if again.temperature == "cold":
            explained.append(seen.name)
            if other.temperature in {"warm", "partial"}:
                found.append(seen.name)
    return Kept(cold=cold, explained=explained, kept=found)


# -- several at a time --------------------------------------------------------------------------------------------------

_SPAN: list[Span] = []
"""What a worker plays, sent to it once."""


def replay_all(span: Span, setups: Sequence[Setup], *, processes: int) -> Iterator[tuple[int, Replay | str]]:
    """Play a span under each of several settings; gives the place of each and what became of it, as they come.

    Settings under which it cannot be played give the reason.
    """
    if processes == 1 or len(setups) == 1:
        _take(span)
        yield from ((place, _tried(setup)) for place, setup in enumerate(setups))
        return
    # New interpreters: a progress bar has a thread, and a process with threads should not be forked.
    pool = ProcessPoolExecutor(
        min(processes, len(setups)), mp_context=get_context("spawn"), initializer=_begin, initargs=(span,)
    )
    try:
        places = {pool.submit(_tried, setup): place for place, setup in enumerate(setups)}
        for done in as_completed(places):
            yield places[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(span: Span) -> None:
    """Ctrl-C ends a worker without a word; the parent says what is to be said."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _take(span)


def _take(span: Span) -> None:
    _SPAN[:] = [span]


def _tried(setup: Setup) -> Replay | str:
    try:
        return replay(_SPAN[0], setup)
    except (SettingsError, RuntimeError) as error:
        return str(error)
