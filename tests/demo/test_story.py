"""The seed's story: it happens as told, and where the figures say otherwise so do the words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ramjet.cli import main
from ramjet.demo import post, tell
from ramjet.demo import story as told
from ramjet.demo.story import STEPS, Story
from ramjet.demo.verdict import Verdict, verdicts
from ramjet.report.figures import Report


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """With fewer turns than the command has."""
    steps: list[str] = []
    found = told.tell(tmp_path_factory.mktemp("story"), turns=5, long_turns=3, on_step=steps.append)
    assert len(steps) == STEPS
    return found


def said(story: Story) -> dict[str, Verdict]:
    return {each.id: each for each in verdicts(story)}


def test_it_happens_as_the_seed_tells_it(story: Story) -> None:
    """
    Cold for want of snapshots; warm with the cap, as the planner said; and apart rather than together.
    """
    found = said(story)

    assert {name: each.holds for name, each in found.items()} == {
        "sessions_come_back_cold": True,
        "snapshot_pool_is_the_limit": True,
        "cap_keeps_sessions": True,
        "planner_is_right": True,
        "spreading_is_better": True,
    }
    assert story.stock.came_back is not None
    assert story.stock.came_back.cold == story.stock.came_back.sessions == 6
    assert story.stock.came_back.mean_wait_s == pytest.approx(3.35, rel=0.05)
    assert "snapshot pool was the limit" in found["snapshot_pool_is_the_limit"].text
    assert "--mamba-max-states-per-path 2" in found["snapshot_pool_is_the_limit"].text
    assert story.spread.turns[1].cached_ratio == pytest.approx(0.986, abs=0.002)
    assert [each.cached_tokens for each in story.branches] == [19_712, 19_712, 12_288, 14_848]
    assert set(story.confined.replicas) == {"glm-2"}
    assert set(story.spread.replicas) == {"glm-1", "glm-2"}


def test_without_a_difference_no_cap_is_said_to_help(story: Story) -> None:
    """
    The same before and after: every sentence turns.
    """
    same = replace(story, capped=replace(story.stock, name="capped"), spread=replace(story.confined, name="spread"))
    found = said(same)

    assert not found["cap_keeps_sessions"].holds
    assert "does not help" in found["cap_keeps_sessions"].text
    assert "None of 6 sessions came back warm" in found["cap_keeps_sessions"].text
    assert not found["spreading_is_better"].holds
    assert "makes no difference" in found["spreading_is_better"].text
    assert "leave routing.long_prompt as it is" in found["spreading_is_better"].text


def test_the_other_way_round_the_verdict_is_the_other_one(story: Story) -> None:
    """
    Where those that were kept together find more, that is what is said.
    """
    turned = replace(story, stock=story.capped, confined=story.spread, spread=story.confined)
    found = said(turned)

    assert not any(found[name].holds for name in ("sessions_come_back_cold", "spreading_is_better"))
    assert "None of 6 sessions came back cold" in found["sessions_come_back_cold"].text
    assert "makes them faster" in found["spreading_is_better"].text
    assert not found["snapshot_pool_is_the_limit"].holds


def test_the_pool_that_is_named_is_the_one_that_the_report_names(story: Story) -> None:
    """
    Where turns are cold for want of tokens, it is the token pool; and a full one beside is not passed over.
    """
    short = replace(story, stock=replace(story.stock, report=story.confined.report))
    report = story.stock.report
    full = replace(report, replicas=[replace(each, tokens_ratio_most=0.99) for each in report.replicas])

    tokens = said(short)["snapshot_pool_is_the_limit"]
    both = said(replace(story, stock=replace(story.stock, report=full)))["snapshot_pool_is_the_limit"]

    assert (tokens.holds, both.holds) == (False, False)
    assert "ran out of tokens" in tokens.text
    assert "the token pool was full too (99.0 %)" in both.text


def test_a_planner_that_is_wrong_is_said_to_be(story: Story) -> None:
    """
    Off by more than a tenth, or not able to say anything.
    """
    assert story.said.to_found is not None
    off = replace(story.said, to_found=replace(story.said.to_found, trusted=False))
    mute = replace(story.said, figures=None, to_found=None, error="no room")

    assert "but not within 10" in said(replace(story, said=off))["planner_is_right"].text
    assert said(replace(story, said=mute))["planner_is_right"] == Verdict(
        id="planner_is_right", holds=False, text="The planner could not say what a cap would do: no room."
    )


def test_tables_have_the_posts_figures_beside_ours(story: Story) -> None:
    """
    And everything that is printed fits a terminal; the document says the same.
    """
    lines = list(post.text(story))
    document: dict[str, Any] = json.loads(json.dumps(post.document(story)))

    assert max(map(len, lines)) <= 110
    assert any("3.35" in line and "6 of 6" in line for line in lines)
    assert any("7.6 %" in line for line in lines)
    assert any("98.6 %" in line for line in lines)
    assert [each["name"] for each in document["sides"]] == ["stock", "capped"]
    assert [each["id"] for each in document["verdicts"]] == list(said(story))
    assert document["said"]["kept"]["kept"] >= 6


def test_the_command_prints_one_document_and_leaves_the_journals(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where it is asked to, and not over others.
    """
    kept = tmp_path / "kept"

    def quick(directory: Path, **_: Any) -> Story:
        (directory / "stock.db").touch()
        return story

    monkeypatch.setattr(tell, "tell", quick)
    done = CliRunner().invoke(main, ["demo", "--story", "--json", "--keep", str(kept)], catch_exceptions=False)
    again = CliRunner().invoke(main, ["demo", "--story", "--keep", str(kept)])

    assert done.exit_code == 0
    assert {"branches", "sides", "said", "pairs", "verdicts"} == set(json.loads(done.stdout))
    assert "ramjet report --journal" in done.stderr
    assert again.exit_code == 1
    assert "stock.db is there already" in again.stderr


def test_the_journals_can_be_reported_on(story: Story) -> None:
    report: Report = story.stock.report

    assert Path(report.journal).exists()
    assert told.worst(report) is not None
