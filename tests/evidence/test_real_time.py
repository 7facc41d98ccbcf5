"""What virtual time says of Ramjet against a Ramjet that serves: the same clients, over HTTP, in compressed real time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import psutil
import pytest

from ramjet.lab.loop import _Clients
from ramjet.lab.turns import BLOCK_TOKENS, Conversation, Turn
from ramjet.lab.workloads import TOKENS, build
from ramjet.sim.prompt import render_chat
from ramjet.sim.tokens import Prompt, write_answer
from tests.evidence import report
from tests.evidence.real_time import Play, Talk, play, real, replicas, settings_for, shared_runs, virtual
from tests.evidence.test_routing import SEEDS
from tests.lab.support import growing, workload
from tests.soak.process import served


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a workload is played."""

    workload: str
    speed: float
    most: float
    """By how much the mean waits may differ, as a part."""
    plays: int
    """Plays of each seed in real time, all of all seeds at once..."""
    secrets: int
    """...and in virtual time: hashes break ties, and one that falls the other way is another play."""
    until_s: float = math.inf


PLANS = (
    # Two plays of each at once keep two processors so busy that most of the difference is waiting for them.
    Plan(workload="W0", speed=4.0, most=0.10, plays=1, secrets=12),
    Plan(workload="W1", speed=8.0, most=0.20, plays=1, secrets=12),
    # Its 64 developers are busy for 900 s; the rest is a tail, and 4,500 of 9,000 turns are enough for two processors.
    Plan(workload="W6", speed=2.0, most=0.10, plays=1, secrets=4, until_s=900.0),
)


@pytest.mark.parametrize("name", ["W0", "W6"])
def test_messages_are_the_prompts_of_the_workload(name: str) -> None:
    """
    As many tokens, and two blocks of text are the same where, and only where, two blocks of the workload are.
    """
    made = build(name, 1)
    clients, shared = _Clients(made), shared_runs(made)
    text_of: dict[int, int] = {}
    block_of: dict[int, int] = {}
    for conversation in range(12):
        talk = Talk(conversation, shared)
        for _ in made.conversations[conversation].turns[:25]:
            turn, _, blocks = clients.send(conversation)
            talk.say(turn)
            prompt = Prompt(render_chat({"messages": talk.messages}), BLOCK_TOKENS)
            answer = "".join(write_answer(prompt.seed, turn.answer_tokens))
            talk.hear(answer)

            assert prompt.tokens == turn.prompt_tokens
            texts = prompt.followed_by(answer)
            for block, text in zip(clients.with_answer(blocks, turn).hashes, texts.hashes, strict=True):
                assert text_of.setdefault(block, text) == text
                assert block_of.setdefault(text, block) == block


def test_a_turn_that_keeps_half_a_message_is_refused() -> None:
    """
    Recorded sessions have them; messages could not be cut so.
    """
    talk = Talk(0, frozenset())
    talk.say(Turn(0.0, 2_048, 100, 0, ((0, 8),), ()))

    with pytest.raises(ValueError, match="keeps 3 of 8 blocks"):
        talk.say(Turn(1.0, 2_048, 100, 3, ((8, 5),), ()))


