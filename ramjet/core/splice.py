"""Splice a few bytes into a body: a request for usage, or the rank that is to read it; nothing else of it changes.

Without `stream_options.include_usage` engines do not say how much of a prompt was cached. The bytes that the client
sent are kept as they are: parsing and writing a body anew reorders keys and spells numbers otherwise, and the engine's
cache ends where the text does. They are not copied either: a body with something in it is a few buffers, to be sent one
after another.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ramjet.core.prompt import Envelope

ENDPOINTS_WITH_STREAM_OPTIONS = frozenset({"chat", "completions"})
ENDPOINTS_WITHOUT_RANK_HEADER = frozenset({"generate"})
"""Where SGLang (0.5.23) reads the rank in the body and not in a header."""

_KEY = re.compile(rb'"stream_options"\s*:\s*')
_MOST_PLACES = 4
_ASKED = b'"stream_options":{"include_usage":true}'
_RANKS = b'"routed_dp_rank"', b'"data_parallel_rank"'
"""SGLang's fields for it, the second one's name being the older. Inside of a text their quotes would be escaped."""

Buffers = tuple[bytes | bytearray | memoryview, ...]


class _StreamOptions(msgspec.Struct):
    stream_options: Any = msgspec.UNSET


def ask_for_usage(body: bytes | bytearray, prompt: Envelope, endpoint: str) -> Buffers | None:
    """The body with a request for usage spliced in; None when nothing is to be asked.

    Nothing is asked when the request is not a stream, when the endpoint reports usage anyway, or when the client said
    what it wants, be it yes or no.
    """
    if not prompt.stream or endpoint not in ENDPOINTS_WITH_STREAM_OPTIONS:
        return None
    options = prompt.stream_options
    if options is msgspec.UNSET:
        return _first(body, _ASKED)
    if options is None:
        return _replace(body, b"null", b'{"include_usage":true}', {"include_usage": True})
    if not isinstance(options, dict) or "include_usage" in options:
        return None
    asked = b'{"include_usage":true,' if options else b'{"include_usage":true'
    return _replace(body, b"{", asked, {"include_usage": True, **options})


def name_rank(body: bytes | bytearray, rank: int, endpoint: str) -> Buffers:
    """The body with the rank that is to read its prompt, at endpoints where the engine looks for it there.

    A client that names one itself has its way: a field that is given twice is anybody's guess.

    Args:
        body: a JSON object with at least one field.
        rank: of the data-parallel ranks, from 0.
        endpoint: the request's.
    """
    if endpoint not in ENDPOINTS_WITHOUT_RANK_HEADER or any(name in body for name in _RANKS):
        return (body,)
    return _first(body, b"%s:%d" % (_RANKS[0], rank))


def _first(body: bytes | bytearray, field: bytes) -> Buffers:
    """The body with one more field, before all others."""
    brace = body.index(b"{") + 1
    return body[:brace] + field + b",", memoryview(body)[brace:]


def _replace(body: bytes | bytearray, old: bytes, new: bytes, wanted: dict[str, Any]) -> Buffers | None:
    """Splice at the place of the top-level key that makes the body say `wanted`; None when there is no such place.

    The key's name may also stand deeper in the body, or twice. Reading the result is what tells the right place.
    """
    for tries, found in enumerate(_KEY.finditer(body)):
        if tries == _MOST_PLACES:
            break
        at = found.end()
        if body[at : at + len(old)] != old:
            continue
        spliced = b"".join((memoryview(body)[:at], new, memoryview(body)[at + len(old) :]))
        try:
            if msgspec.json.decode(spliced, type=_StreamOptions).stream_options == wanted:
                return (spliced,)
        except (msgspec.DecodeError, RecursionError):
            continue
    return None
