"""`GET /v1/models`, merged over the replicas: a client sees one server with everything that any replica serves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from ramjet.core.fleet import Fleet
from ramjet.http1.client import Client, ReplicaFailed, read_at_most
from ramjet.http1.connection import Broken

_MOST_BYTES = 1 << 20


def models_in(body: bytes) -> list[dict[str, Any]]:
    """The entries of a `/v1/models` answer; none where it is no such list."""
    try:
        data = msgspec.json.decode(body)["data"]
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError, RecursionError):
        return []
    entries = data if isinstance(data, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


async def merged_models(
    fleet: Fleet, upstream: Client, fields: Mapping[str, bytes], timeout_s: float
) -> tuple[int, bytes]:
    """Status and body of the merged list; an answer that refuses (a missing key) is passed on where no list came.

    Args:
        fleet: all replicas; those that serve are asked.
        upstream: carries the questions.
        fields: the lines of what each replica is sent, by its URL, keys included.
        timeout_s: seconds a replica may take; one that takes longer is left out.

    A model that several replicas serve is listed once, as the first of them in the config describes it.
    """
    serving = dict.fromkeys(each.url for each in fleet.serving or fleet)
    answers = await asyncio.gather(*(_ask(url, upstream, fields[url], timeout_s) for url in serving))
    merged: dict[str, dict[str, Any]] = {}
    for status, body in answers:
        for entry in models_in(body) if status == 200 else ():
            merged.setdefault(entry["id"], entry)
    if merged or not answers or any(status == 200 for status, _ in answers):
        return 200, msgspec.json.encode({"object": "list", "data": list(merged.values())})
    return next((answer for answer in answers if 400 <= answer[0] < 500), answers[0])


async def _ask(url: str, upstream: Client, fields: bytes, timeout_s: float) -> tuple[int, bytes]:
    try:
        async with asyncio.timeout(timeout_s):
            with await upstream.send("GET", url, "/v1/models", fields, None) as answer:
                return answer.status, await read_at_most(answer, _MOST_BYTES)
    except (ReplicaFailed, TimeoutError, Broken):
        return (
            502,
            b'{"error":{"message":"the replica did not answer","type":"api_error","code":"replica_unreachable"}}',
        )
