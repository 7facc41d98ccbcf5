"""Ask a replica for its pages over HTTP: in so long and no longer, no more than so much, and never an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import httpx

from ramjet.engines.facts import Engine
from ramjet.engines.known import ENGINES, PATHS, detect

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
    wanted = tuple(dict.fromkeys(paths))
    head = {"authorization": f"Bearer {key}"} if key is not None else {}
    texts = await asyncio.gather(*(_text(client, url + path, head, timeout_s) for path in wanted))
    return {path: text for path, text in zip(wanted, texts, strict=True) if text is not None}


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


async def _text(client: httpx.AsyncClient, url: str, head: Mapping[str, str], timeout_s: float) -> str | None:
    try:
        # httpx' own limit is for each step; a byte now and then must not keep a page alive.
        async with asyncio.timeout(timeout_s), client.stream("GET", url, headers=head, timeout=timeout_s) as answer:
            if not answer.is_success:
                return None
            pieces, size = [], 0
            async for piece in answer.aiter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > _MOST_BYTES:
                    return None
            return b"".join(pieces).decode(errors="replace")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError, TimeoutError):
        return None
