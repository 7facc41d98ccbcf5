from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ramjet.extensions import missing

_SAY = "import json; from ramjet.extensions import missing; print(json.dumps(missing()))"


def test_here_all_are_there() -> None:
    assert missing() == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"AIOHTTP_NO_EXTENSIONS": "1"}, ["aiohttp"]),
        ({"MULTIDICT_NO_EXTENSIONS": "1", "AIOHTTP_NO_EXTENSIONS": "1"}, ["aiohttp", "multidict"]),
    ],
)
def test_what_is_not_there_is_named(variables: dict[str, str], expected: list[str]) -> None:
    command = [sys.executable, "-c", _SAY]
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True)

    assert json.loads(done.stdout) == expected
