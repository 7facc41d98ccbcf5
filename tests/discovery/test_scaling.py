"""Scaling by DNS while conversations run: nobody sees an error, and who need not move stays at home."""

from __future__ import annotations

from pathlib import Path

from tests.discovery.dns_server import needs_dnsmasq
from tests.discovery.scaling import scaled


@needs_dnsmasq
async def test_two_to_six_to_three(tmp_path: Path) -> None:
    """
    Two dozen conversations of the hundred of docs/evidence/discovery.md: only those whose replica is gone move.
    """
    phases = await scaled(tmp_path, conversations=24, turns=9, think_s=0.05)

    assert [phase.errors for phase in phases] == [[], [], []]
    assert sum(phase.turns for phase in phases) == 24 * 9
    assert [phase.moved_for_nothing for phase in phases] == [[], [], []]
    assert phases[0].moved == phases[1].moved == 0
    assert phases[2].moved > 0
