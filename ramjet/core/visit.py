"""A request while it is Ramjet's: as it arrived, the visit it makes, and the place at a replica that it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct, field

from ramjet.core.beliefs import Belief, Sought
from ramjet.core.cache import Blocks, EngineCache, Seat
from ramjet.core.causes import Clues
from ramjet.core.conversations import Turn
from ramjet.core.fingerprint import Fingerprint
from ramjet.core.fleet import Replica
from ramjet.core.hints import Hint
from ramjet.core.route import Decision, Scored
from ramjet.core.slices import Start
from ramjet.core.usage import Usage


class Arrival(Struct, frozen=True, kw_only=True):
    """A request as the edge hands it in."""

    request_id: str
    endpoint: str
    body_bytes: int
    stream: bool = False
    model: str | None = None
    fingerprint: Fingerprint | None = None
    """None where no prompt could be read."""
    hint: Hint | None = None
    """What the client says of whose it is."""
    probe: bool = False
    cuts: Sequence[int] = ()
    """Where a strict start of the prompt may end, in bytes of the usable chain, in order; empty: it cannot be sliced."""


class Visit(Struct, eq=False):
    """One request from its arrival to its record."""

    arrival: Arrival
    arrived_at: float
    prompt_tokens: int
    usable: Blocks | None = None
    identity: Blocks | None = None
    turn: Turn | None = None
    """None where no prompt could be read."""
    number: int | None = None
    """The turn's place in its conversation, from 1."""
    left_inside: bool = False
    """Whether the prompt leaves what was sent before inside of an earlier prompt, and not at its end."""
    in_parallel: bool = False
    """Whether it leaves a conversation that was known, or another turn of its own is under way."""
    cuts: Sequence[int] = ()
    """Where a start of the prompt may end, in tokens."""
    shared: Sequence[tuple[int, int]] = ()
    shared_tokens: int = 0
    """The part of the prompt that other living conversations have too."""
    tried: list[str] = field(default_factory=list)
    """Replicas that it was placed at, by name."""
    shunned: set[str] = field(default_factory=set)
    """URLs that failed it, whichever rank it was meant for, or that it may not go to."""
    lease: Lease | None = None
    held_since: float | None = None
    """Since when it waits for room; None while it does not."""
    held_s: float = 0.0
    would_hold: bool = False
    """Whether it would be held, if admission were enforced and not only observed."""
    gave_up: bool = False
    """Whether it waited for longer than anybody should."""
    decision: Decision | None = None
    first_token_at: float | None = None


class Lease(Struct, eq=False):
    """A place at a replica, held by one request; it is given back exactly once, whatever happens."""

    replica: Replica
    belief: Belief
    scored: Scored
    reason: str
    reading_s: float
    placed_at: float
    read_at: float
    """When the prompt will have been read, if everything goes as expected."""
    believed_depth: int = 0
    """Blocks believed to be there when it was placed, reusable or not."""
    sought: Sought | None = None
    """What it was believed to find there."""
    clues: Clues | None = None
    """What was known when it was placed, in case that less of the prompt is there than could be."""
    cache: EngineCache | None = None
    """What `seat` is in."""
    seat: Seat | None = None
    is_cold: bool = False
    """Whether reading takes so long that no other such read should be under way there."""
    alone: bool = False
    """Whether nobody was before it: its first token tells how fast the replica reads."""
    shows_first: bool = False
    """Whether its first token will be seen: the answer is a stream."""
    starts: deque[Start] = field(default_factory=deque)
    """Starts of the prompt that are to be read before the prompt is sent, the next one first."""
    slices: int = 0
    """Those that have been read."""
    read_tokens: int = 0
    """As far as the prompt has been read, or was believed to be there."""
    of_peer: bool = False
    """Whether another Ramjet holds it, and has told."""
    paid_s: float = 0.0
    """What it cost of the replica's allowance."""
    found: Usage | None = None
    """What the engine said of the first start that it did not hold whole: what was there before any was read. None where
    none has been sent."""
    open: bool = True

    def read(self, now: float) -> None:
        """The prompt has been read: those behind it no longer wait for that."""
        self.replica.read(self, now)

    @property
    def is_reading(self) -> bool:
        """Whether the prompt is still to be read, as far as anybody knows."""
        return self in self.replica.queue

    def release(self, now: float) -> None:
        """Give the place back; a second call does nothing."""
        if self.open:
            self.open = False
            self.replica.done(by_peer=self.of_peer)
            self.read(now)
            if self.cache is not None and self.seat is not None:
                self.belief.version += 1
                self.cache.leave(self.seat, self.placed_at)
