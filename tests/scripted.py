"""An engine on a raw socket whose every byte, pause and close a test decides, and which keeps what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Seen:
    """One request as it came over the wire."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first header of this name."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass(slots=True, eq=False)
class Connection:
    """One connection of the engine's, for a script to answer on."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: int = 0

    async def send(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        """Send pieces, each in a packet of its own where there is a pause."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)

    async def answer(self, body: bytes, *, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        """A whole answer with its length."""
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status} Whatever\r\ncontent-type: {kind}\r\n{more}content-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def start_stream(self) -> None:
        """The head of an event stream."""
        await self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        """One chunk of a stream; the empty one ends it."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def gone(self, within_s: float = 5.0) -> bool:
        """Wait for the other side to close; False when it has not in time."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(within_s):
                return await self.reader.read(1) == b""
        return True

    def reset(self) -> None:
        """Close with a reset instead of a goodbye."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Connection, Seen], Awaitable[None]]


@dataclass(slots=True, eq=False)
class ScriptedEngine:
    """Runs a script for every request; `script` may be changed while it serves."""

    script: Script
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    idle_s: float | None = None
    """Seconds after which it closes an unused connection; None for never."""

    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = Connection(reader, writer)
        try:
            while True:
                async with asyncio.timeout(self.idle_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                request = await _read(head, reader)
                self.seen.append(request)
                connection.requests += 1
                await self.script(connection, request)
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        self._tasks.discard(task)
        writer.close()

    async def close(self) -> None:
        """End what its scripts still do."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _read(head: bytes, reader: asyncio.StreamReader) -> Seen:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    lower = {name.lower(): value for name, value in headers}
    body = b""
    if "content-length" in lower:
        body = await reader.readexactly(int(lower["content-length"]))
    elif "chunked" in lower.get("transfer-encoding", ""):
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    return Seen(method, target, headers, body)


async def answer_ok(connection: Connection, seen: Seen) -> None:
    """The script of an engine that answers everything with an empty object; probes are answered too."""
    del seen
    await connection.answer(b"{}")


@contextlib.asynccontextmanager
async def scripted_engine(script: Script = answer_ok, *, idle_s: float | None = None) -> AsyncIterator[ScriptedEngine]:
    """A scripted engine on a free loopback port."""
    engine = ScriptedEngine(script, idle_s=idle_s)
    server = await asyncio.start_server(engine._serve, "127.0.0.1", 0, limit=1 << 22)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        await engine.close()


def dead_url() -> str:
    """The URL of a port on which nobody listens, nor ever will: it stays taken until this process ends."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        # Closed, the next server of another test that runs beside this one might get it.
        taken.detach()
        return url
