"""The replicas: facts, health with hysteresis, drain, and the ledger of what is in flight.

An engine with data-parallel ranks has a cache for each of them behind one URL. Each rank is a replica here, with a
belief, a load and a state of its own; what is found out of the URL is true of all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from ramjet.core.others import Others
from ramjet.core.pools import Pools


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What it takes to believe a change: one bad probe is noise, and so is one good one."""

    failures: int = 3
    """Bad probes in a row."""
    successes: int = 2
    """Good probes in a row."""
    delivering_s: float = 10.0
    """A replica that delivered a byte within this time is at work, whatever a probe says: busy engines answer late."""
    wedged_s: float = 600.0
    """A replica that has requests and delivered no byte to any of them for so long is wedged, whatever its health says."""


class State(Enum):
    """Whether a replica may get requests."""

    UP = "up"
    TRIAL = "trial"
    """Its probes are good again. It gets one request at a time, until one of them has seen a good answer's first byte."""
    DOWN = "down"


_RANK = re.compile(r"\.[0-9]+\Z")


def rank_name(whole: str, rank: int) -> str:
    """What a rank of a replica is called."""
    return f"{whole}.{rank}"


def whole_name(name: str) -> str:
    """The replica that a name belongs to, if it is that of a rank. No replica may be called like another's rank."""
    return _RANK.sub("", name)


