"""Which headers pass, and which belong to one connection only.

They pass as the bytes that came: each line is written once, and nothing is decoded that nobody asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from msgspec import Struct

from ramjet.front.marks import KEYS, OURS, RANK, REQUEST_ID
from ramjet.http1.connection import WITHOUT_BODY, Answer, Fields

# RFC 9110, section 7.6.1, and the old names that are still sent. `Trailer` announces what chunked framing may carry,
# and the framing is not ours to promise.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
     b"transfer-encoding", b"upgrade")
)  # fmt: skip
_OUR_PREFIX = OURS.encode()
_KEYS = frozenset(map(str.encode, KEYS))
_REQUEST_ID, _RANK = REQUEST_ID.encode(), RANK.encode()
_TO_REPLICA = _HOP_BY_HOP | {b"host", b"content-length", b"expect", _REQUEST_ID}
_PLAIN_TO_REPLICA = _TO_REPLICA | {b"accept-encoding"}
_TO_CLIENT = _HOP_BY_HOP | {_REQUEST_ID}
_TO_CLIENT_ANEW = _TO_CLIENT | {b"content-length"}
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_UNBUFFERED = {b"cache-control": b"no-cache", b"x-accel-buffering": b"no"}
"""Other proxies on the way buffer event streams unless told not to."""


class Head(Struct, frozen=True):
    """An answer's head as a client gets it, but for what the connection to the client adds."""

    status: int
    reason: bytes
    lines: bytes
    """The fields, each with the end of its line."""
    is_sized: bool
    """Whether a length is among them."""


def to_replica(
    fields: Fields,
    request_id: str,
    *,
    plain: bool,
    key: str | None = None,
    drop_key: bool = False,
    rank: int | None = None,
) -> bytes:
    """The lines of a request's head as the replica gets them.

    Args:
        fields: as the client sent them.
        request_id: replaces the client's, which may not be sane.
        plain: do not offer compression, because the answer is to be looked into. Clients accept that always.
        key: what the replica asks for; it takes the place of the client's.
        drop_key: the client's key was for Ramjet, and is no replica's business.
        rank: the data-parallel rank that it is for, whatever the client wants; None leaves it to client and engine.
    """
    dropped = _PLAIN_TO_REPLICA if plain else _TO_REPLICA
    if key is not None or drop_key:
        dropped |= _KEYS
    if rank is not None:
        dropped |= {_RANK}
    lines = b"%b%b: %b\r\n" % (_end_to_end(fields, dropped), _REQUEST_ID, request_id.encode())
    if rank is not None:
        lines += b"%b: %d\r\n" % (_RANK, rank)
    if key is not None:
        lines += b"authorization: Bearer %b\r\n" % key.encode()
    return lines


def to_client(answer: Answer, replica: str, reason: str, *, as_it_came: bool = True) -> Head:
    """The head of a replica's answer as the client gets it.

    Args:
        answer: as it came.
        replica: whose it is.
        reason: why it was asked.
        as_it_came: whether the body passes untouched; only then is its length still so.
    """
    is_sized = as_it_came and b"content-length" in answer.named and answer.status not in WITHOUT_BODY
    kept = _end_to_end(answer.fields, _TO_CLIENT if is_sized else _TO_CLIENT_ANEW)
    ours = b"x-ramjet-replica: %b\r\nx-ramjet-reason: %b\r\n" % (replica.encode(), reason.encode())
    if answer.named.get(b"content-type", b"").startswith(b"text/event-stream"):
        ours += b"".join([b"%b: %b\r\n" % field for field in _UNBUFFERED.items() if field[0] not in answer.named])
    if b"date" not in answer.named:
        ours += date()
    return Head(answer.status, answer.reason, kept + ours, is_sized)


def of_ours(status: int, fields: Mapping[str, str]) -> Head:
    """The head of an answer in Ramjet's own name."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
    return Head(status, _REASONS.get(status, b""), lines.encode() + date(), "content-length" in fields)


def of_held() -> Head:
    """The head of an event stream that begins while its request is held."""
    fields = {b"content-type": b"text/event-stream", **_UNBUFFERED}
    return Head(200, b"OK", b"".join([b"%b: %b\r\n" % field for field in fields.items()]) + date(), is_sized=False)


def date() -> bytes:
    """The line that says when an answer was made."""
    return _date(int(datetime.now(UTC).timestamp()))


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return b"date: %b\r\n" % formatdate(second, usegmt=True).encode()


def _end_to_end(fields: Fields, dropped: frozenset[bytes]) -> bytes:
    """The lines of those fields that pass."""
    lines, named = [], b""
    for field in fields:
        name = field[0].lower()
        if name not in dropped and not name.startswith(_OUR_PREFIX):
            lines.append(b": ".join(field))
        elif name == b"connection":
            named = b"%b,%b" % (named, field[1].lower())
    if named:
        # But for the length: that is the body's, whatever a sender says.
        for_one = frozenset(map(bytes.strip, named.split(b","))) - {b"content-length"}
        lines = [line for line in lines if line.partition(b":")[0].lower() not in for_one]
    lines.append(b"")
    return b"\r\n".join(lines)
