"""The cliff that the original measured: 52 applications fit two replicas, of 64 one replica lost nearly all.

Prompts of 529 KiB, two at a time, all of them once before the first comes back. The original placed 56 and 72 of its
requests, the larger part did not fit, and 36 of 64 returns were cold; in an earlier run 30 were kept and 34 lost. Here a
replica holds 33, so that 64 fit, if they are spread.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest

from ramjet.lab.loop import simulate
from ramjet.lab.policies import BASELINES, Factory, Request
from ramjet.lab.production import POLICIES
from ramjet.lab.turns import BLOCK_TOKENS, Conversation, Turn, Workload
from ramjet.lab.workloads import TOKENS

PROMPT = 529
"""Blocks of 256 tokens, which are about 1 KiB of text each."""
SESSION = 2
"""Blocks that a session adds to its application's prompt."""
HELD = 33
AT_ONCE = 2
TOKEN_S = 0.013
READ_S = 24.0
"""To read such a prompt, about; and to write a token, above."""


@dataclass(slots=True)
class Apps:
    """Applications, each of which sends its prompt once and once again when all have."""

    apps: int
    again: str
    """Whether what comes again is the conversation's "next turn" or "another session" of the application."""
    answer_tokens: Sequence[int] = (64,)

    def workload(self, seed: int) -> Workload:
        """All of it."""
        chance, each = Random(seed), PROMPT + 2 * SESSION
        wave_s = self.apps * (READ_S + max(self.answer_tokens) * TOKEN_S) / AT_ONCE + 2 * READ_S
        first, second = list[Conversation](), list[Conversation]()
        for app in range(self.apps):
            prompt, session = (app * each, PROMPT), (app * each + PROMPT, SESSION)
            other = (app * each + PROMPT + SESSION, SESSION)
            conversation = Conversation(after=None if app < AT_ONCE else (app - AT_ONCE, 0))
            conversation.turns.append(self._turn(chance, 0.0, PROMPT + SESSION, 0, (prompt, session)))
            first.append(conversation)
            if self.again == "next turn":
                turn = self._turn(chance, wave_s, PROMPT + 2 * SESSION, PROMPT + SESSION, (other,))
                conversation.turns.append(turn)
            else:
                turn = self._turn(chance, 0.0, PROMPT + SESSION, 0, (prompt, other))
                second.append(Conversation(after=(app, 0), delay_s=wave_s, turns=[turn]))
        return Workload("cliff", [*first, *second], array("Q", range(1, self.apps * each + 1)))

    def _turn(self, chance: Random, think_s: float, blocks: int, keep: int, added: tuple[tuple[int, int], ...]) -> Turn:
        return Turn(think_s, blocks * BLOCK_TOKENS, chance.choice(self.answer_tokens), keep, added, ())


def returns(apps: Apps, policy: Factory, seed: int = 1) -> tuple[list[Request], int]:
    """What came again, and how many of those found less than half of what they could have."""
    # With the answers, which stay there too.
    each = (PROMPT + 3 * SESSION) * BLOCK_TOKENS + 2 * max(apps.answer_tokens)
    profile = TOKENS.with_flags(pool_tokens=HELD * each // BLOCK_TOKENS * BLOCK_TOKENS)
    played = simulate(apps.workload(seed), policy, seed, replicas=2, profile=profile)
    again = [request for request in played if request.reusable_tokens]
    assert len(again) == apps.apps
    return again, sum((request.cached_tokens or 0) < request.reusable_tokens / 2 for request in again)


@pytest.mark.parametrize("policy", ["ramjet", "ramjet-without-facts", "ramjet-no-admission"])
@pytest.mark.parametrize("again", ["next turn", "another session"])
@pytest.mark.parametrize("apps", [52, 60, 64, 2 * HELD])
def test_there_is_no_cliff_as_long_as_everything_fits_somewhere(apps: int, again: str, policy: str) -> None:
    """
    To the last that fits, every return is warm and waits for less than a second.
    """
    came, cold = returns(Apps(apps, again), POLICIES[policy])

    assert cold == 0
    assert max(request.first_at - request.arrived_at for request in came if request.first_at is not None) < 1.0


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("again", ["next turn", "another session"])
def test_answers_of_different_lengths_make_none(again: str, seed: int) -> None:
    """
    Who is free says little then of who has room. Nobody has ever come back when the pools fill, so little speaks against
    pushing somebody out; still at most a tenth of the returns is cold, where the least loaded makes a third so.
    """
    apps = Apps(64, again, (32, 256, 1_000))

    assert returns(apps, POLICIES["ramjet"], seed)[1] <= 64 / 10
    assert seed != 1 or returns(apps, BASELINES["least_loaded"], seed)[1] > 64 / 3


def test_a_coin_that_decides_has_one() -> None:
    """
    The same applications spread by a hash: 52 fit, and of 64 one replica gets more than it holds and loses all of them.
    """
    _, few = returns(Apps(52, "next turn"), BASELINES["prefix_hash"])
    _, many = returns(Apps(64, "next turn"), BASELINES["prefix_hash"])

    assert few == 0
    assert many > 64 / 3
