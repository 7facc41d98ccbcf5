"""The section "What did not help", as far as it can be computed."""

from __future__ import annotations

from tests.seed.replica import Replica, prompt, sessions
from tests.seed.test_cap import hits, survivors


def test_more_kv_cache_does_not_help() -> None:
    """
    "More KV cache. The token pool was 72% full when the eviction happened": with four times as much it is the same.
    """
    assert survivors(Replica(pool_tokens=499_968)) == 0
    assert survivors(Replica(pool_tokens=4 * 499_968)) == 0


def test_snapshots_of_half_the_size_would_help() -> None:
    """
    "Our SGLang build can store cached snapshots at 8-bit precision, roughly doubling how many fit."

    With twice the slots the twelve sessions fit that missed every time.
    """
    assert hits(Replica(slots=28), 12) == 0
    assert hits(Replica(slots=56), 12) == 12


def test_slots_alone_do_not_bound_what_one_long_prompt_takes() -> None:
    """
    "Can one long prompt write more snapshots than the pool holds? If so, cap the snapshots per conversation."

    51 of 56 are the long prompt's, where a cap of two takes two.
    """
    replica = Replica(slots=56)
    replica.send_all(sessions(6))

    replica.send(prompt(308_000, "one long prompt"))

    assert replica.snapshots.count(19_968) < 6
    assert survivors(Replica(slots=28, per_path=2)) == 6