@dataclass(slots=True, eq=False)
class Replica:
    """One model copy behind one URL, or one of several there."""

    name: str
    url: str
    """Where it is, without a trailing slash; a base path is kept."""
    rank: int | None = None
    """Which of the engine's data-parallel ranks it is, from 0; None where the engine chooses, or has but one."""
    configured: Pools = Pools()
    """How large its cache is, by the configuration..."""
    reported: Pools = Pools()
    """...and by its own word, which counts where the configuration says nothing."""
    models: frozenset[str] = frozenset()
    """Names of the models it lists; empty when it has not said."""
    thresholds: Thresholds = Thresholds()

    state: State = State.UP
    """Believed up until shown otherwise, so that a proxy just started serves at once."""
    draining: bool = False
    drained_by_hand: bool = False
    """Whether it is an operator who wants that: whoever has found it does not change it."""
    unproven: bool = False
    """It was found, and no probe of it has been good yet: until one is it gets nothing, for it may still be starting."""
    failures: int = 0
    successes: int = 0
    last_error: str | None = None
    delivered_at: float = -math.inf
    """When it last delivered a byte of an answer."""
    silent_since: float | None = None
    """Since when it owes a byte: from the first request in flight, or the last byte; None while nothing is in flight."""

    others: Others = field(default_factory=Others)
    """What clients have there that do not come through here."""
    in_flight: int = 0
    peers_in_flight: int = 0
    """Requests that other Ramjets have there, as far as they have told."""
    queue: dict[object, float] = field(default_factory=dict)
    """Seconds of reading of each prompt that was sent there and has not been read, in order."""
    _reading_since: float = 0.0
    """When the first of them became the first."""

    @property
    def whole(self) -> str:
        """The name that the configuration has for it and for the other ranks at its URL."""
        return self.name if self.rank is None else whole_name(self.name)

    @property
    def identity(self) -> str:
        """What is the same for every router: where it is."""
        return self.url if self.rank is None else f"{self.url}#{self.rank}"

    @property
    def pools(self) -> Pools:
        """How large its cache is, as far as anybody has said."""
        return self.configured.over(self.reported)

    @property
    def serving(self) -> bool:
        """Whether it may be given a request now."""
        return not self.draining and (self.state is State.UP or (self.state is State.TRIAL and not self.in_flight))

    @property
    def all_in_flight(self) -> int:
        """Requests that Ramjets have there, this one and its peers."""
        return self.in_flight + self.peers_in_flight

    @property
    def queue_s(self) -> float:
        """Seconds of reading sent there and not finished."""
        return sum(self.queue.values())

    def queue_at(self, now: float) -> float:
        """The same, less what has been done of the one that is being read."""
        if not self.queue:
            return 0.0
        first_s = next(iter(self.queue.values()))
        return self.queue_s - min(first_s, max(0.0, now - self._reading_since))

    def ahead_s(self, now: float) -> float:
        """Seconds of reading before whoever comes now, that of others included."""
        return self.queue_at(now) + self.others.at(now).queue_s

    def line_up(self, who: object, reading_s: float, now: float) -> None:
        """A prompt has been sent there that takes so long to read."""
        if not self.queue:
            self._reading_since = now
        self.queue[who] = reading_s

    def read(self, who: object, now: float) -> None:
        """One of the prompts has been read, or never will be; a second call does nothing."""
        was_first = next(iter(self.queue), None) is who
        if self.queue.pop(who, None) is not None and was_first:
            self._reading_since = now

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What is found to be read inside is not, once it is left."""
        queue, since = self.queue.copy(), self._reading_since
        try:
            yield
        finally:
            self.queue, self._reading_since = queue, since

    def probed(self, now: float, *, error: str | None, refused: bool = False, delivered_at: float = -math.inf) -> bool:
        """Take in one probe, or one request that failed to connect; True when `state` changed.

        Args:
            now: when.
            error: what went wrong; None for a good probe.
            refused: nobody listens there. That is no noise: it counts at once.
            delivered_at: when another rank at its URL last delivered a byte: what is probed is the same for all.
        """
        was = self.state
        if error is None:
            self.failures, self.successes = 0, self.successes + 1
            if self.is_wedged(now):
                error = f"wedged: no byte for {now - (self.silent_since or now):.0f} s"
                self._down()
            elif self.unproven:
                self.state, self.unproven = State.UP, False
            elif self.state is State.DOWN and self.successes >= self.thresholds.successes:
                self.state = State.TRIAL
        else:
            self.failures, self.successes = self.failures + 1, 0
            outvoted = now - max(self.delivered_at, delivered_at) < self.thresholds.delivering_s
            if refused or (self.failures >= self.thresholds.failures and not outvoted):
                self._down()
        self.last_error = error
        return self.state is not was

    def to_prove(self) -> None:
        """Somebody says that it is there, and nobody knows it: what it is good for is to be seen first."""
        self.state, self.unproven, self.last_error = State.DOWN, True, "not probed yet"

    def sent(self, now: float, *, by_peer: bool = False) -> None:
        """A request has been sent to it. What it owes to a peer it does not owe here: the peer would not tell of its bytes."""
        if by_peer:
            self.peers_in_flight += 1
            return
        self.in_flight += 1
        if self.silent_since is None:
            self.silent_since = now

    def done(self, *, by_peer: bool = False) -> None:
        """A request of its has ended, whichever way."""
        if by_peer:
            self.peers_in_flight -= 1
            return
        self.in_flight -= 1
        if not self.in_flight:
            self.silent_since = None

    def answered(self, now: float) -> None:
        """It has said something, be it that it failed: it is not wedged."""
        self.silent_since = now if self.in_flight else None

    def delivered(self, now: float) -> bool:
        """It has delivered bytes of a good answer, which is the best sign of health; True when `state` changed."""
        self.silent_since = now if self.in_flight else None
        self.delivered_at = now
        if self.state is not State.TRIAL:
            return False
        self.state = State.UP
        return True

    def is_wedged(self, now: float) -> bool:
        """Whether it takes requests and does nothing with them."""
        return self.silent_since is not None and now - self.silent_since > self.thresholds.wedged_s

    def take_over(self, other: Replica) -> None:
        """Be as healthy as a replica at the same URL, as drained, and with the same models."""
        self.state, self.draining, self.models = other.state, other.draining, other.models
        self.drained_by_hand, self.unproven = other.drained_by_hand, other.unproven
        self.failures, self.successes, self.last_error = other.failures, other.successes, other.last_error
        self.delivered_at, self.reported = other.delivered_at, other.reported

    def _down(self) -> None:
        self.state = State.DOWN
        self.successes = 0


@dataclass(slots=True)
class Fleet:
    """The replicas by name, in the order of the config."""

    replicas: dict[str, Replica] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    def __len__(self) -> int:
        return len(self.replicas)

    def __getitem__(self, name: str) -> Replica:
        return self.replicas[name]

    def add(self, replica: Replica) -> None:
        """Take a replica in."""
        if replica.name in self.replicas:
            raise ValueError(f"replica {replica.name} is named twice")
        self.replicas[replica.name] = replica

    def remove(self, name: str) -> Replica:
        """Let a replica go; what it still has in flight keeps it until it ends."""
        return self.replicas.pop(name)

    def arrange(self, names: Sequence[str]) -> None:
        """Put the replicas in this order, which has to name them all."""
        self.replicas = {name: self.replicas[name] for name in names}

    @property
    def urls(self) -> list[str]:
        """Where they are, each URL once."""
        return list(dict.fromkeys(each.url for each in self))

    def at(self, url: str) -> list[Replica]:
        """The replicas at a URL: one, or its ranks."""
        return [each for each in self if each.url == url]

    def named(self, name: str) -> list[Replica]:
        """The replica of this name, or all ranks of the one that has it; nothing where there is no such replica."""
        return [self.replicas[name]] if name in self.replicas else [each for each in self if each.whole == name]

    def probed(self, url: str, now: float, *, error: str | None, refused: bool = False) -> list[Replica]:
        """Take in what was found out at a URL, for all that are there; those whose `state` changed."""
        there = self.at(url)
        delivered_at = max((each.delivered_at for each in there), default=-math.inf)
        return [each for each in there if each.probed(now, error=error, refused=refused, delivered_at=delivered_at)]

    @property
    def serving(self) -> list[Replica]:
        """Those that may be given a request now."""
        return [replica for replica in self if replica.serving]

    @property
    def able(self) -> list[Replica]:
        """Those that serve; where none does, those on trial; where there are none either, all but the drained and the
        unproven: trying beats refusing."""
        up = [replica for replica in self.replicas.values() if replica.state is State.UP and not replica.draining]
        if len(up) == len(self.replicas):
            return up  # as nearly always
        willing = [replica for replica in self if not (replica.draining or replica.unproven)]
        return self.serving or [each for each in willing if each.state is not State.DOWN] or willing

    @property
    def status(self) -> str:
        """`ok` when all can serve, `degraded` when some can, `down` when none can."""
        able = sum(each.state is not State.DOWN and not each.draining for each in self)
        return "down" if not able else "ok" if able == len(self) else "degraded"
