"""Probe the replicas, one loop each, so that a hung one delays nobody else's probe."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from ramjet.core.fleet import Replica, State
from ramjet.core.retry import Failure
from ramjet.core.router import Router
from ramjet.http1.client import Client, ReplicaFailed, read_at_most
from ramjet.http1.connection import Broken
from ramjet.watch.loops import Loops

log = structlog.get_logger()

_MODELS_EVERY = 10
"""Probes between two looks at a replica's list of models, which changes when adapters are loaded."""
_MOST_BYTES = 16 << 20
"""Of one answer."""


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
        # It shares nothing with the connections that carry requests, and keeps none: each probe tries whether one is made.
        self._client = Client(connect_s=0, idle_s=0)
        try:
            await super().run()
        finally:
            await self._client.close()

    async def _watch(self, there: Sequence[Replica]) -> None:
        whole, url, probes, client = there[0].whole, there[0].url, 0, self._client
        while True:
            probing = self.probing
            # Half of the time, so that who cannot be reached is told from who does not answer.
            client.connect_s = probing.timeout_s / 2
            key = probing.keys.get(whole)
            head = b"accept-encoding: identity\r\n"
            if key is not None:
                head += f"authorization: Bearer {key}\r\n".encode()
            if probes % _MODELS_EVERY == 0:
                models = await _models(url, client, head, probing.timeout_s)
                for each in there:
                    each.models = each.models if models is None else models
            error, refused = await _probe(url, probing.path, client, head, probing.timeout_s)
            for each in self._router.probed(url, time.monotonic(), error=error, refused=refused):
                log.warning(_EVENTS[each.state], replica=each.name, error=each.last_error)
                probes = -1  # it may come back with other models
            probes += 1
            await asyncio.sleep(probing.interval_s)


_EVENTS = {State.UP: "replica_up", State.TRIAL: "replica_trial", State.DOWN: "replica_down"}


async def _probe(url: str, path: str, client: Client, head: bytes, timeout_s: float) -> tuple[str | None, bool]:
    """What is wrong with a replica (None = nothing), and whether nobody listens there."""
    try:
        status, _ = await _get(url, path, client, head, timeout_s)
    except ReplicaFailed as failed:
        return str(failed), failed.failure is Failure.REFUSED
    except TimeoutError:
        return "no answer in time", False
    except (Broken, OSError, ValueError) as error:
        return str(error), False
    return (None if 200 <= status < 300 else f"status {status}"), False


async def _models(url: str, client: Client, head: bytes, timeout_s: float) -> frozenset[str] | None:
    """The models that a replica lists, none where it refuses to; None where it does not say. It is taken to serve any."""
    try:
        status, body = await _get(url, "/v1/models", client, head, timeout_s)
        names = [entry["id"] for entry in json.loads(body)["data"]] if 200 <= status < 300 else []
    except (ReplicaFailed, Broken, ValueError, KeyError, TypeError, OSError, RecursionError):
        return None
    return frozenset(name for name in names if isinstance(name, str))


async def _get(url: str, path: str, client: Client, head: bytes, timeout_s: float) -> tuple[int, bytes]:
    """An answer's status and body.

    Raises:
        ReplicaFailed: there is none.
        Broken: it is not whole.
        TimeoutError: it has not come in time.
    """
    async with asyncio.timeout(timeout_s):
        with await client.send("GET", url, path, head, None) as answer:
            return answer.status, await read_at_most(answer, _MOST_BYTES)
