"""The start of a Ramjet that has peers, where more goes wrong than the start itself."""

from __future__ import annotations

import socket

import pytest

from ramjet.app import CannotStart
from tests.peers.support import SECRET
from tests.rig import ramjet


async def test_an_address_that_is_taken_is_the_only_thing_that_is_said() -> None:
    """
    One error, and not one inside of those of what runs beside.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotStart, match="another Ramjet"):
            async with ramjet({}, listen=address, secret=SECRET, peers={"url": "valkey://127.0.0.1:9"}):
                pass
