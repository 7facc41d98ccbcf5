"""Conversations, each in a closed loop, and what their clients saw of every request."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp

from tests.soak.engine import CHAT, digest

LEAVE_RATIO = 0.08
"""Of all requests, how many clients do not wait for the end of."""
_WORD = re.compile(r"([^| ]+)\|(\d+)\|(\d+)(?:\|([0-9a-f]+))? ")
_REQUEST_S = 60.0
"""Longer than all of Ramjet's limits together: a client that waits so long has found a hang."""


@dataclass(slots=True)
class Sight:
    """One request as its client saw it."""

    request_id: str
    conversation: int
    saw: str = "nothing"
    """`complete`, `cut`, `left`, `hung`, `lost` (no answer at all), `wrong` (not what was asked for), or `STATUS code`."""
    status: int | None = None
    replica: str | None = None
    serial: int | None = None
    """Of the answer; None where none came to its end."""
    why: str = ""
    left_at: datetime | None = None


class Clients:
    """All clients of a run."""

    def __init__(self, url: str, *, seed: int, longest_wait_s: float) -> None:
        """
        Args:
            url: Ramjet's.
            seed: decides all they say and when they leave.
            longest_wait_s: those that leave do so within this time.
        """
        self.sights: list[Sight] = []
        self.stop = asyncio.Event()
        self.conversations = 0
        self._url = url
        self._seed = seed
        self._longest_wait_s = longest_wait_s

    async def run(self, count: int) -> None:
        """So many conversations at any time, until `stop` is set and their last requests have ended."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=_REQUEST_S)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 20) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for place in range(count):
                tasks.create_task(self._talk(session, place), name=f"client {place}")

    async def _talk(self, session: aiohttp.ClientSession, place: int) -> None:
        """One conversation after another, for ever: each of some turns, each turn with the whole history."""
        chance = random.Random(f"{self._seed} client {place}")
        await asyncio.sleep(chance.random())
        while not self.stop.is_set():
            number, self.conversations = self.conversations, self.conversations + 1
            messages: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent. " + "Be brief. " * 200}]
            for turn in range(chance.randint(2, 24)):
                if self.stop.is_set():
                    return
                sight = Sight(f"s{self._seed}-{number}-{turn}", number)
                self.sights.append(sight)
                text = f"conversation {number}, turn {turn}: " + chance.randbytes(chance.randint(150, 1_500)).hex()
                if messages[-1]["role"] != "user":
                    messages.append({"role": "user", "content": text})
                said = await self._ask(session, sight, messages, chance)
                if said is not None:
                    messages.append({"role": "assistant", "content": said})
                else:
                    # The turn failed, or was not waited for: the same is sent again.
                    await asyncio.sleep(0.2 * chance.random())

    async def _ask(
        self, session: aiohttp.ClientSession, sight: Sight, messages: list[dict[str, Any]], chance: random.Random
    ) -> str | None:
        """One turn; what the engine said, or None where it did not come to that."""
        ask: dict[str, Any] = {"model": "m", "messages": messages}
        stream = chance.random() < 0.7
        if stream:
            ask["stream"] = True
            if chance.random() < 0.3:
                ask["stream_options"] = {"include_usage": True}
        body = json.dumps(ask).encode()
        leave_s = None
        if chance.random() < LEAVE_RATIO:
            # Most leave before the first token, some in the middle, a few as the answer ends.
            leave_s = self._longest_wait_s * chance.random() ** 2 + 0.002
        headers = {"content-type": "application/json", "x-request-id": sight.request_id}
        try:
            async with (
                asyncio.timeout(leave_s),
                session.post(self._url + CHAT, data=body, headers=headers) as answer,
            ):
                sight.status, sight.replica = answer.status, answer.headers.get("x-ramjet-replica")
                raw = await answer.read()
        except TimeoutError:
            sight.saw = "left" if leave_s is not None else "hung"
            sight.left_at = datetime.now(UTC)
            return None
        except aiohttp.ClientError as error:
            sight.saw, sight.why = ("lost" if sight.status is None else "cut"), repr(error)[:200]
            return None
        return _understand(sight, raw, digest(body), stream=stream, usage="stream_options" in ask)


def _understand(sight: Sight, raw: bytes, asked: str, *, stream: bool, usage: bool) -> str | None:
    """Read a whole answer, and check that it is the one to this request, with nothing lost or doubled."""
    try:
        if sight.status != 200:
            sight.saw = f"{sight.status} {json.loads(raw)['error']['code']}"
            return None
        said, saw_usage = _streamed(raw) if stream else (json.loads(raw)["choices"][0]["message"]["content"], usage)
    except (ValueError, LookupError, TypeError) as error:
        sight.saw, sight.why = "wrong", f"{error!r}: {raw[-300:]!r}"
        return None
    words = [found.groups() for found in _WORD.finditer(said)]
    good = (
        bool(words)
        and {word[0] for word in words} == {sight.request_id}
        and len({word[1] for word in words}) == 1
        and [int(word[2]) for word in words] == list(range(len(words)))
        and words[-1][3] == asked
        and saw_usage == usage
    )
    if not good:
        sight.saw, sight.why = "wrong", raw[-1_000:].decode(errors="replace")
        return None
    sight.saw, sight.serial = "complete", int(words[0][1])
    return str(said)


def _streamed(raw: bytes) -> tuple[str, bool]:
    """The text of a stream, and whether it told its usage."""
    events = raw.decode().split("\n\n")
    if events[-2:] != ["data: [DONE]", ""]:
        raise ValueError("the stream has no end")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    text = "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"])
    return text, any(chunk["usage"] for chunk in chunks)
