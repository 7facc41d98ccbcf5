"""The command: what it prints, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from ramjet.cli import main
from ramjet.plan.report import HEAD
from tests.plan.test_source import lines, mooncake

SET = ("--slots", "28", "--chunk-tokens", "768", "--set", "routing.admission.mode=off", "--jobs", "1", "--plays", "1")


def run(*given: str | Path) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, given)])


def test_one_json_document_says_everything(journal: Path) -> None:
    """
    What was observed, its replay and how near that is, and each of the settings with what it would have changed.
    """
    done = run("--journal", journal, *SET, "--try", "per_path=2", "--try", "slots=56,replicas=2", "--json")

    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found) == [
        "source", "replicas", "speed", "observed", "replayed", "spread", "error", "calibration", "doubts", "tried",
    ]  # fmt: skip
    assert found["source"]["counted"] == found["source"]["requests"] == found["observed"]["turns"]
    assert found["calibration"]["trusted"]
    assert found["observed"]["cold_turns"] >= 6
    cap, more = found["tried"]
    assert (cap["name"], more["name"]) == ("per_path=2", "slots=56,replicas=2")
    assert cap["figures"]["cold_turns"] == 0
    assert cap["kept"]["kept"] == cap["kept"]["cold"] == found["observed"]["cold_turns"]
    assert cap["to_observed"]["mean_wait"] < -0.1


def test_a_table_for_people(journal: Path, tmp_path: Path) -> None:
    """
    First how near it is, then a row for each; the page has the same.
    """
    page = tmp_path / "plan.html"
    done = run("--journal", journal, *SET, "--try", "per_path=2", "--html", page)

    assert done.exit_code == 0, done.output
    assert "is within 10%" in done.output
    assert done.output.index("How near the replay is") < done.output.index("Settings")
    assert "per_path=2 would have kept" in done.output
    shown = page.read_text()
    assert all(name.replace("<", "&lt;").replace(">", "&gt;") in shown for name in (*HEAD, "per_path=2", "observed"))


def test_what_is_not_known_is_said_and_not_trusted(journal: Path) -> None:
    """
    Nobody says that there are snapshots: nothing comes out cold, and the reader is told why that may be.
    """
    done = run("--journal", journal, "--chunk-tokens", "768", "--jobs", "1", "--plays", "1", "--try", "replicas=2")

    assert done.exit_code == 0, done.output
    assert "DO NOT TRUST THIS" in done.output
    assert "multiples of 256" in done.output
    assert "--slots" in done.output
    assert "nobody says how Ramjet was configured" in done.output


def test_a_trace_has_nothing_to_compare_with(tmp_path: Path) -> None:
    """
    And it says so.
    """
    trace = lines(tmp_path / "trace.jsonl", *mooncake(30))
    done = run("--trace", trace, "--replicas", "2", "--tokens", "100000", "--jobs", "1", "--json", "--plays", "1")

    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["observed"], found["calibration"], found["source"]["kind"]) == (None, None, "trace")
    assert found["tried"][0]["name"] == "replicas=3"


def test_a_setting_that_cannot_be_played_is_a_row_with_a_reason(journal: Path) -> None:
    """
    The others are not lost; where even what held then cannot be played, the command fails.
    """
    done = run("--journal", journal, *SET, "--try", "tokens=9000", "--try", "per_path=2")
    assert done.exit_code == 0, done.output
    assert "tokens=9000: a request of" in done.output

    done = run("--journal", journal, *SET, "--tokens", "9000", "--try", "tokens=70000")
    assert done.exit_code == 1
    assert "What held then cannot be played" in done.output


def test_faults_are_told_before_anything_is_played(journal: Path, tmp_path: Path) -> None:
    """
    With the name and what would be right.
    """
    for given, told in (
        (("--journal", tmp_path / "none.db"), "no journal there"),
        (("--journal", journal, "--try", "slots"), "write it as KEY=VALUE"),
        (("--journal", journal, "--try", "snails=5"), "snails: no such setting"),
        (("--journal", journal, "--set", "slots=5"), "--set slots: sets keys of the configuration"),
        (("--journal", journal, "--set", "routing.admission.mode=maybe"), "routing.admission.mode"),
        (("--journal", journal, "--html", tmp_path / "none" / "page.html"), "there is no directory"),
        (("--journal", journal, "--profile", "h100"), "no profile 'h100'; there are glm-5.3-flash-tp2"),
        (("--trace", journal), "is no trace that is known"),
        (("--trace", lines(tmp_path / "t", *mooncake(30)), "--since", "2026-11-29"), "a trace has no dates"),
    ):
        done = run(*given)
        assert done.exit_code != 0, given
        assert told in done.output, (given, done.output)


def test_help_has_examples() -> None:
    """
    As every command's has.
    """
    done = run("--help")

    assert done.exit_code == 0
    assert "ramjet plan --slots 28 --tokens 499968 --try per_path=2" in done.output
