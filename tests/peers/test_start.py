"""The start of a Ramjet that has peers, where there is more to it: replicas that are found, an address that is taken."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from ramjet.app import CannotStart
from tests.operations.support import QUICK_HEALTH
from tests.peers.support import SECRET, Store, Talk, connected, engines, needs_store, play, share_that_stayed, until
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


@needs_store
async def test_who_finds_its_replicas_starts_warm_too(tmp_path: Path) -> None:
    """
    What peers have told of them is not read before it is known that they are there.
    """
    store, listed = Store(tmp_path), tmp_path / "replicas.json"
    source = {"name": "list", "file": {"path": str(listed)}}
    more: dict[str, Any] = {
        "secret": SECRET,
        "peers": {"url": store.url},
        "discovery": {"sources": [source]},
        "health": QUICK_HEALTH,
    }
    talks = [Talk(f"talk {number}") for number in range(10)]
    store.start()
    try:
        async with engines(4) as replicas:
            listed.write_text(json.dumps([{"name": name, "url": url} for name, url in replicas.items()]))
            async with ramjet({}, watch=True, **more) as before:
                await until(lambda: connected(before) and len(before.router.fleet.serving) == 4)
                await play(talks, [before.url], turns=2)
            async with ramjet({}, watch=True, **more) as again:
                assert again.router.conversations.living == 10
                await until(lambda: len(again.router.fleet.serving) == 4)
                await play(talks, [again.url], turns=1)

                assert share_that_stayed(talks, since=1) == 1.0
    finally:
        store.stop()
