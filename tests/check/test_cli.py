"""`ramjet check` on the command line, against replicas on loopback."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ramjet.check.cli import check
from ramjet.check.findings import IDS
from ramjet.check.findings.values import NAMES, SEVERITIES
from ramjet.replica.server import running_replica
from ramjet.sim.profile import PROFILES
from tests.check.engine import Engine, serving
from tests.scripted import dead_url

GLM = PROFILES["glm-5.3-flash-tp2"]
CAPPED = GLM.with_flags(states_per_path=2, slots=28)


async def invoke(*arguments: str, **variables: str) -> Result:
    """Run the command in a thread of its own, for the servers have the loop."""
    return await asyncio.to_thread(CliRunner().invoke, check, arguments, env=variables)


def document(result: Result) -> dict[str, Any]:
    """What was printed, which must be one JSON object and nothing else."""
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def named(**urls: str) -> list[str]:
    """Options that name replicas."""
    return [part for name, url in urls.items() for part in ("--replica", f"{name}={url}")]


async def test_one_document_and_the_rest_on_stderr() -> None:
    """
    Replicas with their facts, and findings, under names that are a contract.
    """
    async with running_replica(CAPPED, speed=20) as a, running_replica(CAPPED, speed=20) as b:
        result = await invoke(*named(a=a.url, b=b.url), "--json", "--quick")

    told = document(result)
    assert result.exit_code == 0, result.stderr
    assert set(told) == {"version", "replicas", "findings", "faults", "warnings", "notes"}
    assert [each["name"] for each in told["replicas"]] == ["a", "b"]
    pool = told["replicas"][0]["facts"]["pool_tokens"]
    assert pool["value"] == 499_968
    assert pool["source"] == "/server_info max_total_num_tokens"
    assert 0 <= pool["age_s"] < 60
    assert {each["id"] for each in told["findings"]} <= set(IDS)
    assert all(set(each) == {"id", "severity", "text", "replicas", "figures", "remedy"} for each in told["findings"])
    assert told["notes"] == len(told["findings"])
    assert "asking 2 replicas" in result.stderr


async def test_a_replica_that_is_down_fails() -> None:
    """
    Its fault comes first, and the exit code is 1.
    """
    async with running_replica(CAPPED, speed=20) as a:
        result = await invoke(*named(a=a.url, b=dead_url()), "--quick")

    assert result.exit_code == 1
    findings = result.stdout.partition("Findings\n")[2]
    assert findings.lstrip().startswith("fault: b: It cannot be asked for /health: connection refused.")
    assert re.search(r"^ *b +health +connection refused +/health", result.stdout, re.MULTILINE)
    assert re.search(r"^1 fault, .*notes?\.$", result.stdout, re.MULTILINE)


async def test_warnings_fail_when_asked_to() -> None:
    """
    A report that is off is a warning: 0, and 1 with --strict.
    """
    silent = replace(CAPPED, reports_cached=False)
    async with running_replica(silent, speed=20) as a, running_replica(silent, speed=20) as b:
        names = named(a=a.url, b=b.url)
        plain, strict = await invoke(*names, "--quick"), await invoke(*names, "--quick", "--strict")

    assert (plain.exit_code, strict.exit_code) == (0, 1)
    assert "warning: a, b: It does not report how much" in plain.stdout
    assert "--enable-cache-report" in plain.stdout


async def test_the_table_shows_pools_and_slots_with_their_sources() -> None:
    """
    Of what is configured it says so, and how old it is of what was read.
    """
    async with running_replica(GLM, speed=20) as a:
        result = await invoke(*named(a=a.url), "--quick")

    rows = [re.split(r"  +", line.strip()) for line in result.stdout.splitlines()]
    pool = next(row for row in rows if row[0] == "token pool")
    assert pool[1:3] == ["499,968", "/server_info max_total_num_tokens"]
    assert re.fullmatch(r"\d+\.\d s", pool[3])
    assert ["cap per path", "none"] in rows
    assert any(row[:2] == ["snapshot slots", "28"] for row in rows)


async def test_the_configuration_is_what_would_serve(tmp_path: Path) -> None:
    """
    Its replicas, their keys and sizes, its health path and its idle time; a replica of the command line is added.
    """
    path = tmp_path / "ramjet.yaml"
    async with serving(Engine(key="sesame-street"), keeps_s=0.2) as engine, running_replica(CAPPED, speed=20) as b:
        path.write_text(
            f"replicas:\n  - {{name: a, url: '{engine.url}', api_key: sesame-street, pool_tokens: 1000}}\n"
            "limits: {idle_s: 0.5}\nhealth: {path: /v1/models}\n",
            encoding="utf-8",
        )
        result = await invoke("--config", str(path), *named(b=b.url), "--json")

    told = document(result)
    assert result.exit_code == 0, result.stderr
    first, second = told["replicas"]
    assert (first["name"], second["name"]) == ("a", "b")
    assert first["facts"]["pool_tokens"] == {"value": 1_000, "source": "configured", "age_s": None}
    assert first["health"]["path"] == "/v1/models"
    assert first["idle"]["closed_after_s"] < 0.5
    idle = next(each for each in told["findings"] if each["id"] == "idle_short")
    assert (idle["replicas"], idle["figures"]["idle_s"]) == (["a"], 0.5)
    assert "waiting up to 2.5 s" in result.stderr
    assert "sesame" not in result.stdout + result.stderr


async def test_what_cannot_be_checked(tmp_path: Path) -> None:
    """
    No replicas, those that are only found, and a name without a URL: an error with the remedy, and nothing on standard
    output.
    """
    nobody = await invoke()
    path = tmp_path / "ramjet.yaml"
    path.write_text("discovery: {sources: [{name: s, file: {path: replicas.yaml}}]}")
    found = await invoke("--config", str(path))
    wrong = await invoke("--replica", "a")

    assert (nobody.exit_code, nobody.stdout) == (1, "")
    assert "--replica NAME=URL" in nobody.stderr
    assert (found.exit_code, found.stdout) == (1, "")
    assert "not those of discovery: name them with --replica NAME=URL" in found.stderr
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "write it as NAME=URL" in wrong.stderr


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("severity", SEVERITIES)
def test_every_severity_is_explained(severity: str) -> None:
    """
    The page says what each means.
    """
    assert f"| `{severity}` |" in (ROOT / "docs/check.md").read_text(encoding="utf-8")


def test_every_finding_is_explained() -> None:
    """
    Each has its row on the page, and there are no others; and so has every fact its name.
    """
    text = (ROOT / "docs/check.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:fault|warning|note)", text, flags=re.MULTILINE)

    assert sorted(rows) == sorted(IDS)
    assert re.findall(r"`(\w+)`", re.search(r"those of facts are (.*)\.\n", text)[1]) == list(NAMES)  # type: ignore[index]
