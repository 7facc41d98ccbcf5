"""What every test stands on."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

from ramjet import logs


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Secrets and journals of the processes under test are nobody's own."""
    os.environ.pop("STATE_DIRECTORY", None)
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    """Log lines of the servers under test are no output of the tests."""
    logs.configure("json", "error")


@pytest.fixture(autouse=True, scope="session")
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every HTTP client loads all certificate authorities when it is made, which takes longer than most tests do.

    None is ever asked on loopback, so one is enough.
    """
    first = re.search("-----BEGIN.*?END CERTIFICATE-----\n", Path(certifi.where()).read_text("ascii"), re.DOTALL)
    assert first is not None
    path = tmp_path_factory.mktemp("authorities") / "one.pem"
    path.write_text(first.group())
    os.environ["SSL_CERT_FILE"] = str(path)


@pytest.fixture(autouse=True)
def _alone_if_it_measures_time(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Where tests run in several processes, one that is marked `alone` waits until the others do nothing, and they for it.

    Who wants in passes the door first and stands in it until there is room, so nobody who is alone is overtaken for ever.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    shared = tmp_path_factory.getbasetemp().parent
    kind = fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH
    with (shared / "room").open("w") as room:
        with (shared / "door").open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(room, kind)
        yield
