"""`ramjet lab`: what it prints, and what it says when it cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ramjet.lab import report
from ramjet.lab.cli import lab
from ramjet.lab.measure import Figures
from ramjet.lab.policies import BASELINES
from ramjet.lab.runs import Case, run_all
from ramjet.lab.workloads import WORKLOADS

PROMISED = {
    "workload", "policy", "seed", "turns", "mean_wait_s", "p95_wait_s", "p99_wait_s", "max_held_s",
    "conversation_wait_p95_s", "cached_share", "cold_share", "turns_per_min",
}  # fmt: skip


def invoke(line: str) -> Result:
    return CliRunner().invoke(lab, line.split())


def made(policy: str, mean_wait_s: float, *, seed: int = 1, max_held_s: float = 0.0) -> Figures:
    return Figures(
        workload="W5", policy=policy, seed=seed, replicas=2, profile="any", conversations=8, turns=240,
        mean_wait_s=mean_wait_s, p50_wait_s=1.0, p95_wait_s=2.0, p99_wait_s=3.0, max_wait_s=4.0, max_held_s=max_held_s,
        conversation_wait_p50_s=5.0, conversation_wait_p95_s=6.0, cached_share=0.5, cold_share=0.25, turns_per_min=30.0,
    )  # fmt: skip


def test_list_shows_everything_that_can_be_run() -> None:
    """
    Every workload and every policy by the name that `run` takes.
    """
    result = invoke("list")

    assert result.exit_code == 0
    words = set(result.output.replace("│", " ").split())
    assert words >= {*WORKLOADS, *BASELINES}


def test_json_is_one_document_with_the_promised_fields() -> None:
    """
    A list with an object for each run, and nothing else on stdout.
    """
    result = invoke("run --workload W5 --policy seconds --seeds 1 --json")

    assert result.exit_code == 0, result.output
    (figures,) = json.loads(result.stdout)
    assert set(figures) >= PROMISED
    assert (figures["workload"], figures["policy"], figures["seed"], figures["turns"]) == ("W5", "seconds", 1, 240)
    # The study: 2.25 s, and 60 s for the two that are read cold.
    assert figures["mean_wait_s"] == pytest.approx(2.25, rel=0.1)
    assert figures["p99_wait_s"] == pytest.approx(60, rel=0.1)


def test_runs_come_in_the_order_in_which_they_were_asked_for() -> None:
    """
    Workload, then seed, then policy; a name given twice is run once.
    """
    result = invoke(
        "run --workload W5 --workload W5 --policy seconds --policy infinite --seeds 2 --replicas 3 --jobs 1 --json"
    )

    runs = [(each["policy"], each["seed"], each["replicas"]) for each in json.loads(result.stdout)]
    assert runs == [("seconds", 1, 3), ("infinite", 1, 3), ("seconds", 2, 3), ("infinite", 2, 3)]


def test_other_processes_find_the_same() -> None:
    """
    How many there are changes nothing but the time it takes.
    """
    cases = [Case(workload="W5", policy=policy, seed=seed) for seed in (1, 2) for policy in ("seconds", "infinite")]

    assert dict(run_all(cases, processes=2)) == dict(run_all(cases, processes=1))


def test_a_table_compares_with_the_best_baseline() -> None:
    """
    Means over seeds, the longest hold of all, and the lower bound is nobody's rival.
    """
    runs = [
        made("ramjet", 1.0, max_held_s=3.0), made("seconds", 2.0), made("round_robin", 8.0), made("infinite", 0.5),
        made("ramjet", 2.0, seed=2, max_held_s=9.0), made("seconds", 4.0, seed=2),
    ]  # fmt: skip

    ((workload, rows),) = report.rows(runs)

    assert workload == "W5"
    assert {row.policy: row.to_best for row in rows} == {
        "ramjet": 0.5, "seconds": 1.0, "round_robin": pytest.approx(8 / 3), "infinite": pytest.approx(0.5 / 3),
    }  # fmt: skip
    assert rows[0].max_held_s == 9.0
    assert rows[0].seeds == 2


def test_without_a_baseline_there_is_nothing_to_compare_with() -> None:
    """
    A dash and no ratio.
    """
    ((_, rows),) = report.rows([made("ramjet", 1.0)])

    assert rows[0].to_best is None


def test_run_prints_a_table_for_each_workload() -> None:
    """
    For people: a title with what it is, and a row for each policy.
    """
    result = invoke("run --workload W5 --policy seconds --policy round_robin --jobs 1")

    assert result.exit_code == 0, result.output
    assert "W5: the seed's pair" in result.output
    assert "round_robin" in result.output
    assert "turns/min" in result.output


def test_html_is_one_page_with_a_plot(tmp_path: Path) -> None:
    """
    It needs no other file, and the same runs give the same page.
    """
    pytest.importorskip("matplotlib")
    path = tmp_path / "lab.html"

    result = invoke(f"run --workload W5 --policy seconds --policy infinite --jobs 1 --html {path}")

    assert result.exit_code == 0, result.output
    text = path.read_text(encoding="utf-8")
    assert text.count("<svg") == 1
    assert text.count("<table>") == 1
    assert not any(each in text for each in ("src=", "<link", "url(http", "@import"))
    runs = [made("seconds", 2.0), made("infinite", 1.0)]
    assert report.page(runs) == report.page(runs)


def test_without_matplotlib_the_way_to_get_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Before anything is run, and with the command to type.
    """
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    result = invoke(f"run --workload W5 --policy seconds --html {tmp_path / 'lab.html'}")

    assert result.exit_code == 1
    assert "pip install 'ramjet-lb[plots]'" in result.output
    assert not list(tmp_path.iterdir())


def test_a_page_that_could_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    """
    Minutes of runs are not lost to a missing directory.
    """
    pytest.importorskip("matplotlib")

    result = invoke(f"run --html {tmp_path / 'nowhere' / 'lab.html'}")

    assert result.exit_code == 1
    assert "there is no directory" in result.output


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run --workload W10", "no workload 'W10'; there are W0, W1"),
        ("run --policy magic", "no policy 'magic'; there are"),
        ("run --profile none", "no profile 'none'; there are glm-5.3-flash-tp2"),
    ],
)
def test_a_name_that_means_nothing_is_answered_with_those_that_do(line: str, told: str) -> None:
    """
    Whoever mistypes need not look anything up.
    """
    result = invoke(line)

    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_a_profile_that_cannot_hold_a_workload_is_refused() -> None:
    """
    llama.cpp's slots are shorter than the seed's long conversations.
    """
    result = invoke("run --workload W5 --policy seconds --profile llama-cpp")

    assert result.exit_code == 1
    assert "W5 has a turn of 334,200 tokens" in result.output


@pytest.mark.parametrize("profile", ["glm-5.3-flash-tp2", "attention", "vllm-hybrid", "llama-cpp"])
def test_every_profile_can_be_played_on(profile: str) -> None:
    """
    Also those whose pages are not the workloads' blocks.
    """
    result = invoke(f"run --workload lmcache_agents --policy seconds_crowding --profile {profile} --json")

    assert result.exit_code == 0, result.output
    (figures,) = json.loads(result.stdout)
    assert figures["profile"] == profile
    assert figures["turns"] == 1_619
    assert figures["cached_share"] > 0
