"""Clients that send one request after another, and what they saw."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"prompt_tokens":(\d+).*"cached_tokens":(\d+)')
_TIMEOUT_S = 30.0

Body = Sequence[bytes]
"""The pieces of a request's body."""
Bodies = Callable[[int], Iterator[Body]]
"""The bodies that one of the workers sends, without end."""


@dataclass(slots=True)
class Seen:
    """What clients have seen."""

    requests: int = 0
    errors: int = 0
    chunks: int = 0
    """Events of streams."""
    sent_bytes: int = 0
    took_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    """Between two pieces of a stream."""
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Client(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._got: list[bytes] = []
        self._left: int | None = None
        """Bytes of the answer that are to come; None where its end is that of a chunked one, or before its head."""
        self._is_chunked = False
        self._done: asyncio.Future[bool] | None = None
        self._last_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        """What was not answered by now never will be."""
        self._finish(good=False)

    async def ask(self, host: str, body: Body) -> bool:
        """Send a request, and read its answer; whether it is one, with status 200 and all of it."""
        self._done = asyncio.get_running_loop().create_future()
        self._got, self._left, self._is_chunked, self._last_at = [], None, False, 0.0
        self._seen.sent_bytes += sum(map(len, body))
        self._transport.writelines([_head(host, body), *body])
        return await self._done

    def data_received(self, data: bytes) -> None:
        """A piece of an answer."""
        if self._done is None:
            return
        self._got.append(data)
        if self._left is None and not self._is_chunked and not self._read_head():
            return
        if self._is_chunked:
            now = perf_counter()
            if self._last_at:
                self._seen.gaps_s.append(now - self._last_at)
            self._last_at = now
            if data.endswith(b"0\r\n\r\n"):
                self._finish(good=b"[DONE]" in b"".join(self._got[-2:]))
            return
        assert self._left is not None
        self._left -= len(data)
        if self._left <= 0:
            self._finish(good=True)

    def _read_head(self) -> bool:
        got = b"".join(self._got)
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return False
        if not got.startswith(b"HTTP/1.1 200"):
            self._transport.abort()
            return False
        length = _LENGTH.search(got, 0, end)
        self._is_chunked = length is None
        if length is not None:
            # What has come is about to be taken off again.
            self._left = int(length[1]) + end + 4 - len(got) + len(self._got[-1])
        return True

    def _finish(self, *, good: bool) -> None:
        if self._done is None or self._done.done():
            return
        answer = b"".join(self._got)
        self._seen.chunks += answer.count(b"data: {")
        if found := _TOKENS.search(answer):
            self._seen.prompt_tokens += int(found[1])
            self._seen.cached_tokens += int(found[2])
        self._done.set_result(good)
        self._done = None


class _Begun(asyncio.Protocol):
    """A connection whose answer is waited for until it has begun."""

    def __init__(self, begun: asyncio.Future[None]) -> None:
        self._begun = begun

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, _: bytes) -> None:
        if not self._begun.done():
            self._begun.set_result(None)

    def send(self, host: str, body: Body) -> None:
        self._transport.writelines([_head(host, body), *body])

    def close(self) -> None:
        self._transport.abort()


def _head(host: str, body: Body) -> bytes:
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"User-Agent: bench\r\nAccept: */*\r\nContent-Length: {sum(map(len, body))}\r\n\r\n"
    ).encode()


async def drive(urls: Sequence[str], bodies: Bodies, workers: int, until: float, *, pause_s: float = 0.0) -> Seen:
    """Let workers send their bodies, each on a connection of its own, until a time of `perf_counter`."""
    seen = Seen()

    async def work(worker: int) -> None:
        place = urlsplit(urls[worker % len(urls)])
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: Client(seen), place.hostname or "", place.port or 80
        )
        for body in bodies(worker):
            started = perf_counter()
            if started >= until:
                break
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    good = await client.ask(place.netloc, body)
            except TimeoutError:
                good = False
            seen.requests += 1
            seen.errors += not good
            seen.took_s.append(perf_counter() - started)
            if not good:
                break
            if pause_s:
                await asyncio.sleep(pause_s)

    async with asyncio.TaskGroup() as group:
        for worker in range(workers):
            group.create_task(work(worker))
    return seen


@contextlib.asynccontextmanager
async def kept_open(urls: Sequence[str], bodies: Bodies, number: int) -> AsyncIterator[None]:
    """So many streams that have begun and go on while this context lasts."""
    loop, clients = asyncio.get_running_loop(), []
    for worker in range(number):
        place, begun = urlsplit(urls[worker % len(urls)]), loop.create_future()
        _, client = await loop.create_connection(
            partial(_Begun, begun), place.hostname or "", place.port or 80
        )  # fmt: skip
        client.send(place.netloc, next(bodies(worker)))
        async with asyncio.timeout(_TIMEOUT_S):
            await begun
        clients.append(client)
    try:
        yield
    finally:
        for client in clients:
            client.close()


def percentile(values: Iterable[float], part: float) -> float | None:
    """None of no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None
