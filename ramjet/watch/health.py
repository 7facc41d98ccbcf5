"""Probe the replicas, one loop each, so that a hung one delays nobody else's probe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx
import structlog

from ramjet import pages
from ramjet.core.fleet import Replica, State
from ramjet.core.router import Router
from ramjet.watch.loops import Loops

log = structlog.get_logger()

_MODELS_EVERY = 10
"""Probes between two looks at a replica's list of models, which changes when adapters are loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """How replicas are probed; times in seconds."""

    path: str = "/health"
    interval_s: float = 3.0
    timeout_s: float = 5.0
    keys: Mapping[str, str] = field(default_factory=dict)
    """What replicas ask for, by name."""


class HealthWatch(Loops):
    """Probes the replicas; `sync` after the fleet has changed."""

    name = "health"

    def __init__(self, router: Router, probing: Probing) -> None:
        super().__init__(router)
        self.probing = probing

    async def run(self) -> None:
        """Probe until cancelled."""
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits, trust_env=False) as self._client:
            await super().run()

    async def _watch(self, there: Sequence[Replica]) -> None:
        whole, url, probes, client = there[0].whole, there[0].url, 0, self._client
        while True:
            probing = self.probing
            key = probing.keys.get(whole)
            head = {"authorization": f"Bearer {key}"} if key is not None else {}
            if probes % _MODELS_EVERY == 0:
                models = await _models(url, client, head, probing.timeout_s)
                for each in there:
                    each.models = each.models if models is None else models
            error, refused = await _probe(url + probing.path, client, head, probing.timeout_s)
            for each in self._router.probed(url, time.monotonic(), error=error, refused=refused):
                log.warning(_EVENTS[each.state], replica=each.name, error=each.last_error)
                probes = -1  # it may come back with other models
            probes += 1
            await asyncio.sleep(probing.interval_s)


_EVENTS = {State.UP: "replica_up", State.TRIAL: "replica_trial", State.DOWN: "replica_down"}


async def _probe(
    url: str, client: httpx.AsyncClient, head: Mapping[str, str], timeout_s: float
) -> tuple[str | None, bool]:
    """What is wrong with a replica (None = nothing), and whether nobody listens there."""
    try:
        # httpx' own limit is for each step; a byte now and then must not keep a probe alive.
        async with asyncio.timeout(timeout_s):
            answer = await client.get(url, headers=head, timeout=timeout_s)
    except httpx.ConnectError as error:
        return (pages.REFUSED, True) if pages.is_refused(error) else (pages.UNREACHABLE, False)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError, TimeoutError) as error:
        return type(error).__name__, False
    return (None if answer.is_success else f"status {answer.status_code}"), False


async def _models(
    url: str, client: httpx.AsyncClient, head: Mapping[str, str], timeout_s: float
) -> frozenset[str] | None:
    """The models that a replica lists, none where it refuses to; None where it does not say. It is taken to serve any."""
    try:
        async with asyncio.timeout(timeout_s):
            answer = await client.get(f"{url}/v1/models", headers=head, timeout=timeout_s)
        names = [entry["id"] for entry in answer.json()["data"]] if answer.is_success else []
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError, OSError, TimeoutError, RecursionError):
        return None
    return frozenset(name for name in names if isinstance(name, str))
