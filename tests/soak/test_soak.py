"""The soak, long enough for every illness once; `make soak` takes ten minutes."""

from __future__ import annotations

from pathlib import Path

from tests.soak.run import soak


async def test_a_replica_that_falls_ill_in_every_way_costs_nobody_else_anything(tmp_path: Path) -> None:
    """
    Log and clients agree on every request, no answer is lost, doubled or swapped, and nobody leaves the well replica.
    """
    result = await soak(17, tmp_path, conversations=60)

    assert result.faults() == {}, dict(result.seen.examples)
    assert set(result.phases) == {"good", "dead", "wedged", "slow", "busy", "resetting"}
    assert result.requests > 500
    assert result.seen.homed > 100
