"""What the README tells a newcomer to send does what it says."""

from __future__ import annotations

import asyncio
import re
import shutil
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from ramjet.replica.server import running_replica
from ramjet.sim.profile import PROFILES
from tests.operations.support import config, live

GLM = PROFILES["glm-5.3-flash-tp2"]
README = Path(__file__).parents[2] / "README.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's command is curl")
async def test_the_second_time_it_says_affinity(tmp_path: Path) -> None:
    """
    The command as it stands there, but for the port; replicas have said what they keep by then, as in the demo.
    """
    (command,) = re.findall(r"```sh\n(curl -si [^`]*grep x-ramjet)\n```", README.read_text(encoding="utf-8"))
    async with (
        running_replica(GLM, speed=50) as one,
        running_replica(GLM, speed=50) as two,
        live(config(tmp_path / "ramjet.yaml", {"a": one.url, "b": two.url}), STATE_DIRECTORY=str(tmp_path)) as front,
    ):
        await front.said("replica_pools", 2)
        said = []
        for _ in range(2):
            sending = await asyncio.create_subprocess_exec(
                "bash", "-c", command.replace("http://127.0.0.1:8000", front.url), stdout=PIPE
            )
            said.append((await sending.communicate())[0].decode())

    assert "x-ramjet-reason: new" in said[0]
    assert "x-ramjet-reason: affinity" in said[1]
