"""The report for people: the page loads nothing and shows everything, and the terminal has the same figures."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ramjet.cli import main
from ramjet.core.sample import Sample
from ramjet.report import tables
from ramjet.report.figures import Point, Timeline
from ramjet.report.terminal import chart, lines
from tests.report.support import AT, asked, written
from tests.report.test_findings import SIZED, cold, warm

ROOT = Path(__file__).parents[2]
NASTY = "</script><b>"


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Something in every table and picture, and a replica with an odd name."""
    entries = warm() + cold("snapshot_pool", replica=NASTY) + cold("moved", 5, outcome="client_disconnect", ttft_s=None)
    entries += cold("token_pool", 5, held_s=40.0, prompt_tokens=200_000, reusable_tokens=200_000)
    odd = Sample(replica=NASTY, state="up", pool_tokens=1, pool_slots=1, resident_tokens=1, resident_slots=1)
    samples = [(AT + at, [SIZED, odd]) for at in (0, 60, 600)]
    return written(tmp_path_factory.mktemp("page") / "journal.db", entries, samples)


def run(journal: Path, *arguments: str) -> Any:
    return CliRunner().invoke(main, ["report", "--journal", str(journal), *arguments], catch_exceptions=False)


def page(journal: Path, tmp_path: Path) -> str:
    """The page without plotly's own script."""
    result = run(journal, "--html", str(tmp_path / "page.html"), "--split", "2026-09-21T14:15")
    assert result.exit_code == 0, result.stderr
    whole = (tmp_path / "page.html").read_text(encoding="utf-8")
    before, _, after = whole.partition("<script>")
    assert "plotly.js" in after[:200]
    return before + after[after.index("</script>") :]


def test_the_page_loads_nothing(journal: Path, tmp_path: Path) -> None:
    """
    It refers to nothing, and forbids the browser to fetch whatever a script might ask for.
    """
    ours = page(journal, tmp_path)
    whole = (tmp_path / "page.html").read_text(encoding="utf-8")

    # The script has links to its makers in it, which are no part of what it draws here, and nothing that is fetched.
    assert not re.search(r"\b(src|action|srcset|data|poster)\s*=\s*[\"']?\s*(https?:)?//", whole)
    assert "http" not in ours.replace("http-equiv", "")
    assert not re.search(r"<(link|img|iframe|object|embed|base|form)\b|@import|url\(", ours)
    assert "default-src 'none'" in ours
    assert "connect-src" not in ours


def test_the_page_has_every_figure_of_the_terminal(journal: Path, tmp_path: Path) -> None:
    """
    Every table with its cells, and every finding with its remedy; and what is drawn is data in the page.
    """
    ours = page(journal, tmp_path)
    text = re.sub(r"<[^>]+>", "\n", ours).replace("&gt;", ">").replace("&lt;", "<").replace("&#x27;", "'")
    terminal = run(journal, "--split", "2026-09-21T14:15").stdout

    cells = [
        each
        for line in terminal.splitlines()
        if not re.search("[▁-█]|^cold +x", line)
        for each in re.split(r"\s{2,}", line.strip())
        if each
    ]
    said = text + " ".join(text.split())
    assert not [each for each in cells if each not in said and len(each) < 25]
    drawn = json.loads(re.search(r"const PLOTS = (\[.*?\]);\n", ours, re.S)[1])  # type: ignore[index]
    assert [each["name"] for each in drawn] == re.findall(r"class='plot' id='(\w+)'", ours)
    assert {"compared", "over_time", "waits", "timeline", "causes", "reuse", "pool_tokens", "pool_slots"} == {
        each["name"] for each in drawn
    }
    assert all(each["data"] for each in drawn)


def test_names_are_text_and_never_markup(journal: Path, tmp_path: Path) -> None:
    ours = page(journal, tmp_path)

    assert NASTY not in ours
    assert "&lt;/script&gt;&lt;b&gt;" in ours
    assert ours.count("</script>") == 2


def test_the_page_is_made_for_phones_and_for_the_night(journal: Path, tmp_path: Path) -> None:
    ours = page(journal, tmp_path)

    assert 'name="viewport" content="width=device-width' in ours
    assert "prefers-color-scheme: dark" in ours


def test_without_plotly_a_page_is_refused_before_anything_is_counted(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    And all else works.
    """
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    refused = CliRunner().invoke(main, ["report", "--journal", str(journal), "--html", str(tmp_path / "page.html")])

    assert refused.exit_code == 1
    assert "pip install 'ramjet-lb[plots]'" in refused.stderr
    assert not (tmp_path / "page.html").exists()
    assert run(journal).exit_code == 0


def test_unknown_is_a_dash_and_none_is_0() -> None:
    assert [tables.whole(None), tables.whole(0), tables.seconds(None), tables.percent(None), tables.percent(0.0)] == [
        "-", "0", "-", "-", "0.0\N{NO-BREAK SPACE}%",
    ]  # fmt: skip


def names(value: Any) -> set[str]:
    """Every name in a document; those of mappings whose keys are data are none of ours."""
    data = {"outcomes", "by_size", "moved_reasons", "figures", "changes", "victims"}
    if isinstance(value, dict):
        inner = [names(each) for name, each in value.items() if name not in data and not isinstance(each, str)]
        return {*value, *(name for each in inner for name in each)}
    return {name for each in value for name in names(each)} if isinstance(value, list) else set()


def test_every_name_of_the_json_is_documented(journal: Path) -> None:
    """
    They are a contract: each stands in docs/report.md.
    """
    said = asked(journal, "--split", "2026-09-21T14:15")
    said["timeline"]["replicas"] = {}
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "report.md").read_text(encoding="utf-8")))

    assert names(said) - documented == set()
    assert {each["id"] for each in said["findings"]} - documented == set()


def point(number: int, **more: Any) -> Point:
    known = {"at": 0.0, "turn": number, "prompt_tokens": 1_000 * number, "cached_tokens": 0, "ttft_s": 1.0}
    return Point(**{**known, "temperature": "warm", "cold_cause": None, "replica": "a", **more})


def test_a_conversation_is_drawn_in_three_lines() -> None:
    """
    A column for each turn, or the most of several.
    """
    points = [point(number) for number in range(1, 9)]
    points[3] = point(4, ttft_s=8.0, temperature="cold")
    line = Timeline(
        conversation="c", turns=8, cold=1, wait_s=15.0, cold_wait_s=8.0, warm_p50_s=1.0, most_tokens=8_000,
        replicas={"a": 8}, points=points,
    )  # fmt: skip
    assert list(chart(line)) == [
        "tokens  ▂▃▄▅▆▇██  8,000 at most",
        "TTFT    ▂▂▂█▂▂▂▂  8.00 s at most",
        "cold       x",
    ]

    many = replace(line, points=points * 50)
    assert {len(each[8:].split("  ")[0]) for each in list(chart(many))[:2]} == {60}


def test_no_terminal_is_too_narrow_for_a_digit(journal: Path) -> None:
    """
    Heads are broken between words, lines by the terminal; nothing is left out.
    """
    grid = tables.Grid(
        "g", "t", "a", ("name", "a long head of words", "x"), [("one", "1,234,567", "9"), ("b", "2", "10")]
    )

    assert list(lines(grid)) == [
        "         a long",
        "        head of",
        "name      words   x",
        "one   1,234,567   9",
        "b             2  10",
    ]
