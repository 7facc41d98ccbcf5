"""Bodies that were read before: a turn that repeats one is read on from near its end.

An agent sends its whole conversation with every turn, so of a megabyte mostly ten kilobytes are new. What is kept of a
body is where one of its last messages ended, the hashes of its fingerprint up to there, and what the next message's
rendering depends on; never its text. A body that begins with the same bytes, up to that very place, has its first
messages hashed already, and of it only what is new is decoded.

Why that is the same as reading it whole: up to there the bytes are the same, so a parser of JSON is in the same state,
inside the list of messages behind one of them, and what it has seen is the same too. In that state it is put again by a
few bytes of our own, `{"messages":["mark"`, and goes on with the rest of the body. What stands around the messages may
have changed, for it may come behind them: it is read anew from every body, and where what is rendered before the
messages (tools, system prompt, model) is not the same, the body is read as if nothing were known.

In the same way a long body that is new is read in steps, so that nobody waits for all of it: if `["mark",A]` is JSON
and `["mark",B]` is, then `["mark",A,B]` is, and has the elements of both. Where a step should end is a guess, which
decoding proves or refutes.

A body that is not built like that is read whole, by `whole`, which says the same of all others: that is tested. (Of a
field that is named twice the first value may be broken here, for nobody looks at it.)
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import xxhash

from ramjet.core.fingerprint import Fingerprint, Hashing, fingerprint
from ramjet.core.prompt import (
    GROWING,
    MESSAGE_ENDPOINTS,
    MOST_COMMAS,
    MOST_OBJECTS,
    NAMESPACE,
    OPENING,
    SMALL_BYTES,
    Envelope,
    Place,
    check_size,
    envelope_of,
    opening,
    read,
)
from ramjet.core.slices import cuts, is_of_the_whole

LEAST_BYTES = 128 << 10
"""Of a shorter body nothing is kept: it is read whole in 0.3 ms, and reading on from what is known takes as long."""
STEP_BYTES = 256 << 10
"""What is decoded in one step: some 0.3 ms. What is shorter is read in one."""
LONG_BYTES = 1 << 20
"""What is longer and cannot be cut, a message mostly, is no work for a step: it is to be done elsewhere."""
MOST_BYTES = 32 << 20
"""What all that is kept may take: some 3,000 conversations of a megabyte."""

_BLOCK_BYTES = 16 << 10
"""Known bodies are found by the last block of this size that is theirs, and told apart by what follows it."""
_MOST_ALIKE = 8
"""Known bodies with the same last block: each of them is a hash more for whoever shares it."""
_KNOWN_BYTES = 2_000
"""What is kept of a body takes so much, beside 12 bytes for each of its blocks and 8 for each of its turns."""
_HELD_BACK = 4
"""Messages at the end that the next turn may not repeat: cache markers move, reminders stand behind, calls beside a turn
end otherwise."""
_TAIL_BYTES = 48 << 10
"""About so much is left for the last step: those held back are in it, and more has to be known of where they stand."""
_STEP_PIECES = 48
"""What is rendered and hashed in one step."""
_MOST_GUESSES = 4
"""Of where a message begins, before the rest is decoded in one step."""

_SPACE = b" \t\r\n"
_LISTS = {name: re.compile(rb'"%b"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*' % name.encode()) for name in set(GROWING.values())}
_FIRST_KEY = re.compile(rb'\{[ \t\r\n]*"[^"\\]{1,64}"')
_COUNTED = ((b"{", SMALL_BYTES, MOST_OBJECTS), (b",", MOST_COMMAS, MOST_COMMAS))
"""What is counted, in bodies longer than what, and how often it may be there before somebody looks closer."""

Body = bytes | bytearray

T = TypeVar("T")
Steps = Generator[Callable[[], Any] | None, Any, T]
"""Work that gives way to others with each None; a function is to be called where it disturbs nobody, and what it returns
is to be sent back."""


class Reading(NamedTuple):
    """What routing needs of a body."""

    envelope: Envelope
    fingerprint: Fingerprint
    cuts: Sequence[int]
    """Where a strict start of the prompt may end, in bytes of text."""


def whole(body: Body, endpoint: str, seed: int) -> Reading:
    """Read a body of any kind in one step.

    Raises:
        Unreadable: no prompt can be told from it.
    """
    prompt = read(body, endpoint)
    return Reading(prompt, fingerprint(prompt, seed), cuts(prompt, endpoint))


class _Part(NamedTuple):
    """Messages that follow each other."""

    messages: list[Any]
    size: int
    """How much of the body they are, in bytes, with the commas between them."""


@dataclass(slots=True)
class _Hashed:
    """Messages that were rendered and hashed."""

    hashing: Hashing
    place: Place
    turns: array[int]
    """Where answers of the assistant's begin, in bytes of text."""
    pieces: int = 0
    """How many there were in this reading."""

    def copy(self) -> _Hashed:
        return _Hashed(self.hashing.copy(), replace(self.place), self.turns[:])

    def add(self, messages: Iterable[object]) -> Generator[None, None, None]:
        """The next messages, in steps.

        Raises:
            Unreadable: one of them is none.
        """
        for message in messages:
            for piece in self.place.render(message):
                if piece.opens_answer:
                    self.turns.append(self.hashing.size_bytes)
                self.hashing.add(piece)
                self.pieces += 1
                if self.pieces % _STEP_PIECES == 0:
                    yield


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Known:
    """A body as it was read, up to the end of one of its messages."""

    name: int
    """Hash of its bytes up to there."""
    key: int
    """Hash of its whole blocks before that."""
    begins: int
    """Where in it the first message begins."""
    ends: int
    """Where the last one that is hashed ends."""
    counts: Sequence[int | None]
    """How often what is `_COUNTED` stands before that; None where it was not counted."""
    opening: int
    """Hash of what is rendered before the messages, as it is spelled."""
    hashed: _Hashed

    @property
    def cost_bytes(self) -> int:
        """An estimate of what it takes in memory."""
        return _KNOWN_BYTES + 12 * self.hashed.hashing.blocks + 8 * len(self.hashed.turns)


