"""The sizes of a replica's cache, asked for and believed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ramjet.core.pools import Pools
from ramjet.replica.server import running_replica
from ramjet.sim.profile import PROFILES
from tests.rig import ramjet

GLM = PROFILES["glm-5.3-flash-tp2"].with_flags(states_per_path=2, slots=28)


async def test_sglang_says_how_large_its_pools_are() -> None:
    """
    At the first probe, without a line of configuration; what the configuration gives goes before.
    """
    async with running_replica(GLM) as one, running_replica(GLM) as two:
        replicas: dict[str, Any] = {"a": one.url, "b": {"url": two.url, "pool_tokens": 400_000}}
        async with ramjet(replicas, watch=True) as front:
            fleet = front.router.fleet
            async with asyncio.timeout(10):
                while any(each.reported == Pools() for each in fleet):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

            said = Pools(tokens=499_968, slots=28, per_path=2, chunk_tokens=6_144, host=False)
            assert fleet["a"].pools == said
            assert fleet["b"].pools == replace(said, tokens=400_000)
            assert front.router.beliefs["a"].pool_tokens == 499_968
