"""How long an engine keeps a connection that nothing is sent on: one question over a bare socket, and then patience.

An HTTP client would hide what is looked for: it closes and opens connections by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from ramjet.check.findings.values import Idle

_MOST_HEAD_BYTES = 64 << 10


async def measure(url: str, path: str, *, key: str | None, ask_s: float, wait_s: float) -> Idle | None:
    """Ask for a page and leave the connection alone.

    Args:
        url: where the replica is.
        path: a page that costs it little.
        key: what it asks for.
        ask_s: seconds for the question.
        wait_s: seconds to wait for the connection's end.

    Returns:
        What became of it; None where the question was not answered, so that nothing was learned.
    """
    loop = asyncio.get_running_loop()
    try:
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(ask_s):
                reader, writer = await stack.enter_async_context(_connected(url))
                writer.write(_question(url, path, key))
                closes = await _read_answer(reader)
            if closes:
                return Idle(waited_s=0.0, closed_after_s=0.0)
            started = loop.time()
            try:
                async with asyncio.timeout(wait_s):
                    while await reader.read(4_096):
                        pass  # some say 408 before they close
            except TimeoutError:
                return Idle(waited_s=wait_s)
            except OSError:
                pass
            waited = loop.time() - started
            return Idle(waited_s=waited, closed_after_s=waited)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    parts = urlsplit(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls, limit=_MOST_HEAD_BYTES)
    try:
        yield reader, writer
    finally:
        # Not waited for: the other end may never say goodbye.
        writer.transport.abort()


def _question(url: str, path: str, key: str | None) -> bytes:
    parts = urlsplit(url)
    head = [f"GET {parts.path}{path} HTTP/1.1", f"Host: {parts.netloc}", "Accept: */*"]
    if key is not None:
        head.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*head, "", ""]).encode()


async def _read_answer(reader: asyncio.StreamReader) -> bool:
    """Read one answer to its end; whether the connection ends with it.

    Raises:
        ValueError: it is no HTTP.
    """
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    if not status.startswith("http/1."):
        raise ValueError(f"no HTTP: {status[:40]}")
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    tokens = {token.strip() for token in fields.get("connection", "").split(",")}
    closes = "close" in tokens or (status.startswith("http/1.0") and "keep-alive" not in tokens)
    if "chunked" in fields.get("transfer-encoding", ""):
        while size := int((await reader.readline()).split(b";")[0], 16):
            await reader.readexactly(size + 2)
        while (await reader.readline()).strip():
            pass  # trailers
    elif "content-length" in fields:
        await reader.readexactly(int(fields["content-length"]))
    elif not status.split()[1].startswith(("204", "304")):
        await reader.read()
        closes = True
    return closes
