"""A real `ramjet serve` in front of engines, and a client that knows what became of each of its requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.engines import MODEL, Engine
from tests.acceptance.lexicon import LEXICON
from tests.soak.process import Served, served

CHAT = "/v1/chat/completions"
WORD = len(LEXICON[0])
"""Characters of a token."""
_PATIENCE_S = 30.0
_ANSWER_S = 300.0


def words(tokens: int, chance: random.Random) -> str:
    """Text of so many tokens that nobody else has."""
    return "".join(chance.choices(LEXICON, k=tokens))


def user(content: str) -> dict[str, str]:
    """A user's message."""
    return {"role": "user", "content": content}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client saw of an answer."""

    request_id: str
    status: int | None
    """None: the connection was cut."""
    text: str
    replica: str | None
    usage: dict[str, Any] | None
    """As the engine said it; None where the client did not ask, or it did not come so far."""
    received: int
    """Bytes of it that came."""
    complete: bool
    """Whether it came to its end, and that was no error."""

    @property
    def cached_tokens(self) -> int:
        """What the engine told the client that it reused."""
        assert self.usage is not None, self
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


class Front:
    """A Ramjet that serves, with its log."""

    def __init__(self, ramjet: Served, client: httpx.AsyncClient) -> None:
        self.ramjet = ramjet
        self._client = client
        self._sent = 0

    async def ask(
        self, messages: Sequence[dict[str, str]], *, max_tokens: int = 8, stream: bool = False, **more: Any
    ) -> Answer:
        """Send messages, and wait for the end of the answer, whatever that is."""
        self._sent += 1
        request_id = f"asked-{self._sent}"
        body = {
            "model": MODEL,
            "temperature": 0,
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": stream,
        } | more
        status, replica, received, raw = None, None, 0, b""
        try:
            async with self._client.stream("POST", CHAT, json=body, headers={"x-request-id": request_id}) as answer:
                status, replica = answer.status_code, answer.headers.get("x-ramjet-replica")
                async for piece in answer.aiter_bytes():
                    raw += piece
                    received += len(piece)
        except httpx.TransportError:
            return Answer(request_id=request_id, status=status, text="", replica=replica, usage=None, received=received, complete=False)  # fmt: skip
        text, usage, complete = _read_stream(raw) if stream else _read_whole(raw)
        return Answer(
            request_id=request_id,
            status=status,
            text=text,
            replica=replica,
            usage=usage,
            received=received,
            complete=complete and status == 200,
        )

    async def leave_early(self, messages: Sequence[dict[str, str]], *, max_tokens: int) -> float:
        """Ask for a stream, and go away when its first piece has come; the moment of that."""
        body = {"model": MODEL, "temperature": 0, "messages": messages, "max_tokens": max_tokens, "stream": True}
        async with self._client.stream("POST", CHAT, json=body) as answer:
            async for piece in answer.aiter_bytes():
                if b"data:" in piece:
                    await asyncio.sleep(1.0)  # it is well on its way
                    break
        return time.monotonic()

    async def records(self, answers: Iterable[Answer]) -> list[dict[str, Any]]:
        """The log lines of these answers, in their order."""
        ids = [answer.request_id for answer in answers]
        gives_up_at = time.monotonic() + _PATIENCE_S
        while True:
            lines = {line["request_id"]: line for line in self.ramjet.lines() if line["event"] == "request"}
            missing = [each for each in ids if each not in lines]
            if not missing:
                return [lines[each] for each in ids]
            if time.monotonic() > gives_up_at:
                raise TimeoutError(f"no log line for {missing}")
            await asyncio.sleep(0.1)

    async def pool_tokens(self) -> dict[str, float]:
        """What the replicas' token pools are taken for, in tokens."""
        text = (await self._client.get(f"{self.ramjet.admin}/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("ramjet_pool_tokens{")]
        return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}

    async def know_pools(self, count: int) -> None:
        """Wait until Ramjet knows the token pools of so many replicas."""
        for _ in range(int(_PATIENCE_S / 0.1)):
            if len(await self.pool_tokens()) == count:
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"Ramjet knows only these token pools: {await self.pool_tokens()}")


@contextlib.asynccontextmanager
async def in_front(engines: Sequence[Engine], directory: Path, **settings: Any) -> AsyncIterator[Front]:
    """A Ramjet in front of engines named a, b and so on, as soon as it knows how large their token pools are.

    Args:
        engines: which.
        directory: for its files.
        settings: more of the configuration.
    """
    replicas = [{"name": name, "url": each.url} for name, each in zip("ab", engines, strict=False)]
    async with (
        served({"replicas": replicas} | settings, directory) as ramjet,
        httpx.AsyncClient(base_url=ramjet.url, trust_env=False, timeout=_ANSWER_S) as client,
    ):
        front = Front(ramjet, client)
        await front.know_pools(len(engines))
        yield front


class Talk:
    """A conversation, as its client keeps it: every turn sends all that was said before."""

    def __init__(self, opening: str, *, system: str | None = None) -> None:
        """
        Args:
            opening: what the user says first.
            system: the system prompt.
        """
        self.messages = [] if system is None else [{"role": "system", "content": system}]
        self.messages.append(user(opening))
        self.answers: list[Answer] = []

    async def turn(self, front: Front, says: str | None = None, *, max_tokens: int = 8, stream: bool = False) -> Answer:
        """Send it, and take in the answer.

        Args:
            front: to whom.
            says: what the user says now; None for the first turn, and to send it once more.
            max_tokens: the answer's length.
            stream: whether the answer is one.
        """
        if says is not None:
            self.messages.append(user(says))
        answer = await front.ask(self.messages, max_tokens=max_tokens, stream=stream)
        assert answer.complete, answer
        self.answers.append(answer)
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer

    def branch(self) -> Talk:
        """Another one that goes its own way from here."""
        other = Talk("")
        other.messages = list(self.messages)
        return other


def _read_whole(raw: bytes) -> tuple[str, dict[str, Any] | None, bool]:
    try:
        said = json.loads(raw)
        return said["choices"][0]["message"]["content"] or "", said.get("usage"), True
    except (ValueError, KeyError, TypeError, IndexError):
        return raw.decode(errors="replace"), None, False


def _read_stream(raw: bytes) -> tuple[str, dict[str, Any] | None, bool]:
    """Text and usage, and whether the last word was that it is done."""
    text, usage, complete = "", None, False
    for line in raw.decode(errors="replace").splitlines():
        said = line.removeprefix("data: ")
        if not line.startswith("data: "):
            continue
        if said == "[DONE]":
            complete = True
            continue
        chunk = json.loads(said)
        if "error" in chunk:
            return text, usage, False
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", ()):
            text += choice["delta"].get("content") or ""
    return text, usage, complete
