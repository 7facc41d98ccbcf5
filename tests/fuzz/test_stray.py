"""What an engine sends after its answer belongs to nobody."""

from __future__ import annotations

import asyncio

import httpx

from tests.rig import ramjet
from tests.scripted import Connection, Seen, scripted_engine

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def test_a_late_word_on_an_unused_connection_answers_nobody() -> None:
    """
    Servers say 408 to connections they find idle too long; the next client must not take that for its answer.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(b"{}")
        if len(engine.seen) == 1:
            await asyncio.sleep(0.02)
            await connection.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 5\r\n\r\nstray")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        url = f"{front.url}/v1/chat/completions"
        await client.post(url, json=CHAT)
        await asyncio.sleep(0.1)

        answer = await client.post(url, json=CHAT)

        assert (answer.status_code, answer.content) == (200, b"{}")