class Bodies:
    """What is kept of bodies, one of each conversation; the least recently used go first."""

    def __init__(self, seed: int, most_bytes: int = MOST_BYTES) -> None:
        """
        Args:
            seed: 64 bits, from the deployment's secret.
            most_bytes: what all of it may take, by an estimate.
        """
        self.cost_bytes = 0
        self._seed = seed
        self._most_bytes = most_bytes
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._alike: dict[int, list[_Known]] = {}
        """By their key."""
        # No client knows the secret, so none can write this into a body.
        self._mark = f"{self._hash(b'mark'):016x}"
        self._opened = f'["{self._mark}"'.encode()

    def __len__(self) -> int:
        return len(self._known)

    def steps(self, body: Body, endpoint: str) -> Steps[Reading | None]:
        """Read a body in steps of less than a millisecond; the result is None for one that must be read `whole`.

        Raises:
            Unreadable: no prompt can be told from it.
        """
        if endpoint not in GROWING or len(body) < LEAST_BYTES:
            return None
        keys = self._keys(body, endpoint)
        known = self._find(body, keys)
        try:
            found = yield from self._read(body, endpoint, keys, known)
            if found is None and known is not None:
                found = yield from self._read(body, endpoint, keys, None)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return found

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self, body: Body, endpoint: str, keys: Sequence[int], known: _Known | None) -> Steps[Reading | None]:
        """Read on from a known body, or from the beginning; None where that cannot be done.

        Raises:
            DecodeError: it is not JSON, or not as was guessed.
        """
        name = GROWING[endpoint]
        begins = _first_in(body, name) if known is None else known.begins
        if begins is None:
            return None
        counts = yield from _count(body, known)
        # What stands before the messages, then the new ones among them, then what stands behind.
        around = _raw(b"".join((body[:begins], self._opened[1:], b"]}")))
        self._behind_mark(around.pop(name, b"null"))
        parts, held_back, ends, behind = yield from self._messages(body, name, begins, known)
        around |= behind
        opens = self._hash(b"\0".join(around.get(each, b"") for each in (*NAMESPACE, *OPENING)))
        if known is not None and known.opening != opens:
            return None
        fields = _decoded(around, skip=() if known is None else OPENING)
        envelope = envelope_of({**fields, name: parts})
        if known is None:
            hashed = yield from _done(partial(self._begin, envelope, fields, endpoint), sum(map(len, around.values())))
        else:
            hashed = known.hashed.copy()
        for part in parts:
            yield from _added(hashed, part)
        if _BLOCK_BYTES <= ends > begins:
            now = _Known(
                name=_name(body, keys, ends),
                key=keys[ends // _BLOCK_BYTES],
                begins=begins,
                ends=ends,
                counts=_counts_before(ends, body, counts),
                opening=opens,
                hashed=hashed,
            )
            self._keep(now, known)
        hashed = hashed.copy()
        yield from _added(hashed, held_back)
        places = () if endpoint not in MESSAGE_ENDPOINTS or is_of_the_whole(envelope) else hashed.turns
        return Reading(envelope, hashed.hashing.fingerprint, places)

    def _begin(self, envelope: Envelope, fields: Mapping[str, Any], endpoint: str) -> _Hashed:
        """What is rendered before the first message."""
        hashing = Hashing.of(envelope.namespace, self._seed)
        for piece in opening(fields, endpoint):
            hashing.add(piece)
        return _Hashed(hashing, Place(), array("Q"))

    def _messages(
        self, body: Body, name: str, begins: int, known: _Known | None
    ) -> Steps[tuple[list[_Part], _Part, int, dict[str, bytes]]]:
        """The messages that are not known, by steps; those held back; where these begin; the fields behind them."""
        ends, lead = (begins, self._opened + b",") if known is None else (known.ends, self._opened)
        parts: list[_Part] = []
        first, in_steps = _FIRST_KEY.match(body, begins), len(body) - ends > STEP_BYTES
        while first is not None and (left := len(body) - ends) > 2 * _TAIL_BYTES:
            step = self._step(body, ends, min(STEP_BYTES, left - _TAIL_BYTES), lead, first[0])
            if step is None:
                break
            parts.append(step)
            ends += step.size
            lead = self._opened
            if in_steps:
                yield None
        last = partial(self._last, b"".join((b'{"', name.encode(), b'":', lead, body[ends:])), name, len(lead))
        part, held_back, behind = yield from _done(last, len(body) - ends)
        return [*parts, part], held_back, ends + part.size, behind

    def _last(self, text: bytes, name: str, lead_bytes: int) -> tuple[_Part, _Part, dict[str, bytes]]:
        """The last of the messages, without those held back; these; and the fields behind them.

        Args:
            text: what is left of the body, as an object of its own.
            name: of the list.
            lead_bytes: how long what makes a list of it is.
        """
        behind = _raw(text)
        listed = behind.pop(name)
        messages = self._behind_mark(listed)
        kept, held_back, size = messages[:-_HELD_BACK], messages[-_HELD_BACK:], 0
        if kept:
            # Between two messages, which end with a brace, stand only spaces and a comma.
            at = len(listed)
            for raw in reversed(msgspec.json.decode(listed, type=list[msgspec.Raw])[-_HELD_BACK:]):
                at = listed.rfind(b"}", 0, at) + 1 - len(bytes(raw))
            size = listed.rfind(b"}", 0, at) + 1 - lead_bytes
        return _Part(kept, size), _Part(held_back, len(listed) - size), behind

    def _step(self, body: Body, begins: int, size: int, lead: bytes, first: bytes) -> _Part | None:
        """The messages of one step; None where no guess at their end holds, or one of them is long.

        Args:
            body: in whose list they are.
            begins: where they begin.
            size: how long the step is at least.
            lead: what makes a list of them.
            first: how a message begins, as the first of all did.
        """
        view, at = memoryview(body), begins + size
        for _ in range(_MOST_GUESSES):
            at = body.find(first, at, begins + LONG_BYTES)
            if at < 0:
                return None
            end = body.rfind(b"}", begins, at) + 1
            if body[end:at].strip(_SPACE) == b",":
                try:
                    return _Part(self._behind_mark(b"".join((lead, view[begins:end], b"]"))), end - begins)
                except msgspec.DecodeError:
                    pass
            at += len(first)
        return None

    def _behind_mark(self, listed: bytes) -> list[Any]:
        """What stands in a list behind the mark.

        Raises:
            DecodeError: it is no list, or not ours: a field may be there twice, and then the last one counts.
        """
        found: list[Any] = msgspec.json.decode(listed, type=list)
        if found[:1] != [self._mark]:
            raise msgspec.DecodeError("another list")
        return found[1:]

    # -- what is kept -------------------------------------------------------------------------------------------------

    def _hash(self, data: bytes) -> int:
        return xxhash.xxh3_64_intdigest(data, self._seed)

    def _keys(self, body: Body, endpoint: str) -> list[int]:
        """Chained hashes of the body's blocks: each names all bytes before it, and the first one none."""
        view, keys = memoryview(body), [self._hash(GROWING[endpoint].encode())]
        for end in range(_BLOCK_BYTES, len(body) + 1, _BLOCK_BYTES):
            keys.append(xxhash.xxh3_64_intdigest(view[end - _BLOCK_BYTES : end], keys[-1]))
        return keys

    def _find(self, body: Body, keys: Sequence[int]) -> _Known | None:
        """The longest known body whose messages this one repeats to their end."""
        for key in reversed(keys):
            for known in sorted(self._alike.get(key, ()), key=_ends, reverse=True):
                if known.name == _name(body, keys, known.ends):
                    self._known.move_to_end(known.name)
                    return known
        return None

    def _keep(self, known: _Known, before: _Known | None) -> None:
        """Keep what is known of a body, in place of what was known before of its conversation."""
        if known.name in self._known:
            return
        if before is not None:
            self._forget(before.name)
        self._known[known.name] = known
        self.cost_bytes += known.cost_bytes
        alike = self._alike.setdefault(known.key, [])
        alike.append(known)
        if len(alike) > _MOST_ALIKE:
            self._forget(alike[0].name)
        while self.cost_bytes > self._most_bytes:
            self._forget(next(iter(self._known)))

    def _forget(self, name: int) -> None:
        known = self._known.pop(name, None)
        if known is None:
            return
        self.cost_bytes -= known.cost_bytes
        alike = self._alike[known.key]
        alike.remove(known)
        if not alike:
            del self._alike[known.key]


def _done(work: Callable[[], T], size: int) -> Steps[T]:
    """What some work comes to, done elsewhere where it is long."""
    if size <= LONG_BYTES:
        return work()
    return (yield from _elsewhere(work))


def _added(hashed: _Hashed, part: _Part) -> Steps[None]:
    """Render and hash messages, elsewhere where they are long."""
    adding = hashed.add(part.messages)
    if part.size <= LONG_BYTES:
        yield from adding
    else:
        yield from _elsewhere(partial(deque, adding, 0))


def _elsewhere(work: Callable[[], T]) -> Steps[T]:
    """Have some work done by whoever runs this; what goes wrong there is raised here."""
    done: T | Exception = yield partial(_outcome, work)
    if isinstance(done, Exception):
        raise done
    return done


def _outcome(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        return error


def _ends(known: _Known) -> int:
    return known.ends


def _name(body: Body, keys: Sequence[int], end: int) -> int:
    """Names the body's bytes up to some place; `keys` name its blocks."""
    number = end // _BLOCK_BYTES
    return xxhash.xxh3_64_intdigest(memoryview(body)[number * _BLOCK_BYTES : end], keys[number])


def _first_in(body: Body, name: str) -> int | None:
    """Where the first message stands, in what looks like the list of this name; not far behind, for looking takes time."""
    found = _LISTS[name].search(body, 0, LONG_BYTES)
    return None if found is None else found.end()


def _raw(text: bytes) -> dict[str, bytes]:
    """The fields of an object, as they are spelled."""
    return {name: bytes(raw) for name, raw in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items()}


def _decoded(raw: Mapping[str, bytes], skip: Sequence[str]) -> dict[str, Any]:
    """What fields say; of some it is enough whether they say anything."""
    plain = {b"null": None, b"false": False}
    return {
        name: plain.get(value, value) if name in skip else msgspec.json.decode(value) for name, value in raw.items()
    }


def _count(body: Body, known: _Known | None) -> Steps[Sequence[int | None]]:
    """How often what is `_COUNTED` stands in the body, where it is so long that this matters.

    Raises:
        Unreadable: too often.
    """
    counts: list[int | None] = []
    for number, (what, least, most) in enumerate(_COUNTED):
        if len(body) <= least:
            counts.append(None)
            continue
        before = None if known is None else known.counts[number]
        begins, found = (0, 0) if known is None or before is None else (known.ends, before)
        for at in range(begins, len(body), LONG_BYTES):
            found += body.count(what, at, at + LONG_BYTES)
            if at + LONG_BYTES <= len(body):
                yield None
        if found > most:
            yield from _elsewhere(partial(check_size, body))
        counts.append(found)
    return counts


def _counts_before(end: int, body: Body, counts: Sequence[int | None]) -> Sequence[int | None]:
    """The counts without what stands behind some place."""
    return [
        None if count is None else count - body.count(what, end)
        for count, (what, _, _) in zip(counts, _COUNTED, strict=True)
    ]
