"""Which headers pass, and which belong to one connection only."""

from __future__ import annotations

import re
import secrets

from multidict import CIMultiDict, CIMultiDictProxy

# RFC 9110, section 7.6.1, and the old names that are still sent. `Trailer` announces what chunked framing may carry,
# and the framing is not ours to promise.
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade")
)  # fmt: skip
_OUR_PREFIX = "x-ramjet-"
_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}\Z")

_KEYS = {"authorization", "x-api-key", "api-key"}

REQUEST_ID = "x-request-id"
PROBE = "x-ramjet-probe"
RANK = "x-data-parallel-rank"
"""By which SGLang and vLLM are told which of their data-parallel ranks is meant."""

_TO_REPLICA = _HOP_BY_HOP | {"host", "content-length", "expect", REQUEST_ID}
_PLAIN_TO_REPLICA = _TO_REPLICA | {"accept-encoding"}
_TO_CLIENT = _HOP_BY_HOP | {REQUEST_ID}
_TO_CLIENT_ANEW = _TO_CLIENT | {"content-length"}

Headers = CIMultiDict[str] | CIMultiDictProxy[str]


def to_replica(
    headers: Headers,
    request_id: str,
    *,
    plain: bool,
    key: str | None = None,
    drop_key: bool = False,
    rank: int | None = None,
) -> CIMultiDict[str]:
    """The request's headers as the replica gets them.

    Args:
        headers: as the client sent them.
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
        dropped |= {RANK}
    kept = _end_to_end(headers, dropped)
    kept[REQUEST_ID] = request_id
    if rank is not None:
        kept[RANK] = str(rank)
    if key is not None:
        kept["authorization"] = f"Bearer {key}"
    return kept


def to_client(headers: Headers, *, keep_length: bool) -> CIMultiDict[str]:
    """The answer's headers as the client gets them; its length only where its bytes are not touched."""
    return _end_to_end(headers, _TO_CLIENT if keep_length else _TO_CLIENT_ANEW)


def request_id_of(headers: Headers) -> str:
    """The client's request id when it is sane, else a new one."""
    given = headers.get(REQUEST_ID, "")
    return given if _SANE_REQUEST_ID.match(given) else secrets.token_hex(16)


def _end_to_end(headers: Headers, dropped: frozenset[str]) -> CIMultiDict[str]:
    gone = dropped
    for value in headers.getall("connection", ()):
        gone = gone.union(name.strip().lower() for name in value.split(","))
    return CIMultiDict(
        [
            (name, value if value.isascii() else _writable(value))
            for name, value in headers.items()
            if (lower := name.lower()) not in gone and not lower.startswith(_OUR_PREFIX)
        ]
    )


def _writable(value: str) -> str:
    """A value as it can be sent on: bytes that are not UTF-8 are taken for Latin-1, which they were in HTTP's old days."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode(errors="surrogateescape").decode("latin-1")
    return value
