"""Figure by figure: against rows that were made by hand, and against every row of played traffic, counted plainly."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ramjet.cli import main
from ramjet.core.admission import Terms
from ramjet.core.causes import Clues, Loss
from ramjet.core.record import SIZE_CLASSES, TEMPERATURES
from ramjet.core.sample import Sample
from ramjet.core.usage import Usage
from ramjet.journal.read import Reader
from ramjet.journal.schema import MIGRATIONS, open_to_write
from ramjet.lab.production import SHIPPED
from ramjet.lab.workloads import SLOTS, build
from ramjet.report.count import percentile
from ramjet.report.tally import Points, Reuse
from tests.report.support import AT, asked, played, turn, written

LOST = Clues(
    expected_tokens=0,
    reusable_tokens=19_800,
    diverged_at_tokens=19_800,
    loss=Loss("snapshot_pool", 0xFEDC_BA98_7654_3210, of_state=True, number=1),
)
COLD: dict[str, Any] = {"cached_tokens": 0, "ttft_s": 3.35, "clues": LOST}


def only(those: list[dict[str, Any]], **names: str) -> dict[str, Any]:
    """The one of a list that has these values."""
    (one,) = [each for each in those if all(each[name] == value for name, value in names.items())]
    return one


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seed's pair and six ordinary conversations, on two replicas that keep every snapshot: some turns are cold."""
    path = tmp_path_factory.mktemp("report") / "journal.db"
    cache = SLOTS.cache
    states = getattr(cache, "snapshots", None)
    assert states is not None
    uncapped = replace(SLOTS, cache=replace(cache, snapshots=replace(states, per_path=None)))
    played(path, build("W5", 1), replicas=2, profile=uncapped, policy=replace(SHIPPED, terms=Terms(mode="off")))
    return path


def test_every_row_is_judged_as_the_record_judges_it(traffic: Path) -> None:
    """
    Temperature, cause and size class have one definition; counted here from the records, row by row, and there in bulk.
    """
    with Reader(traffic) as reader:
        records = [row.record for row in reader.rows(blocks=False)]
    turns = Counter((each.size_class, each.temperature) for each in records)
    causes = Counter((each.cold_cause, each.size_class) for each in records if each.cold)
    waits = {
        warmth: sorted(each.ttft_s for each in records if each.temperature == warmth and each.ttft_s is not None)
        for warmth in TEMPERATURES
    }

    whole = asked(traffic)["periods"][0]

    assert len(causes) >= 2
    assert whole["requests"] == whole["turns"] == len(records)
    for size in SIZE_CLASSES:
        counted = only(whole["sizes"], size_class=size)
        assert {warmth: counted[warmth] for warmth in TEMPERATURES} == {
            each: turns[size, each] for each in TEMPERATURES
        }
        mine = [each for each in records if each.size_class == size and each.ttft_s is not None]
        assert counted["over_10_s"] == sum((each.ttft_s or 0) > 10 for each in mine)
        assert counted["cold_wait_s"] == pytest.approx(sum(each.ttft_s or 0 for each in mine if each.cold))
    for cause in {cause for cause, _ in causes}:
        assert only(whole["causes"], cause=str(cause))["by_size"] == {
            size: causes[cause, size] for size in SIZE_CLASSES
        }
    for warmth in TEMPERATURES:
        counted, ranked = only(whole["ttft"], temperature=warmth), waits[warmth]
        assert counted["turns"] == len(ranked)
        assert counted["p50_s"] == (ranked[math.ceil(0.5 * len(ranked)) - 1] if ranked else None)
        assert counted["most_s"] == (ranked[-1] if ranked else None)
    assert whole["cached"]["prompt_tokens"] == sum(each.usage.prompt_tokens or 0 for each in records)
    assert whole["cached"]["cached_tokens"] == sum(each.usage.cached_tokens or 0 for each in records)
    assert whole["causes"] == sorted(whole["causes"], key=lambda each: -each["wait_s"])


def test_parts_of_what_could_have_been_reused_add_up(traffic: Path) -> None:
    """
    Achieved, gone, elsewhere and forgotten are all that was reachable, and the best replica held what is not forgotten.
    """
    reuse = asked(traffic)["periods"][0]["reuse"]

    assert reuse["compared_turns"] == reuse["turns"] > 200
    parts = [reuse[f"{name}_tokens"] for name in ("compared_cached", "lost", "elsewhere", "forgotten")]
    assert sum(parts) == reuse["compared_reachable_tokens"] == reuse["reachable_tokens"]
    assert min(parts) >= 0
    assert reuse["achieved_ratio"] <= reuse["any_replica_ratio"] <= 1


