"""Ask a replica for its pages over HTTP: in so long and no longer, no more than so much, and never an exception."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

import httpx

from ramjet.engines.facts import Answer, Engine
from ramjet.engines.known import ENGINES, PATHS, detect

REFUSED, UNREACHABLE = "connection refused", "cannot be reached"
"""What is wrong with a replica to which no connection can be made; the runbook explains both."""

_MOST_BYTES = 16 << 20
"""Of one page: the metrics of an engine with many labels have some hundred kilobytes."""


async def ask(
    client: httpx.AsyncClient, url: str, paths: Iterable[str], *, key: str | None = None, timeout_s: float
) -> Mapping[str, str]:
    """The text of the pages that a replica answers with a 2xx, by path, all asked for at once.

    Args:
        client: what asks.
        url: where the replica is, without a trailing slash.
        paths: the pages, each with a leading slash.
        key: what the replica asks for.
        timeout_s: for each page, connecting included.
    """
    wanted = dict.fromkeys(paths)
    answers = await asyncio.gather(*(look(client, url, path, key=key, timeout_s=timeout_s) for path in wanted))
    return {each.path: each.text for each in answers if each.good}


async def read(
    client: httpx.AsyncClient, url: str, name: str = "auto", *, key: str | None = None, timeout_s: float
) -> tuple[Engine, Mapping[str, str]]:
    """The engine of a replica, and the pages that say what it is.

    Args:
        client: what asks.
        url: where the replica is, without a trailing slash.
        name: the engine's, where it is known; `auto` finds out, for which it is asked for every page of every engine.
        key: what the replica asks for.
        timeout_s: for each page, connecting included.
    """
    engine = ENGINES.get(name)
    pages = await ask(client, url, PATHS if engine is None else engine.fact_paths, key=key, timeout_s=timeout_s)
    engine = engine or detect(pages)
    old = [old for new, old in engine.old_paths.items() if new not in pages]
    return engine, {**pages, **await ask(client, url, old, key=key, timeout_s=timeout_s)}


async def look(client: httpx.AsyncClient, url: str, path: str, *, key: str | None = None, timeout_s: float) -> Answer:
    """How a replica answers for one page, whatever it is. Arguments as above."""
    head = {"authorization": f"Bearer {key}"} if key is not None else {}
    started = time.monotonic()
    try:
        # httpx' own limit is for each step; a byte now and then must not keep a page alive.
        async with (
            asyncio.timeout(timeout_s),
            client.stream("GET", url + path, headers=head, timeout=timeout_s) as answer,
        ):
            pieces, size = [], 0
            async for piece in answer.aiter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > _MOST_BYTES:
                    return Answer(path=path, error=f"more than {_MOST_BYTES >> 20} MiB")
            text = b"".join(pieces).decode(errors="replace")
            return Answer(path=path, status=answer.status_code, text=text, took_s=time.monotonic() - started)
    except httpx.ConnectError as error:
        return Answer(path=path, error=REFUSED if is_refused(error) else UNREACHABLE)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError, TimeoutError) as error:
        return Answer(path=path, error=type(error).__name__)


def is_refused(error: BaseException | None) -> bool:
    """Whether a refused connection is behind an error, however deep a library has wrapped it."""
    seen = 0
    while error is not None and seen < 8:
        if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False
