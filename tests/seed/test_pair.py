"""The section "Keeping long prompts on one replica made them slower": two conversations of 290,000 tokens and six agents."""

from __future__ import annotations

from typing import Literal

import pytest

from ramjet.core.cache import HostTier
from tests.seed.replica import Replica, Reply, prompt, sessions

TURNS = 5


def alternate(first: Replica, second: Replica) -> tuple[list[Reply], list[Reply]]:
    """Two conversations that grow by 4,000 tokens a turn, alternating with six agents; all turns after the first.

    Each replica has one conversation and three agents; one that is given twice has everything.
    """
    long, agents = [], []
    conversations = [prompt(290_000, "one long conversation"), prompt(290_000, "the other")]
    six = sessions(6)
    for turn in range(TURNS):
        for number, replica in enumerate((first, second)):
            long.append(replica.send(conversations[number]))
            agents += replica.send_all(six[3 * number : 3 * number + 3])
            conversations[number] = conversations[number].plus(4_000, f"turn {turn}")
    return long[2:], agents[6:]


def reused(replies: list[Reply]) -> float:
    return sum(each.cached_tokens for each in replies) / sum(each.prompt_tokens for each in replies)


def test_two_conversations_need_more_tokens_than_one_replica_has() -> None:
    """
    "Two conversations of 290,000 tokens need about 580,000 tokens of KV, and one replica holds 500,000."
    """
    assert Replica().cache.pool_tokens == 499_968 < 2 * 290_000


@pytest.mark.parametrize("per_path", [None, 2])
def test_with_one_on_each_replica_every_turn_after_the_first_is_98_6_percent_cached(per_path: int | None) -> None:
    """
    "The load balancer placed one conversation on each replica, and every turn after the first was 98.6% cached."
    """
    long, agents = alternate(Replica(per_path=per_path), Replica(per_path=per_path))

    assert reused(long) == pytest.approx(0.986, abs=0.0005)
    assert all(each.share >= 0.985 for each in long)
    assert all(each.warm for each in agents)


def test_on_one_replica_they_evict_each_other_and_push_out_everybody_else() -> None:
    """
    "They kept evicting each other... They also pushed every other session on that replica out of the cache."

    Without a host tier they lose everything: each pushes out the end of the other, where its snapshots are.
    """
    both = Replica(per_path=2)

    long, agents = alternate(both, both)

    assert reused(long) == 0
    assert all(each.cold for each in agents)


def test_with_a_host_tier_they_read_about_half_of_their_prompts_again_on_every_turn() -> None:
    """
    "With both confined to the same replica, they kept evicting each other and re-read about half their prompt."

    Half is what is left where the host takes what the device lets go. The post does not name its host's policy.
    """
    both = Replica(per_path=2, host=host("write_back"))

    long, agents = alternate(both, both)

    assert 0.4 <= reused(long) <= 0.6
    assert all(each.cold for each in agents)


def test_a_host_tier_that_copies_as_it_reads_saves_neither() -> None:
    """
    308,288 tokens on the host are less than the two, and the copy of what the device still has is of no use.
    """
    both = Replica(per_path=2, host=host("write_through"))

    long, _ = alternate(both, both)

    assert reused(long) == 0


def host(policy: Literal["write_through", "write_back"]) -> HostTier:
    return HostTier(tokens=308_288, slots=41, policy=policy)