def test_replicas_are_shown_with_what_was_in_them(traffic: Path) -> None:
    """
    Their turns are all there are; pools are the profile's, and the most that was in them is between the mean and full.
    """
    said = asked(traffic)

    assert [each["replica"] for each in said["replicas"]] == ["0", "1"]
    assert sum(each["turns"] for each in said["replicas"]) == said["periods"][0]["turns"]
    assert sum(each["cold"] for each in said["replicas"]) == only(said["periods"][0]["sizes"], size_class="all")["cold"]
    for each in said["replicas"]:
        assert (each["pool_tokens"], each["pool_slots"], each["per_path"]) == (499_968, 28, None)
        assert 0 < each["slots_ratio_mean"] <= each["slots_ratio_most"] <= 1
        assert len(each["over_time"]) == each["samples"] > 2


def test_the_conversation_that_waited_longest_is_shown(traffic: Path) -> None:
    """
    By default; and any other by its name.
    """
    with Reader(traffic) as reader:
        records = [row.record for row in reader.rows(blocks=False)]
    cold_s: Counter[str] = Counter()
    for each in records:
        cold_s[each.conversation or ""] += (each.ttft_s or 0) if each.cold else 0  # type: ignore[assignment]
    (name, seconds), *_ = cold_s.most_common(1)
    other = next(each for each in cold_s if each != name)

    line, another = asked(traffic)["timeline"], asked(traffic, "--conversation", other)["timeline"]

    assert (line["conversation"], another["conversation"]) == (name, other)
    assert line["cold_wait_s"] == pytest.approx(seconds)
    mine = [each for each in records if each.conversation == other]
    assert [point["prompt_tokens"] for point in another["points"]] == [each.usage.prompt_tokens for each in mine]
    assert [point["cold_cause"] for point in another["points"]] == [each.cold_cause for each in mine]
    assert sum(another["replicas"].values()) == another["turns"] == len(mine)


def test_before_and_after_are_two_periods_and_both_together(tmp_path: Path) -> None:
    """
    The seed's comparison: 2 of 4 cold before, none of 3 after; a moment belongs to what comes after it.
    """
    rows = [turn(1, at=0, **COLD), turn(2, at=10, **COLD), turn(3, at=20), turn(4, at=30)]
    rows += [turn(number, at=10 * number) for number in (5, 6, 7)]
    path = written(tmp_path / "journal.db", rows)

    periods = asked(path, "--split", "2026-09-21T14:14:10")["periods"]

    sizes = [only(period["sizes"], size_class="8k-150k") for period in periods]
    assert [period["name"] for period in periods] == ["all", "before", "after"]
    assert [(each["turns"], each["cold"], each["cold_ratio"]) for each in sizes] == [
        (7, 2, 2 / 7), (4, 2, 0.5), (3, 0, 0.0),
    ]  # fmt: skip
    assert [period["first_at"] for period in periods] == [AT, AT, AT + 50]
    assert [period["causes"] for period in periods][2] == []
    assert only(periods[0]["causes"], cause="snapshot_pool")["wait_s"] == pytest.approx(6.7)


def test_waits_over_10_and_30_seconds_are_those_that_were_seen(tmp_path: Path) -> None:
    """
    What was not a stream has no first token; who went away before it is counted apart.
    """
    rows = [
        turn(1, ttft_s=10.0), turn(2, ttft_s=10.5), turn(3, ttft_s=68.0), turn(4, ttft_s=None),
        turn(5, ttft_s=None, outcome="client_disconnect", duration_s=31.0),
        turn(6, ttft_s=0.2, outcome="client_disconnect", duration_s=40.0),
    ]  # fmt: skip
    (period,) = asked(written(tmp_path / "journal.db", rows))["periods"]

    everybody = only(period["sizes"], size_class="all")
    assert (everybody["turns"], everybody["timed_turns"], everybody["over_10_s"], everybody["over_30_s"]) == (
        4,
        3,
        2,
        1,
    )
    assert period["left"] == {"requests": 1, "over_10_s": 1, "over_30_s": 1}
    assert period["outcomes"] == {"ok": 4, "client_disconnect": 2}


def test_each_missing_token_has_one_reason(tmp_path: Path) -> None:
    """
    Of 19,800 reachable tokens: all there; gone where it went; held by another replica alone; held by none.
    """
    cases = [
        turn(1, cached_tokens=19_800),
        turn(2, cached_tokens=10_000, matched_tokens=15_000, best_matched_tokens=15_000),
        turn(3, cached_tokens=10_000, matched_tokens=10_000, best_matched_tokens=18_000),
        turn(4, cached_tokens=10_000, matched_tokens=0, best_matched_tokens=0),
        turn(5, cached_tokens=None),
    ]
    reuse = asked(written(tmp_path / "journal.db", cases))["periods"][0]["reuse"]

    assert (reuse["turns"], reuse["reachable_tokens"], reuse["cached_tokens"]) == (4, 4 * 19_800, 49_800)
    assert (reuse["lost_tokens"], reuse["elsewhere_tokens"]) == (5_000, 8_000)
    assert reuse["forgotten_tokens"] == (19_800 - 15_000) + (19_800 - 18_000) + (19_800 - 10_000)


