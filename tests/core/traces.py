"""Whatever can happen to a router, as rows of plain values: played to two of them, or in another process.

Run as a program, it plays the traces of some seeds and prints a digest of all that was decided.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec.structs import asdict

from ramjet.core.admission import Terms
from ramjet.core.fingerprint import fingerprint
from ramjet.core.fleet import Fleet, Replica, State
from ramjet.core.policies import Policy
from ramjet.core.pools import Pools
from ramjet.core.prompt import Piece, Prompt
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Visit
from ramjet.lab.production import SHIPPED

Event = Sequence[Any]
"""A word for what happens, the seconds that pass before it, and what else it takes."""

SYSTEMS = (0, 3_000, 6_000)
"""Lengths of the system prompts that the talks share, in tokens."""
TALKS = 8
POOLS: tuple[dict[str, Any], ...] = (
    {},
    {"tokens": 20_000},
    {"tokens": 40_000},
    {"tokens": 40_000, "slots": 12, "per_path": 2, "chunk_tokens": 2_048},
    {"tokens": 80_000, "slots": 24, "chunk_tokens": 4_096},
)
"""Nothing known, token pools, and snapshot pools beside them; all small, so that they are soon full."""


def router(
    pools: Sequence[int], policy: Policy = SHIPPED, *, order: Sequence[int] | None = None, kind: type[Router] = Router
) -> Router:
    """A router over replicas with these pools, numbers into `POOLS`, which the configuration names in any order."""
    fleet = Fleet()
    for number in range(len(pools)) if order is None else order:
        fleet.add(Replica(f"r{number}", f"http://r{number}:30000", configured=Pools(**POOLS[pools[number]])))
    return kind(fleet, policy)


@dataclass(slots=True)
class Player:
    """Plays events to a router and says what came of each, in plain values."""

    router: Router
    apart_s: float = 0.0
    """What passes between the steps of one event."""
    now: float = 0.0
    running: list[Visit] = field(default_factory=list)
    held: list[Visit] = field(default_factory=list)
    ended: int = 0
    arrived: int = 0
    added: int = 0
    _talks: list[list[tuple[str, int]]] = field(
        default_factory=lambda: [[(f"talk {number}", 500 + 900 * number)] for number in range(TALKS)]
    )
    _sent: int = 0

    def play(self, event: Event) -> Any:
        """One event; what was decided by it."""
        kind, seconds, *rest = event
        self.now += seconds
        outcome = getattr(self, f"_{kind}")(*rest)
        if kind in {"serve", "first", "finish", "fail"}:
            return outcome, self._enter(quick=True)
        return outcome

    # -- what happens -----------------------------------------------------------------------------------------------

    def _say(self, talk: int, tokens: int, edits: int) -> Any:
        """A client sends a talk's next turn, or the last one with another ending."""
        messages = self._talks[talk]
        if edits and len(messages) > 1:
            del messages[-1]
        if tokens:
            messages.append((f"turn {self._sent}", tokens))
        self._sent += 1
        visit = self.router.arrive(self._arrival(talk), self.now)
        self.arrived += 1
        lease = self.router.place(visit, self.now)
        (self.held if lease is None and visit.held_since is not None else self.running).append(visit)
        if lease is None and visit.held_since is None:
            self.running.remove(visit)
            self.router.finish(visit, self.now, outcome="no_replica", status=503)
            self.ended += 1
        return self.decided(visit)

    def _serve(self, talk: int, tokens: int) -> Any:
        """A turn from its arrival to its end, if it is placed."""
        decided = self._say(talk, tokens, 0)
        if isinstance(decided, tuple):
            visit = self.running[-1]
            assert visit.lease is not None
            self.now += self.apart_s
            self.router.first_token(visit, self.now + visit.lease.reading_s)
            self._finish(-1, "ok", visit.lease.scored.candidate.matched_tokens / visit.prompt_tokens)
        return decided

    def _first(self, which: int) -> Any:
        """The first token of an answer."""
        if self.running:
            self.router.first_token(self.running[which % len(self.running)], self.now)

    def _finish(self, which: int, outcome: str, cached: float | None) -> Any:
        """The end of an answer; `cached` is what the engine says it reused, as a part of the prompt."""
        if not self.running:
            return None
        visit = self.running.pop(which % len(self.running))
        reused = None if cached is None else int(cached * visit.prompt_tokens)
        usage = Usage(prompt_tokens=visit.prompt_tokens, cached_tokens=reused)
        record = self.router.finish(
            visit, self.now, outcome=outcome, status=200, usage=usage if outcome == "ok" else None
        )
        self.ended += 1
        return record.turn, record.matched_tokens, record.moved

    def _busy(self, which: int, seconds: float) -> Any:
        """Something that was sent to a replica takes so long to read."""
        self._replica(which).line_up(object(), seconds, self.now)

    def _fail(self, which: int) -> Any:
        """A replica does not serve: another is tried, once."""
        if not self.running:
            return None
        visit = self.running.pop(which % len(self.running))
        if visit.first_token_at is None and len(visit.tried) < 2:
            self.router.failed(visit, self.now)
            self.now += self.apart_s
            if self.router.place(visit, self.now) is not None:
                self.running.append(visit)
                return self.decided(visit)
        self.router.finish(visit, self.now, outcome="upstream_connect", status=502)
        self.ended += 1
        return "failed"

    def _leave(self, which: int) -> Any:
        """A client that is held goes away."""
        if self.held:
            visit = self.held.pop(which % len(self.held))
            assert self.router.give_up(visit, self.now)
            self.router.finish(visit, self.now, outcome="client_disconnect", status=None)
            self.ended += 1

    def _tick(self) -> Any:
        """A second has passed, as far as the held are concerned."""
        return self._enter(quick=False)

    def _health(self, which: int, up: bool) -> Any:
        self._replica(which).state = State.UP if up else State.DOWN

    def _drain(self, which: int, drains: bool) -> Any:
        self._replica(which).draining = drains

    def _restart(self, which: int) -> Any:
        self.router.restarted(self._replica(which).name)

    def _resize(self, which: int, pools: int) -> Any:
        return self.router.resize(self._replica(which).name, configured=Pools(**POOLS[pools]))

    def _add(self, pools: int) -> Any:
        self.added += 1
        name = f"new{self.added}"
        self.router.add(Replica(name, f"http://{name}:30000", configured=Pools(**POOLS[pools])))

    def _remove(self, which: int) -> Any:
        if len(self.router.fleet) > 1:
            self.router.remove(self._replica(which).name)

    # -- inside -----------------------------------------------------------------------------------------------------

    def decided(self, visit: Visit) -> Any:
        """Where a request went, why, and what that costs."""
        if visit.lease is None:
            return "held" if visit.held_since is not None else "nobody"
        scored = visit.lease.scored
        return visit.lease.replica.name, visit.lease.reason, dict(scored.costs), asdict(scored.candidate)

    def _enter(self, *, quick: bool) -> Any:
        self.now += self.apart_s
        entered = self.router.admit(self.now, quick=quick)
        for visit in entered:
            self.held.remove(visit)
            self.running.append(visit)
        return [(visit.arrival.request_id, self.decided(visit)) for visit in entered]

    def _replica(self, which: int) -> Replica:
        return sorted(self.router.fleet, key=lambda replica: replica.name)[which % len(self.router.fleet)]

    def _arrival(self, talk: int) -> Arrival:
        system = SYSTEMS[talk % len(SYSTEMS)]
        pieces = [_message(f"system {talk % len(SYSTEMS)}", system)] if system else []
        (name, tokens), *later = self._talks[talk]
        pieces += [_message(name, tokens, ends_head=True), *(_message(name, tokens) for name, tokens in later)]
        prompt = Prompt("m", stream=True, stream_options=None, namespace=b"", pieces=tuple(pieces))
        return Arrival(
            request_id=f"q{self._sent}",
            endpoint="chat",
            body_bytes=prompt.size_bytes,
            stream=self._sent % 5 > 0,
            model="m",
            fingerprint=fingerprint(prompt, 7),
        )


