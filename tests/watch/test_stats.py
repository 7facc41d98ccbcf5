"""What engines say about themselves, asked of real loopback servers and believed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from ramjet.core.others import NOBODY
from ramjet.core.pools import Pools
from ramjet.engines.facts import Seen
from ramjet.replica.faults import Faults, Restart
from ramjet.replica.server import running_replica
from ramjet.sim.profile import GLM, LLAMA_CPP, VLLM_HYBRID
from tests.engines.answers import answers
from tests.replica.support import FAST, ask, client, prompt
from tests.rig import Front, ramjet
from tests.scripted import Connection, scripted_engine
from tests.scripted import Seen as Asked

SEED = GLM.with_flags(states_per_path=2, slots=28)
QUICK = {"interval_s": 0.05, "timeout_s": 0.3, "facts_s": 60}


async def until(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    """Wait for what is about to be heard."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - a belief has no event
            await asyncio.sleep(0.005)


def heard(front: Front, name: str = "a") -> Seen:
    """What has been heard from a replica's engine."""
    return front.running.stats.seen.get(name, Seen())


def known(front: Front, name: str = "a") -> bool:
    return heard(front, name).facts is not None


@dataclass
class Pages:
    """An engine that answers pages that a test may change, and keeps what it was asked."""

    pages: dict[str, str]
    asked: list[str]
    keys: set[str | None]
    hangs: bool = False

    async def __call__(self, connection: Connection, seen: Asked) -> None:
        self.asked.append(seen.target)
        self.keys.add(seen.header("authorization"))
        if self.hangs:
            await connection.gone(60)
            return
        page = self.pages.get(seen.target)
        if seen.target == "/health":
            page = "ok"
        await connection.answer((page or "").encode(), status=404 if page is None else 200)


@asynccontextmanager
async def engine(name: str, **changes: str) -> AsyncIterator[tuple[str, Pages]]:
    """The URL of an engine that answers what a real one has answered."""
    pages = Pages({**answers(name), **changes}, [], set())
    async with scripted_engine(pages) as running:
        yield running.url, pages


# -- facts --------------------------------------------------------------------------------------------------------------


async def test_a_replica_says_how_large_its_pools_are() -> None:
    """
    Without a line of configuration; what the configuration gives goes before.
    """
    async with running_replica(SEED) as one, running_replica(SEED) as two:
        given = {"url": two.url, "pool_tokens": 400_000, "slots_per_request": 2, "snapshot_grid_tokens": 64}
        replicas: dict[str, Any] = {"a": one.url, "b": given}
        async with ramjet(replicas, watch=True) as front:
            fleet = front.router.fleet
            await until(lambda: known(front) and known(front, "b"))

            said = Pools(
                tokens=499_968, slots=28, per_path=2, private=3, chunk_tokens=6_144, page_tokens=64, host=False,
                reports_cached=True,
            )  # fmt: skip
            assert fleet["a"].pools == said
            assert fleet["b"].pools == replace(said, tokens=400_000, private=2, grid_tokens=64)
            assert front.router.beliefs["a"].pool_tokens == 499_968


@pytest.mark.parametrize(
    ("name", "pools"),
    [
        (
            "sglang-0.5.23-qwen3_next",
            Pools(
                tokens=131_072, slots=28, private=1, chunk_tokens=256, grid_tokens=1, page_tokens=1, host=False,
                reports_cached=True,
            ),
        ),
        ("sglang-0.4.6", Pools(tokens=600_000, chunk_tokens=163_834, page_tokens=1, host=False, reports_cached=False)),
        ("vllm-0.32.0-llama", Pools(tokens=4_194_304, page_tokens=128, states_in_pool=False)),
        ("llamacpp", Pools()),
        ("openai", Pools()),
    ],
)  # fmt: skip
async def test_real_answers_reach_the_router(name: str, pools: Pools) -> None:
    """
    Whichever engine it is, and under whatever name its page goes.
    """
    async with engine(name) as (url, _), ramjet({"a": url}, watch=True, stats=QUICK) as front:
        # That page of 0.4.6 is of two data-parallel ranks, each with a pool as large.
        ranks = ["a.0", "a.1"] if name == "sglang-0.4.6" else ["a"]
        await until(lambda: all(known(front, each) for each in ranks))

        assert {each.name: each.pools for each in front.router.fleet} == dict.fromkeys(ranks, pools)


