"""What a router tells its peers of what it has done: facts with an age, hashes and numbers, never text.

A request is told in up to three facts: it was placed, it was read, it has ended with this usage. That is all that a
router's own beliefs are made of, so whoever hears them all can believe the same.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from ramjet.core.fingerprint import Chain
from ramjet.core.usage import Usage
from ramjet.core.visit import Lease, Visit

MOST_BYTES = 8 << 20
"""What waits to be told, at most: some minutes of a busy router's news."""
_FACT_BYTES = 64
"""About what a fact takes beside its hashes."""


class Prompt(Struct, frozen=True, array_like=True):
    """A chain, packed: 12 bytes a block."""

    hashes: bytes
    """64 bits each, little endian."""
    ends: bytes
    """32 bits each."""
    head: int
    size_bytes: int
    preamble: int | None = None

    @property
    def chain(self) -> Chain:
        """It, to be read.

        Raises:
            ValueError: it is none.
        """
        hashes, ends = _array("Q", self.hashes), _array("I", self.ends)
        if not hashes or len(hashes) != len(ends) or any(map(int.__gt__, ends, ends[1:])):
            raise ValueError(f"{len(hashes)} hashes and {len(ends)} ends are no chain")
        if not 0 <= self.head <= len(hashes):
            raise ValueError(f"a head of {self.head} blocks is none of a chain of {len(hashes)}")
        return Chain(hashes, ends, self.head, self.size_bytes, self.preamble)


class Placed(Struct, frozen=True, array_like=True, tag="p"):
    """A request was booked at a replica."""

    number: int
    """The router's own for it."""
    at: float
    """By the router's clock, as all times of its news."""
    replica: int
    """Hash of the replica's identity."""
    endpoint: str
    body_bytes: int
    stream: bool = False
    model: int | None = None
    """Hash of the model's name, which is the client's word."""
    hint: tuple[str, int] | None = None
    usable: Prompt | None = None
    """None where no prompt was read."""
    identity: Prompt | None = None
    """None where it is the same."""
    conversation: int = 0
    """Its conversation's id..."""
    turn: int = 0
    """...and its place there, from 1."""
    paid_s: float = 0.0
    """What its entry cost of the replica's allowance."""


class Read(Struct, frozen=True, array_like=True, tag="r"):
    """The replica has read its prompt."""

    number: int
    at: float


class Ended(Struct, frozen=True, array_like=True, tag="e"):
    """Its place there is free again."""

    number: int
    at: float
    was_read: bool = True
    is_ok: bool = True
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def usage(self) -> Usage:
        """What the engine reported."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
        )


class Open(Struct, frozen=True, array_like=True, tag="o"):
    """Of the requests that were told before, all but these have ended, also where that was never heard."""

    numbers: Sequence[int]


Fact = Placed | Read | Ended | Open


class News:
    """What is to be told, in order, and which requests have been told that have not ended. Bounded."""

    def __init__(self, hashed: Callable[[str], int], most_bytes: int = MOST_BYTES) -> None:
        """
        Args:
            hashed: 64 bits of a name, seeded with the deployment's secret.
            most_bytes: beyond it what waits is dropped, all of it: who reads on after a gap is told what is open anew.
        """
        self.dropped = 0
        """Facts that were never told."""
        self._hashed = hashed
        self._most = most_bytes
        self._facts: list[Fact] = []
        self._bytes = 0
        self._numbers: dict[Lease, int] = {}
        self._open: dict[Lease, Visit] = {}
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self._facts)

    def placed(self, visit: Visit) -> None:
        """A request has been booked; its lease says where and when."""
        lease = visit.lease
        assert lease is not None
        self._last += 1
        self._numbers[lease], self._open[lease] = self._last, visit
        self._tell(self._placed(visit, lease))

    def read(self, lease: Lease, now: float) -> None:
        """Its prompt has been read."""
        number = self._numbers.get(lease)
        if number is not None:
            self._tell(Read(number, now))

    def ended(
        self, lease: Lease, now: float, *, was_read: bool, is_ok: bool = False, usage: Usage | None = None
    ) -> None:
        """Its place is free; a second call does nothing."""
        number = self._numbers.pop(lease, None)
        if number is None:
            return
        del self._open[lease]
        usage = usage or Usage()
        counts = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
        self._tell(Ended(number, now, was_read, is_ok, *counts))

    def open(self) -> None:
        """Tell which have not ended: whoever missed an end learns of it."""
        self._tell(Open(tuple(self._numbers.values())))

    def again(self) -> None:
        """Tell all that is open anew, after a time in which nobody may have heard."""
        for lease, visit in self._open.items():
            self._tell(self._placed(visit, lease))
            if visit.first_token_at is not None:
                self._tell(Read(self._numbers[lease], visit.first_token_at))
        self.open()

    def take(self, most_bytes: int) -> list[Fact]:
        """The next of what is to be told, about so much and at least one."""
        size = count = 0
        for fact in self._facts:
            size += _size(fact)
            count += 1
            if size >= most_bytes:
                break
        taken, self._facts = self._facts[:count], self._facts[count:]
        self._bytes -= size
        return taken

    # -- inside -----------------------------------------------------------------------------------------------------

    def _tell(self, fact: Fact) -> None:
        self._facts.append(fact)
        self._bytes += _size(fact)
        if self._bytes > self._most:
            self.dropped += len(self._facts)
            self._facts, self._bytes = [], 0

    def _placed(self, visit: Visit, lease: Lease) -> Placed:
        arrival = visit.arrival
        prints = arrival.fingerprint if visit.turn is not None else None
        return Placed(
            self._numbers[lease],
            lease.placed_at,
            self._hashed(lease.replica.identity),
            arrival.endpoint,
            arrival.body_bytes,
            arrival.stream,
            None if arrival.model is None else self._hashed(arrival.model),
            None if arrival.hint is None else (arrival.hint.kind, arrival.hint.value),
            None if prints is None else _packed(prints.usable),
            None if prints is None or prints.identity is prints.usable else _packed(prints.identity),
            0 if visit.turn is None else visit.turn.conversation.id,
            visit.number or 0,
            lease.paid_s,
        )


def naming(seed: int) -> Callable[[str], int]:
    """What turns a name into 64 bits that say nothing to who does not have the deployment's secret."""
    return lambda name: xxh3_64_intdigest(name.encode(), seed=seed)


def _size(fact: Fact) -> int:
    if isinstance(fact, Open):
        return _FACT_BYTES + 5 * len(fact.numbers)
    chains = (fact.usable, fact.identity) if isinstance(fact, Placed) else ()
    return _FACT_BYTES + sum(len(each.hashes) + len(each.ends) for each in chains if each is not None)


def _packed(chain: Chain) -> Prompt:
    return Prompt(_bytes(chain.hashes), _bytes(array("I", chain.ends)), chain.head, chain.size_bytes, chain.preamble)


def _bytes(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _array(kind: str, packed: bytes) -> array[int]:
    numbers = array(kind, packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
