"""The seed's experiments from end to end: the probes' commands against simulated replicas, fifty times as fast."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from ramjet.probes.cli import probe
from ramjet.replica.server import running_replica
from ramjet.sim.profile import PROFILES, Profile

GLM, ATTENTION = PROFILES["glm-5.3-flash-tp2"], PROFILES["attention"]


async def probed(profile: Profile, *arguments: str, speed: float = 50) -> dict[str, Any]:
    """What `ramjet probe ... --json` prints about a replica that it has not been told of."""
    async with running_replica(profile, speed=speed) as replica:
        command = [arguments[0], "--url", replica.url, "--json", *arguments[1:]]
        result = await asyncio.to_thread(CliRunner().invoke, probe, command)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(("per_path", "survived", "limit"), [(None, 0, "snapshots"), (4, 6, "none")])
async def test_one_long_prompt_clears_the_snapshot_pool_unless_paths_are_capped(
    per_path: int | None, survived: int, limit: str
) -> None:
    """
    The seed: 0 of 6 with the stock settings, 6 of 6 with a cap of four; and the verdict names the pool.
    """
    found = await probed(GLM.with_flags(states_per_path=per_path), "eviction")

    assert (found["sessions"], found["survived"], found["limit"]) == (6, survived, limit)
    assert ("snapshot pool" in found["verdict"]) is (limit == "snapshots")
    assert any("--mamba-max-states-per-path" in flag for flag in found["flags"]) is (limit == "snapshots")


async def test_capacity_finds_both_limits_of_a_replica_it_was_not_told_of() -> None:
    """
    With a cap of two, 28 slots hold 12 or 13 short sessions, and 499,968 tokens hold six of 80,000: within one session.
    """
    found = await probed(GLM.with_flags(states_per_path=2), "capacity", speed=200)
    short, long = found["findings"]

    assert abs(short["sessions_that_fit"] - 12) <= 1
    assert (short["limit"], long["limit"]) == ("snapshots", "tokens")
    assert abs(long["sessions_that_fit"] - 499_968 // long["tokens"]) <= 1


async def test_prefix_finds_grid_and_chunk() -> None:
    """
    The seed's first chart: 19,712, 19,712, 12,288 and 14,848 of 19,845 tokens; the grid is 256 and the chunk 6,144.
    """
    found = await probed(GLM, "prefix")

    assert [step["cached_tokens"] for step in found["steps"][:5]] == [0, 19_712, 19_712, 12_288, 14_848]
    assert (found["limit"], found["grid_tokens"], found["chunk_tokens"]) == ("snapshots", 256, 6_144)


async def test_prefix_sees_that_attention_resumes_anywhere() -> None:
    """
    A page of 64 tokens, and no limit by snapshots.
    """
    found = await probed(ATTENTION, "prefix")

    assert (found["limit"], found["grid_tokens"], found["snapshot_limited"]) == ("none", 64, False)
