"""The seed's story, played again: what happened, and what a cap would have changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ramjet.lab.production import SHIPPED
from ramjet.plan.figures import difference, seen
from ramjet.plan.replay import kept, middle, replay, replay_all
from ramjet.plan.setup import Maker, SettingsError, Setup
from ramjet.plan.source import from_journal
from ramjet.plan.span import Span
from tests.plan.support import EIGHTH, observed, then
from tests.recorded import Says, Talk, recorded

EIGHTH_CHUNK = EIGHTH.cache.chunk_tokens
PLACED_AT_ONCE = {"routing.admission.mode": "off"}


def maker(span: Span) -> Maker:
    return replace(then(span, EIGHTH_CHUNK), routing=PLACED_AT_ONCE)


def short() -> Setup:
    """Of a replica that is too small."""
    return Maker(names=["glm-1"], given={"tokens": 10_000}).make("small")


def test_what_happened_is_played_again_as_it_was(span: Span) -> None:
    """
    Sessions come back cold after one long prompt; the replay finds as many cold, as much cached, and the wait.
    """
    replayed = replay(span, maker(span).make("as it was"))

    assert observed(span).cold_turns >= 6
    assert difference(replayed.figures, observed(span)).trusted
    assert replayed.figures.cold_turns == observed(span).cold_turns
    assert replayed.figures.mean_wait_s == pytest.approx(observed(span).mean_wait_s, rel=0.02)


def test_a_cap_is_predicted_from_a_journal_without_one(span: Span, capped: Span) -> None:
    """
    What the planner says of a cap of two is what then happens: mean wait, cold turns and cached share within a tenth.
    """
    predicted = replay(span, maker(span).make("a cap", {"per_path": 2}))

    assert observed(capped).cold_turns == 0
    assert observed(capped).mean_wait_s == pytest.approx(predicted.figures.mean_wait_s, rel=0.1)
    assert difference(predicted.figures, observed(capped)).trusted


def test_cold_turns_that_a_cap_would_have_kept_are_named(span: Span) -> None:
    """
    Of the turns that were cold, those that a replay finds cold too are explained, and the cap keeps all of them.
    """
    as_it_was = replay(span, maker(span).make("as it was"))
    with_cap = replay(span, maker(span).make("a cap", {"per_path": 2}))

    found = kept(seen(span), as_it_was.outcomes, with_cap.outcomes)

    assert set(found.kept) <= set(found.explained) <= set(found.cold)
    assert set(found.cold) == {each.name for each in span.requests if each.seen is not None and each.seen.cold}
    assert len(found.kept) == len(found.explained) == len(found.cold)


def test_a_play_can_be_done_again_and_others_differ_a_little(span: Span) -> None:
    """
    Equal numbers give equal figures; the middle of three says how far they lie apart.
    """
    setup = maker(span).make("a cap", {"per_path": 2})
    plays = [replay(span, setup, number) for number in range(3)]

    assert plays[1] == replay(span, setup, 1)
    assert len({each.figures.mean_wait_s for each in plays}) == 3
    chosen = middle(plays)
    assert sorted(each.figures.mean_wait_s or 0 for each in plays)[1] == chosen.figures.mean_wait_s
    assert chosen.spread is not None
    assert 0 < chosen.spread < 0.1


def test_several_at_a_time_give_what_each_gives_alone(span: Span) -> None:
    """
    In other processes, in any order; one that cannot be played says why and spoils nothing.
    """
    setups = [maker(span).make("as it was"), short()]

    found = dict(replay_all(span, setups, processes=2))

    assert found[0] == replay(span, setups[0])
    assert "fits no replica" in str(found[1])


def test_other_routers_can_stand_in_ramjets_place(span: Span) -> None:
    """
    One after the other on two replicas: what the other one holds is found only if it is the right one's turn.
    """
    blind, ours, best = (
        replay(span, maker(span).make("two", {"replicas": 2, "per_path": 2, "policy": name})).figures
        for name in ("round_robin", "ramjet", "infinite")
    )

    assert blind.cold_turns > ours.cold_turns >= best.cold_turns == 0
    assert (blind.cached_share or 0) < (ours.cached_share or 0) <= (best.cached_share or 0)


def test_slices_are_cut_where_the_journals_blocks_end(span: Span) -> None:
    """
    The long prompt pays for each of them, and what they have read is not taken for what was there.
    """
    sliced = {"per_path": 2, "routing.slices.enabled": True, "routing.slices.seconds": 0.5}
    whole, parts = (replay(span, maker(span).make("made", each)) for each in ({"per_path": 2}, sliced))

    assert parts.figures.cached_share == pytest.approx(whole.figures.cached_share, rel=0.02)
    assert (parts.figures.max_wait_s or 0) > 1.2 * (whole.figures.max_wait_s or 0)


def test_what_fits_nowhere_is_said(span: Span) -> None:
    """
    With the number of tokens that would be needed, and what to do.
    """
    with pytest.raises(SettingsError, match=r"4\d,\d+ tokens.*takes 10,000 at most: give more tokens"):
        replay(span, short())


def test_two_replicas_keep_their_names_and_paces(tmp_path: Path) -> None:
    """
    One that reads half as fast is found out, and the replay has it read half as fast.
    """
    talks = [
        Talk(
            words=f"one of {number}",
            system=("all of them", 3_000),
            tokens=12_000 + 1_000 * number,
            start_s=40.0 * number,
            turns=[Says(tokens=5_000, think_s=15.0) for _ in range(4)],
        )
        for number in range(6)
    ]
    recorded(tmp_path / "journal.db", talks, replicas=2, paces=(1.0, 2.0), policy=SHIPPED)
    two = from_journal(tmp_path / "journal.db")
    speed = then(two).speed

    replayed = replay(two, Maker(names=two.replicas, known=two.known, speed=speed).make("as it was"))

    assert two.replicas == ["glm-1", "glm-2"]
    assert speed.paces["glm-2"] / speed.paces["glm-1"] == pytest.approx(2.0, rel=0.1)
    assert difference(replayed.figures, observed(two)).trusted
