"""Ask a replica for its pages over HTTP: in so long and no longer, no more than so much, and never an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import httpx

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
