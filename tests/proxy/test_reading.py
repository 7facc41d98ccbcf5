"""Prompts are read while others go on: what comes of it is the same, in the order in which they came."""

from __future__ import annotations

import asyncio
import json

import pytest

from ramjet.core.bodies import LONG_BYTES, STEP_BYTES, whole
from ramjet.core.visit import Arrival
from ramjet.front.door import Door
from ramjet.front.options import Options
from ramjet.front.reading import Reader
from tests.rig import router_of

SEED = 7
JSON = {"content-type": "application/json"}


def reader() -> Reader:
    return Reader(router_of("a"), Door(Options(seed=SEED)))


def talk(turns: int, name: str = "", message_bytes: int = 8_000) -> bytes:
    roles = ("user", "assistant")
    text = "warm " * (message_bytes // 5)
    messages = [{"role": roles[number % 2], "content": f"{name} {number} {text}"} for number in range(2 * turns + 1)]
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()


def hashes(arrival: Arrival) -> list[int]:
    assert arrival.fingerprint is not None
    return list(arrival.fingerprint.usable.hashes)


async def read(given: Reader, body: bytes) -> Arrival:
    _, arrival = await given.read(JSON, body, "chat", "1")
    return arrival


BODIES: dict[str, bytes] = {
    "short": talk(1),
    "in one step": talk(10),
    "in steps": talk(70),
    "one message that no step can take": talk(1, message_bytes=3 * LONG_BYTES),
    "whole, in a thread": json.dumps({"messages": [], "tools": [{"name": "x" * 200_000}]}).encode(),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_prompt_is_read_as_if_it_were_alone(body: bytes) -> None:
    """
    However a body is read, the router sees the fingerprint of the whole of it, the first time and the next.
    """
    given = reader()

    for _ in range(2):
        assert hashes(await read(given, body)) == list(whole(body, "chat", SEED).fingerprint.usable.hashes)


async def test_long_new_prompts_are_read_one_after_another() -> None:
    """
    The first that comes is the first that is read, and none of them is mixed up with another.
    """
    given, done = reader(), []

    async def one(number: int) -> None:
        body = talk(70, name=str(number))
        assert hashes(await read(given, body)) == list(whole(body, "chat", SEED).fingerprint.usable.hashes)
        done.append(number)

    await asyncio.gather(*map(one, range(5)))

    assert done == [0, 1, 2, 3, 4]


async def test_a_next_turn_does_not_wait_for_a_long_new_prompt() -> None:
    """
    What is known of a body is read at once, in one step, whoever is being read meanwhile.
    """
    given, done = reader(), []
    await read(given, talk(70))

    async def one(name: str, body: bytes) -> None:
        await read(given, body)
        done.append(name)

    await asyncio.gather(one("new", talk(140, "new")), one("next", talk(71)))

    assert done == ["next", "new"]


async def test_others_go_on_between_the_steps_of_a_long_prompt() -> None:
    """
    Each step gives way once, so whoever waits for the loop gets it a dozen times while 2 MB are read.
    """
    given, turns = reader(), 0
    body = talk(120)

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read(given, body))
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1

    assert len(body) > 6 * STEP_BYTES
    assert turns > len(body) / STEP_BYTES


async def test_a_client_that_leaves_gives_up_its_turn() -> None:
    """
    A long prompt of which nobody wants the end keeps nobody from being read.
    """
    given = reader()
    async with asyncio.TaskGroup() as group:
        left = group.create_task(read(given, talk(140)))
        await asyncio.sleep(0)
        left.cancel()

        async with asyncio.timeout(10):
            await read(given, talk(70, "other"))

    assert left.cancelled()


@pytest.mark.parametrize("damage", [b"", b"]", b"\xff"])
async def test_a_long_body_that_is_broken_has_no_prompt(damage: bytes) -> None:
    """
    It goes on without one, whether its beginning was known or not.
    """
    given, body = reader(), talk(70)

    for _ in range(2):
        assert (await read(given, body[:-20] + damage)).fingerprint is None
        await read(given, body)
