"""What can be set and tried, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramjet.core.cache import CacheSpec, SlotSpec
from ramjet.plan.setup import Maker, SettingsError, Setup, parse, usual
from ramjet.sim.profile import LLAMA_CPP, VLLM_HYBRID

TWO = ("glm-1", "glm-2")


def made(changes: dict[str, Any] | None = None, **more: Any) -> Setup:
    return Maker(**{"names": TWO, **more}).make("made", changes)


def cache(setup: Setup, at: int = 0) -> CacheSpec:
    found = setup.profiles()[at].cache
    assert isinstance(found, CacheSpec)
    return found


def test_what_is_given_is_true_of_all_replicas() -> None:
    """
    And Ramjet is told of it, where nobody says what it was told.
    """
    setup = made(given={"tokens": 400_000, "slots": 30, "per_path": 2, "chunk_tokens": 2_048})

    for number, replica in enumerate(setup.fleet()):
        spec, pools = cache(setup, number), replica.pools
        assert spec.snapshots is not None
        assert (spec.pool_tokens, spec.snapshots.slots, spec.snapshots.per_path, spec.chunk_tokens) == (
            400_000, 30, 2, 2_048,
        )  # fmt: skip
        assert (pools.tokens, pools.slots, pools.per_path, pools.chunk_tokens) == (400_000, 30, 2, 2_048)
    assert [each.max_running for each in setup.profiles()] == [6, 6]
    assert [each.name for each in setup.fleet()] == [*TWO]


def test_what_is_true_and_what_ramjet_knew_are_two_things() -> None:
    """
    The journal says that it knew of tokens alone; a flag says that there are slots, and the engines have them.
    """
    setup = made(known={name: {"tokens": 500_000} for name in TWO}, given={"slots": 28})

    assert [each.pools.slots for each in setup.fleet()] == [None, None]
    assert [each.pools.tokens for each in setup.fleet()] == [500_000, 500_000]
    assert cache(setup).snapshots is not None


def test_flags_go_before_the_file_and_the_file_before_the_journal(tmp_path: Path) -> None:
    """
    Each says what it knows, of each replica.
    """
    path = tmp_path / "ramjet.yaml"
    path.write_text(
        "replicas:\n  - {name: glm-1, url: 'http://10.0.0.1:1', pool_tokens: 200000, chunk_tokens: 4096}\n"
        "  - {name: glm-2, url: 'http://10.0.0.2:1'}\n"
    )

    setup = made(
        config=path,
        known={"glm-1": {"tokens": 100_000, "slots": 20}, "glm-2": {"tokens": 100_000, "slots": 20}},
        given={"slots": 40},
    )

    one, other = setup.replicas
    assert (one.tokens, one.slots, one.chunk_tokens, one.url) == (200_000, 40, 4_096, "http://10.0.0.1:1")
    assert (other.tokens, other.slots, other.chunk_tokens) == (100_000, 40, None)


def test_what_the_file_says_of_a_replica_is_true_of_its_ranks(tmp_path: Path) -> None:
    """
    Each is a replica in a replay too, and ties between them fall as they fall where it serves.
    """
    path = tmp_path / "ramjet.yaml"
    path.write_text("replicas:\n  - {name: glm, url: 'http://10.0.0.1:1', ranks: 2, pool_tokens: 200000}\n")

    of_journal, of_trace = (made(config=path, names=names) for names in (["glm.0", "glm.1"], []))

    assert of_journal.replicas == of_trace.replicas
    assert [(each.name, each.url, each.tokens) for each in of_trace.replicas] == [
        ("glm.0", "http://10.0.0.1:1#0", 200_000), ("glm.1", "http://10.0.0.1:1#1", 200_000),
    ]  # fmt: skip


def test_a_change_is_of_facts_or_of_routing() -> None:
    """
    Any key of the configuration that decides where requests go.
    """
    setup = made(
        {"slots": 56, "replicas": 3, "routing.admission.mode": "off", "routing.spread_long.enabled": False},
        given={"slots": 28},
    )

    assert [each.name for each in setup.replicas] == ["glm-1", "glm-2", "more-3"]
    assert {each.slots for each in setup.replicas} == {56}
    assert setup.policy.terms.mode == "off"
    assert list(setup.policy.rules) == []
    assert made({"replicas": 1}).replicas[0].name == "glm-1"


def test_unknown_pools_never_fill() -> None:
    """
    Unless somebody names a profile: then it has that one's.
    """
    assert (cache(made()).pool_tokens or 0) > 1 << 29
    assert cache(made(base=VLLM_HYBRID)).pool_tokens == 947 * 528
    assert [each.pools.tokens for each in made().fleet()] == [None, None]
    llama = made(base=LLAMA_CPP, given={"tokens": 40_000}).profiles()[0].cache
    assert isinstance(llama, SlotSpec)
    assert llama.slot_tokens == 10_000


def test_values_are_written_as_in_the_file() -> None:
    """
    A list has commas in it, and the mode of admission is a word.
    """
    assert parse("slots=56, per_path=null,host_tier=on") == {"slots": 56, "per_path": None, "host_tier": True}
    assert parse("routing.admission.mode=off") == {"routing.admission.mode": "off"}
    assert parse("routing.long_prompt.replicas=[a, b],replicas=3") == {
        "routing.long_prompt.replicas": ["a", "b"],
        "replicas": 3,
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"slotz": 5}, "slotz: no such setting; there are replicas, tokens, slots"),
        ({"limits.in_flight": 5}, "limits.in_flight: no such setting"),
        ({"slots": 0}, "slots: 0 given"),
        ({"slots": "many"}, "slots: many given"),
        ({"host_tier": 5}, "host_tier: 5 given: on or off"),
        ({"replicas": 0}, "replicas: 0 given"),
        ({"per_path": 2}, "per_path caps snapshots, and nothing says how many there are"),
        ({"routing.admission.mod": "off"}, "did you mean routing.admission.mode"),
        ({"routing.long_prompt.enabled": True}, "name the replicas for long requests"),
    ],
)
def test_what_there_is_not_is_said(changes: dict[str, Any], told: str) -> None:
    """
    With the name, the value, and what would be right.
    """
    with pytest.raises(SettingsError, match=told):
        made(changes)


@pytest.mark.parametrize("text", ["slots", "=5", "slots=", "slots=[1"])
def test_what_is_no_change_is_said(text: str) -> None:
    """
    With an example of one.
    """
    with pytest.raises(SettingsError, match=r"write it as KEY=VALUE|is no value"):
        parse(text)


def test_what_is_tried_where_nobody_says_is_what_is_worth_trying() -> None:
    """
    A cap for hybrid models that have none, a replica more, and each rule the other way.
    """
    assert usual(made(given={"slots": 28})) == [
        "per_path=2", "host_tier=on", "replicas=3", "routing.spread_long.enabled=false", "routing.admission.mode=off",
    ]  # fmt: skip
    assert usual(made({"replicas": 1, "routing.admission.mode": "off"})) == [
        "replicas=2",
        "routing.admission.mode=enforce",
    ]
    for change in usual(made(given={"slots": 28})):
        made(parse(change), given={"slots": 28})