@pytest.mark.alone
async def test_a_play_in_real_time_is_that_of_virtual_time(tmp_path: Path) -> None:
    """
    Two conversations, one after the other: each turn reuses what it does there, and Ramjet's seconds are as long.
    """
    speed = 50.0
    made = workload(
        Conversation(turns=growing(0, turns=4)),
        Conversation(after=(0, 3), delay_s=1.0, turns=growing(1_000, turns=3)),
    )
    with replicas(TOKENS, 1, speed) as urls:
        program = ("-m", "tests.evidence.hurry", str(speed))
        async with served(settings_for(TOKENS, urls), tmp_path, program=program) as ramjet:
            seen = await play(made, ramjet.url, speed=speed)
            # The client has its answer before the line is written.
            await ramjet.in_flight()
            said = {line["request_id"]: line for line in ramjet.lines() if line["event"] == "request"}

    assert [(each.conversation, each.turn) for each in seen] == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3)]
    assert [each.cached_tokens // BLOCK_TOKENS for each in seen] == [0, 80, 82, 84, 0, 80, 82]
    for each in seen:
        line, timing = said[each.request_id], TOKENS.timing
        least_s = timing.overhead_s + timing.read_s(each.cached_tokens, each.prompt_tokens)
        # The clocks are read in three processes, and rounded here and there.
        assert least_s - 0.01 <= line["ttft_s"] <= each.wait_s + 0.01


@pytest.mark.evidence
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.workload)
def test_real_time_agrees_with_virtual_time(plan: Plan) -> None:
    """
    The mean wait over five seeds: within 10 % in W0 and W6, 20 % in W1. Each takes a quarter of an hour, so each adds its
    row to what the others saw.
    """
    row = compared(plan)
    seen = {**{each["workload"]: each for each in report.rows("real_time")}, plan.workload: row}

    report.write(
        "real_time",
        "Compressed real time against virtual time",
        "The laboratory's clients over HTTP, a real `ramjet serve`, and simulated replicas (`ramjet.replica`), in processes of "
        f"their own, against the same workloads in virtual time; five seeds ({SEEDS[0]} to {SEEDS[-1]}), means over them. "
        "Everything passes `speed` times as fast: replicas have that, and Ramjet's clock and event loop are replaced "
        "(tests/evidence/hurry.py); no line of Ramjet is. Prompts are real text, of as many tokens and with the same blocks "
        "in common. Runs are chaotic, for a tie that falls the other way makes another run: a play's spread is the standard "
        "deviation of one seed's mean wait between plays that differ in nothing but their hashes (virtual) or their "
        "instants (real), so a seed is played several times. HTTP and hashing is by how much the median "
        "of what turns wait beside holding and reading is longer in real time: a part of the difference that grows with the "
        "speed, and where processors are busy. `make evidence ARGS='-k real_time_agrees'` runs it again, on a machine that does nothing else.",
        [seen[each.workload] for each in PLANS if each.workload in seen],
    )
    assert abs(row["difference, %"]) <= 100 * plan.most


def compared(plan: Plan) -> dict[str, Any]:
    """A row of the table."""
    psutil.cpu_percent()
    seeds = [seed for seed in SEEDS for _ in range(plan.plays)]
    in_real = _all(real, [(plan.workload, seed, plan.speed, plan.until_s) for seed in seeds], processes=len(seeds))
    busy = psutil.cpu_percent()
    secrets = [
        (plan.workload, seed, seed + 1_000 * secret, plan.until_s) for seed in SEEDS for secret in range(plan.secrets)
    ]
    in_virtual = _all(virtual, secrets, processes=2)
    real_s, virtual_s = (_mean(plays, "wait_s") for plays in (in_real, in_virtual))
    return {
        "workload": plan.workload,
        "turns of a seed": round(_mean(in_virtual, "turns")),
        "speed": plan.speed,
        "plays, real / virtual": f"{len(in_real)} / {len(in_virtual)}",
        "mean wait in real time, s": real_s,
        "in virtual time, s": virtual_s,
        "difference, %": 100 * (real_s / virtual_s - 1),
        "at most, %": 100 * plan.most,
        "by seed, %": ", ".join(
            f"{100 * (one / other - 1):+.0f}" for one, other in zip(_seeds(in_real), _seeds(in_virtual), strict=True)
        ),
        "a play's spread, real / virtual, %": " / ".join(_spread(plays) for plays in (in_real, in_virtual)),
        "HTTP and hashing, s": _mean(in_real, "beside_s") - _mean(in_virtual, "beside_s"),
        "held, real / virtual, s": " / ".join(f"{_mean(plays, 'held_s'):.2f}" for plays in (in_real, in_virtual)),
        "cached, real / virtual, %": " / ".join(
            f"{100 * _mean(plays, 'cached_share'):.1f}" for plays in (in_real, in_virtual)
        ),
        "processors busy, %": busy,
    }


def _all(make: Callable[..., Play], arguments: Sequence[tuple[Any, ...]], *, processes: int) -> list[Play]:
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(make, *zip(*arguments, strict=True)))


def _mean(plays: Sequence[Play], name: str) -> float:
    return fmean(getattr(each, name) for each in plays)


def _by_seed(plays: Sequence[Play]) -> Iterator[Sequence[Play]]:
    """Those of one seed after another."""
    each = len(plays) // len(SEEDS)
    return (plays[first : first + each] for first in range(0, len(plays), each))


def _seeds(plays: Sequence[Play]) -> list[float]:
    return [_mean(those, "wait_s") for those in _by_seed(plays)]


def _spread(plays: Sequence[Play]) -> str:
    """The standard deviation of a play's mean wait within its seed, as a part of that; the mean over the seeds."""
    waits = [[each.wait_s for each in those] for those in _by_seed(plays)]
    return "-" if len(waits[0]) < 2 else f"{100 * fmean(stdev(each) / fmean(each) for each in waits):.0f}"
