"""A hundred conversations while DNS scales the fleet from two replicas to six and to three."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.discovery.dns_server import needs_dnsmasq
from tests.discovery.scaling import scaled
from tests.evidence import report

pytestmark = [pytest.mark.evidence, needs_dnsmasq]

CONVERSATIONS, TURNS = 100, 12


async def test_a_fleet_is_scaled_while_conversations_run(tmp_path: Path) -> None:
    """
    No error reaches a client, and only conversations of replicas that are gone move.
    """
    phases = await scaled(tmp_path, conversations=CONVERSATIONS, turns=TURNS, think_s=0.2)

    report.write(
        "discovery",
        "A fleet that is scaled by DNS while conversations run",
        f"{CONVERSATIONS} conversations of {TURNS} turns each, streamed, through one Ramjet that finds simulated replicas by "
        "A records of a real dnsmasq on loopback. The name leads to two replicas, then to six, then to three of the six, one of "
        "the first two not among them; two thirds of the conversations begin with two replicas, the others with six. "
        "`routing.leave_s` is 60 s, so that load moves nobody. "
        "Required: no error, and no turn that goes to another replica while that of the turn before is there. "
        "`make evidence ARGS='-k is_scaled_while'` runs it again.",
        [phase.row() for phase in phases],
    )
    assert [phase.errors for phase in phases] == [[], [], []]
    assert sum(phase.turns for phase in phases) == CONVERSATIONS * TURNS
    assert [phase.moved_for_nothing for phase in phases] == [[], [], []]
    assert phases[0].moved == phases[1].moved == 0
    assert phases[2].moved > 0
