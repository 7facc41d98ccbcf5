"""The seed's story: what the planner says of a cap before anybody sets it, and what the cap then does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramjet.core.admission import Terms
from ramjet.lab.production import SHIPPED
from ramjet.plan.figures import Figures, difference, seen
from ramjet.plan.replay import kept, middle, replay
from ramjet.plan.source import from_journal
from ramjet.plan.span import Span
from ramjet.sim.profile import GLM, Profile
from tests.evidence import report
from tests.evidence.real_time import _read, replicas
from tests.plan.support import happened, observed, story, then
from tests.recorded import Talk, first_messages, next_message
from tests.soak.process import served

LONG = ((313_000, 120.0), (150_000, 420.0))
TRIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "per_path=2": ({"per_path": 2}, {"profile": GLM.with_flags(states_per_path=2)}),
    "slots=56": ({"slots": 56}, {"profile": GLM.with_flags(slots=56)}),
    "replicas=2": ({"replicas": 2}, {"replicas": 2}),
    "host_tier=on": ({"host_tier": True}, {"profile": GLM.with_flags(host_tier=True)}),
}
"""What the planner tries, and how the same is made to happen."""


def line(said: Figures, found: Figures, chance: float | None, note: str, **about: Any) -> dict[str, Any]:
    """What was said beside what was found."""
    apart = difference(said, found)
    return {
        **about,
        "mean wait, s: said": said.mean_wait_s,
        "found": found.mean_wait_s,
        "apart, %": 100 * (apart.mean_wait or 0.0),
        f"cold turns of {found.later_turns}: said": said.cold_turns,
        "found ": found.cold_turns,
        "cached, %: said": 100 * (said.cached_share or 0.0),
        "found  ": 100 * (found.cached_share or 0.0),
        "chance, %": 100 * (chance or 0.0),
        "cold turns kept": note,
    }


@pytest.mark.evidence
def test_what_the_planner_says_of_a_cap_is_what_the_cap_does(tmp_path: Path) -> None:
    """
    From the journal of a replica without a cap: mean wait, cold turns and cached share with one, within a tenth.
    """
    table = []
    for mode in ("off", "enforce"):
        policy = replace(SHIPPED, terms=Terms(mode=mode))
        for seed in (1, 2, 3):
            talks = story(seed, long=LONG)
            span = happened(tmp_path / f"{mode}{seed}.db", talks, policy=policy)
            maker = replace(then(span), routing={"routing.admission.mode": mode})
            base = middle([replay(span, maker.make("as it was"), play) for play in range(3)])
            table.append(
                line(base.figures, observed(span), base.spread, "", seed=seed, admission=mode, settings="as it was")
            )
            for name, (changes, made) in TRIES.items():
                said = middle([replay(span, maker.make(name, changes), play) for play in range(3)])
                shown = observed(happened(tmp_path / f"{mode}{seed}{name}.db", talks, policy=policy, **made))
                counted = kept(seen(span), base.outcomes, said.outcomes)
                note = f"{len(counted.kept)} of {len(counted.explained)}"
                table.append(line(said.figures, shown, said.spread, note, seed=seed, admission=mode, settings=name))
                if name == "per_path=2":
                    assert difference(said.figures, shown).trusted
                    assert len(counted.kept) == len(counted.explained) >= 20
    report.write(
        "story",
        "What the planner says before, and what is found after",
        "The seed's replica without a cap: 28 snapshots, 499,968 tokens, of which Ramjet knows the tokens alone. Six "
        "sessions of 20,000 tokens work, a prompt of 313,000 arrives and later one of 150,000, and the sessions come back "
        "cold though the token pool has room. The production router writes the journal, in virtual time; `said` is what "
        "`ramjet plan --slots 28 --try ...` makes of it, the middle of three plays, and `found` what the same conversations "
        "then find under these settings. `as it was` is the calibration: what is found there is the journal itself. `chance` "
        "is how far the plays lie apart. With admission and no cap the replica thrashes, and what happened is one case of "
        "many; what is said of the settings that end that does not suffer from it. "
        "`make evidence ARGS='-k what_the_planner_says'` runs it again.",
        table,
    )


# -- over HTTP --------------------------------------------------------------------------------------------------------

SPEED = 5.0


async def works(client: httpx.AsyncClient, url: str, talk: Talk) -> None:
    """A conversation, from its first turn to its last."""
    await asyncio.sleep(talk.start_s / SPEED)
    messages = first_messages(talk)
    for number in range(len(talk.turns) + 1):
        if number:
            await asyncio.sleep(talk.turns[number - 1].think_s / SPEED)
            messages.append(next_message(talk, number))
        answer_tokens = talk.turns[number - 1].answer_tokens if number else talk.answer_tokens
        body: dict[str, Any] = {"model": "glm", "stream": True, "messages": messages, "max_tokens": answer_tokens}
        body["stream_options"] = {"include_usage": True}
        answer = await client.post(f"{url}/v1/chat/completions", json=body)
        said, _ = _read(answer.content)
        messages.append({"role": "assistant", "content": said})


async def served_to(talks: Sequence[Talk], urls: Sequence[str], directory: Path) -> Span:
    """The journal of a `ramjet serve` that learns of pools what engines say by themselves."""
    directory.mkdir()  # noqa: ASYNC240 - before anything runs
    settings = {
        "replicas": [{"name": f"glm-{number}", "url": url} for number, url in enumerate(urls, start=1)],
        "routing": {"admission": {"mode": "off"}},
        "health": {"interval_s": 30.0},
        "journal": {"path": str(directory / "journal.db")},
    }
    async with served(settings, directory) as ramjet, httpx.AsyncClient(timeout=600, trust_env=False) as client:
        async with asyncio.TaskGroup() as tasks:
            for talk in talks:
                tasks.create_task(works(client, ramjet.url, talk))
        assert await ramjet.stop() == 0
    return from_journal(directory / "journal.db")


def happens(talks: Sequence[Talk], profile: Profile, directory: Path) -> Span:
    with replicas(profile, 1, SPEED) as urls:
        return asyncio.run(served_to(talks, urls, directory))


@pytest.mark.evidence
def test_it_is_so_over_http_as_well(tmp_path: Path) -> None:
    """
    The same with real requests, a real `ramjet serve` and its journal, and replicas in compressed real time.
    """
    # The long prompts come when no session does: which of two that come at once is read first is a matter of milliseconds.
    talks = story(1, turns=8, long=((313_000, 85.0), (250_000, 254.0)), later=0, think_s=(20.0, 60.0))
    table = []
    span = happens(talks, GLM, tmp_path / "without")
    capped = happens(talks, GLM.with_flags(states_per_path=2), tmp_path / "with")
    maker = replace(then(span), routing={"routing.admission.mode": "off"})
    for name, changes, found in (("as it was", {}, span), ("per_path=2", {"per_path": 2}, capped)):
        said = middle([replay(span, maker.make(name, changes), play) for play in range(3)])
        table.append(line(said.figures, observed(found), said.spread, "", settings=name))
        assert difference(said.figures, observed(found)).trusted, table
    report.write(
        "story_http",
        "The same over HTTP",
        "`ramjet serve` with its journal in front of a simulated replica that is five times as fast as the seed's, "
        "clients over HTTP, admission off: first without a cap, then with one. `said` is what the planner makes of the "
        "first journal. Seconds are real ones, a fifth of the seed's; what HTTP and a busy machine take is in them. "
        "The long prompts come when no session does, for of two that come at once either may be read first, and each would "
        "be another story. "
        "`make evidence ARGS='-k over_http_as_well'` runs it again.",
        table,
    )
