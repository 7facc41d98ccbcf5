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

from msgspec import structs

from ramjet.core import policies
from ramjet.core.fleet import Fleet
from ramjet.core.record import Record
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Visit
from ramjet.lab import loop
from ramjet.lab.policies import BASELINES, Infinite, Policy, Request
from ramjet.lab.production import Routed, arrival_of
from ramjet.lab.turns import BLOCK_TOKENS
from ramjet.plan.figures import Figures, Outcome, figures, outcome_of
from ramjet.plan.setup import SettingsError, Setup
from ramjet.plan.span import Asked, Span
from ramjet.plan.workload import Playable, playable
from ramjet.sim.engine import Engine
from ramjet.sim.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What became of a span under some settings."""

    name: str
    outcomes: Sequence[Outcome]
    """Of each of its requests, in the span's order."""
    figures: Figures
    spread: float | None = None
    """How far the mean waits of several plays lie apart, as a share of the middle one; None for a single play."""


def replay(span: Span, setup: Setup, play: int = 0) -> Replay:
    """Play a span; equal arguments give equal outcomes.

    Args:
        span: what was asked.
        setup: the settings.
        play: 0 for the gaps between turns as they were; other numbers for others that nobody could tell from them.

    Raises:
        SettingsError: a request is longer than a replica can take.
        RuntimeError: the router holds requests and lets none go.
    """
    # A journal's blocks are the router's, and the engine has its pages; a trace's blocks are the laboratory's for both.
    profiles = setup.profiles(None if span.observed else BLOCK_TOKENS)
    play_of = playable(span, profiles[0].page_tokens, play)
    most = play_of.workload.most_tokens
    least = min(profile.most_tokens for profile in profiles)
    if most > least:
        raise SettingsError(
            f"a request of {most:,} tokens, its answer included, fits no replica that takes {least:,} at most: give more "
            "tokens, or another span"
        )
    policy: Policy
    if setup.rival is None:
        policy = Replaying(setup.fleet(play), setup.policy, span, play_of)
    else:
        policy = BASELINES[setup.rival]([loop.facts_of(profile) for profile in profiles], play)
    servers = _servers(profiles, policy)
    reports_cached = not span.observed or any(
        each.seen.usage.cached_tokens is not None for each in span.requests if each.seen
    )
    requests = loop.play(play_of.workload, policy, servers, reports_cached=reports_cached)
    outcomes: list[Outcome | None] = [None] * len(span.requests)
    for request in requests:
        place = play_of.place_of(request)
        assert request.first_at is not None
        assert request.ended_at is not None
        wait_s = request.first_at - request.arrived_at
        asked = span.requests[place]
        record = policy.records[request.number] if isinstance(policy, Replaying) else _record(request, asked)
        outcome = outcome_of(record, request.prompt_tokens, wait_s, request.ended_at)
        outcomes[place] = replace(outcome, name=asked.name)
    found = [each for each in outcomes if each is not None]
    return Replay(name=setup.name, outcomes=found, figures=figures(span, found))


def _servers(profiles: Sequence[Profile], policy: Policy) -> list[loop.Server]:
    if isinstance(policy, Infinite):
        return [loop.Ideal(profiles[0])]
    return [Engine(profile, whole_runs=True) for profile in profiles]


def _record(request: Request, asked: Asked) -> Record:
    """What there is to say of a request that another router placed."""
    assert request.placed_at is not None
    return Record(
        request_id=asked.name,
        endpoint="",
        # Whose turn it is no other router would know.
        turn=request.turn if asked.seen is None else asked.seen.turn,
        reusable_tokens=request.reusable_tokens,
        usage=Usage(prompt_tokens=request.prompt_tokens, cached_tokens=request.cached_tokens),
        held_s=request.placed_at - request.arrived_at,
        replica=None if request.replica is None else str(request.replica),
    )


class Replaying(Routed):
    """The production router, to which requests come as they came then."""

    def __init__(self, fleet: Fleet, policy: policies.Policy, span: Span, play_of: Playable) -> None:
        super().__init__(fleet, policy)
        self._span = span
        self._play_of = play_of
        self._heads: dict[int, int] = {}
        self.records: dict[int, Record] = {}
        """By the number of the request."""

    def _asked(self, request: Request) -> Asked:
        return self._span.requests[self._play_of.place_of(request)]

    def _arrival(self, request: Request) -> Arrival:
        arrival = self._asked(request).arrival
        if arrival is None:
            return arrival_of(request, self._heads)
        assert arrival.fingerprint is not None
        # Where its messages ended the journal does not say: it may be cut at any block.
        return structs.replace(arrival, cuts=arrival.fingerprint.usable.ends[:-1])

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


def middle(plays: Sequence[Replay]) -> Replay:
    """Of several plays under the same settings the one with the middle mean wait, and how far they lie apart."""
    waits = sorted(each.figures.mean_wait_s or 0.0 for each in plays)
    wait_s = waits[(len(waits) - 1) // 2]
    chosen = next(each for each in plays if (each.figures.mean_wait_s or 0.0) == wait_s)
    if len(plays) == 1:
        return chosen
    return replace(chosen, spread=round((waits[-1] - waits[0]) / wait_s, 4) if wait_s else 0.0)


def replay_all(
    span: Span, setups: Sequence[Setup], *, plays: int = 1, processes: int
) -> Iterator[tuple[int, Replay | str]]:
    """Play a span under each of several settings; gives the place of each and what became of each play, as they come.

    Settings under which it cannot be played give the reason.
    """
    tasks = [(place, setup, play) for play in range(plays) for place, setup in enumerate(setups)]
    if processes == 1 or len(tasks) == 1:
        _take(span)
        yield from ((place, _tried(setup, play)) for place, setup, play in tasks)
        return
    # New interpreters: a progress bar has a thread, and a process with threads should not be forked.
    pool = ProcessPoolExecutor(
        min(processes, len(tasks)), mp_context=get_context("spawn"), initializer=_begin, initargs=(span,)
    )
    try:
        places = {pool.submit(_tried, setup, play): place for place, setup, play in tasks}
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


def _tried(setup: Setup, play: int) -> Replay | str:
    try:
        return replay(_SPAN[0], setup, play)
    except (SettingsError, RuntimeError) as error:
        return str(error)
