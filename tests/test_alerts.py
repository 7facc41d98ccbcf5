"""The alerts ask for what is exported, tell what to do, and are played on good and bad series."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from ramjet.core.causes import CAUSES
from ramjet.core.record import OUTCOMES, TEMPERATURES
from ramjet.metrics import DRIFTS, ENDPOINT_NAMES
from tests.test_deploy import DEPLOY, ROOT, compose, exported, faults

RULES: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
PLAYED: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "alerts.test.yml").read_text())["tests"]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
KNOWN = {**exported(), "up": frozenset({"job", "instance"})}
"""What Prometheus stores: a scrape's series, and that there was one."""

each_alert = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


@each_alert
def test_an_alert_asks_only_for_what_is_exported(rule: dict[str, Any]) -> None:
    """
    Metrics, labels and their values: none of them waits for ever for what never comes.
    """
    assert faults(rule["expr"], "", KNOWN) == []

    values = {
        "outcome": OUTCOMES,
        "temperature": TEMPERATURES,
        "endpoint": ENDPOINT_NAMES,
        "cause": CAUSES,
        "kind": DRIFTS,
    }
    asked = re.findall(r'(\w+)[!=]~?"([^"]*)"', rule["expr"])
    assert [
        (label, text) for label, text in asked if label != "job" and not set(text.split("|")) <= set(values[label])
    ] == []


@each_alert
def test_an_alert_says_what_it_is_about(rule: dict[str, Any]) -> None:
    """
    How bad it is, one sentence, and labels in it that the alert has.
    """
    offered = {label for name in re.findall(r"\b(?:ramjet_\w+|up)\b", rule["expr"]) for label in KNOWN[name]}

    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"]["summary"].endswith(".")
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= offered | {"instance"}


def test_the_runbook_has_a_section_for_every_alert() -> None:
    """
    The link leads there, and no section is about an alert that is not there any more.
    """
    headings = re.findall(r"^### (Ramjet\w+)$", RUNBOOK, re.MULTILINE)

    assert headings == [rule["alert"] for rule in RULES]
    links = [rule["annotations"]["runbook"] for rule in RULES]
    assert links == [f"docs/runbook.md#{heading.lower()}" for heading in headings]


def test_every_alert_is_played_on_good_and_on_bad_series() -> None:
    """
    Each fires in one of the plays and is quiet in another.
    """
    played = [each for test in PLAYED for each in test.get("alert_rule_test", ())]
    names = {rule["alert"] for rule in RULES}

    assert {each["alertname"] for each in played if each["exp_alerts"]} == names
    assert {each["alertname"] for each in played if not each["exp_alerts"]} == names


def test_plays_use_series_that_are_exported() -> None:
    """
    A play with a wrong name would prove nothing.
    """
    series = [each["series"] for test in PLAYED for each in test["input_series"]]

    assert len(series) > 40
    # Prometheus adds the instance.
    known = {name: labels | {"instance"} for name, labels in KNOWN.items()}
    assert [fault for each in series for fault in faults(each, "", known)] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here; apt-get install prometheus")
def test_the_plays_go_as_they_should() -> None:
    """
    By Prometheus' own judgement.
    """
    run = subprocess.run(
        ["promtool", "test", "rules", "alerts.test.yml"], cwd=DEPLOY, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr


def test_prometheus_is_given_the_alerts() -> None:
    """
    Its configuration names the file, and Compose mounts it there.
    """
    (named,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["rule_files"]

    assert f"./{named}:/etc/prometheus/{named}:ro" in compose()["services"]["prometheus"]["volumes"]
    assert (DEPLOY / named).is_file()
