"""Remedies replayed: what a report says of them when asked to, and how far it says they are to be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ramjet.cli import main
from ramjet.core.pools import Pools
from ramjet.demo.scenes import intrusion, played
from ramjet.lab.recorded import Script, recorded
from ramjet.sim.profile import GLM, Profile
from tests.report.support import asked, found, turn, written

# An eighth of everything: as many chunks and snapshots in prompts of an eighth.
EIGHTH = GLM.with_flags(pool_tokens=499_968 // 8, chunk_tokens=6_144 // 8)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replica without a cap, and a long prompt among six sessions."""
    path = tmp_path_factory.mktemp("replayed") / "journal.db"
    played(path, Script(intrusion(turns=5)))
    return path


def test_a_finding_says_what_its_remedy_would_have_kept(journal: Path) -> None:
    """
    Of the turns that it speaks of, and of all turns; in words, in figures, and only when asked.
    """
    plain = found(asked(journal), "cold_snapshot_pool")
    finding = found(asked(journal, "--replay"), "cold_snapshot_pool")
    replayed = finding["replayed"]

    assert plain["replayed"] is None
    assert {**finding, "replayed": None} == plain
    assert replayed["settings"] == "a cap of two per path"
    assert replayed["trusted"] is True
    figures = replayed["figures"]
    assert figures["turns"] == finding["figures"]["turns"] >= 6
    assert figures["kept"] == figures["explained"] >= 6
    assert figures["cold_after"] < figures["cold_before"]
    assert f"A cap of two per path would have kept {figures['kept']}" in replayed["text"]
    assert "trusted" not in replayed["text"]


def test_a_replay_that_is_far_off_says_so(tmp_path: Path) -> None:
    """
    A journal of turns that were cold though nothing was there to push them out: no replay finds them so.
    """
    path = tmp_path / "journal.db"

    def told(profile: Profile) -> Pools:  # Far more slots than there are, and so the planner believes.
        return Pools(tokens=499_968 // 8, slots=200, chunk_tokens=6_144 // 8)

    recorded(path, intrusion(8, turns=8), profile=EIGHTH, told=told)
    findings = [each for each in asked(path, "--replay")["findings"] if each["replayed"] is not None]

    assert findings
    for each in findings:
        assert each["replayed"]["trusted"] is False
        assert "Not to be trusted much: the replay of what was is off by more than 10" in each["replayed"]["text"]
        assert "--config" in each["replayed"]["text"]


def test_what_cannot_be_replayed_says_why(tmp_path: Path) -> None:
    """
    Rows without their blocks can be counted and not played.
    """
    rows = [turn(number, at=number, reason="load", ttft_s=40.0, held_s=35.0) for number in range(1, 60)]
    path = written(tmp_path / "journal.db", rows)

    finding = found(asked(path, "--replay"), "held_long")

    assert finding["replayed"]["trusted"] is None
    assert "One replica more could not be replayed: " in finding["replayed"]["text"]


def test_a_configuration_is_for_replays(tmp_path: Path) -> None:
    config = tmp_path / "ramjet.yaml"
    config.write_text("replicas: []\n", encoding="utf-8")
    path = written(tmp_path / "journal.db", [turn(1, at=0.0)])

    done = CliRunner().invoke(main, ["report", "--journal", str(path), "--config", str(config)])

    assert done.exit_code == 2
    assert "--replay" in done.stderr


def test_where_nothing_is_amiss_nothing_is_replayed(tmp_path: Path) -> None:
    said: dict[str, Any] = asked(written(tmp_path / "journal.db", [turn(n, at=n) for n in range(1, 150)]), "--replay")

    assert [each["replayed"] for each in said["findings"]] == [None] * len(said["findings"])
