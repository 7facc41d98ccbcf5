"""What a simulated replica says of itself, held against what the real engines say."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ramjet.replica.report import REPORTS
from ramjet.replica.server import Replica, running_replica
from ramjet.sim.engine import Batch, Engine
from ramjet.sim.profile import ATTENTION, GLM, LLAMA_CPP, PROFILES, VLLM_HYBRID, Profile
from tests.replica.support import FAST, ask, client, openai_client, prompt, quick, until
from tests.replica.test_server import leave

# Tested on public samples of SGLang's log.
MAMBA = r"Mamba Cache is allocated\. max_mamba_cache_size: (\d+), conv_state size: ([\d.]+) ?GB, ssm_state size: ([\d.]+) ?GB"
KV = r"KV Cache is allocated\.(?: dtype: [^,]+,)? #tokens: (\d+)"
LIMITS = r"max_total_num_tokens=(\d+)(?:, chunked_prefill_size=(-?\d+))?"
PREFILL = (
    r"Prefill batch(?: \[\d+\])?[,.] #new-seq: (\d+), #new-token: (\d+), #cached-token: (\d+), "
    r"(.*?)#running-req: (\d+), #queue-req: (\d+)"
)
DECODE = (
    r"Decode batch(?: \[\d+\])?, #running-req: (\d+), #full token: (\d+), full token usage: ([\d.]+), "
    r"mamba num: (\d+), mamba usage: ([\d.]+)"
)


async def scrape(http: httpx.AsyncClient) -> dict[str, float]:
    """All samples; of those with a `cache_source`, one for each."""
    text = (await http.get("/metrics")).text
    return {
        sample.name
        + "".join(f":{value}" for name, value in sample.labels.items() if name == "cache_source"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def turn(http: httpx.AsyncClient, text: str, answer_tokens: int = 1) -> int:
    """Send a prompt; returns what it reused."""
    params = {"max_new_tokens": answer_tokens, "ignore_eos": True}
    answer = await http.post("/generate", json={"text": text, "sampling_params": params})
    return int(answer.json()["meta_info"]["cached_tokens"])


# -- SGLang -----------------------------------------------------------------------------------------------------------


async def test_sglangs_pools_are_told_as_it_tells_them() -> None:
    """
    28 snapshots in three parts; what is cached counts in no usage, so a pool that is full reads empty when idle.
    """
    async with quick(GLM) as replica, client(replica.url) as http:
        empty = await scrape(http)
        assert await turn(http, prompt(19_845)) == 0
        assert await turn(http, prompt(19_845)) == 19_712
        one = await scrape(http)
        await turn(http, prompt(313_000, "long"))
        full = await scrape(http)

    slots = ["sglang:mamba_available_tokens", "sglang:mamba_evictable_tokens", "sglang:mamba_used_tokens"]
    assert [empty[name] for name in slots] == [28, 0, 0]
    # Ends of three chunks and the tail: 6144, 12288, 18432, 19712.
    assert [one[name] for name in slots] == [24, 4, 0]
    assert sum(full[name] for name in slots) == 28
    assert full["sglang:mamba_available_tokens"] <= 3
    assert (full["sglang:mamba_usage"], full["sglang:token_usage"]) == (0, 0)
    assert one["sglang:kv_evictable_tokens"] + one["sglang:kv_available_tokens"] == 499_968
    assert one["sglang:prompt_tokens_total"] == 2 * 19_845
    assert one["sglang:cached_tokens_total:device"] == 19_712
    assert "sglang:cached_tokens_total:host" not in one
    assert one["ramjet_sim_speed"] == FAST


async def test_sglangs_gauges_count_who_runs_and_who_waits() -> None:
    """
    Five run, the sixth waits, though nothing is short of room: that is SGLang's limit for 28 snapshots.
    """
    told = asyncio.Event()
    async with quick(GLM, speed=1) as replica, client(replica.url) as http, asyncio.TaskGroup() as group:
        for number in range(6):
            body = {"text": prompt(600, str(number)), "sampling_params": {"max_new_tokens": 10_000, "ignore_eos": True}}
            group.create_task(leave(replica, "/generate", body, told.is_set))
        await until(lambda: (replica.engine.running, replica.engine.waiting) == (5, 1))
        await until(lambda: replica.engine.written_tokens_total > 100)  # so all five have read their prompts
        metrics, load = await scrape(http), (await http.get("/v1/loads")).json()["loads"][0]
        told.set()
        await until(lambda: replica.in_flight == 0)
        after = await scrape(http)

    assert (metrics["sglang:num_running_reqs"], metrics["sglang:num_queue_reqs"]) == (5, 1)
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["max_running_requests"]) == (5, 1, 5)
    assert load["num_waiting_uncached_tokens"] == 600
    # Three private ones for each, and the snapshot that each has saved.
    assert metrics["sglang:mamba_used_tokens"] == 5 * 4
    assert metrics["sglang:mamba_usage"] == pytest.approx(20 / 28, abs=1e-4)
    assert metrics["sglang:token_usage"] == load["token_usage"] == 0.71
    assert metrics["sglang:full_token_usage"] < 0.01
    assert after["sglang:num_aborted_requests_total"] == 6


async def test_sglangs_host_tier_has_gauges_of_its_own() -> None:
    """
    Only where there is one, and what came back from it is counted apart.
    """
    async with quick(GLM.with_flags(host_tier=True, states_per_path=2)) as replica, client(replica.url) as http:
        # More sessions than the 28 slots keep, two snapshots each.
        for _ in range(2):
            reused = [await turn(http, prompt(20_000, f"session {number}")) for number in range(14)]
        metrics = await scrape(http)
        info = (await http.get("/server_info")).json()

    assert min(reused) > 19_000
    assert metrics["sglang:hicache_host_total_tokens"] == 308_288
    assert 0 < metrics["sglang:hicache_host_used_tokens"] <= 308_288
    assert metrics["sglang:cached_tokens_total:host"] > 0
    assert (info["enable_hierarchical_cache"], info["mamba_max_states_per_path"]) == (True, 2)


async def test_sglang_tells_its_snapshots_only_if_it_was_told() -> None:
    """
    What it derived from its memory is null in `/server_info`, as in the real one: the metrics have it.
    """
    pages = []
    for profile in (GLM, GLM.with_flags(slots=40)):
        async with quick(profile) as replica, client(replica.url) as http:
            pages.append((await http.get("/server_info")).json())
            assert (await http.get("/get_server_info")).json() == pages[-1]

    assert [page["max_mamba_cache_size"] for page in pages] == [None, 40]
    assert [page["max_running_requests"] for page in pages] == [5, 8]
    assert pages[0]["max_total_num_tokens"] == 499_968
    assert (pages[0]["chunked_prefill_size"], pages[0]["page_size"]) == (6_144, 64)
    assert (pages[0]["enable_cache_report"], pages[0]["simulated_speed"]) == (True, FAST)


async def test_sglangs_log_is_read_by_the_expressions_for_the_real_one() -> None:
    """
    Pools at the start, each batch of prefill, and every fortieth step of decoding.
    """
    lines: list[str] = []
    async with running_replica(GLM, speed=FAST, log=lines.append) as replica, client(replica.url) as http:
        booted = list(lines)
        for _ in range(2):
            await turn(http, prompt(7_000), answer_tokens=80)

    def found(expression: str, where: list[str]) -> list[Any]:
        return [match.groups() for line in where if (match := re.search(expression, line))]

    assert found(MAMBA, booted) == [("28", "0.07", "0.93")]
    assert found(KV, booted) == [("499968",)]
    assert found(LIMITS, booted) == [("499968", "6144")]
    prefill = [(new, read, cached) for new, read, cached, *_ in found(PREFILL, lines)]
    assert prefill == [("1", "6144", "0"), ("1", "856", "0"), ("1", "88", "6912")]
    # Of 160 tokens, two came with their prompts.
    assert [(running, slots) for running, _, _, slots, _ in found(DECODE, lines)] == [("1", "4")] * 3
    assert all(re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ", line) for line in lines)


def test_without_snapshots_the_log_has_the_words_of_an_attention_model() -> None:
    """
    `#token` instead of `#full token`, and no word of mamba.
    """
    engine, report = Engine(ATTENTION), REPORTS["sglang"](ATTENTION, 1.0)
    booted = list(report.boot())
    lines = [report.line(Batch(kind="decode", at=0.0, running=1), engine) for _ in range(40)]

    assert not any("amba" in line for line in booted)
    assert lines[:39] == [None] * 39
    assert str(lines[39]).startswith("Decode batch, #running-req: 1, #token: 0, token usage: 0.00, ")


# -- the others -------------------------------------------------------------------------------------------------------


async def test_vllms_words() -> None:
    """
    Tokens asked for and found, blocks, and a usage that is 0 when idle, however full the cache is.
    """
    lines: list[str] = []
    async with running_replica(VLLM_HYBRID, speed=FAST, log=lines.append) as replica, client(replica.url) as http:
        for _ in range(2):
            await http.post("/v1/completions", json={"prompt": prompt(200_000), "max_tokens": 2})
        metrics, text = await scrape(http), (await http.get("/metrics")).text
        version = (await http.get("/version")).json()
        load = (await http.get("/load")).json()
        flushed = await http.post("/reset_prefix_cache")
        missing = [(await http.get(path)).status_code for path in ("/server_info", "/v1/loads", "/flush_cache")]

        assert replica.engine.cache.used_tokens == 0
    assert (metrics["vllm:num_requests_running"], metrics["vllm:num_requests_waiting"]) == (0, 0)
    assert metrics["vllm:prefix_cache_queries_total"] == 400_000
    assert metrics["vllm:prefix_cache_hits_total"] == 378 * 528
    assert metrics["vllm:kv_cache_usage_perc"] == 0
    assert 'block_size="528",num_gpu_blocks="947"' in text
    assert (version["version"], load) == ("0.32.0", {"server_load": 0})
    assert flushed.status_code == 200
    assert missing == [404] * 3
    assert "GPU KV cache size: 500,016 tokens" in lines[0]
    # More than ten of its seconds have passed.
    assert any(
        re.search(r"Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: [\d.]+%, Prefix", each) for each in lines
    )


async def test_llama_cpps_words() -> None:
    """
    Slots instead of pools.
    """
    async with quick(LLAMA_CPP.with_flags(slots=2, pool_tokens=16_384)) as replica, client(replica.url) as http:
        for _ in range(2):
            await http.post("/v1/chat/completions", json=ask(prompt(1_000), max_tokens=2))
        metrics = await scrape(http)
        health = (await http.get("/health")).json()
        props, slots = (await http.get("/props")).json(), (await http.get("/slots")).json()

    assert health == {"status": "ok"}
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (2, 8_192)
    assert [(slot["id"], slot["n_ctx"], slot["is_processing"]) for slot in slots] == [
        (0, 8_192, False),
        (1, 8_192, False),
    ]
    assert metrics["llamacpp:requests_processing"] == metrics["llamacpp:requests_deferred"] == 0
    assert metrics["llamacpp:prompt_tokens_cached_total"] == 992


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
async def test_every_engine_names_its_model_and_its_longest_request(profile: Profile) -> None:
    """
    In the list of models, which belongs to the engine, as tools that look at it expect; and healthy from the start.
    """
    async with quick(replace(profile, model='my"model')) as replica, openai_client(replica) as sdk:
        models = [model async for model in sdk.models.list()]
        async with client(replica.url) as http:
            health = (await http.get("/health")).status_code
            metrics = await scrape(http)

    assert [model.id for model in models] == ['my"model']
    assert models[0].owned_by == {"sglang": "sglang", "vllm": "vllm", "llama.cpp": "llamacpp"}[profile.engine]
    assert (models[0].model_extra or {})["max_model_len"] == profile.most_tokens
    assert health == 200
    assert metrics["ramjet_sim_speed"] == FAST


async def test_flushing_empties_an_idle_cache_and_is_refused_while_requests_run() -> None:
    """
    What running requests use is not thrown away. With GET or POST.
    """

    async def cached(replica: Replica) -> int:
        return replica.engine.cache.used_tokens

    async with quick(speed=20) as replica, client(replica.url) as http:
        await turn(http, prompt(100))
        held = await cached(replica)
        flushed = await http.get("/flush_cache")
        after = await cached(replica)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(turn(http, prompt(20_000)))
            await until(lambda: replica.in_flight == 1)
            refused = await http.post("/flush_cache")

    assert (held, after) == (64, 0)
    assert (flushed.status_code, refused.status_code) == (200, 400)
    assert running.result() == 0