TOKENS = st.integers(0, 400_000)


@given(TOKENS, TOKENS, TOKENS, TOKENS, TOKENS)
def test_no_part_is_ever_negative(tokens: int, cached: int, reusable: int, matched: int, best: int) -> None:
    """
    Whatever was estimated, believed and reported, the parts add up to what was reachable, and that is what was cached
    at least.
    """
    reuse = Reuse()
    reuse.add(tokens, cached, reusable, matched, best)

    parts = reuse.lost_tokens, reuse.elsewhere_tokens, reuse.forgotten_tokens
    assert min(parts) >= 0
    assert cached + sum(parts) == reuse.reachable_tokens == max(cached, min(reusable, tokens))


@pytest.mark.parametrize("came", [0, 1, 7, 8, 100, 1_000])
def test_points_are_chosen_evenly(came: int) -> None:
    """
    All of a few; of many never fewer than half of the most, nor twice as many, at equal distances.
    """
    points = Points(most=4)
    for number in range(came):
        points.came += 1
        if points.came == points.due:
            points.keep(number, 0.0)

    kept = [number for number, _ in points.kept]
    assert len(kept) == came if came < 8 else 4 <= len(kept) < 8
    assert len({after - before for before, after in pairwise(kept)}) <= 1


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_a_percentile_is_a_value_that_was_seen(values: list[float], share: float) -> None:
    """
    So many are not above it, and of any smaller one that is not so.
    """
    ranked = sorted(values)
    found = percentile(ranked, share)

    assert found in values
    assert sum(each <= found for each in values) >= share * len(values)
    assert sum(each < found for each in values) < share * len(values)


def test_first_large_calls_are_those_of_conversations_that_began_here(tmp_path: Path) -> None:
    """
    A conversation whose first turn was before the span has had its first large call; small prompts do not count.
    """
    rows = [
        turn(0, conversation="a", prompt_tokens=20_000, cached_tokens=17_000),
        turn(1, at=1, conversation="a", cached_tokens=19_800),
        turn(0, at=2, conversation="b", prompt_tokens=500, cached_tokens=0),
        turn(1, at=3, conversation="b", prompt_tokens=10_000, cached_tokens=9_890),
        turn(7, at=4, conversation="c", prompt_tokens=20_000, cached_tokens=0),
    ]
    (period,) = asked(written(tmp_path / "journal.db", rows))["periods"]

    assert period["first_calls"]["conversations"] == 2
    assert period["first_calls"]["median_ratio"] == pytest.approx(0.85)
    assert period["first_calls"]["mean_ratio"] == pytest.approx((0.85 + 0.989) / 2)


def long(number: int, minute: float, conversation: str, replica: str, **more: Any) -> Any:
    """A turn of 290,000 tokens."""
    return turn(
        number, at=60 * minute, conversation=conversation, replica=replica, prompt_tokens=290_000, cached_tokens=285_000,
        reusable_tokens=286_000, **more,
    )  # fmt: skip


def test_minutes_of_long_conversations_are_counted(tmp_path: Path) -> None:
    """
    Alive from turn to turn where five minutes are not passed; beside another, and beside it on one replica, where two
    of 290,000 tokens are more than a pool of 499,968 holds.
    """
    rows = [
        long(1, 0, "a", "glm-1"), long(2, 4, "a", "glm-1"),  # five minutes
        long(1, 2, "b", "glm-2"), long(2, 3, "b", "glm-1"),  # two, one of them beside a
        long(3, 20, "b", "glm-1"),  # long after
        turn(1, at=120, conversation="short"),
    ]  # fmt: skip
    sample = [Sample(replica=name, state="up", pool_tokens=499_968) for name in ("glm-1", "glm-2")]
    those = asked(written(tmp_path / "journal.db", rows, [(AT, sample)]))["long_together"]

    assert those == {
        "minutes": 6, "shared_minutes": 2, "same_replica_minutes": 1, "overfull_minutes": 1, "most_tokens": 580_000,
        "most_replica": "glm-1",
    }  # fmt: skip


