"""What the figures mean: each finding comes where it should, with its remedy, and not where all is well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramjet.core.causes import CAUSES, Clues, Loss, Pressure
from ramjet.core.sample import Sample
from ramjet.journal.store import Entry
from ramjet.report.findings import SEVERITIES
from tests.report.support import AT, asked, found, turn, written

NEIGHBOUR = 0xFEDC_BA98_7654_3210
CLUES = Clues(expected_tokens=0, reusable_tokens=19_800, diverged_at_tokens=19_800)
UNSEEN = CLUES._replace(expected_tokens=19_800)
OF_CAUSE: dict[str, Clues] = {
    "moved": CLUES._replace(home_tokens=19_712),
    "token_pool": CLUES._replace(loss=Loss("token_pool", NEIGHBOUR, of_state=False, number=1)),
    "snapshot_pool": CLUES._replace(loss=Loss("snapshot_pool", NEIGHBOUR, of_state=True, number=1)),
    "branch": CLUES._replace(left_inside=True, known_tokens=19_800),
    "prefix_changed": CLUES._replace(head_changed=True),
    "restart": CLUES._replace(restarted=True),
    "host_tier": CLUES._replace(pressure=Pressure(has_host=True)),
    "unknown": UNSEEN,
}
SIZED = Sample(
    replica="glm-1", state="up", pool_tokens=499_968, pool_slots=28, resident_tokens=360_000, resident_slots=28
)


def warm(turns: int = 200) -> list[Entry]:
    return [turn(number, at=number) for number in range(1, turns + 1)]


def cold(cause: str, turns: int = 20, **more: Any) -> list[Entry]:
    cached = 9_000 if cause == "host_tier" else 0
    known: dict[str, Any] = {
        "at": 1_000,
        "ttft_s": 3.35,
        "clues": OF_CAUSE[cause],
        "cached_tokens": cached,
        "conversation": "other",
    }
    return [turn(1_000 + number, **{**known, **more}) for number in range(turns)]


def said(tmp_path: Path, entries: list[Entry], *samples: Sample, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
    return asked(written(tmp_path / "journal.db", entries, [(AT, list(samples))]), *arguments)


def test_all_is_well_is_said(tmp_path: Path) -> None:
    """
    With figures, and nothing else beside it.
    """
    (finding,) = said(tmp_path, warm(), SIZED)["findings"]

    assert (finding["id"], finding["severity"], finding["remedy"]) == ("all_well", "good", None)
    assert "0.0 % of 200 later turns were cold" in finding["text"]
    assert finding["figures"] == {"later_turns": 200, "cold": 0}


def test_too_little_is_said_too(tmp_path: Path) -> None:
    (finding,) = said(tmp_path, warm(99), SIZED)["findings"]

    assert (finding["id"], finding["severity"]) == ("too_little_data", "info")


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        ("moved", "the home was busy"),
        ("token_pool", "another replica, or a host tier"),
        ("snapshot_pool", "--mamba-max-states-per-path 2"),
        ("branch", "a smaller prefill chunk"),
        ("prefix_changed", "out of the system prompt"),
        ("restart", "replica_down"),
        ("host_tier", "a larger host tier"),
        ("unknown", "ramjet probe eviction"),
    ],
)
def test_every_cause_has_its_words_and_its_remedy(tmp_path: Path, cause: str, remedy: str) -> None:
    """
    20 cold turns of 220 are many; their seconds are said.
    """
    finding = found(said(tmp_path, warm() + cold(cause, reason="load"), SIZED), f"cold_{cause}")

    assert set(OF_CAUSE) == set(CAUSES)
    assert finding["severity"] == "bad"
    assert finding["text"].startswith("20 of 20 cold turns were")
    assert "67.0 s" in finding["text"]
    assert remedy in finding["remedy"]["text"]
    assert finding["figures"]["turns"] == 20


@pytest.mark.parametrize("cause", ["token_pool", "unknown"])
def test_who_does_not_know_of_snapshots_is_told_to_say_it_first(tmp_path: Path, cause: str) -> None:
    """
    A lost snapshot looks like lost tokens to whoever was told of tokens alone; told of both, the words are not there.
    """
    alone = replace(SIZED, pool_slots=None, resident_slots=None)
    for each, is_told in ((SIZED, True), (alone, False)):
        directory = tmp_path / str(is_told)
        directory.mkdir()
        finding = found(said(directory, warm() + cold(cause), each), f"cold_{cause}")

        assert ("replicas.snapshot_slots" in finding["remedy"]["text"]) is not is_told


def test_of_few_turns_nothing_is_called_bad(tmp_path: Path) -> None:
    """
    Ten of thirty were cold, and it is said; thirty turns are too little to be sure.
    """
    findings = said(tmp_path, warm(20) + cold("token_pool", 10), SIZED)["findings"]

    assert [(each["id"], each["severity"]) for each in findings] == [
        ("cold_token_pool", "warn"),
        ("too_little_data", "info"),
    ]


def test_a_few_cold_turns_are_not_worth_a_word(tmp_path: Path) -> None:
    """
    One in two hundred, and seven seconds.
    """
    findings = said(tmp_path, warm() + cold("token_pool", 1), SIZED)["findings"]

    assert [each["id"] for each in findings] == ["all_well"]


def test_the_seeds_finding(tmp_path: Path) -> None:
    """
    Long conversations that one other pushes out of the snapshot pool, while the token pool has room.
    """
    size = {"prompt_tokens": 300_000, "reusable_tokens": 299_000}
    clues = OF_CAUSE["snapshot_pool"]._replace(reusable_tokens=299_000)
    entries = warm() + cold("snapshot_pool", 11, clues=clues, **size) + cold("unknown", 3, **size)
    finding = found(said(tmp_path, entries, SIZED), "cold_snapshot_pool")

    assert finding["text"].startswith(
        "11 of 14 cold turns of 150,000 tokens and more were pushed out of the snapshot pool, 11 of them by one "
        "conversation, fedcba987654, at the cost of 1 other. The token pool was not the limit: 72.0 % of it at most."
    )
    assert finding["remedy"]["changes"] == {"per_path": 2}


def test_who_has_the_cap_already_is_told_something_else(tmp_path: Path) -> None:
    """
    The cap is not named where it is set on all replicas; and a token pool that was full is no room.
    """
    capped = replace(SIZED, per_path=2, resident_tokens=499_000)
    finding = found(said(tmp_path, warm() + cold("snapshot_pool"), capped), "cold_snapshot_pool")

    assert "--mamba-max-states-per-path" not in finding["remedy"]["text"]
    assert "more slots" in finding["remedy"]["text"]
    assert "was not the limit" not in finding["text"]


def test_a_branch_under_a_cap_wants_a_larger_one(tmp_path: Path) -> None:
    finding = found(said(tmp_path, warm() + cold("branch"), replace(SIZED, per_path=2)), "cold_branch")

    assert finding["remedy"]["changes"] == {"per_path": 4}


def long(number: int, conversation: str, replica: str = "glm-1") -> Entry:
    return turn(
        number, at=number, conversation=conversation, replica=replica, prompt_tokens=290_000, cached_tokens=289_000,
        reusable_tokens=289_000,
    )  # fmt: skip


def test_two_long_conversations_on_one_replica_are_named(tmp_path: Path) -> None:
    """
    Where they do not fit; where they do it is no trouble.
    """
    entries = warm() + [long(number, name) for number in (1, 2) for name in "ab"]
    finding = found(said(tmp_path, entries, SIZED), "long_together")
    roomy = found(said(tmp_path / "roomy", entries, replace(SIZED, pool_tokens=1_000_000)), "long_together")

    assert finding["severity"] == "warn"
    assert "up to 580,000 tokens on glm-1; its pool holds 499,968" in finding["text"]
    assert (roomy["severity"], roomy["remedy"]) == ("info", None)


def test_two_long_conversations_on_two_replicas_are_no_finding(tmp_path: Path) -> None:
    entries = [*warm(), long(1, "a", "glm-1"), long(1, "b", "glm-2")]
    report = said(tmp_path, entries, SIZED)

    assert report["long_together"]["shared_minutes"] == 1
    assert [each["id"] for each in report["findings"]] == ["all_well"]


@pytest.mark.parametrize(
    ("name", "entries", "text", "remedy"),
    [
        (
            "usage_not_reported",
            lambda: [turn(number, cached_tokens=None) for number in range(1, 60)],
            "59 of 259 turns came back without cached tokens, from glm-1",
            "--enable-cache-report",
        ),
        (
            "held_long",
            lambda: [turn(300, held_s=121.0), turn(301, held_s=4.0), turn(302, outcome="shed", replica=None)],
            "2 of 203 requests waited in Ramjet for room, 1 of them longer than 30 s and one for 121 s; 1 were turned",
            "another replica",
        ),
        (
            "long_prompt_confines",
            lambda: [turn(300, confined_tokens=300_000)],
            "routing.long_prompt put 1 turn beside long conversations",
            "switch routing.long_prompt off",
        ),
        (
            "left_waiting",
            lambda: [turn(number, ttft_s=None, outcome="client_disconnect", duration_s=35.0) for number in (300, 301)],
            "2 clients went away after more than 10 s",
            None,
        ),
        (
            "held_elsewhere",
            lambda: [turn(number, matched_tokens=0, cached_tokens=10_000) for number in range(300, 340)],
            "of the tokens that could have been reused were at another replica",
            "another one",
        ),
        (
            "replica_fails",
            lambda: [turn(number, outcome="upstream_reset", replica="glm-2") for number in range(300, 305)],
            "glm-2 failed at 5 requests, and answered 0 turns",
            "replica_failed",
        ),
    ],
)
def test_other_trouble_is_named(
    tmp_path: Path, name: str, entries: Callable[[], list[Entry]], text: str, remedy: str | None
) -> None:
    """
    Beside two hundred turns that are well, where it is no finding.
    """
    finding = found(said(tmp_path, warm() + entries(), SIZED), name)

    assert text in finding["text"]
    assert remedy is None or remedy in finding["remedy"]["text"]
    assert name not in [each["id"] for each in said(tmp_path / "well", warm(), SIZED)["findings"]]


def test_dropped_rows_and_unknown_pools_are_named(tmp_path: Path) -> None:
    """
    What the journal lost, ever, and what nobody said of a replica's size.
    """
    path = written(tmp_path / "journal.db", warm(), [(AT, [Sample(replica="glm-1", state="up")])])
    from tests.journal.support import store  # noqa: PLC0415

    one = store(path)
    one.write([], 7)
    one.close()
    report = asked(path)

    assert found(report, "rows_dropped")["figures"] == {"dropped": 7}
    assert "replicas.pool_tokens" in found(report, "pools_unknown")["remedy"]["text"]


def test_before_and_after_are_told_in_words(tmp_path: Path) -> None:
    """
    The seed's sentence; few turns are a direction, and no result.
    """
    entries = [
        *warm(),
        *cold("snapshot_pool", 20, at=50.0),
        *(turn(number, at=2_000 + number) for number in range(1, 151)),
    ]
    finding = found(said(tmp_path, entries, SIZED, arguments=("--split", "2026-09-21T14:40")), "before_after")
    few = found(said(tmp_path / "few", entries[:-60], SIZED, arguments=("--split", "2026-09-21T14:40")), "before_after")

    assert finding["severity"] == "good"
    assert finding["text"].startswith(
        "Cold turns of 8,000 to 150,000 tokens fell from 9.1 % (20 of 220) to 0.0 % (0 of 150), waits over 10 s from 0 in "
        "220 to 0 in 150"
    )
    assert (few["severity"], "a direction, and no result" in few["text"]) == ("info", True)


def test_the_worst_comes_first(tmp_path: Path) -> None:
    entries = warm() + cold("snapshot_pool") + [turn(300, held_s=121.0)]
    severities = [each["severity"] for each in said(tmp_path, entries)["findings"]]

    assert severities == sorted(severities, key=SEVERITIES.index)
    assert severities[0] == "bad"
