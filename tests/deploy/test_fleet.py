"""The Compose file that starts a fleet says what Ramjet says, and its parts find one another."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from ramjet import config
from ramjet.cli import main
from ramjet.config import ENV_PREFIX, keys
from tests.test_deploy import DEPLOY, FRONT

FILE = DEPLOY / "compose.fleet.yaml"
SERVICES: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]


def test_it_matches_its_schema() -> None:
    """
    By the Compose specification's own.
    """
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr


def test_routers_find_replicas_and_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Their variables are a configuration that Ramjet starts with, and the names and ports in it are those of the services.
    """
    environment = SERVICES["ramjet"]["environment"]
    for key, value in environment.items():
        monkeypatch.setenv(key, re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value))

    settings = config.load(None)

    assert set(environment) <= {ENV_PREFIX + key.upper().replace(".", "__") for key in keys()}
    (source,) = settings.discovery.sources
    assert source.dns is not None
    assert SERVICES[source.dns.host]["expose"] == [str(source.dns.port)]
    assert settings.peers.url is not None
    store = urlsplit(settings.peers.url.get_secret_value())
    assert SERVICES[str(store.hostname)]["expose"] == [str(store.port)]


def test_each_router_has_a_port_of_its_own() -> None:
    """
    As many as there are routers, and time to drain for each.
    """
    router = SERVICES["ramjet"]
    (published,) = router["ports"]
    ports = re.fullmatch(rf"(\d+)-(\d+):{FRONT}", published)
    grace = re.fullmatch(r"(\d+)m(\d+)s", router["stop_grace_period"])

    assert ports
    assert int(ports[2]) - int(ports[1]) + 1 == router["scale"] > 1
    assert grace
    assert int(grace[1]) * 60 + int(grace[2]) > config.Settings().limits.drain_s


@pytest.mark.parametrize("name", ["ramjet", "replica"])
def test_what_is_run_can_be_run(name: str) -> None:
    """
    The commands are Ramjet's, with options that it has.
    """
    command = main.get_command(click.Context(main), SERVICES[name]["command"][0])
    assert command is not None

    command.make_context(name, list(SERVICES[name]["command"][1:]))
