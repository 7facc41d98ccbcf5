"""Case by number: the same seed and number give the same bytes, on every machine."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from ramjet.core.stream import MOST_HELD_BYTES
from tests.fuzz import corpus, http1, mutate

_METHODS = (
    b"GET",
    b"HEAD",
    b"PUT",
    b"OPTIONS",
    b"CONNECT",
    b"TRACE",
    b"post",
    b"PO\x00ST",
    b"",
    b"P" * 60,
    b"PRI",
    b"POST\t",
    b"DELETE",
)
_TARGETS = (
    b"*", b"", b"/", b"//", b"/v1/../v1/chat/completions", b"/v1/chat/completions/", b"/v1/chat/completions?a=b&c=%00", b"/health",
    b"/flush_cache", b"/%66lush_cache", b"/v1/models", b"http://other/v1/chat/completions", b"http://[::1", b"http://", b"https://x:99999/",
    b"/\xff", b"/a b", b"/%", b"/%zz", b"/a#b", b"/" + b"l" * 9_000, b"/" + b"m" * 70_000, b"x", b"host:443", b"/\x00", b"/..%2f..", b"///a//b",
    b"http://user:pw@x/y", b"/v1/chat/completions HTTP/1.1\r\nx: y\r\n\r\nGET /smuggled", b"/?", b"?", b"/\\..\\x", b"/a\rb", b"http://x?y",
    b"javascript:alert", b"/;a=b", b"http://\xc3\xa4/", b"//x/y", b"http:/x", b"/%2e%2e/metrics", b"http://a:b:c/", b"http://[x]/",
)  # fmt: skip
_VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/1.2",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"HTTP/1.1 ",
    b"HTTP/1",
    b"http/1.1",
    b"",
    b"HTTP/1.1\x00",
    b"HTTP/11",
    b"XTTP/1.1",
    b"HTTP/9.9",
)


@dataclass(frozen=True, slots=True)
class RequestCase:
    """One mutated request."""

    number: int
    pieces: tuple[bytes, ...]
    """As they are written; there is a pause between them."""
    leaves: bool
    """The client closes at once after the last piece."""
    valid: http1.Message | None
    """The request that it is by the strictest reading; None where it is not exactly one."""

    @property
    def raw(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces)


def request(seed: int, number: int) -> RequestCase:
    """A mutated request; about half of them are valid HTTP with a mutated body."""
    chance = Random(f"{seed} request {number}")
    target, value = chance.choice(corpus.REQUESTS)
    body = mutate.spell(chance, mutate.json_value(chance, value, chance.choice([0, 1, 1, 2, 5])))
    if chance.random() < 0.25:
        body = mutate.octets(chance, body, chance.choice([1, 2, 10]))
    method, path, version = b"POST", target.encode(), b"HTTP/1.1"
    given = [
        (b"host", b"ramjet"),
        (b"content-type", b"application/json"),
        (b"x-request-id", b"fuzz-%d" % number),
        (b"x-case", b"%d" % number),
    ]
    framing, body = mutate.framed(chance, body)
    odd = chance.random() < 0.4
    if odd and chance.random() < 0.5:
        what = chance.randrange(3)
        if what == 0:
            method = chance.choice(_METHODS)
        elif what == 1:
            path = chance.choice(_TARGETS)
        else:
            version = chance.choice(_VERSIONS)
    lines = mutate.fields(chance, given + framing, chance.choice([0, 1, 1, 2, 4]) if odd else 0)
    raw = b"\r\n".join([method + b" " + path + b" " + version, *lines, b"", b""])
    if odd and chance.random() < 0.2:
        raw = mutate.octets(chance, raw, chance.choice([1, 2, 6]))
    raw += body
    if chance.random() < 0.04:
        raw = raw[: chance.randrange(len(raw)) + 1]
    elif chance.random() < 0.04:
        raw += chance.choice([b"\r\n", b"\x00", b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n", b"more"])
    pieces = mutate.cuts(chance, raw, 6) if raw and chance.random() < 0.3 else [raw]
    return RequestCase(number, tuple(pieces), chance.random() < 0.05, http1.request(raw))


@dataclass(frozen=True, slots=True)
class AnswerCase:
    """One mutated answer of an engine, and the good request that it answers."""

    number: int
    request: bytes
    stream: bool
    """The request asks for a stream, and not for usage: Ramjet does, and hides it."""
    pieces: tuple[bytes, ...]
    ending: str
    """`keep`, `close`, `reset`, or `silent`: the engine stops in the middle and does not close."""
    valid: http1.Message | None
    """The answer that it is by the strictest reading, to its last byte; None where it is not exactly one."""

    @property
    def raw(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces)


_STATUSES = (201, 204, 206, 301, 304, 400, 404, 418, 429, 499, 500, 503, 529, 599, 100, 101, 102, 199, 0, 99, 600, 999)


def answer(seed: int, number: int) -> AnswerCase:
    """A mutated answer; about half of them are valid HTTP with a mutated body."""
    chance = Random(f"{seed} answer {number}")
    stream = chance.random() < 0.6
    body, kind = _stream(chance, number) if stream else _document(chance, number)
    if chance.random() < 0.25:
        body = mutate.octets(chance, body, chance.choice([1, 2, 10]))
    if chance.random() < 0.05:
        kind = chance.choice(
            [
                b"text/html",
                b"application/json",
                b"text/event-stream; charset=utf-8",
                b"",
                b"TEXT/EVENT-STREAM",
                b"x/\xff",
            ]
        )
    given = [(b"content-type", kind), (b"x-number", b"%d" % number)]
    until_closed = chance.random() < 0.12
    framing, body = ([], body) if until_closed else mutate.framed(chance, body)
    odd = chance.random() < 0.35
    first = b"HTTP/1.1 200 OK"
    if odd and chance.random() < 0.5:
        status = chance.choice(_STATUSES)
        first = chance.choice(
            [
                b"HTTP/1.1 %d Odd" % status, b"HTTP/1.1 %d" % status, b"HTTP/1.1 %d " % status, b"HTTP/1.0 200 OK", b"HTTP/2 200",
                b"HTTP/1.1 200 O\x00K", b"HTTP/1.1 200 \xc3\xa4", b"HTTP/1.1 2000 OK", b"HTTP/1.1 -1 OK", b"HTTP/1.1 abc OK", b"ICY 200 OK", b"",
                b"HTTP/1.1  200 OK", b"HTTP/1.1 200 " + b"r" * 9_000, b"HTTP/1.1 200 a\rb", b"GET / HTTP/1.1", b"HTTP/1.1 %d Odd" % status,
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK",
            ]
        )  # fmt: skip
    lines = mutate.fields(chance, given + framing, chance.choice([0, 1, 1, 2, 4]) if odd else 0)
    raw = b"\r\n".join([first, *lines, b"", b""])
    if odd and chance.random() < 0.2:
        raw = mutate.octets(chance, raw, chance.choice([1, 2, 6]))
    raw += body
    ending = "close" if until_closed else chance.choice(["keep"] * 16 + ["close", "close", "reset"])
    if chance.random() < 0.05:
        raw = raw[: chance.randrange(len(raw) + 1)]
        ending = chance.choice(["close", "reset", "silent"])
    elif chance.random() < 0.04:
        raw += chance.choice([b"\r\n", b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled", b"0\r\n\r\n"])
    pieces = mutate.cuts(chance, raw, 6) if raw and chance.random() < 0.4 else [raw]
    if chance.random() < 0.02 and len(pieces) > 1:
        pieces = pieces[:-1]
        ending = chance.choice(["close", "reset", "silent"])
    asked = b'{"model":"m","messages":[{"role":"user","content":"case %d"}]%s}' % (
        number,
        b',"stream":true' if stream else b"",
    )
    good = b"POST /v1/chat/completions HTTP/1.1\r\nhost: ramjet\r\ncontent-type: application/json\r\nx-request-id: fuzz-%d\r\nx-case: %d\r\ncontent-length: %d\r\n\r\n%s" % (number, number, len(asked), asked)  # fmt: skip
    whole = b"".join(pieces)
    return AnswerCase(number, good, stream, tuple(pieces), ending, _exactly_one(whole, ending))


def _exactly_one(raw: bytes, ending: str) -> http1.Message | None:
    with contextlib.suppress(http1.Malformed):
        found = http1.answer(raw, closed=ending == "close")
        whole = found is not None and found.size == len(raw) and ending in {"keep", "close"}
        if (
            found is not None
            and whole
            and re.match(rb"HTTP/1\.1 [2-5]", raw)
            and len(found.head.first[1]) < 1_000
            and http1.is_plain(found.head)
        ):
            return found
    return None


def _document(chance: Random, number: int) -> tuple[bytes, bytes]:
    value = chance.choice(corpus.BODIES) | {"case": number}
    return mutate.spell(chance, mutate.json_value(chance, value, chance.choice([0, 1, 2, 4]))), b"application/json"


def _stream(chance: Random, number: int) -> tuple[bytes, bytes]:
    events = list(chance.choice(corpus.STREAMS))
    for _ in range(chance.choice([0, 1, 1, 3])):
        at = chance.randrange(len(events))
        what = chance.randrange(4)
        if what == 0 and not isinstance(events[at], str):
            events[at] = mutate.json_value(chance, events[at], chance.choice([1, 2]))
        elif what == 1:
            events.insert(at, events[at])
        elif what == 2 and len(events) > 1:
            del events[at]
        else:
            events.insert(at, chance.choice(["", "[DONE]", "x", "{", "null", "7", '"a"', "[]", corpus.USAGE_CHUNK]))
    end = chance.choice([b"\n\n"] * 5 + [b"\r\n\r\n", b"\r\r", b"\n", b"\r\n\n"])
    extra = chance.choice([b""] * 5 + [b": ping\n\n", b"event: x\nid: 1\nretry: 5\n", b"\xef\xbb\xbf", b"\n\n\n"])
    comment = b": case %d" % number + end
    return comment + extra + b"".join(corpus.event(payload, end) for payload in events), b"text/event-stream"


_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r|\Z)")


def without_usage(body: bytes) -> bytes:
    """A stream without the events that hold nothing but usage, read by a reader of its own: the whole at once."""
    kept, event = [], b""
    for found in _LINE.finditer(body):
        event += found[0]
        if not found[0].strip(b"\r\n"):
            kept.append(b"" if is_usage_only(event) else event)
            event = b""
    return b"".join(kept) + (b"" if is_usage_only(event) else event)


def is_usage_only(event: bytes) -> bool:
    """Whether an event holds a chunk with usage and no choices, and is no longer than what is held back to see."""
    if len(event) > MOST_HELD_BYTES:
        return False
    for line in re.split(rb"\r\n|\n|\r", event):
        if line.startswith(b"data:"):
            found: Any = None
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found = msgspec.json.decode(line[5:].strip())
            if isinstance(found, dict) and found.get("choices") == [] and found.get("usage"):
                return True
    return False
