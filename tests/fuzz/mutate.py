"""Mutations: of JSON by its structure, of bytes, of heads and of framing. All chance comes from the given generator."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

Field = tuple[bytes, bytes]

_NAMES = (
    "model", "messages", "role", "content", "stream", "stream_options", "include_usage", "tools", "system", "prompt",
    "input", "input_ids", "text", "type", "usage", "prompt_tokens", "cached_tokens", "choices", "delta", "error", "id",
    "cache_control", "lora_path", "", "\u0000", "\ud83d\ude00",
)  # fmt: skip


def _deep(chance: Random) -> Any:
    value: Any = "bottom"
    for _ in range(chance.choice([3, 40, 400])):
        value = [value] if chance.random() < 0.5 else {"a": value}
    return value


_JUNK: tuple[Callable[[Random], Any], ...] = (
    lambda _: None,
    lambda _: True,
    lambda _: False,
    lambda _: 0,
    lambda _: -1,
    lambda _: 1 << 31,
    lambda _: 1 << 64,
    lambda _: -(1 << 70),
    lambda _: 1.5e308,
    lambda _: "",
    lambda _: [],
    lambda _: {},
    lambda _: [[]],
    lambda _: "\x00\x01\x7f",
    lambda _: "\u2028\ufeff\U0001f600",
    lambda _: "data: [DONE]\n\n",
    lambda _: '"stream_options": {"include_usage": true}',
    lambda chance: "x" * chance.choice([255, 256, 1_023, 4_097, 70_000]),
    lambda chance: [chance.randrange(-5, 200_000) for _ in range(chance.choice([1, 7, 300]))],
    lambda chance: {
        "type": chance.choice(["text", "image_url", "file", 7, None]),
        "text": chance.choice(["x", None, 3]),
    },
    lambda chance: f"now 12:3{chance.randrange(10)}\n" * chance.choice([1, 70]),
    _deep,
)


def _copy(value: Any) -> Any:
    """A copy; what is nested too deeply for one serves as it is."""
    try:
        return copy.deepcopy(value)
    except RecursionError:
        return value


def json_value(chance: Random, value: Any, times: int) -> Any:
    """A copy of a JSON value, changed at so many places."""
    box = [_copy(value)]
    for _ in range(times):
        places = _places(box)
        holder, key = chance.choice(places)
        _change(chance, holder, key)
        if not box:
            box.append(None)
    return box[0]


def _places(box: list[Any]) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [box]
    while waiting and len(found) < 300:
        holder = waiting.pop()
        for key, inner in holder.items() if isinstance(holder, dict) else enumerate(holder):
            found.append((holder, key))
            if isinstance(inner, (dict, list)):
                waiting.append(inner)
    return found


def _change(chance: Random, holder: Any, key: Any) -> None:
    what = chance.randrange(8)
    if what <= 2:
        holder[key] = chance.choice(_JUNK)(chance)
    elif what == 3:
        del holder[key]
    elif what == 4:
        holder[key] = chance.choice([[holder[key]], {"content": holder[key]}, str(holder[key])[:100]])
    elif isinstance(holder, dict):
        if what == 5:
            holder[chance.choice(_NAMES)] = holder.pop(key)
        else:
            holder[chance.choice(_NAMES)] = chance.choice(_JUNK)(chance)
    elif what == 5:
        holder.insert(chance.randrange(len(holder) + 1), _copy(holder[key]))
    else:
        chance.shuffle(holder)


def spell(chance: Random, value: Any) -> bytes:
    """JSON as one of its many spellings."""
    style = chance.randrange(6)
    text = json.dumps(
        value,
        ensure_ascii=chance.random() < 0.5,
        indent=1 if style == 0 else None,
        separators=(",", ":") if style > 2 else None,
        sort_keys=style == 4,
    )
    if chance.random() < 0.1 and text.startswith("{") and len(text) > 2:
        # A key twice: the last one counts, in most languages.
        double = chance.choice(
            ['"stream_options":null', '"stream":true', '"messages":[]', '"model":"b"', '"a":{"stream_options":{}}']
        )
        text = f"{{{double},{text[1:]}" if chance.random() < 0.5 else f"{text[:-1]},{double}}}"
    if chance.random() < 0.1:
        text = text.replace('"stream', '"\\u0073tream', 1)
    if chance.random() < 0.1:
        text = chance.choice([" ", "\n\n", "\t", "\ufeff"]) + text + chance.choice(["", " ", "\n", "\x00", "{}"])
    return text.encode("utf-8", "surrogatepass")


_TOKENS = (
    b"\x00", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b"\xff", b"\xed\xa0\x80", b"\xf0\x9f", b'"', b"\\", b"{", b"}",
    b"[" * 50, b",", b":", b"data:", b"data: [DONE]\n\n", b"event: x\n", b": ping\n\n", b"\\u0000", b"\\ud800", b"null",
    b"1e999", b"-", b"0\r\n\r\n", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b'"usage":', b'"error":', b'"meta_info":',
)  # fmt: skip


def octets(chance: Random, data: bytes, times: int) -> bytes:
    """Bytes, changed at so many places."""
    changed = bytearray(data)
    for _ in range(times):
        at = chance.randrange(len(changed) + 1)
        to = min(len(changed), at + chance.choice([1, 1, 2, 8, 64]))
        what = chance.randrange(7)
        if what == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            del changed[at:to]
        elif what == 2:
            changed[at:at] = changed[at:to] * chance.choice([1, 2, 30])
        elif what == 3:
            del changed[at:]
        elif what == 4:
            changed[at:to] = chance.randbytes(to - at)
        else:
            changed[at:at] = chance.choice(_TOKENS)
    return bytes(changed)


def cuts(chance: Random, data: bytes, most: int) -> list[bytes]:
    """The same bytes in at most so many pieces, none of them empty."""
    places = sorted({chance.randrange(len(data) + 1) for _ in range(chance.randint(0, most - 1))} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


# -- framing ----------------------------------------------------------------------------------------------------------


def in_chunks(chance: Random, body: bytes, *, odd: bool) -> bytes:
    """A body in chunks; `odd` leaves what the RFC calls simple: extensions, trailers, and what it does not allow."""
    out = []
    pieces = cuts(chance, body, 5) if body else []
    for piece in pieces:
        size = b"%x" % len(piece)
        end = b"\r\n"
        if odd and chance.random() < 0.4:
            size, end = chance.choice(
                [
                    (size + b";x=1", end), (size + b' ; q="a;b"', end), (b"0" * 12 + size, end), (size.upper(), end),
                    (b"+" + size, end), (b"-" + size, end), (b"0x" + size, end), (b" " + size, end), (size + b" ", end),
                    (b"f" * 17, end), (b"", end), (size, b"\n"), (size, b""), (size, b"\r"), (b"%x" % (len(piece) + 1), end),
                    (b"%x" % max(0, len(piece) - 1), end), (size + b";" + b"y" * 9_000, end), (size + b"\x00", end),
                    (b"1_0", end), (size + b";\n", end),
                ]
            )  # fmt: skip
        out.append(size + b"\r\n" + piece + end)
    last = b"0\r\n\r\n"
    if odd and chance.random() < 0.5:
        last = chance.choice(
            [
                b"0\r\nx-late: 1\r\n\r\n", b"0\r\ncontent-length: 5\r\n\r\n", b"", b"0\r\n", b"0\n\n", b"00000\r\n\r\n",
                b"0;x\r\n\r\n", b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n", b"0\r\nnonsense\r\n\r\n", b"-1\r\n\r\n",
                b"0\r\n" + b"t: x\r\n" * 400 + b"\r\n",
            ]
        )  # fmt: skip
    return b"".join(out) + last


def framed(chance: Random, body: bytes) -> tuple[list[Field], bytes]:
    """Fields that frame a body, and the body as it goes over the wire: mostly right, in every way wrong else."""
    what, size = chance.random(), b"%d" % len(body)
    if what < 0.5:
        return [(b"content-length", size)], body
    if what < 0.68:
        return [(b"transfer-encoding", b"chunked")], in_chunks(chance, body, odd=False)
    if what < 0.80:
        return [(b"transfer-encoding", b"chunked")], in_chunks(chance, body, odd=True)
    if what < 0.88:
        wrong = chance.choice(
            [
                b"%d" % (len(body) + 7), b"%d" % max(0, len(body) - 3), b"+" + size, b"-1", b"0x10", size + b"," + size,
                size + b", 0", b"9" * 30, b"", b"1_0", b" " + size, size + b" 0", b"\xb2", size + b";", b"0", b"1e3",
            ]
        )  # fmt: skip
        return [(b"content-length", wrong)], body
    if what < 0.92:
        other = chance.choice([size, b"0", b"%d" % (len(body) + 1), b"5"])
        return [(b"content-length", size), (b"content-length", other)], body
    if what < 0.98:
        coding = chance.choice(
            [
                b"Chunked", b"chunked, chunked", b"gzip, chunked", b"identity", b"chunked, identity", b"xchunked", b"chunked;q=1",
                b"\tchunked", b"chunked\x0b", b'"chunked"', b"", b",chunked", b"deflate", b"chun\x00ked", b"chunked ",
            ]
        )  # fmt: skip
        fields = [(b"transfer-encoding", coding)]
        if chance.random() < 0.5:
            fields.insert(chance.randrange(2), (b"content-length", chance.choice([size, b"0", b"4"])))
        return fields, in_chunks(chance, body, odd=False)
    return [], body


# -- heads ------------------------------------------------------------------------------------------------------------

_ODD_FIELDS: tuple[bytes, ...] = (
    b"no colon at all", b": no name", b" folded: yes", b"\tfolded", b"space : before", b"nul: a\x00b", b"cr: a\rb: c",
    b"lf: a\nx-injected: b", b"na\x7fme: x", b"n\xc3\xa4me: x", b"high: \xff\xfe", b"utf8: \xc3\xa4", b"empty:", b"x-long: " + b"v" * 9_000,
    b"x-huge: " + b"v" * 70_000, b"n" * 3_000 + b": v", b"host: other", b"Host: 127.0.0.1:1", b"expect: 100-continue", b"expect: 200-ok",
    b"connection: close", b"connection: keep-alive, x-case", b"connection: content-length", b"connection: transfer-encoding, host",
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13",
    b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__", b"te: trailers", b"trailer: x-late",
    b"keep-alive: timeout=5", b"proxy-connection: keep-alive", b"content-encoding: gzip", b"content-encoding: br, gzip",
    b"accept-encoding: gzip, br, zstd", b"content-type: text/plain", b"content-type: application/json; charset=\xff",
    b"content-type:", b"cookie: a=b; c", b"authorization: Bearer \xc3\xa4", b"authorization:", b"x-api-key: k\tk", b"x-ramjet-probe: 1",
    b"x-ramjet-replica: other", b"x-request-id: \xff", b"x-request-id: " + b"i" * 200, b"forwarded: for=1.2.3.4", b"range: bytes=0-1",
    b"if-modified-since: yesterday", b"accept: */*", b"x-case: 0", b"transfer_encoding: chunked", b"content_length: 3",
)  # fmt: skip


def fields(chance: Random, given: list[Field], times: int) -> list[bytes]:
    """Lines of a head, with so many changes."""
    lines = [name + b": " + value for name, value in given]
    for _ in range(times):
        at, what = chance.randrange(len(lines) + 1), chance.randrange(9)
        if what == 0 and at < len(lines):
            del lines[at]
        elif what == 1 and at < len(lines):
            lines.insert(at, lines[at])
        elif what == 2 and at < len(lines):
            lines[at] = octets(chance, lines[at], 1)
        elif what == 3:
            chance.shuffle(lines)
        elif what == 4:
            lines.extend(b"x-many-%d: %d" % (number, number) for number in range(chance.choice([5, 120, 200])))
        else:
            lines.insert(at, chance.choice(_ODD_FIELDS))
    return lines
