"""A client on a raw socket: what it sends is written out, and what it sees is told apart to the last close."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/generate": "generate",
    "/v1/embeddings": "embeddings",
    "/inference/v1/x": "other",
}
"""Every path with a name of its own, and one that nobody knows."""
WITH_PROMPT = [path for path, name in ENDPOINTS.items() if name not in {"embeddings", "other"}]


def body_for(path: str, *texts: str, stream: bool = False, **more: Any) -> bytes:
    """A request that any of the endpoints takes; `texts` are the turns of the user, answered in between."""
    talk: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        talk += [{"role": "assistant", "content": "ok"}] if number else []
        talk.append({"role": "user", "content": text})
    raw = "\n\nok\n\n".join(texts)
    shapes: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": talk},
        "/v1/messages": {"messages": talk, "max_tokens": 8},
        "/v1/responses": {"input": talk},
        "/generate": {"text": raw},
        "/v1/embeddings": {"input": raw},
    }
    prompt = shapes.get(path, {"prompt": raw})
    return json.dumps({"model": "m", "stream": stream, **prompt, **more}).encode()


@dataclass(slots=True)
class Reply:
    """One answer as it came over the wire."""

    status: int = 0
    """0 where no head came."""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    complete: bool = False
    """Whether the answer's own framing says that nothing is missing."""
    interim: list[int] = field(default_factory=list)
    """The 1xx answers before it."""

    def all(self, name: str) -> list[str]:
        """Every header of this name."""
        return [value for key, value in self.headers if key.lower() == name]

    def header(self, name: str) -> str | None:
        """The first header of this name."""
        return next(iter(self.all(name)), None)

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(slots=True, eq=False)
class Wire:
    """One connection to a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.writer.write(data)

    async def reply(self, method: str = "POST", *, within_s: float = 20.0) -> Reply:
        """Read one answer to its end, or to where it broke off."""
        got = Reply()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            async with asyncio.timeout(within_s):
                await self._head(got)
                await self._body(got, method)
                got.complete = True
        return got

    async def _head(self, got: Reply) -> None:
        while True:
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
            got.status = int(first.split(" ")[1])
            got.headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
            if got.status >= 200 or got.status == 101:
                return
            got.interim.append(got.status)

    async def _body(self, got: Reply, method: str) -> None:
        length = got.header("content-length")
        if method == "HEAD" or got.status in {101, 204, 304}:
            return
        if got.header("transfer-encoding") == "chunked":
            assert length is None
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                got.body += await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n"
        elif length is not None:
            while len(got.body) < int(length):
                piece = await self.reader.read(int(length) - len(got.body))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", int(length))
                got.body += piece
        else:
            while piece := await self.reader.read(1 << 16):
                got.body += piece

    async def closed(self, within_s: float = 5.0) -> bool:
        """Whether the other side closes in time."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(within_s):
                return await self.reader.read(1) == b""
        return True


@contextlib.asynccontextmanager
async def wire(url: str) -> AsyncIterator[Wire]:
    """A connection to a server; it is gone when the context is left."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def request(path: str, body: bytes | None = b"{}", *lines: str, method: str = "POST", version: str = "1.1") -> bytes:
    """A request, written out; `lines` are more headers, a body of None is none."""
    head = [f"{method} {path} HTTP/{version}", "Host: example.test", *lines]
    if body is not None:
        given = {line.partition(":")[0].lower() for line in lines}
        head += [] if "content-type" in given else ["Content-Type: application/json"]
        head += [] if given & {"content-length", "transfer-encoding"} else [f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + (body or b"")


def chunked(*pieces: bytes) -> bytes:
    """A body in chunks."""
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


async def ask(url: str, raw: bytes, *, within_s: float = 20.0) -> Reply:
    """Send one request on a connection of its own and read the answer."""
    async with wire(url) as line:
        line.send(raw)
        return await line.reply(raw.partition(b" ")[0].decode("latin-1"), within_s=within_s)
