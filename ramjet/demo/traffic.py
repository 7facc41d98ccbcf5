"""Agents at work: conversations sent turn by turn through one URL, and what their client saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from ramjet.demo.agent import Agent

_CONNECT_S = 10.0
_ERROR_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """One turn as its client saw it. None stands for what the client could not know."""

    conversation: int
    """Counted from 0."""
    turn: int
    """Counted from 1."""
    status: int | None
    """HTTP status; None if no answer came."""
    replica: str | None
    """From `x-ramjet-replica`."""
    reason: str | None
    """From `x-ramjet-reason`."""
    prompt_tokens: int | None
    cached_tokens: int | None
    """None where usage did not say; SGLang does not say it of a complete miss."""
    ttft_s: float | None
    """From sending the request to the first generated token."""
    duration_s: float
    error: str | None
    """What went wrong; None for a complete answer."""

    @property
    def ok(self) -> bool:
        """The answer came, to its end."""
        return self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All turns of a drive, in the order they ended."""

    turns: tuple[TurnResult, ...]
    duration_s: float
    out_of_time: bool
    """The drive was ended by its limit; turns that were under way are not in it."""

    @property
    def failed(self) -> int:
        """Turns without a complete answer."""
        return sum(not turn.ok for turn in self.turns)

    @property
    def prompt_tokens(self) -> int:
        """All tokens sent, as far as usage said."""
        return sum(turn.prompt_tokens or 0 for turn in self.turns)

    @property
    def cached_tokens(self) -> int:
        """All tokens reused, as far as usage said."""
        return sum(turn.cached_tokens or 0 for turn in self.turns)

    @property
    def mean_ttft_s(self) -> float | None:
        """Mean seconds to the first token; None if there never was one."""
        seconds = [turn.ttft_s for turn in self.turns if turn.ttft_s is not None]
        return sum(seconds) / len(seconds) if seconds else None


async def drive(
    url: str,
    *,
    conversations: int,
    turns: int,
    concurrency: int,
    shared_system_tokens: int,
    growth_tokens: int,
    think_s: float,
    seed: int,
    on_turn: Callable[[TurnResult], None],
    model: str = "demo",
    answer_tokens: int = 48,
    limit_s: float = 900.0,
) -> Summary:
    """Let agents talk to `url` (without a path), all of them at once, and return what they saw.

    A turn that fails adds nothing to its conversation: the next turn sends the same again.

    Args:
        url: a replica, or what stands in front of some.
        conversations: how many agents.
        turns: how many requests each of them sends.
        concurrency: how many requests are under way at most.
        shared_system_tokens: length of the system prompt that all of them share.
        growth_tokens: length of a task and of a tool result.
        think_s: seconds between an answer and the next request of an agent.
        seed: decides every word they say.
        on_turn: called with each turn when it has ended; it must not raise.
        model: the model's name in each request.
        answer_tokens: `max_tokens` of each request.
        limit_s: after so many seconds everything is dropped where it stands.
    """
    driver = _Driver(
        places=asyncio.Semaphore(concurrency),
        turns=turns,
        think_s=think_s,
        model=model,
        answer_tokens=answer_tokens,
        on_turn=on_turn,
    )
    began = _now()
    limits = httpx.Limits(max_connections=concurrency)
    # A first token may take minutes, so only the whole has a limit. The environment's proxies are not asked: the demo
    # and its measurements are about the way from here to there.
    timeout = httpx.Timeout(None, connect=_CONNECT_S)
    out_of_time = False
    try:
        async with (
            httpx.AsyncClient(base_url=url, limits=limits, timeout=timeout, trust_env=False) as client,
            asyncio.timeout(limit_s),
            asyncio.TaskGroup() as agents,
        ):
            for number in range(conversations):
                agent = Agent(number, seed=seed, shared_system_tokens=shared_system_tokens, growth_tokens=growth_tokens)
                agents.create_task(driver.converse(client, number, agent))
    except TimeoutError:
        out_of_time = True
    return Summary(turns=tuple(driver.results), duration_s=_now() - began, out_of_time=out_of_time)


class _Driver:
    """What all agents of one drive share."""

    def __init__(
        self,
        *,
        places: asyncio.Semaphore,
        turns: int,
        think_s: float,
        model: str,
        answer_tokens: int,
        on_turn: Callable[[TurnResult], None],
    ) -> None:
        self._places = places
        self._turns = turns
        self._think_s = think_s
        self._model = model
        self._answer_tokens = answer_tokens
        self._on_turn = on_turn
        self.results: list[TurnResult] = []

    async def converse(self, client: httpx.AsyncClient, number: int, agent: Agent) -> None:
        for turn in range(1, self._turns + 1):
            if turn > 1:
                await asyncio.sleep(self._think_s)
            async with self._places:
                seen = _Seen(sent_at=_now())
                await _send(client, agent.request(self._model, self._answer_tokens), seen)
                ended_at = _now()
            if seen.error is None:
                agent.take(seen.answer)
            result = seen.result(number, turn, ended_at)
            self.results.append(result)
            self._on_turn(result)


@dataclass(slots=True)
class _Seen:
    """What is known of a turn so far."""

    sent_at: float
    status: int | None = None
    replica: str | None = None
    reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    first_at: float | None = None
    answer: str = ""
    error: str | None = None

    def take(self, chunk: dict[str, Any], now: float) -> None:
        """One chunk of the stream."""
        if "error" in chunk:
            self.error = str(chunk["error"])[:_ERROR_CHARACTERS]
        for choice in chunk.get("choices") or ():
            # The first chunk has no text, only a role; it too comes with the first token and not before.
            self.first_at = now if self.first_at is None else self.first_at
            self.answer += choice["delta"].get("content") or ""
        if usage := chunk.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    def result(self, conversation: int, turn: int, ended_at: float) -> TurnResult:
        return TurnResult(
            conversation=conversation,
            turn=turn,
            status=self.status,
            replica=self.replica,
            reason=self.reason,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            ttft_s=None if self.first_at is None else self.first_at - self.sent_at,
            duration_s=ended_at - self.sent_at,
            error=self.error,
        )


async def _send(client: httpx.AsyncClient, body: dict[str, Any], seen: _Seen) -> None:
    """Send one turn and note what comes; what goes wrong is noted too, and not raised."""
    complete = False
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            seen.status = response.status_code
            seen.replica = response.headers.get("x-ramjet-replica")
            seen.reason = response.headers.get("x-ramjet-reason")
            if response.status_code != httpx.codes.OK:
                seen.error = (await response.aread()).decode(errors="replace")[:_ERROR_CHARACTERS] or "no message"
                return
            async for data in _events(response):
                complete = data == "[DONE]"
                if not complete:
                    seen.take(json.loads(data), _now())
    except httpx.HTTPError as error:
        seen.error = f"{type(error).__name__}: {error}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        seen.error = f"not a chunk of a chat completion: {error!r}"
    if not complete and seen.error is None:
        seen.error = "the stream ended early"


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            yield line[len("data:") :].strip()


def _now() -> float:
    return asyncio.get_running_loop().time()
