"""The fuzzer, as long as a test may take; `make fuzz` plays a hundred times as many cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import campaign, pure
from tests.fuzz.__main__ import in_process
from tests.fuzz.campaign import Answers, Requests

COUNT = 2_000
PLAYED = 800
"""Over sockets, each case takes some milliseconds."""


@pytest.mark.parametrize("name", list(pure.LAYERS))
def test_the_pure_parts_keep_their_promises(name: str) -> None:
    """
    No exception but the documented one, no byte changed but the usage chunk, and nothing grows.
    """
    tally = in_process(name, 1, range(COUNT))

    assert not tally.wrong, dict(tally.examples)


@pytest.mark.parametrize("player", [Requests, Answers], ids=lambda player: player.name)
async def test_nothing_that_anybody_sends_does_harm(player: type[Requests] | type[Answers], tmp_path: Path) -> None:
    """
    No fault of ours, no hang, nothing left in flight, no request or answer mixed up with another; the log knows all.
    """
    async with campaign.fuzzed(tmp_path) as (ramjet, engine):
        tally = await campaign.run(ramjet, engine, player(1, engine), range(PLAYED), batch=400, lines=64)
        await campaign.check_log(ramjet, engine, tally)

    assert tally.cases == PLAYED
    assert not tally.wrong, dict(tally.examples)