async def test_an_engine_may_be_named() -> None:
    """
    Then only its own pages are asked for, whatever others would be found.
    """
    pages = answers("vllm-0.32.0-llama")
    async with engine("sglang-0.5.23-llama", **{"/metrics": pages["/metrics"]}) as (url, served):
        async with ramjet({"a": {"url": url, "engine": "vllm"}}, watch=True, stats=QUICK) as front:
            await until(lambda: known(front))

            assert front.router.fleet["a"].pools.tokens == 4_194_304
            assert not {"/server_info", "/v1/loads", "/props"} & set(served.asked)


async def test_the_key_is_shown() -> None:
    """
    The replica's own, on every page.
    """
    async with engine("sglang-0.5.23-llama") as (url, pages):
        async with ramjet({"a": {"url": url, "api_key": "sesame"}}, watch=True, stats=QUICK) as front:
            await until(lambda: bool(heard(front).loads))

            assert pages.keys == {"Bearer sesame"}


async def test_off_is_off() -> None:
    """
    No page is asked for but health and the models, and what the file says is what is known.
    """
    async with engine("sglang-0.5.23-llama") as (url, pages):
        replicas = {"a": {"url": url, "pool_tokens": 1_000}}
        async with ramjet(replicas, watch=True, stats={"enabled": False}, health={"interval_s": 0.05}) as front:
            await until(lambda: pages.asked.count("/health") > 3)

            assert set(pages.asked) == {"/health", "/v1/models"}
            assert front.router.fleet["a"].pools == Pools(tokens=1_000)


async def test_facts_are_looked_at_again_a_page_at_a_time() -> None:
    """
    What was not known yet is taken in, and what a page that does not come any more has said stays.
    """
    async with engine("sglang-0.5.23-qwen3_next") as (url, pages):
        info = json.loads(pages.pages["/server_info"])
        slots: dict[str, Any] = {"max_mamba_cache_size": None, "internal_states": []}
        pages.pages["/server_info"] = json.dumps(info | slots)
        metrics = pages.pages.pop("/metrics")
        async with ramjet({"a": url}, watch=True, stats={**QUICK, "facts_s": 0.2}) as front:
            await until(lambda: known(front))
            assert front.router.fleet["a"].pools.slots is None

            pages.pages["/metrics"] = metrics
            del pages.pages["/server_info"]
            await until(lambda: front.router.fleet["a"].pools.slots == 28)

            assert front.router.fleet["a"].pools.tokens == 131_072
            assert front.router.fleet["a"].pools.chunk_tokens == 256


# -- loads --------------------------------------------------------------------------------------------------------------


async def test_in_steady_state_one_page_is_asked_for_at_a_time() -> None:
    """
    One request for each interval, on one connection, and that is the page of loads.
    """
    async with engine("sglang-0.5.23-llama") as (url, pages):
        async with ramjet(
            {"a": url}, watch=True, stats=QUICK | {"interval_s": 0.1}, health={"interval_s": 60}
        ) as front:
            probed = {"/health", "/v1/models"}  # once at the start, by others
            await until(lambda: bool(heard(front).loads) and probed <= set(pages.asked))
            pages.asked.clear()
            await asyncio.sleep(1.0)

            assert set(pages.asked) == {"/v1/loads"}
            assert 2 <= len(pages.asked) <= 11


async def test_where_the_best_page_of_loads_is_not_there_another_is_asked_for() -> None:
    """
    An old SGLang has no `/v1/loads`, and its metrics say nearly the same.
    """
    async with engine("sglang-0.4.6") as (url, pages), ramjet({"a": url}, watch=True, stats=QUICK) as front:
        await until(lambda: known(front, "a.1"))
        pages.asked.clear()
        await until(lambda: pages.asked.count("/metrics") > 2)

        assert [heard(front, name).of("running") for name in ("a.0", "a.1")] == [4, 0]
        assert pages.asked.count("/v1/loads") <= 1


