"""Agents against real loopback servers, and the table that shows what they saw."""

from __future__ import annotations

import asyncio
import io
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from rich.console import Console

from ramjet.demo.agent import Agent, write
from ramjet.demo.table import TrafficTable
from ramjet.demo.traffic import Summary, TurnResult, drive
from ramjet.sim.prompt import render_chat
from ramjet.sim.tokens import count_tokens
from tests.replica.support import quick, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def small_drive(url: str, **more: Any) -> Summary:
    facts: dict[str, Any] = {
        "conversations": 3,
        "turns": 4,
        "concurrency": 2,
        "shared_system_tokens": 1_000,
        "growth_tokens": 200,
        "think_s": 0.0,
        "seed": 1,
        "on_turn": lambda _: None,
    }
    return await drive(url, **(facts | more))


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    """An engine, or what pretends to be one, with one handler for chat."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# -- conversations ----------------------------------------------------------------------------------------------------


def agent(number: int, seed: int = 1) -> Agent:
    return Agent(number, seed=seed, shared_system_tokens=1_000, growth_tokens=200)


def test_a_conversation_only_grows() -> None:
    """
    Each turn's prompt repeats the one before and its answer, and adds a tool result.
    """
    one = agent(0)
    before = render_chat(one.request("demo", 16))
    one.take("The answer.")
    after = render_chat(one.request("demo", 16))

    assert after.startswith(before + "The answer.")
    assert 200 < count_tokens(after) - count_tokens(before) < 250


def test_conversations_share_tools_and_system_prompt_and_nothing_else() -> None:
    """
    The part in common is the configured length; from the task on every agent is alone.
    """
    texts = [render_chat(agent(number).request("demo", 16)) for number in (0, 1)]

    common = next(at for at, (one, other) in enumerate(zip(*texts, strict=False)) if one != other)
    tools = texts[0].index("<|system|>")
    assert 1_000 <= count_tokens(texts[0][tools:common]) < 1_020


def test_a_seed_decides_every_word() -> None:
    """
    The same seed gives the same requests, another seed others.
    """
    assert agent(0).request("demo", 16) == agent(0).request("demo", 16)
    assert agent(0).messages[0] != agent(0, seed=2).messages[0]
    assert agent(0).messages[1] != agent(0, seed=2).messages[1]


@pytest.mark.parametrize("tokens", [0, 1, 7, 20_000])
def test_text_is_as_long_as_it_was_asked_for(tokens: int) -> None:
    assert count_tokens(write(random.Random(1), tokens)) == tokens


# -- the drive --------------------------------------------------------------------------------------------------------


async def test_later_turns_reuse_what_earlier_turns_left() -> None:
    """
    One replica with room for all: every turn but the first of each conversation is warm.
    """
    seen: list[TurnResult] = []
    async with quick() as replica:
        summary = await small_drive(replica.url, on_turn=seen.append)

        assert replica.requests == 12
        assert replica.in_flight == 0
    assert tuple(seen) == summary.turns
    assert sorted((turn.conversation, turn.turn) for turn in seen) == [(c, t) for c in range(3) for t in range(1, 5)]
    assert (summary.failed, summary.out_of_time) == (0, False)
    for turn in seen:
        assert (turn.status, turn.replica, turn.reason, turn.error) == (200, None, None, None)
        assert turn.prompt_tokens is not None
        assert turn.ttft_s is not None
        assert 0 < turn.ttft_s <= turn.duration_s
        if turn.turn > 1:
            assert turn.cached_tokens is not None
            # All but the new tool result, the call and what did not fill a block.
            assert turn.prompt_tokens - turn.cached_tokens < 200 + 50 + 64
    assert summary.cached_tokens > 0.6 * summary.prompt_tokens
    assert summary.mean_ttft_s is not None


async def test_no_more_requests_are_under_way_than_allowed() -> None:
    """
    Ten agents, three places.
    """
    under_way: list[int] = []
    inside = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal inside
        inside += 1
        under_way.append(inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return web.Response(status=503, text="later")

    async with server(handler) as url:
        summary = await small_drive(url, conversations=10, turns=2, concurrency=3)

    assert max(under_way) == 3
    assert len(summary.turns) == 20


async def test_what_ramjet_adds_to_an_answer_is_noted() -> None:
    """
    The replica and the reason come from the response's headers, also with an error.
    """

    async def handler(request: web.Request) -> web.Response:
        headers = {"x-ramjet-replica": "glm-2", "x-ramjet-reason": "no room"}
        return web.Response(status=503, text="all replicas are full", headers=headers)

    async with server(handler) as url:
        turn = (await small_drive(url, conversations=1, turns=1)).turns[0]

    assert (turn.replica, turn.reason, turn.status, turn.error) == ("glm-2", "no room", 503, "all replicas are full")
    assert (turn.ok, turn.ttft_s, turn.prompt_tokens) == (False, None, None)


async def test_a_turn_that_failed_is_sent_again_as_the_next_one() -> None:
    """
    No answer, nothing to add: the conversation goes on from where it was.
    """
    bodies: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.Response(status=500)

    async with server(handler) as url:
        summary = await small_drive(url, conversations=1, turns=2)

    assert bodies[0] == bodies[1]
    assert summary.failed == 2


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        ('data: {"choices": [{"delta": {"content": "a"}}]}\n\n', "ended early"),
        ('data: {"error": {"message": "out of memory"}}\n\ndata: [DONE]\n\n', "out of memory"),
        ("data: {\n\n", "not a chunk"),
        ("data: []\n\n", "not a chunk"),
        ("", "ended early"),
    ],
)
async def test_a_stream_that_breaks_is_a_failed_turn(stream: str, error: str) -> None:
    """
    An answer counts only if it came to its end.
    """

    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=stream, content_type="text/event-stream")

    async with server(handler) as url:
        summary = await small_drive(url, conversations=1, turns=1)

    assert summary.failed == 1
    assert error in str(summary.turns[0].error)


async def test_nobody_at_home_is_a_failed_turn() -> None:
    """
    A refused connection is noted and does not end the drive.
    """
    async with quick() as replica:
        url = replica.url

    summary = await small_drive(url)

    assert summary.failed == 12
    assert {turn.status for turn in summary.turns} == {None}
    assert "ConnectError" in str(summary.turns[0].error)


async def test_a_drive_ends_when_its_time_is_up() -> None:
    """
    What is under way is dropped, and the replica is free at once.
    """
    async with quick(speed=0.001) as replica:
        summary = await small_drive(replica.url, limit_s=0.3)
        await until(lambda: replica.in_flight == 0)

    assert summary.out_of_time
    assert summary.turns == ()
    assert 0.3 <= summary.duration_s < 5


# -- the table --------------------------------------------------------------------------------------------------------


def turn(conversation: int, number: int, **more: Any) -> TurnResult:
    facts: dict[str, Any] = {
        "conversation": conversation,
        "turn": number,
        "status": 200,
        "replica": "glm-1",
        "reason": "prefix",
        "prompt_tokens": 20_000,
        "cached_tokens": 19_712,
        "ttft_s": 0.157,
        "duration_s": 1.0,
        "error": None,
    }
    return TurnResult(**(facts | more))


TURNS = [
    turn(0, 1, cached_tokens=None, ttft_s=3.353, reason="idle"),
    turn(0, 2),
    turn(1, 1, replica="glm-2", status=502, error="gone", prompt_tokens=None, cached_tokens=None, ttft_s=None),
]


def test_without_a_terminal_the_table_is_printed_once_at_the_end() -> None:
    """
    The last turn of each conversation and the totals of each replica, without any control codes.
    """
    out = io.StringIO()
    with TrafficTable(Console(file=out, width=120)) as table:
        for result in TURNS:
            table.take(result)
        assert out.getvalue() == ""

    text = out.getvalue()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]
    assert rows == [
        ["0", "2", "glm-1", "prefix", "20,000", "98.6%", "0.16"],
        ["1", "1", "glm-2", "prefix", "failed: 502", "", ""],
        ["glm-1", "2", "0", "40,000", "49.3%", "1.76", "3.35"],
        ["glm-2", "1", "1", "0", "-", "-", "-"],
    ]
    assert "\x1b" not in text


def test_on_a_terminal_the_table_grows_with_each_turn() -> None:
    """
    It is drawn when a turn ends, and stays when the drive is over.
    """
    out = io.StringIO()
    drawn = []
    with TrafficTable(Console(file=out, width=120, force_terminal=True, force_interactive=True)) as table:
        for result in TURNS:
            table.take(result)
            drawn.append(out.getvalue().count("Conversations"))

    assert drawn == sorted(set(drawn))
    assert "glm-2" in out.getvalue().rpartition("Conversations")[2]


async def test_the_table_follows_a_drive() -> None:
    """
    `take` is all that the two need of each other.
    """
    out = io.StringIO()
    async with quick() as replica:
        with TrafficTable(Console(file=out, width=120)) as table:
            await small_drive(replica.url, on_turn=table.take)

    assert out.getvalue().count("4 │ -") == 3
