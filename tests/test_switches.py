"""Rules stay rules: each can be turned off in the configuration, the rest still works, and without all it is least-loaded."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.build import fleet_of, policy_of
from ramjet.core.router import Router
from tests.core.traces import Player
from tests.rig import settings_for

URLS = {name: f"http://127.0.0.1:{port}" for port, name in enumerate("abc", start=9_001)}
OFF: dict[str, dict[str, Any]] = {
    "affinity": {"affinity": {"enabled": False}},
    "spread_long": {"spread_long": {"enabled": False}},
    "long_prompt": {"long_prompt": {"enabled": False}},
    "admission": {"admission": {"mode": "off"}},
    "leaving is free": {"leave_s": 0},
    "requests are free": {"request_s": 0},
    "reading is free": {"prefill": {"linear_ms": 0, "quadratic_ms": 0}},
}
RULES_OFF: dict[str, Any] = {**OFF["affinity"], **OFF["spread_long"], **OFF["long_prompt"], **OFF["admission"]}


def router(routing: dict[str, Any], pool_tokens: int | None = None) -> Router:
    """A router of three replicas, as such a configuration makes it."""
    replicas = {name: {"url": url, "pool_tokens": pool_tokens} for name, url in URLS.items()}
    settings = settings_for(replicas, routing=routing)
    return Router(fleet_of(settings), policy_of(settings))


@pytest.mark.parametrize("pool_tokens", [None, 200_000], ids=["pools unknown", "pools known"])
@pytest.mark.parametrize("off", list(OFF))
def test_the_rest_works_without(off: str, pool_tokens: int | None) -> None:
    """
    Three other requests in flight at home are no reason to leave it, unless that costs nothing or nobody has a home.
    """
    long_on = {"long_prompt": {"enabled": True, "bytes": 200_000, "replicas": ["a"]}}
    player = Player(router({**long_on, **OFF[off]}, pool_tokens))
    stayed = []

    for talk in range(6):
        home = player.play(("serve", 10.0, talk, 500))[0][0]
        for _ in range(3):
            player.router.fleet[home].sent(player.now)
        stayed.append(player.play(("serve", 10.0, talk, 500))[0][0] == home)
        for _ in range(3):
            player.router.fleet[home].done()

    if off != "leaving is free":
        assert stayed == [off != "affinity"] * 6
    assert not player.held


@pytest.mark.parametrize("on", [True, False])
def test_long_prompt_is_a_switch(on: bool) -> None:
    """
    On, a request of 240,000 bytes goes where it may; off, where nobody is.
    """
    rule = {"enabled": on, "bytes": 200_000, "replicas": ["a"]}
    player = Player(router({"long_prompt": rule}))
    player.router.fleet["a"].line_up(object(), 100.0, 0.0)

    placed = player.play(("serve", 0.0, 0, 60_000))[0]

    assert (placed[0] == "a") is on


@pytest.mark.parametrize("on", [True, False])
def test_spread_long_is_a_switch(on: bool) -> None:
    """
    On, a second conversation of 160,000 tokens goes where no other long one lives, however busy that is.
    """
    player = Player(router({"spread_long": {"enabled": on}}))
    first = player.play(("serve", 0.0, 0, 160_000))[0][0]
    for name in set("abc") - {first}:
        player.router.fleet[name].line_up(object(), 300.0, player.now)

    second = player.play(("serve", 60.0, 3, 160_000))[0]

    assert (second[0] != first) is on


@given(in_flight=st.lists(st.integers(0, 30), min_size=3, max_size=3), talk=st.integers(0, 7))
def test_without_all_of_them_it_is_plain_least_loaded(in_flight: list[int], talk: int) -> None:
    """
    Whatever a replica holds, and whoever lives there: the fewest requests in flight, up to the twentieth part that
    counts as equal.
    """
    to = router({**RULES_OFF, **OFF["reading is free"]}, pool_tokens=30_000)
    player = Player(to)
    player.play(("serve", 0.0, talk, 9_000))
    for name, count in zip("abc", in_flight, strict=True):
        for _ in range(count):
            to.fleet[name].sent(1.0)

    placed = player.play(("say", 1.0, talk, 500, 0))[0]

    assert to.fleet[placed].in_flight - 1 <= 1.05 * min(in_flight)


def test_without_all_of_them_work_is_what_counts_as_load() -> None:
    """
    Thirty prompts at once of one length are spread evenly; who comes then goes where least is left to read.
    """
    player = Player(router(RULES_OFF))
    placed = Counter(player.play(("say", 0.0, 3 * (number % 2), 1_000, 1))[0] for number in range(30))
    assert max(placed.values()) <= 11

    player.router.fleet["a"].line_up(object(), 50.0, 0.0)
    player.router.fleet["b"].line_up(object(), 50.0, 0.0)

    assert player.play(("say", 0.0, 6, 1_000, 0))[0] == "c"
