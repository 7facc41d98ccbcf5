"""Probe the replicas, one loop each, so that a hung one delays nobody else's probe."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx
import structlog

from ramjet.core.fleet import Replica, Thresholds
from ramjet.core.router import Router

log = structlog.get_logger()

_MODELS_EVERY = 10
"""Probes between two looks at a replica's list of models, which changes when adapters are loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """How replicas are probed; times in seconds."""

    path: str = "/health"
    interval_s: float = 3.0
    timeout_s: float = 5.0
    thresholds: Thresholds = Thresholds()


async def watch_health(router: Router, probing: Probing) -> None:
    """Probe every replica until cancelled."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(timeout=probing.timeout_s, limits=limits, trust_env=False) as client,
        asyncio.TaskGroup() as tasks,
    ):
        for replica in router.fleet:
            tasks.create_task(_watch(router, replica, probing, client), name=f"health {replica.name}")


async def _watch(router: Router, replica: Replica, probing: Probing, client: httpx.AsyncClient) -> None:
    probes = 0
    while True:
        if probes % _MODELS_EVERY == 0:
            await _read_models(replica, client)
        error, refused = await _probe(replica.url + probing.path, client)
        if replica.probed(error=error, refused=refused, thresholds=probing.thresholds):
            log.warning("replica_up" if replica.up else "replica_down", replica=replica.name, error=error)
            probes = -1  # it may come back with other models
        if refused:
            router.restarted(replica.name)
        probes += 1
        await asyncio.sleep(probing.interval_s)


async def _probe(url: str, client: httpx.AsyncClient) -> tuple[str | None, bool]:
    """What is wrong with a replica (None = nothing), and whether nobody listens there."""
    try:
        answer = await client.get(url)
    except httpx.ConnectError as error:
        return f"no connection: {error}", _is_refused(error)
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}".rstrip(": "), False
    return (None if answer.is_success else f"status {answer.status_code}"), False


def _is_refused(error: BaseException | None) -> bool:
    """Whether a refused connection is behind an error, however deep a library has wrapped it."""
    seen = 0
    while error is not None and seen < 8:
        if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


async def _read_models(replica: Replica, client: httpx.AsyncClient) -> None:
    """Learn which models a replica lists; one that does not say is taken to serve any."""
    try:
        answer = await client.get(f"{replica.url}/v1/models")
        names = [entry["id"] for entry in answer.json()["data"]] if answer.is_success else []
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return
    replica.models = frozenset(name for name in names if isinstance(name, str))