async def test_what_others_have_there_counts_and_what_we_have_does_not() -> None:
    """
    Seven run and two wait, of which none came through here: they are in the queue of whoever comes, until they are gone.
    """
    async with engine("sglang-0.5.23-llama") as (url, pages), ramjet({"a": url}, watch=True, stats=QUICK) as front:
        others = front.router.fleet["a"].others
        await until(lambda: others.at(time.monotonic()).requests == 9)
        assert others.at(time.monotonic()).queue_s == pytest.approx(6_900 * 0.1655e-3)
        assert others.at(time.monotonic()).tokens == 48_109
        assert front.metric("ramjet_others_in_flight", replica="a") == 9
        assert front.metric("ramjet_engine_running", replica="a") == 7

        loads = json.loads(pages.pages["/v1/loads"])
        loads["loads"][0] |= {"num_running_reqs": 0, "num_waiting_reqs": 0, "num_waiting_uncached_tokens": 0}
        pages.pages["/v1/loads"] = json.dumps(loads | {"loads": [loads["loads"][0] | {"num_used_tokens": 0}]})
        await until(lambda: others.at(time.monotonic()) == NOBODY)


async def test_our_own_requests_are_not_taken_for_those_of_others() -> None:
    """
    While a simulated engine reads and answers what came through here, there is nobody else.
    """
    async with running_replica(SEED, speed=20) as one:
        async with ramjet({"a": one.url}, watch=True, stats=QUICK) as front, client(front.url) as to:
            await until(lambda: known(front))
            seen: list[int] = []
            async with asyncio.TaskGroup() as group:
                asking = [
                    group.create_task(
                        to.post("/v1/chat/completions", json=ask(prompt(30_000, f"p{number}"), max_tokens=50))
                    )
                    for number in range(4)
                ]
                while not all(each.done() for each in asking):
                    seen.append(front.router.fleet["a"].others.at(time.monotonic()).requests)
                    await asyncio.sleep(0.01)

            assert len(seen) > 10
            assert set(seen) == {0}


async def test_what_others_send_is_seen_while_it_runs() -> None:
    """
    A client that goes to the simulated engine directly is somebody else.
    """
    async with running_replica(SEED, speed=5) as one:
        async with ramjet({"a": one.url}, watch=True, stats=QUICK) as front, client(one.url) as past:
            others = front.router.fleet["a"].others
            await until(lambda: known(front))
            async with asyncio.TaskGroup() as group:
                group.create_task(past.post("/v1/chat/completions", json=ask(prompt(60_000), max_tokens=50)))
                await until(lambda: others.at(time.monotonic()).requests == 1)
            await until(lambda: others.at(time.monotonic()).requests == 0)


async def test_one_that_hangs_delays_nobody_and_is_soon_believed_no_more() -> None:
    """
    Its loads are forgotten after some seconds; the other is asked as ever.
    """
    async with engine("sglang-0.5.23-llama") as (one, hung), engine("sglang-0.5.23-llama") as (two, well):
        async with ramjet({"a": one, "b": two}, watch=True, stats=QUICK) as front:
            others = front.router.fleet["a"].others
            await until(lambda: others.at(time.monotonic()).requests == 9)
            hung.hangs = True
            await asyncio.sleep(0.5)
            well.asked.clear()
            await until(lambda: well.asked.count("/v1/loads") > 5, within_s=5)
            await until(lambda: others.at(time.monotonic()).requests == 0)

            assert front.router.fleet["b"].others.at(time.monotonic()).requests == 9


# -- restarts -----------------------------------------------------------------------------------------------------------


async def answered(front: Front, name: str, tokens: int = 5_000) -> int:
    async with client(front.url) as to:
        answer = await to.post("/v1/chat/completions", json=ask(prompt(tokens, name), max_tokens=4))
    assert answer.status_code == 200
    return front.router.resident_tokens("a")


