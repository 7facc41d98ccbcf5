"""What a look finds, against real servers on loopback: simulated replicas, and an engine whose habits a test decides."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from ramjet.check.ask import Target, look_at
from ramjet.check.findings import find
from ramjet.check.findings.values import Finding, Found, Ours
from ramjet.check.idle import measure
from ramjet.core.pools import Pools
from ramjet.replica.server import running_replica
from ramjet.sim.profile import PROFILES, Profile
from tests.check.engine import Engine, serving
from tests.scripted import Connection, dead_url, scripted_engine
from tests.scripted import Seen as Asked

GLM = PROFILES["glm-5.3-flash-tp2"]
OURS = Ours(idle_s=0.5)


async def look(*urls: str, ours: Ours = OURS, quick: bool = False, **told: Any) -> list[Found]:
    """A look at replicas a, b and so on."""
    targets = [Target(name=chr(ord("a") + number), url=url, **told) for number, url in enumerate(urls)]
    return await look_at(targets, ours, quick=quick)


def said(fleet: list[Found], ours: Ours = OURS) -> dict[str, Finding]:
    """What is said of it, by its name; the last where there are several."""
    return {finding.id: finding for finding in find(fleet, ours)}


# -- simulated replicas --------------------------------------------------------------------------------------------------


async def test_the_seeds_replica() -> None:
    """
    Its pools, where they were read, and that its health page costs nothing; the cap is missing, and that is said.
    """
    async with running_replica(GLM, speed=20) as replica:
        (seen,) = await look(replica.url)

    assert seen.facts is not None
    assert (seen.facts.pool_tokens, seen.facts.snapshot_slots) == (499_968, 28)
    assert seen.facts.sources["pool_tokens"] == "/server_info max_total_num_tokens"
    assert "mamba_available_tokens" in seen.facts.sources["snapshot_slots"]
    assert seen.models == ("glm-5.3-flash",)
    assert "82 snapshots and clears the pool" in said([seen])["long_prompt_snapshots"].text


async def test_a_replica_that_is_down() -> None:
    """
    A fault of its own; the other is looked at as if it were alone.
    """
    async with running_replica(GLM, speed=20) as replica:
        fleet = await look(replica.url, dead_url(), quick=True)

    assert [each.reached for each in fleet] == [True, False]
    found = said(fleet)["unreachable"]
    assert (found.severity, found.replicas, found.figures["error"]) == ("fault", ("b",), "connection refused")


async def test_replicas_with_different_flags() -> None:
    """
    Every flag that differs is named with both values.
    """
    one = GLM.with_flags(states_per_path=2, slots=28)
    other = replace(GLM.with_flags(pool_tokens=308_288, chunk_tokens=8_192, host_tier=True), reports_cached=False)
    async with running_replica(one, speed=20) as a, running_replica(other, speed=20) as b:
        fleet = await look(a.url, b.url, quick=True)

    differ = [finding.figures["fact"] for finding in find(fleet, OURS) if finding.id == "replicas_differ"]
    assert differ == ["pool_tokens", "snapshots_per_path", "chunk_tokens", "host_tier"]
    assert said(fleet)["cache_report_off"].replicas == ("b",)
    assert "--enable-cache-report" in (said(fleet)["cache_report_off"].remedy or "")


@pytest.mark.parametrize("name", sorted(PROFILES))
async def test_every_engine_that_can_be_simulated(name: str) -> None:
    """
    Each is known by its pages, reports what it reused, and is no fault.
    """
    async with running_replica(PROFILES[name], speed=50) as replica:
        (seen,) = await look(replica.url)

    assert seen.facts is not None
    assert seen.facts.engine == PROFILES[name].engine.replace(".", "")
    assert seen.reports_cached is True
    assert {finding.severity for finding in find([seen], OURS)} <= {"warning", "note"}


async def test_what_is_configured_goes_before_and_is_held_against_what_is_said() -> None:
    """
    A pool that was typed wrong.
    """
    async with running_replica(GLM, speed=20) as replica:
        fleet = await look(replica.url, quick=True, configured=Pools(tokens=49_996))

    assert fleet[0].pools.tokens == 49_996
    assert said(fleet)["configured_otherwise"].figures["reported"] == 499_968


async def _report_of(profile: Profile) -> Found:
    async with running_replica(profile, speed=50) as replica:
        (seen,) = await look(replica.url)
    return seen


async def test_a_vllm_that_does_not_report_is_found_out() -> None:
    """
    It says nothing of its flags, so a prompt is sent twice.
    """
    on, off = PROFILES["vllm-hybrid"], replace(PROFILES["vllm-hybrid"], reports_cached=False)

    assert "cache_report_off" not in said([await _report_of(on)])
    assert "--enable-prompt-tokens-details" in (said([await _report_of(off)])["cache_report_off"].remedy or "")


# -- an engine and its habits ----------------------------------------------------------------------------------------------


async def test_a_health_page_that_makes_the_model_work_is_caught_at_it() -> None:
    """
    The counter moves by what the probes cost, and by nothing else.
    """
    async with serving(Engine(health_tokens=1)) as working, serving(Engine()) as idle:
        fleet = await look(working.url, idle.url)

    assert [each.health_tokens for each in fleet] == [2, 0]
    assert said(fleet)["health_generates"].replicas == ("a",)


@pytest.mark.parametrize("engine", [Engine(health_tokens=1, running=1), Engine(health_tokens=1, others_tokens=500)])
async def test_what_others_do_is_not_taken_for_the_health_pages_work(engine: Engine) -> None:
    """
    While requests run, or tokens are counted without us, nothing can be told.
    """
    async with serving(engine):
        (seen,) = await look(engine.url)

    assert seen.health_tokens is None
    assert "health_generates" not in said([seen])
    assert ("busy" in said([seen])) == bool(engine.running)


async def test_a_connection_that_the_engine_closes_early() -> None:
    """
    Of two engines, the one that keeps connections for 0.3 s is named with what was measured, and at the same time.
    """
    async with serving(Engine(), keeps_s=0.3) as short, serving(Engine()) as long:
        started = time.monotonic()
        fleet = await look(short.url, long.url)
        took_s = time.monotonic() - started

    assert fleet[0].idle is not None
    assert fleet[0].idle.closed_after_s == pytest.approx(0.3, abs=0.25)
    assert fleet[1].idle is not None
    assert fleet[1].idle.closed_after_s is None
    assert said(fleet)["idle_short"].replicas == ("a",)
    assert took_s < 2 * (OURS.idle_s + 2.0)


async def test_quick_tries_nothing() -> None:
    """
    No prompt, no wait, no second look at its health.
    """
    async with serving(Engine(health_tokens=1)) as engine:
        (seen,) = await look(engine.url, quick=True)

    assert engine.prompts == []
    assert engine.counted == 1_001
    assert (seen.idle, seen.reuse, seen.health_tokens) == (None, None, None)


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (Engine(reports=True), None),
        (Engine(), "cache_report_off"),
        (Engine(chat_status=500), "cache_report_unknown"),
        (Engine(usage=None), "cache_report_unknown"),
    ],
)
async def test_a_report_is_tried(engine: Engine, name: str | None) -> None:
    """
    The same prompt twice, marked as ours: a count, none, an error, an answer without usage.
    """
    async with serving(engine):
        fleet = await look(engine.url)

    assert {each for each in said(fleet) if each.startswith("cache_report")} == ({name} if name else set())
    assert len(set(engine.prompts)) == 1
    assert set(engine.marks) == {"check"}


async def test_an_engine_that_reads_all_anew() -> None:
    """
    Blocks of 128 tokens, a prompt of 5,000, and nothing of it reused.
    """
    async with serving(Engine(reports=True, reuses=False)) as engine:
        fleet = await look(engine.url)

    assert said(fleet)["nothing_reused"].figures["prompt_tokens"] == 5_000


async def test_a_prompt_fits_a_short_context() -> None:
    """
    One that takes 4,000 tokens is not sent more characters than that.
    """
    pages = Engine().pages
    pages["/v1/models"] = pages["/v1/models"].replace("65536", "4000")
    async with serving(Engine(pages=pages)) as engine:
        await look(engine.url)

    assert 1_000 < len(engine.prompts[0]) < 4_000


async def test_a_replica_with_a_key() -> None:
    """
    It is shown on every page and with the prompt; without it, one fault says what is missing.
    """
    async with serving(Engine(key="sesame", reports=True)) as engine:
        (with_key,) = await look(engine.url, key="sesame")
        (without,) = await look(engine.url, quick=True)

    assert with_key.models == ("tiny",)
    assert with_key.reports_cached is True
    assert with_key.idle is not None
    assert [each.id for each in find([without], OURS) if each.severity == "fault"] == ["key_refused"]


@pytest.mark.parametrize("status", [404, 503])
async def test_a_health_page_that_says_no(status: int) -> None:
    """
    The replica is there, and its facts are read all the same.
    """
    async with serving(Engine(health_status=status)) as engine:
        (seen,) = await look(engine.url, quick=True)

    assert said([seen])["health_failing"].figures["status"] == status
    assert seen.facts is not None
    assert seen.facts.pool_tokens == 4_194_304


async def test_metrics_that_are_not_there() -> None:
    """
    Without them vLLM says nothing of its pool either, and the key that would tell it is named.
    """
    pages = Engine().pages
    del pages["/metrics"]
    async with serving(Engine(pages=pages, reports=True)) as engine:
        (seen,) = await look(engine.url, quick=True)

    assert not seen.metrics
    assert said([seen])["facts_unknown"].figures["keys"] == ["replicas.pool_tokens"]


async def test_a_server_that_never_answers_delays_nobody() -> None:
    """
    It takes connections and says nothing: after a probe's time it is a fault.
    """

    async def silent(connection: Connection, _: Asked) -> None:
        await asyncio.sleep(60)

    ours = Ours(idle_s=0.5, health_timeout_s=0.5)
    async with scripted_engine(silent) as mute, serving(Engine()) as engine:
        async with asyncio.timeout(10):
            fleet = await look(mute.url, engine.url, ours=ours)

    assert said(fleet, ours)["unreachable"].replicas == ("a",)
    assert fleet[1].facts is not None


# -- connections, byte by byte -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "closed_after_s"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", None),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", None),
        (b"HTTP/1.1 204 No Content\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 2\r\n\r\n{}", 0.0),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", 0.0),
        (b"HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 2\r\n\r\n{}", None),
    ],
)
async def test_an_answers_end_is_found(answer: bytes, closed_after_s: float | None) -> None:
    """
    However long it is said to be, and whether or not the connection is to go on.
    """

    async def script(connection: Connection, _: Asked) -> None:
        await connection.send(answer)

    async with scripted_engine(script) as engine:
        kept = await measure(engine.url, "/health", key=None, ask_s=2.0, wait_s=0.2)

    assert kept is not None
    assert kept.closed_after_s == closed_after_s


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"])
async def test_what_is_no_answer_says_nothing_of_idle_connections(answer: bytes) -> None:
    """
    No head, no HTTP, or less than was promised.
    """

    async def script(connection: Connection, _: Asked) -> None:
        await connection.send(answer)
        connection.writer.close()

    async with scripted_engine(script) as engine:
        assert await measure(engine.url, "/health", key=None, ask_s=2.0, wait_s=0.2) is None
    assert await measure(dead_url(), "/health", key=None, ask_s=2.0, wait_s=0.2) is None
