"""What SGLang answered once, and what the cache model says of the same requests: no engine is needed here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.acceptance.cache_model import SEED, SETTINGS, TURNS, Settings, compare, recorded, summarize


@pytest.mark.parametrize("name", SETTINGS)
def test_the_model_says_what_the_engine_said(name: str) -> None:
    """
    As `test_cache_model` wrote it down: exactly in 95 % of turns, and within one chunk in 99 %.
    """
    settings = SETTINGS[name]

    seen = summarize(list(compare(settings, recorded(settings), turns=TURNS, seed=SEED)), settings)

    assert seen.turns >= 300
    assert seen.lost >= 20, "pools were short"
    assert seen.exact_ratio >= 0.95
    assert seen.near_ratio >= 0.99


def without(settings: Settings, habits: dict[str, Any]) -> Settings:
    """The same engine with other habits."""
    cache = settings.cache
    of_states = {name: value for name, value in habits.items() if name != "cut_is_use"}
    states = cache.snapshots if cache.snapshots is None else replace(cache.snapshots, **of_states)
    return replace(
        settings, cache=replace(cache, cut_is_use=habits.get("cut_is_use", cache.cut_is_use), snapshots=states)
    )


@pytest.mark.parametrize(
    ("name", "habits"),
    [
        ("attention", {"cut_is_use": False}),
        ("no_buffer", {"grid_tokens": 64}),
        ("no_buffer", {"private": 3}),
        ("no_buffer_cap", {"hands_over": False}),
        ("no_buffer_cap", {"per_path": None}),
        ("extra_buffer", {"chain_with_kv": True}),
        ("extra_buffer", {"forks": False}),
        ("extra_buffer", {"track_tokens": 256}),
        ("both_short", {"cut_is_use": False}),
    ],
    ids=str,
)
def test_with_another_habit_it_would_not(name: str, habits: dict[str, Any]) -> None:
    """
    So each of them was seen, and the recordings can tell.
    """
    settings = SETTINGS[name]
    other = without(settings, habits)

    seen = summarize(list(compare(settings, recorded(settings), turns=TURNS, seed=SEED)), settings)
    instead = summarize(list(compare(other, recorded(settings), turns=TURNS, seed=SEED)), settings)

    assert instead.exact_ratio < seen.exact_ratio
