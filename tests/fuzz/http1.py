"""HTTP/1.1 read as strictly as RFC 9112 allows: what this calls one message, everybody must call one message."""

from __future__ import annotations

import re
from dataclasses import dataclass

_REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.1\Z")
# The versions are those that a client may have claimed: aiohttp's server answers in the same.
_STATUS_LINE = re.compile(rb"HTTP/[0-9]\.[0-9] ([1-9][0-9]{2}) ([\t\x20-\x7e\x80-\xff]*)\Z")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*\Z")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
MOST_FIELDS = 100
"""aiohttp takes 128, on both sides."""
_NO_BODY = {204, 304}


class Malformed(ValueError):
    """Not what the RFC allows, with the reason."""


@dataclass(frozen=True, slots=True)
class Head:
    """A message's head: the start line's parts, and its fields with names in lower case."""

    first: tuple[bytes, bytes]
    """Method and target of a request, status and reason of an answer."""
    fields: tuple[tuple[bytes, bytes], ...]

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field."""
        return [value for key, value in self.fields if key == name]

    def get(self, name: bytes, default: bytes = b"") -> bytes:
        """The first value of a field."""
        return next(iter(self.all(name)), default)

    @property
    def status(self) -> int:
        """Of an answer."""
        return int(self.first[0])


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message, and how many bytes it took."""

    head: Head
    body: bytes
    size: int


def head(raw: bytes, *, answer: bool) -> Head:
    """Read a head, the blank line at its end left out.

    Raises:
        Malformed: with the reason.
    """
    first, *lines = raw.split(b"\r\n")
    start = (_STATUS_LINE if answer else _REQUEST_LINE).match(first)
    if start is None:
        raise Malformed(f"start line {first[:80]!r}")
    fields = []
    for line in lines:
        field = _FIELD.match(line)
        if field is None:
            raise Malformed(f"field {line[:80]!r}")
        fields.append((field[1].lower(), field[2]))
    return Head((start[1], start[2]), tuple(fields))


def length(head: Head) -> int | None:
    """What Content-Length says; None for chunked, -1 where nothing frames a body.

    Raises:
        Malformed: it can be understood in two ways.
    """
    lengths, codings = head.all(b"content-length"), head.all(b"transfer-encoding")
    if codings:
        if codings != [b"chunked"] or lengths:
            raise Malformed(f"transfer-encoding {codings!r}, content-length {lengths!r}")
        return None
    if not lengths:
        return -1
    if len(lengths) > 1 or not re.match(rb"[0-9]{1,12}\Z", lengths[0]):
        raise Malformed(f"content-length {lengths!r}")
    return int(lengths[0])


def chunked(raw: bytes, at: int) -> tuple[bytes, int] | None:
    """A chunked body that starts at `at`, without extensions and trailers, and where it ends; None if it goes on.

    Raises:
        Malformed: with the reason.
    """
    pieces: list[bytes] = []
    while True:
        size = _CHUNK.match(raw, at)
        if size is None:
            if re.match(rb"[0-9A-Fa-f]{0,8}\r?\Z", raw[at : at + 12]):
                return None
            raise Malformed(f"chunk size {raw[at : at + 20]!r}")
        count, at = int(size[1], 16), size.end()
        if len(raw) < at + count + 2:
            return None
        if raw[at + count : at + count + 2] != b"\r\n":
            raise Malformed(f"end of chunk {raw[at + count : at + count + 20]!r}")
        if not count:
            return b"".join(pieces), at + 2
        pieces.append(raw[at : at + count])
        at += count + 2


def request(raw: bytes) -> Message | None:
    """The request that these bytes are, from the first to the last; None where they are not exactly one.

    None also for what is one but asks for more than an answer: another protocol, or an interim answer.
    """
    before, end, _ = raw.partition(b"\r\n\r\n")
    if not end:
        return None
    try:
        top = head(before, answer=False)
        size = length(top)
        found = chunked(raw, len(before) + 4) if size is None else (raw[len(before) + 4 :], len(raw))
    except Malformed:
        return None
    if found is None or found[1] != len(raw) or (size is not None and len(found[0]) != max(0, size)):
        return None
    odd = (b"expect", b"upgrade", b"connection")
    if len(top.all(b"host")) != 1 or top.first[0] in {b"CONNECT", b"PRI"} or any(top.all(name) for name in odd):
        return None
    return Message(top, found[0], len(raw)) if is_plain(top) and len(top.first[1]) < 60_000 else None


def is_plain(head: Head) -> bool:
    """Whether nobody would refuse the head for its size, or for a field that may be there once."""
    sizes = [len(name) + len(value) for name, value in head.fields]
    once = (
        b"content-type",
        b"host",
        b"server",
        b"etag",
        b"user-agent",
        b"location",
        b"date",
        b"content-encoding",
        b"authorization",
    )
    return len(sizes) <= MOST_FIELDS and max(sizes, default=0) < 8_000 and all(len(head.all(name)) < 2 for name in once)


def answer(raw: bytes, *, closed: bool, to_head: bool = False) -> Message | None:
    """The answer at the beginning of these bytes; None while it is not complete.

    Args:
        raw: what came.
        closed: whether nothing more will come.
        to_head: the request was HEAD, so there is no body.

    Raises:
        Malformed: it is none, with the reason.
    """
    start = 0
    while True:
        before, end, _ = raw[start:].partition(b"\r\n\r\n")
        if not end:
            return None
        top = head(before, answer=True)
        at = start + len(before) + 4
        if top.status >= 200:
            break
        if top.status == 101:
            raise Malformed("switched protocols")
        start = at
    size = length(top)
    if to_head or top.status in _NO_BODY:
        return Message(top, b"", at)
    if size is None:
        found = chunked(raw, at)
        return None if found is None else Message(top, found[0], found[1])
    if size < 0:
        return Message(top, raw[at:], len(raw)) if closed else None
    return Message(top, raw[at : at + size], at + size) if len(raw) >= at + size else None
