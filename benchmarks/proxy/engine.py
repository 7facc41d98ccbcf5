"""A fake engine that costs next to nothing, on two ports of one process.

What it answers stands in the request, in fields that every proxy forwards: `max_tokens` is how many chunks a stream has,
`seed` the microseconds between two of them, `top_k` the conversation by which it remembers what it has read.
"""

from __future__ import annotations

import asyncio
import re
import sys
from functools import partial
from typing import cast

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_FIELD = re.compile(rb'"(max_tokens|seed|top_k)":(\d+)')
_CHUNK_TEXT = b"some words of an answer "
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n\r\n"


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, read: dict[int, int]) -> None:
        """
        Args:
            read: bytes that were read of each conversation; the port's.
        """
        self._read = read
        self._got = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        """Nobody waits for the rest."""
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """A piece of a request, or a whole one; they come one after another."""
        self._got += data
        end = self._got.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._got, 0, end)
        size = int(length[1]) if length else 0
        if len(self._got) >= end + 4 + size:
            opening = bytes(self._got[end + 4 : end + 1_028])
            self._got.clear()
            self._answer(opening, size)

    def _answer(self, opening: bytes, size: int) -> None:
        fields = {name: int(value) for name, value in _FIELD.findall(opening)}
        conversation = fields.get(b"top_k", 0)
        cached = min(self._read.get(conversation, 0), size) // 4
        self._read[conversation] = size
        usage = b'"usage":{"prompt_tokens":%d,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":%d}}' % (
            size // 4,
            cached,
        )
        if b'"stream":true' not in opening:
            body = (
                b'{"object":"chat.completion","choices":[{"message":{"role":"assistant","content":"ok"}}],%b}' % usage
            )
            self._transport.write(_HEAD % (b"application/json", b"Content-Length: %d" % len(body)) + body)
            return
        self._transport.write(_HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked"))
        last = _chunk(b'data: {"object":"chat.completion.chunk","choices":[],%b}\n\n' % usage)
        self._stream(fields.get(b"max_tokens", 16), fields.get(b"seed", 0) / 1e6, last + _chunk(b"data: [DONE]\n\n"))

    def _stream(self, left: int, gap_s: float, last: bytes) -> None:
        self._timer = None
        while left:
            self._transport.write(_TOKEN)
            left -= 1
            if gap_s and left:
                self._timer = asyncio.get_running_loop().call_later(gap_s, self._stream, left, gap_s, last)
                return
        self._transport.write(last + b"0\r\n\r\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_TOKEN = _chunk(
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"mock","choices":[{"index":0,'
    b'"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % _CHUNK_TEXT
)


async def main(ports: list[int]) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    for port in ports:
        read: dict[int, int] = {}
        await loop.create_server(partial(Engine, read), "127.0.0.1", port, backlog=8_192)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main([int(port) for port in sys.argv[1:]]))
