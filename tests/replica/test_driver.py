"""An engine in the loop's time: who waits is woken when it is due, and the loop is never held up."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.replica.clock import Clock
from ramjet.replica.driver import Driver
from ramjet.sim.engine import Engine, Job
from ramjet.sim.profile import ATTENTION
from ramjet.sim.tokens import Prompt
from tests.replica.support import prompt


def job(tokens: int, answer_tokens: int = 1, name: str = "") -> Job:
    text = Prompt(prompt(tokens, name), 64)
    return Job(text.blocks, text.tokens, answer_tokens, lambda _: text.blocks)


RATES = st.sampled_from([0.0, 0.3, 1.0, 400.0])


@given(st.lists(st.tuples(st.floats(0, 10), RATES), max_size=8))
def test_virtual_time_never_falls_and_passes_at_the_rate(changes: list[tuple[float, float]]) -> None:
    """
    Whatever the rates were: between two changes it passes at the one in force, and what is due is due then.
    """
    clock, rate, now, virtual = Clock(1.0, 5.0), 1.0, 5.0, 0.0
    for wait_s, other in changes:
        now, virtual = now + wait_s, virtual + wait_s * rate
        assert clock.at(now) == pytest.approx(virtual)
        clock.run_at(other, now)
        rate = other
        due = clock.when(virtual + 3)
        assert due is None if rate == 0 else due == pytest.approx(now + 3 / rate)


@pytest.mark.alone
async def test_answers_come_when_the_engine_has_them() -> None:
    """
    The first token after the overhead and the reading, each further one a step later, at 100 times the speed.
    """
    timing = ATTENTION.timing
    driver, began = Driver(Engine(ATTENTION), 100), time.perf_counter()
    with driver.running(job(20_000, 50)) as run:
        await run.until(1)
        first_s = time.perf_counter() - began
        assert await run.until(50) == 50
        all_s = time.perf_counter() - began

    expected_s = (timing.overhead_s + timing.read_s(0, 20_000)) / 100
    assert expected_s * 0.99 < first_s < expected_s + 0.3
    # From the beginning: a busy machine can only have seen the first one late.
    assert all_s > expected_s + 49 * timing.steps_s(1) / 100 * 0.9
    assert (driver.engine.running, driver.engine.waiting) == (0, 0)


async def test_nothing_is_scheduled_when_there_is_nothing_to_do() -> None:
    """
    An idle replica costs nothing: no timer runs.
    """
    driver = Driver(Engine(ATTENTION), 1_000)
    with driver.running(job(100)) as run:
        await run.until(1)

    assert driver._timer is None


async def test_leaving_aborts_and_the_others_move_up() -> None:
    """
    However it is left: before it is admitted, while it is read, while it is answered.
    """
    driver = Driver(Engine(ATTENTION), 100)
    with driver.running(job(5_000, 4, "stays")) as stays:
        for number, wait_s in enumerate((0.0, 0.004, 0.02, 0.06)):
            with driver.running(job(3_000, 1_000, str(number))):
                await asyncio.sleep(wait_s)
        assert await stays.until(4) == 4
    async with asyncio.timeout(5):
        while driver.engine.running or driver.engine.waiting:  # noqa: ASYNC110 - it leaves with its forward
            await asyncio.sleep(0.005)

    assert driver.engine.aborted_total == 4
    assert driver.engine.cache.held_tokens == 0


async def test_a_wedge_stops_the_time_and_what_was_under_way_goes_on_after_it() -> None:
    """
    A tenth of a second without a token, then the rest of the answer.
    """
    driver = Driver(Engine(ATTENTION), 100)
    with driver.running(job(1_000, 100)) as run:
        await run.until(2)
        driver.run_at(0)
        before = run.job.written
        await asyncio.sleep(0.1)
        assert run.job.written == before
        driver.run_at(100)
        began = time.perf_counter()
        await run.until(100)

        assert time.perf_counter() - began > (99 - before) * ATTENTION.timing.steps_s(1) / 100 * 0.9


@pytest.mark.alone
async def test_an_engine_that_cannot_keep_up_does_not_make_its_server_deaf() -> None:
    """
    Each step takes longer to simulate than it lasts: virtual time falls behind, and others get their turn meanwhile.
    """
    driver = Driver(Engine(ATTENTION, on_batch=lambda _: time.sleep(0.002)), 1_000_000)
    waits = []
    until_s = time.perf_counter() + 0.3
    with driver.running(job(100, 200)) as run:
        while time.perf_counter() < until_s:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            waits.append(time.perf_counter() - began)
        written = run.job.written

    assert 0 < written < 200
    assert len(waits) > 5
    assert sorted(waits)[len(waits) // 2] < 0.1


async def test_a_stopped_driver_never_moves_again() -> None:
    """
    What is left inside is aborted when it is left, and no timer comes back.
    """
    driver = Driver(Engine(ATTENTION), 1_000)
    with driver.running(job(100_000)) as run:
        driver.stop()
        await asyncio.sleep(0.05)

        assert run.job.written == 0
    assert driver._timer is None or driver._timer.cancelled()
