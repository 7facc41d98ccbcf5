"""Time limits that share a timer: each runs out when it should, and for nobody else."""

from __future__ import annotations

import asyncio
import time

import pytest

from ramjet.proxy.limits import Limits

SOON, LONG = 0.03, 5.0


async def test_what_takes_too_long_is_ended() -> None:
    began = time.monotonic()

    with pytest.raises(TimeoutError), Limits().of(SOON):
        await asyncio.sleep(LONG)

    assert time.monotonic() - began < LONG / 2


async def test_what_is_done_in_time_is_left_alone() -> None:
    """
    Also afterwards, when the time would be over.
    """
    limits = Limits()

    with limits.of(SOON):
        await asyncio.sleep(0)
    await asyncio.sleep(2 * SOON)


async def test_the_time_begins_anew() -> None:
    """
    With another length, too; then that one counts.
    """

    async def work() -> None:
        with Limits().of(2 * SOON) as limit:
            for _ in range(4):
                await asyncio.sleep(SOON)
                limit.begin_anew(2 * SOON, time.monotonic())
            limit.begin_anew(LONG, time.monotonic())
            await asyncio.sleep(4 * SOON)
            limit.begin_anew(SOON, time.monotonic())
            await asyncio.sleep(LONG)

    began = time.monotonic()

    with pytest.raises(TimeoutError):
        await work()

    assert 9 * SOON <= time.monotonic() - began < LONG / 2


async def test_many_run_out_one_by_one() -> None:
    """
    Of one length and of several, in the order in which they end.
    """
    limits, ended = Limits(), list[str]()

    async def wait(name: str, begins_s: float, seconds: float) -> None:
        await asyncio.sleep(begins_s)
        with pytest.raises(TimeoutError), limits.of(seconds):
            await asyncio.sleep(LONG)
        ended.append(name)

    await asyncio.gather(wait("c", 0.1, 0.2), wait("a", 0.0, 0.2), wait("d", 0.2, 0.2), wait("b", 0.0, 0.25))

    assert ended == ["a", "b", "c", "d"]


@pytest.mark.parametrize("late", [False, True])
async def test_whoever_is_cancelled_by_others_is_not_told_that_it_took_too_long(late: bool) -> None:
    """
    Be it before the time was over, or at the same moment.
    """

    async def wait() -> None:
        with Limits().of(SOON if late else LONG):
            await asyncio.sleep(LONG)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(wait())
        await asyncio.sleep(0)
        if late:
            time.sleep(2 * SOON)  # noqa: ASYNC251 - so that both come in one step of the loop
            asyncio.get_running_loop().call_later(0, task.cancel)
        else:
            task.cancel()

    assert task.cancelled()


async def test_what_went_wrong_is_what_is_raised() -> None:
    with pytest.raises(KeyError), Limits().of(SOON):
        raise KeyError


async def test_nothing_is_left_of_those_that_are_over() -> None:
    """
    One limit inside another; both lengths are forgotten when nobody uses them.
    """
    limits = Limits()

    with pytest.raises(TimeoutError), limits.of(LONG), limits.of(SOON):
        await asyncio.sleep(LONG)
    with limits.of(2 * SOON):
        pass
    await asyncio.sleep(4 * SOON)

    assert [seconds for seconds in limits.lengths if seconds != LONG] == []
