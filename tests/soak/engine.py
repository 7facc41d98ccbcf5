"""An engine that can be made ill, whose every answer names the request it answers and can be counted."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.scripted import Connection, ScriptedEngine, Seen
from tests.soak.process import lasting_port

CHAT = "/v1/chat/completions"
SPLICED = b'"stream_options":{"include_usage":true},'
"""What Ramjet puts into a stream's body that does not ask for usage; all else arrives as it was sent."""
_REMEMBERED = 20_000
_SERIALS = itertools.count(1)
_MOST_WEDGED_S = 60.0


class Mode(Enum):
    """What the engine does with requests. Its health is good in all of them but `DEAD`."""

    GOOD = "good"
    DEAD = "dead"
    WEDGED = "wedged"
    SLOW = "slow"
    BUSY = "busy"
    RESETTING = "resetting"


@dataclass(slots=True)
class Answer:
    """One answer as its engine knows it."""

    serial: int
    request_id: str
    digest: str
    """Of the body that it answers, what Ramjet spliced in left out."""
    fate: str = "begun"
    """`complete`, `busy`, `wedged`, `reset`, `killed`, or `left`: the other side closed the connection."""


def digest(body: bytes) -> str:
    """What an answer says of the body it answers."""
    return hashlib.blake2b(body.replace(SPLICED, b"", 1), digest_size=8).hexdigest()


class Engine:
    """A replica on one port for as long as the run takes, however often it dies."""

    def __init__(self, name: str, *, token_s: float) -> None:
        """
        Args:
            name: what Ramjet calls it.
            token_s: mean seconds between two tokens of an answer.
        """
        self.name = name
        self.mode = Mode.GOOD
        self.answers: list[Answer] = []
        self.port = lasting_port()
        self._token_s = token_s
        self._chance = random.Random(name)
        self._known: OrderedDict[int, None] = OrderedDict()
        self._wire = ScriptedEngine(self._serve)
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where it listens, while it lives."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._wire._serve, "127.0.0.1", self.port, limit=1 << 22)

    async def kill(self) -> None:
        """Die: nobody listens any more, all connections break, the cache is gone."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._wire.close()
        self._known.clear()

    async def become(self, mode: Mode) -> None:
        """Change what it does; running answers notice."""
        if mode is Mode.DEAD:
            await self.kill()
        elif self._server is None:
            await self.start()
        self.mode = mode

    # -- a request ----------------------------------------------------------------------------------------------------

    async def _serve(self, connection: Connection, seen: Seen) -> None:
        self._wire.seen.clear()
        if seen.target != CHAT:
            await connection.answer(b'{"data":[]}')
            return
        answer = Answer(next(_SERIALS), seen.header("x-request-id") or "", digest(seen.body))
        self.answers.append(answer)
        try:
            await self._answer(connection, json.loads(seen.body), answer)
        except asyncio.CancelledError:
            answer.fate = "killed"
            raise
        except ConnectionError:
            answer.fate = "left"
            raise

    async def _answer(self, connection: Connection, ask: dict[str, Any], answer: Answer) -> None:
        if self.mode is Mode.BUSY:
            answer.fate = "busy"
            busy = b'{"error":{"message":"queue full","type":"api_error","code":"engine_busy"}}'
            await connection.answer(busy, status=self._chance.choice([503, 503, 429]), retry_after="1")
            return
        usage = self._usage(ask["messages"])
        count = self._chance.randint(2, 10)
        words = [f"{answer.request_id}|{answer.serial}|{at} " for at in range(count)]
        words.append(f"{answer.request_id}|{answer.serial}|{count}|{answer.digest} ")
        reset_at = self._chance.randint(0, count) if self.mode is Mode.RESETTING else None
        stream = ask.get("stream") is True
        if stream:
            await connection.start_stream()
        for at, word in enumerate(words):
            await self._pause(connection, answer)
            if answer.fate == "wedged":
                return
            if stream:
                chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": word}}], "usage": None}
                await connection.chunk(_event(chunk))
            if at == reset_at:
                answer.fate = "reset"
                if not stream:
                    await connection.send(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{"
                    )
                    await asyncio.sleep(0.02)  # so that the head is there before the reset throws away what is unread
                if not connection.writer.is_closing():
                    connection.reset()
                return
        if stream:
            if (ask.get("stream_options") or {}).get("include_usage"):
                await connection.chunk(_event({"id": "c", "choices": [], "usage": usage}))
            answer.fate = "complete"
            await connection.send(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        else:
            message = {"role": "assistant", "content": "".join(words)}
            whole = {"id": "c", "choices": [{"index": 0, "message": message}], "usage": usage}
            answer.fate = "complete"
            await connection.answer(json.dumps(whole).encode())

    async def _pause(self, connection: Connection, answer: Answer) -> None:
        """Take the time of a token; wedged, take it until nobody waits any more."""
        slowly = 8 if self.mode is Mode.SLOW else 1
        await asyncio.sleep(slowly * self._token_s * self._chance.uniform(0.5, 1.5))
        if self.mode is Mode.WEDGED:
            answer.fate = "wedged"
            await connection.gone(_MOST_WEDGED_S)
            connection.writer.close()

    def _usage(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Four characters are a token; what a prompt shares with an earlier one, message by message, is cached."""
        total = cached = chain = 0
        for message in messages:
            chain = hash((chain, str(message)))
            total += len(str(message)) // 4
            cached = total if chain in self._known else cached
            self._known[chain] = None
            self._known.move_to_end(chain)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        details = {"cached_tokens": min(cached, total - 1)}
        return {"prompt_tokens": total, "completion_tokens": 8, "prompt_tokens_details": details}


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
