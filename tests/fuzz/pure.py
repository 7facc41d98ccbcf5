"""The parts without sockets, in this process: many times as fast, and every one of their promises is checked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec
from multidict import CIMultiDict

from ramjet.core.fingerprint import fingerprint
from ramjet.core.prompt import Unreadable, endpoint_of, read
from ramjet.core.splice import ask_for_usage
from ramjet.core.stream import MOST_BODY_BYTES, MOST_HELD_BYTES, MOST_LINE_BYTES, JsonObserver, SseObserver
from ramjet.front import marks
from ramjet.front.paths import is_engine_admin
from ramjet.http1.connection import Answer, Connection
from ramjet.proxy import headers
from tests.fuzz import cases, corpus, mutate

_ADMIN = (
    "flush_cache",
    "v1/load_lora_adapter",
    "sleep",
    "update_weights_from_disk",
    "abort_request",
    "slots/3",
    "v1/reset_prefix_cache",
)
_HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"proxy-connection",
    b"proxy-authorization",
}
_MAYBE_STREAM = msgspec.json.Decoder()


class Broken(AssertionError):
    """A promise is not kept."""


def _hold(promise: bool, what: str) -> None:
    if not promise:
        raise Broken(what)


def body(seed: int, number: int) -> None:
    """A mutated request's body: read, fingerprinted, spliced; its head: passed on, its path judged."""
    chance = Random(f"{seed} body {number}")
    target, value = chance.choice(corpus.REQUESTS)
    raw = mutate.spell(chance, mutate.json_value(chance, value, chance.choice([0, 1, 2, 5])))
    if chance.random() < 0.5:
        raw = mutate.octets(chance, raw, chance.choice([1, 2, 10]))
    endpoint = endpoint_of(target)
    with contextlib.suppress(Unreadable):
        prompt = read(raw, endpoint)
        first, again = fingerprint(prompt, 7), fingerprint(prompt, 7)
        for chain, other in ((first.usable, again.usable), (first.identity, again.identity)):
            _hold(chain.hashes == other.hashes and chain.ends == other.ends, "the same prompt has another fingerprint")
            _hold(list(chain.ends) == sorted(chain.ends), "a block ends before the one before it")
            _hold(
                chain.head <= len(chain) and (not chain.ends or chain.ends[-1] <= chain.size_bytes),
                "a chain beyond its prompt",
            )
        spliced = ask_for_usage(raw, prompt, endpoint)
        if spliced is not None:
            _check_splice(raw, b"".join(spliced))
    _head(chance)
    _path(chance)


def _check_splice(raw: bytes, spliced: bytes) -> None:
    before, after = _MAYBE_STREAM.decode(raw), _MAYBE_STREAM.decode(spliced)
    asked = after.pop("stream_options")
    given = before.pop("stream_options", None) or {}
    _hold(asked == {**given, "include_usage": True}, "usage is not asked for, or more than that")
    _hold(before == after, "more than the request for usage has changed")


def _head(chance: Random) -> None:
    lines = mutate.fields(chance, [(b"host", b"a"), (b"content-type", b"application/json"), (b"x-request-id", b"r")], 4)
    # A parser that let a line end pass as part of a value would be broken itself.
    parted = (line.translate(None, b"\r\n").partition(b":") for line in lines)
    given = [(name.strip(), said.strip()) for name, _, said in parted]
    texts = CIMultiDict((name.decode("latin-1"), said.decode("latin-1")) for name, said in given)
    identity = marks.request_id_of(texts)
    _hold(identity.isascii() and 0 < len(identity) <= 128, "a request id that is not sane")
    sent = headers.to_replica(given, identity, plain=True, key="k", drop_key=True)
    ours = b"x-request-id: %b\r\nauthorization: Bearer k\r\n" % identity.encode()
    _hold(sent.endswith(ours), "a replica without id or key")
    answer = Answer(Connection(), 200, b"OK", given)
    for kept in (sent, headers.to_client(answer, "r", "home", as_it_came=False).lines):
        lower = {line.partition(b":")[0].lower() for line in kept.split(b"\r\n")}
        _hold(
            not lower & (_HOP_BY_HOP | {b"content-length"}),
            f"a header of one connection is passed on: {lower & _HOP_BY_HOP}",
        )


def _path(chance: Random) -> None:
    path = chance.choice(_ADMIN)
    disguised = "".join(
        f"%{ord(each):02x}" if chance.random() < 0.2 else each.upper() if chance.random() < 0.1 else each
        for each in path
    )
    before = chance.choice(["/", "//", "/./", "/x/../", "http://h/", "http://h:1//", "/..//"])
    after = chance.choice(["", "/", "?a=b", "#x", "//", "/."])
    _hold(
        is_engine_admin(before + disguised + after), f"an administration path let through: {before + disguised + after}"
    )
    is_engine_admin(mutate.octets(chance, (before + quote(path)).encode(), 3).decode("latin-1"))


def stream(seed: int, number: int) -> None:
    """A mutated answer, watched: cut at random, and whole."""
    chance = Random(f"{seed} stream {number}")
    is_stream = chance.random() < 0.7
    raw, _ = cases._stream(chance, number) if is_stream else cases._document(chance, number)
    if chance.random() < 0.5:
        raw = mutate.octets(chance, raw, chance.choice([1, 2, 10]))
    if chance.random() < 0.002:
        raw = raw + b"x" * chance.choice([MOST_LINE_BYTES, MOST_BODY_BYTES]) + b"\n\n" + raw
    hide = is_stream and chance.random() < 0.7
    make: Callable[[], Any] = (lambda: SseObserver(hide_usage=hide)) if is_stream else JsonObserver
    pieces = mutate.cuts(chance, raw, chance.choice([2, 6, 40])) if raw else []
    whole, cut = make(), make()
    out_whole = whole.feed(raw, 1.0) + whole.close()
    out = []
    for piece in pieces:
        out.append(cut.feed(piece, 1.0))
        if is_stream:
            held = sum(map(len, cut._held)) + len(cut._line)
            _hold(held <= MOST_HELD_BYTES + MOST_LINE_BYTES + len(piece), f"{held} bytes held")
        else:
            kept = sum(map(len, cut._pieces))
            _hold(kept <= MOST_BODY_BYTES + len(piece), f"{kept} bytes kept")
    out.append(cut.close())
    got = b"".join(out)
    if not hide:
        _hold(got == raw == out_whole, "a byte was changed")
    elif len(raw) < MOST_HELD_BYTES:
        _hold(got == cases.without_usage(raw), f"not the stream without its usage: {got!r} of {raw!r}")
        _hold(got == out_whole, "where the network cuts matters to the client")
    _hold(cut.usage == whole.usage and cut.error == whole.error, "where the network cuts matters to the usage")
    _hold(
        (cut.first_token_at is None) == (whole.first_token_at is None),
        "where the network cuts matters to the first token",
    )


LAYERS: dict[str, Callable[[int, int], None]] = {"bodies, in process": body, "streams, in process": stream}
