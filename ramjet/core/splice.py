"""Ask for usage on a stream by splicing a few bytes into the body; nothing else of it changes.

Without `stream_options.include_usage` engines do not say how much of a prompt was cached. The bytes that the client
sent are kept as they are: parsing and writing a body anew reorders keys and spells numbers otherwise, and the engine's
cache ends where the text does.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ramjet.core.prompt import Prompt

ENDPOINTS_WITH_STREAM_OPTIONS = frozenset({"chat", "completions"})

_KEY = re.compile(rb'"stream_options"\s*:\s*')
_MOST_PLACES = 4
_ASKED = b'"stream_options":{"include_usage":true}'


class _StreamOptions(msgspec.Struct):
    stream_options: Any = msgspec.UNSET


def ask_for_usage(body: bytes, prompt: Prompt, endpoint: str) -> bytes | None:
    """The body with a request for usage spliced in; None when nothing is to be asked.

    Nothing is asked when the request is not a stream, when the endpoint reports usage anyway, or when the client said
    what it wants, be it yes or no.
    """
    if not prompt.stream or endpoint not in ENDPOINTS_WITH_STREAM_OPTIONS:
        return None
    options = prompt.stream_options
    if options is msgspec.UNSET:
        brace = body.index(b"{") + 1
        return b"".join((body[:brace], _ASKED, b",", body[brace:]))
    if options is None:
        return _replace(body, b"null", b'{"include_usage":true}', {"include_usage": True})
    if not isinstance(options, dict) or "include_usage" in options:
        return None
    asked = b'{"include_usage":true,' if options else b'{"include_usage":true'
    return _replace(body, b"{", asked, {"include_usage": True, **options})


def _replace(body: bytes, old: bytes, new: bytes, wanted: dict[str, Any]) -> bytes | None:
    """Splice at the place of the top-level key that makes the body say `wanted`; None when there is no such place.

    The key's name may also stand deeper in the body, or twice. Reading the result is what tells the right place.
    """
    for tries, found in enumerate(_KEY.finditer(body)):
        if tries == _MOST_PLACES:
            break
        at = found.end()
        if body[at : at + len(old)] != old:
            continue
        spliced = b"".join((body[:at], new, body[at + len(old) :]))
        try:
            if msgspec.json.decode(spliced, type=_StreamOptions).stream_options == wanted:
                return spliced
        except (msgspec.DecodeError, RecursionError):
            continue
    return None
