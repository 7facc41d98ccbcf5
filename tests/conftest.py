"""What every test stands on."""

from __future__ import annotations

import os
import re
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