def test_who_pushed_out_whom_is_told_by_pool(tmp_path: Path) -> None:
    """
    One long conversation cost two others three turns, and itself one.
    """
    rows = [
        turn(number, at=number, conversation=name, **COLD)
        for number, name in enumerate(["a", "a", "b", "fedcba987654"], 1)
    ]
    (row,) = asked(written(tmp_path / "journal.db", rows))["evictions"]

    assert (row["by"], row["cause"], row["turns"], row["conversations"]) == ("fedcba987654", "snapshot_pool", 4, 2)
    assert row["wait_s"] == pytest.approx(4 * 3.35)
    assert row["victims"] == {"a": 2, "b": 1, "fedcba987654": 1}


# -- what is asked ------------------------------------------------------------------------------------------------------


def test_probes_are_left_out_where_that_is_asked(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.db", [turn(1), turn(2, probe=True), turn(3, at=5)])

    everything, real = asked(path), asked(path, "--exclude-probes")
    assert (everything["periods"][0]["requests"], everything["probes"]) == (3, None)
    assert (real["periods"][0]["requests"], real["probes"], real["timeline"]["turns"]) == (2, 1, 2)


def test_a_span_of_time_is_all_that_is_looked_at(tmp_path: Path) -> None:
    """
    Its beginning is in it, and its end is not; samples as well.
    """
    rows = [turn(number, at=10 * number) for number in range(6)]
    samples = [(AT + at, [Sample(replica="glm-1", state="up")]) for at in (0, 20, 40)]
    path = written(tmp_path / "journal.db", rows, samples)

    said = asked(path, "--since", "2026-09-21T14:13:40", "--until", "2026-09-21T14:14:00")
    assert (said["periods"][0]["requests"], said["replicas"][0]["samples"]) == (2, 1)
    assert said["periods"][0]["first_at"] == AT + 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--since", "2027-01-01"], "no request in that span of time"),
        (["--conversation", "nobody"], "no turn of conversation nobody in that span of time"),
        (["--split", "yesterday"], "write it as 2026-11-30"),
        (["--journal", "/nowhere/journal.db"], "/nowhere/journal.db: no journal there"),
    ],
)
def test_what_cannot_be_reported_is_said(tmp_path: Path, arguments: list[str], says: str) -> None:
    """
    On standard error with what to do, and not with an empty report.
    """
    path = written(tmp_path / "journal.db", [turn(1)])
    result = CliRunner().invoke(main, ["report", "--journal", str(path), *arguments])

    assert result.exit_code != 0
    assert says in result.stderr
    assert result.stdout == ""


def test_a_journal_of_the_first_version_says_what_it_can(tmp_path: Path) -> None:
    """
    What the best replica held, and what was in the pools, is unknown, and not nothing.
    """
    path = tmp_path / "journal.db"
    db = open_to_write(path, MIGRATIONS[:1])
    row = {
        "arrived_at": AT, "request_id": "r", "conversation": "c", "turn": 2, "endpoint": "chat", "stream": 1,
        "replica": "glm-1", "costs": "{}", "prompt_bytes": 1, "estimated_tokens": 1, "matched_tokens": 9,
        "reusable_tokens": 10, "prompt_tokens": 20, "cached_tokens": 10, "slices": 0, "moved": 0, "confined_tokens": 0,
        "held_s": 0.0, "would_hold": 0, "duration_s": 1.0, "attempts": 1, "outcome": "ok", "probe": 0,
    }  # fmt: skip
    db.execute(f"INSERT INTO requests ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))
    db.close()

    said = asked(path)
    reuse = said["periods"][0]["reuse"]
    assert (reuse["turns"], reuse["compared_turns"], reuse["any_replica_ratio"]) == (1, 0, None)
    assert [(each["replica"], each["samples"], each["tokens_ratio_most"]) for each in said["replicas"]] == [
        ("glm-1", 0, None)
    ]
    assert said["version"] == 1


def test_json_is_one_document_alone(tmp_path: Path) -> None:
    """
    Also beside a page.
    """
    path = written(tmp_path / "journal.db", [turn(1, usage=Usage(prompt_tokens=1, cached_tokens=0))])
    result = CliRunner().invoke(
        main, ["report", "--journal", str(path), "--json", "--html", str(tmp_path / "page.html")]
    )

    assert result.exit_code == 0
    assert json.loads(result.stdout)["journal"] == str(path)
    assert "page.html" in result.stderr


@pytest.mark.parametrize("name", ["STATE_DIRECTORY", "RAMJET_JOURNAL__PATH"])
def test_the_journal_is_found_where_serving_keeps_it(tmp_path: Path, name: str) -> None:
    """
    As by `ramjet journal`: beside the secret, or where the configuration's variable says.
    """
    path = written(tmp_path / "journal.db", [turn(1)])
    place = tmp_path if name == "STATE_DIRECTORY" else path
    result = CliRunner(env={name: str(place)}).invoke(main, ["report", "--json"])

    assert json.loads(result.stdout)["journal"] == str(path)
