"""`ramjet check` on real SGLang: what it says of engines that are started well, without a flag, differently, or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from ramjet.check.cli import check
from tests.acceptance.engines import HYBRID, SGLANG, Engines, Start
from tests.evidence import report
from tests.scripted import dead_url

pytestmark = pytest.mark.acceptance

_SLOTS = ("--max-mamba-cache-size", "28", "--max-running-requests", "4", "--chunked-prefill-size", "256")


@dataclass(frozen=True)
class Unreported(Start):
    """Started without the report of cached tokens."""

    def command(self, port: int) -> list[str]:
        """The engine's command line."""
        return [each for each in Start.command(self, port) if each != "--enable-cache-report"]


GOOD = Start(SGLANG, HYBRID, (*_SLOTS, "--mamba-max-states-per-path", "2"))
OTHER = Unreported(SGLANG, HYBRID, (*_SLOTS, "--chunked-prefill-size", "512", "--max-total-tokens", "65536"))


def checked(*options: str, **urls: str) -> tuple[dict[str, Any], int]:
    """What the command prints, and its exit code."""
    names = [part for name, url in urls.items() for part in ("--replica", f"{name}={url}")]
    result = CliRunner().invoke(check, [*names, *options, "--json"])
    told: dict[str, Any] = json.loads(result.stdout)
    return told, result.exit_code


def by_id(told: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The findings of this name."""
    return [each for each in told["findings"] if each["id"] == name]


def rows(run: str, told: dict[str, Any], code: int) -> list[dict[str, Any]]:
    """A run's findings, for the page."""
    head = {"run": run, "severity": "", "finding": f"exit code {code}", "replicas": "", "text": _facts(told)}
    return [
        head,
        *(
            {
                "run": "",
                "severity": each["severity"],
                "finding": each["id"],
                "replicas": ", ".join(each["replicas"]),
                "text": each["text"] + (f" Remedy: {each['remedy']}." if each["remedy"] else ""),
            }
            for each in told["findings"]
        ),
    ]


def _facts(told: dict[str, Any]) -> str:
    return "; ".join(
        f"{each['name']}: {_said(each['facts'], ('pool_tokens', 'snapshot_slots', 'reports_cached'))}"
        if each["reached"]
        else f"{each['name']}: {each['health']['error']}"
        for each in told["replicas"]
    )


def _said(facts: dict[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {facts[name]['value']} ({facts[name]['source']})" for name in names)


def test_engines_with_and_without_the_cache_report_and_with_other_flags(engines: Engines) -> None:
    """
    The missing flag is named, every flag that differs with both values, and what SGLang's health page costs.
    """
    good, other = engines.take(GOOD, OTHER)
    alone, alone_code = checked(good=good.url)
    both, both_code = checked(good=good.url, other=other.url)
    down, down_code = checked("--quick", good=good.url, gone=dead_url())
    report.write(
        "check",
        "What `ramjet check` says of real engines",
        "SGLang 0.5.23 on the CPU with a tiny hybrid model: one that reports what it reused and has a cap of two snapshots, "
        "one without either and with other flags, and an address on which nobody listens. "
        "`make acceptance ARGS='-k test_check'` runs it again.",
        [
            *rows("one replica, with the cache report", alone, alone_code),
            *rows("another beside it, without the report and with other flags", both, both_code),
            *rows("a replica that is down", down, down_code),
        ],
    )

    assert (alone_code, both_code, down_code) == (0, 0, 1)
    assert by_id(alone, "cache_report_off") == []
    assert by_id(alone, "long_prompt_snapshots") == []
    (off,) = by_id(both, "cache_report_off")
    assert off["replicas"] == ["other"]
    assert "--enable-cache-report" in off["remedy"]
    (clears,) = by_id(both, "long_prompt_snapshots")
    assert clears["replicas"] == ["other"]
    differ = {each["figures"]["fact"]: each["figures"]["values"] for each in by_id(both, "replicas_differ")}
    assert differ["pool_tokens"] == {"good": 131_072, "other": 65_536}
    assert differ["chunk_tokens"] == {"good": 256, "other": 512}
    assert differ["snapshots_per_path"] == {"good": 2, "other": "none"}
    (works,) = by_id(alone, "health_generates")
    assert works["figures"]["tokens"] == works["figures"]["probes"] == 2
    assert [each["replicas"] for each in by_id(down, "unreachable")] == [["gone"]]
    # uvicorn keeps a connection for 5 s, and Ramjet for 4.
    assert by_id(both, "idle_short") == []
    assert all(4.5 < each["idle"]["closed_after_s"] < 6.0 for each in both["replicas"])