@pytest.mark.parametrize("profile", [SEED, VLLM_HYBRID, LLAMA_CPP], ids=lambda profile: profile.name)
async def test_a_restart_is_noticed_and_the_replica_met_anew(profile: Any) -> None:
    """
    Nobody listens for a while, and then its cache is empty: nothing is believed of it, and its facts are read again.
    """
    faults = Faults([Restart(do="restart", at_s=3 * FAST, for_s=0.5 * FAST)])
    async with running_replica(profile, speed=FAST, faults=faults) as one:
        async with ramjet({"a": one.url}, watch=True, stats=QUICK, health={"interval_s": 60}) as front:
            await until(lambda: known(front))
            assert await answered(front, "before") > 4_000
            life = front.router.beliefs["a"].life

            await until(lambda: front.router.beliefs["a"].life > life)
            assert front.router.resident_tokens("a") == 0
            await until(lambda: known(front))


@pytest.mark.parametrize("name", ["sglang-0.5.23-llama", "vllm-0.32.0-llama", "llamacpp"])
async def test_a_counter_that_falls_is_a_restart(name: str) -> None:
    """
    It was away for less than an interval, and nobody was refused.
    """
    async with engine(name) as (url, pages), ramjet({"a": url}, watch=True, stats=QUICK) as front:
        await until(lambda: bool(heard(front).loads))
        pages.asked.clear()
        await until(lambda: len(pages.asked) > 2)
        life = front.router.beliefs["a"].life
        counted = heard(front).loads[0].counted
        assert counted
        for path, page in pages.pages.items():
            pages.pages[path] = page.replace(f"{counted:.0f}", "17")
        await until(lambda: front.router.beliefs["a"].life > life)

        await until(lambda: known(front))


async def test_another_start_time_is_a_restart() -> None:
    """
    vLLM says when its process was started.
    """
    async with engine("vllm-0.32.0-llama") as (url, pages):
        async with ramjet({"a": url}, watch=True, stats={**QUICK, "facts_s": 0.1}) as front:
            await until(lambda: known(front))
            life = front.router.beliefs["a"].life
            facts = heard(front).facts
            assert facts is not None
            assert facts.started_at
            pages.pages["/metrics"] = pages.pages["/metrics"].replace(
                "process_start_time_seconds 1.79611586091e+09", "process_start_time_seconds 1.79611588091e+09"
            )
            await until(lambda: front.router.beliefs["a"].life > life)


# -- what is shown ------------------------------------------------------------------------------------------------------


async def test_what_was_heard_is_shown() -> None:
    """
    The API has each fact with its page and its age, the metrics name the engine.
    """
    page = "/server_info max_total_num_tokens"
    async with engine("sglang-0.5.23-qwen3_next") as (url, _), ramjet({"a": url}, watch=True, stats=QUICK) as front:
        # Other pages have the same fact; this one's word counts as soon as it is there.
        await until(
            lambda: (
                bool(heard(front).loads)
                and (facts := heard(front).facts) is not None
                and page in facts.sources.values()
            )
        )
        async with httpx.AsyncClient(trust_env=False) as to:
            (told,) = (await to.get(f"{front.admin_url}/replicas")).json()["replicas"]

        assert told["engine"]["name"] == "sglang"
        assert told["engine"]["facts"]["snapshot_slots"]["value"] == 28
        assert told["engine"]["facts"]["pool_tokens"]["source"] == page
        assert (told["engine"]["running"], told["engine"]["waiting"], told["others_in_flight"]) == (0, 9, 9)
        assert 0 <= told["engine"]["facts_age_s"] < 60
        assert front.metric("ramjet_engine_info", replica="a", engine="sglang", version="0.5.23") == 1


async def test_a_replica_that_is_let_go_is_asked_no_more() -> None:
    """
    Nor is anything of it shown.
    """
    async with engine("sglang-0.5.23-llama") as (url, pages), ramjet({"a": url}, watch=True, stats=QUICK) as front:
        await until(lambda: known(front))
        front.running.control.remove("a")
        await until(lambda: not front.running.stats.seen)
        pages.asked.clear()
        await asyncio.sleep(0.3)

        assert pages.asked == []
        assert b"ramjet_engine_info{" not in front.running.metrics.render()
