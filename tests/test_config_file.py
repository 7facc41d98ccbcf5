"""The shipped configuration files say what the model says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ramjet.config import ReplicaSettings, Settings, keys, load

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "config" / "ramjet.yaml"
DEPLOYED = sorted((ROOT / "deploy").glob("*ramjet*.yaml"))


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What the shell of whoever runs the tests has set is not in the files.
    """
    for name in [name for name in os.environ if name.upper().startswith("RAMJET_")]:
        monkeypatch.delenv(name)


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of a mapping; what a list holds is not among them."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def test_every_key_is_shown() -> None:
    """
    The file has every key of the model, in the model's order, and no other.
    """
    shown = list(leaves(yaml.safe_load(FILE.read_text(encoding="utf-8"))))

    assert shown == list(keys())


def test_every_key_of_a_replica_is_shown() -> None:
    """
    The first example has all keys of a replica; the second shows how few are needed.
    """
    first, second = yaml.safe_load(FILE.read_text(encoding="utf-8"))["replicas"]

    assert list(first) == list(ReplicaSettings.model_fields)
    assert list(second) == ["name", "url"]


def test_every_value_is_the_default() -> None:
    """
    Who copies the file and changes only the replicas has changed nothing else.
    """
    shown, by_default = load(FILE), Settings()

    assert shown.model_copy(update={"replicas": []}) == by_default
    for replica in shown.replicas:
        assert replica == ReplicaSettings(name=replica.name, url=replica.url)


def test_every_key_has_a_reason() -> None:
    """
    A comment stands right above each key, but for the second example and for sections whose keys have their own.
    """
    lines = FILE.read_text(encoding="utf-8").splitlines()
    without = [
        line.strip()
        for above, line in zip(["", *lines], lines, strict=False)
        if re.match(r"\s*(- )?\w+:", line) and not above.strip().startswith("#")
    ]

    assert without == [
        "- name: glm-2",
        "url: http://10.0.0.8:30000",
        "affinity:",
        "long_prompt:",
        "spread_long:",
        "identity:",
        "admission:",
        "slices:",
    ]


@pytest.mark.parametrize("path", DEPLOYED, ids=lambda path: path.name)
def test_deployed_files_load(path: Path) -> None:
    """
    Every configuration under deploy/ is one that Ramjet starts with.
    """
    assert load(path).replicas