def _message(name: str, tokens: int, *, ends_head: bool = False) -> Piece:
    return Piece(name.encode().ljust(4 * tokens), 4 * tokens, ends_message=True, ends_head=ends_head)


def drawn(seed: int, events: int = 80) -> list[Event]:
    """A trace of ordinary traffic, from a seed."""
    rng = random.Random(seed)
    row: list[Event] = []
    for _ in range(events):
        seconds = rng.choice((0.01, 0.5, 2.0, 9.0))
        kind = rng.choice(("serve", "say", "say", "say", "first", "first", "finish", "finish", "tick", "fail", "leave"))
        which = rng.randrange(8)
        rest = {
            "say": (rng.randrange(TALKS), rng.choice((200, 1_000, 8_000)), int(rng.random() < 0.1)),
            "serve": (rng.randrange(TALKS), rng.choice((200, 1_000, 8_000))),
            "finish": (which, rng.choice(("ok", "ok", "client_disconnect")), rng.choice((None, 0.0, 0.5, 0.95))),
            "tick": (),
        }.get(kind, (which,))
        row.append((kind, seconds, *rest))
    return row


def digest(seeds: int) -> str:
    """A number for everything that is decided in the traces of so many seeds."""
    hashed = hashlib.sha256()
    for seed in range(seeds):
        policy = replace(SHIPPED, terms=Terms(mode=("enforce", "observe", "off")[seed % 3]))
        player = Player(router([seed % 5, 2, 3], policy))
        for event in drawn(seed):
            hashed.update(json.dumps(player.play(event)).encode())
    return hashed.hexdigest()


if __name__ == "__main__":
    print(digest(int(sys.argv[1])))  # noqa: T201
