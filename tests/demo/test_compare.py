"""The same agents with admission off and on: what is summed up, and a small comparison through the command."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from ramjet.cli import demo_command
from ramjet.core.record import Record
from ramjet.core.usage import Usage
from ramjet.demo import run
from ramjet.demo.compare import Side, Workload, side, table
from ramjet.demo.traffic import Summary, TurnResult


def turn(ttft_s: float | None, *, cached: int | None = 0, error: str | None = None) -> TurnResult:
    return TurnResult(
        conversation=0,
        turn=1,
        status=200,
        replica="demo-1",
        reason="new",
        prompt_tokens=1_000,
        cached_tokens=cached,
        ttft_s=ttft_s,
        duration_s=1.0,
        error=error,
    )


def record(held_s: float, cached: int | None = None) -> Record:
    usage = Usage(prompt_tokens=1_000, cached_tokens=cached)
    return Record(request_id="", endpoint="chat", held_s=held_s, turn=2, reusable_tokens=1_000, usage=usage)


def summed(turns: tuple[TurnResult, ...], records: list[Record], wanted: int) -> Side:
    summary = Summary(turns=turns, duration_s=30.0, out_of_time=len(turns) < wanted)
    return side("enforce", summary, records, wanted=wanted)


def test_a_side_is_what_clients_saw_and_what_ramjet_recorded() -> None:
    """
    Failed turns and those that did not end have no wait; a cold turn reused less than half; what was held and then cut
    off was held all the same.
    """
    turns = (turn(1.0, cached=None), turn(3.0, cached=900), turn(9.0, cached=100), turn(None, error="gone"))
    records = [record(0.0), record(0.0, cached=900), record(2.5, cached=100), record(40.0)]

    assert summed(turns, records, wanted=6) == Side(
        admission="enforce",
        turns=3,
        failed=1,
        unfinished=2,
        mean_wait_s=13 / 3,
        p95_wait_s=9.0,
        cached_share=1 / 3,
        cold_turns=1,
        turns_per_min=6.0,
        held=2,
        max_held_s=40.0,
        duration_s=30.0,
    )


def test_where_nothing_was_answered_there_is_no_figure() -> None:
    """
    Not known is not 0.
    """
    nothing = summed((), [], wanted=6)

    assert (nothing.mean_wait_s, nothing.p95_wait_s, nothing.cached_share) == (None, None, None)
    assert (nothing.unfinished, nothing.turns_per_min, nothing.max_held_s) == (6, 0.0, 0.0)


def test_the_table_has_a_column_for_each_side() -> None:
    """
    With what is not known as a dash.
    """
    out = io.StringIO()
    one = summed((turn(1.5, cached=900),), [record(0.25, cached=900)], wanted=1)
    other = side("off", Summary(turns=(), duration_s=30.0, out_of_time=True), [], wanted=1)
    Console(file=out, width=80).print(table([other, one]))

    rows = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in out.getvalue().splitlines()]
    assert ["mean wait, s", "-", "1.50"] in rows
    assert ["cached", "-", "90.0%"] in rows
    assert ["not finished in time", "1", "0"] in rows
    assert ["longest hold, s", "0.00", "0.25"] in rows


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(demo_command, arguments)


def test_the_command_lets_the_same_agents_work_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Ten times as fast. The same turns are answered; where admission is on, long first prompts are held while another is
    read, and where it is off nothing ever is.
    """
    small = Workload(agents=3, turns=2, shared_system_tokens=1_000, growth_tokens=15_000, pool_tokens=40_000)
    monkeypatch.setattr(run, "_WORKLOAD", small)

    ran = invoke("--compare-admission", "--replicas", "1", "--speed", "10", "--json")

    assert ran.exit_code == 0, ran.output
    off, on = json.loads(ran.stdout)
    assert "3 agents take 2 turns each" in ran.stderr
    assert (off["admission"], on["admission"]) == ("off", "enforce")
    for each in (off, on):
        assert (each["turns"], each["failed"], each["unfinished"]) == (6, 0, 0)
        assert each["mean_wait_s"] <= each["p95_wait_s"] < each["duration_s"]
    assert (off["held"], off["max_held_s"]) == (0, 0.0)
    assert on["held"] >= 1
    assert on["max_held_s"] > 0


def test_a_comparison_that_takes_too_long_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its time is bounded, and the table tells that not everything was waited for.
    """
    monkeypatch.setattr(run, "_WORKLOAD", Workload(agents=2, turns=2, limit_s=0.5))

    ran = invoke("--compare-admission", "--replicas", "1", "--speed", "0.1")

    assert ran.exit_code == 0, ran.output
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in ran.stdout.splitlines()]
    assert ["turns answered", "0", "0"] in rows
    assert ["not finished in time", "4", "4"] in rows


def test_json_is_for_the_comparison_alone() -> None:
    """
    The demo itself has no figures to print.
    """
    ran = invoke("--json")

    assert ran.exit_code == 2
    assert "--compare-admission" in ran.stderr
