"""A replica by a simple rule: what it keeps of prompts is a few lines, what it says about them is what engines say.

Four characters are a token. `Cache` is pure, and `play` runs a plan against it without a socket; `serving` puts it behind
a real HTTP server on loopback.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ramjet.probes.prompts import Writer
from ramjet.probes.steps import REFUSED, Ask, Plan, Step, TooLong

CHARACTERS = 4


def rendered(messages: Any) -> str:
    """The prompt as the model gets it."""
    said = [f"<|{message['role'][:4]}|>{message['content']}<|end|>" for message in messages]
    return "".join([*said, "<|assistant|>"])


def count_tokens(text: str) -> int:
    """Tokens of a text."""
    return -(-len(text) // CHARACTERS)


@dataclass(eq=False)
class Cache:
    """What a replica keeps: pages of KV, and where it has a chunk and a grid, states at the end of each chunk too.

    Both go by least recent use, a prompt's tail before its head. A prompt resumes at the deepest state on its way, or at
    the last page it has where there are no states.
    """

    pool_tokens: int = 1 << 40
    page: int = 64
    chunk: int = 6_144
    grid: int | None = None
    """Multiples of which states lie on; None for a model of attention layers alone."""
    slots: int = 24
    """States that are kept, without what running requests need."""
    per_path: int | None = None
    forks: bool = True
    gives_up: int = 0
    """Tokens of what it could reuse that it does not, as engines that guess tokens ahead give up a block."""
    pages: OrderedDict[int, None] = field(default_factory=OrderedDict)
    states: OrderedDict[int, None] = field(default_factory=OrderedDict)
    forked: set[int] = field(default_factory=set)

    def serve(self, text: str) -> int:
        """Read a prompt; returns how many of its tokens were reused."""
        length = count_tokens(text)
        width = self.page * CHARACTERS
        chain, hashes = 0, []
        for start in range(0, length // self.page * width, width):
            chain = hash((chain, text[start : start + width]))
            hashes.append(chain)
        known = 0
        while known < len(hashes) and hashes[known] in self.pages:
            known += 1
        known_tokens = known * self.page
        cached = max(0, min(known_tokens, (length - 1) // self.page * self.page) - self.gives_up)
        if self.grid is not None:
            depths = reversed(self._depths(cached))
            cached = next((depth for depth in depths if self._hash(hashes, depth) in self.states), 0)
            if cached:
                self.states.move_to_end(self._hash(hashes, cached))
        for each in reversed(hashes):
            self.pages[each] = None
            self.pages.move_to_end(each)
        while len(self.pages) > self.pool_tokens // self.page:
            self.pages.popitem(last=False)
        if self.grid is not None:
            self._save(hashes, cached, length, known_tokens)
        return cached

    def _save(self, hashes: list[int], cached: int, length: int, known_tokens: int) -> None:
        assert self.grid is not None
        fork = known_tokens // self.grid * self.grid
        position = cached
        while position < length:
            end = min(position + self.chunk, length)
            at = position + (end - position) // self.grid * self.grid
            if self.forks and cached < fork and position < fork < end:
                at = fork
                self.forked.add(self._hash(hashes, at))
            if at > position:
                self.states[self._hash(hashes, at)] = None
                self.states.move_to_end(self._hash(hashes, at))
                self._cap(hashes, at)
            while len(self.states) > self.slots:
                self.states.popitem(last=False)
            position = end

    def _cap(self, hashes: list[int], tail: int) -> None:
        if self.per_path is None:
            return
        saved = [depth for depth in self._depths(tail) if self._hash(hashes, depth) in self.states]
        over = max(0, len(saved) - self.per_path)
        for depth in [each for each in saved[:-1] if self._hash(hashes, each) not in self.forked][:over]:
            del self.states[self._hash(hashes, depth)]

    def _depths(self, most: int) -> range:
        assert self.grid is not None
        return range(self.grid, most + 1, self.grid)

    def _hash(self, hashes: list[int], depth: int) -> int:
        return hashes[depth // self.page - 1]


@dataclass(eq=False)
class Tiers:
    """Whole sessions on a device and on a host, both by least recent use; tells where each came from."""

    device: int = 12
    host: int = 0
    reads_s: tuple[float, float, float] = (0.15, 0.42, 3.35)
    """Device, host, anew (seed)."""
    counts: bool = True
    where: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def answer(self, ask: Ask) -> dict[str, Any]:
        """What a step says."""
        text = ask.messages[0]["content"]
        place = list(reversed(self.where)).index(text) if text in self.where else None
        tier = 2 if place is None else 0 if place < self.device else 1
        self.where[text] = None
        self.where.move_to_end(text)
        while len(self.where) > self.device + self.host:
            self.where.popitem(last=False)
        cached = 0 if tier == 2 else ask.tokens - 100
        host = None if not (self.counts and ask.see_tiers) else cached if tier == 1 else 0
        return {"cached_tokens": cached, "host_tokens": host, "ttft_s": self.reads_s[tier]}


def play(
    plan: Plan, answer: Callable[[Ask], dict[str, Any]], *, most_tokens: int | None = None, at_most: int = 3_000
) -> list[Step]:
    """Run a plan against a rule; a prompt longer than `most_tokens` is refused."""
    steps: list[Step] = []
    names = ("name", "tokens", "wanted_tokens", "shared_tokens", "session", "trial", "sessions")
    try:
        ask = next(plan)
        while True:
            assert len(steps) < at_most
            same = {name: getattr(ask, name) for name in names}
            unknown: dict[str, Any] = {"prompt_tokens": None, "cached_tokens": None, "ttft_s": None}
            if most_tokens is not None and ask.tokens > most_tokens:
                steps.append(Step(**same, **unknown, role=REFUSED, most_tokens=most_tokens))
                ask = plan.throw(TooLong("too long", most_tokens))
            else:
                said = {**unknown, "prompt_tokens": ask.tokens, **answer(ask)}
                steps.append(Step(**same, **said, role=ask.role))
                ask = plan.send(steps[-1])
    except StopIteration:
        return steps


def by(cache: Cache, *, reports: bool = True) -> Callable[[Ask], dict[str, Any]]:
    """The rule of a cache, for `play`."""

    def answer(ask: Ask) -> dict[str, Any]:
        text = rendered(ask.messages)
        cached = cache.serve(text)
        length = count_tokens(text)
        seconds = 0.15 + (length - cached) * 0.16e-3
        return {"prompt_tokens": length, "cached_tokens": cached if reports else None, "ttft_s": seconds}

    return answer


MODEL = "glm"


@dataclass(eq=False)
class Replica:
    """A real HTTP server with an engine's API in front of a `Cache`; what it does may be changed while it serves."""

    cache: Cache = field(default_factory=Cache)
    reports: bool = True
    drops_zero: bool = False
    """SGLang's way: no count where nothing was reused."""
    streams: bool = True
    key: str | None = None
    most_tokens: int | None = None
    pages: dict[str, Any] = field(default_factory=dict)
    """What it says of itself, by path: JSON, or a text."""
    gone_after: int | None = None
    """Answers after which it breaks every connection."""
    silent_after: int | None = None
    """Answers after which it says no more; then `silent` is set."""
    silent: asyncio.Event = field(default_factory=asyncio.Event)
    token_s: float = 0.0
    """Seconds for each token that it reads."""
    name: str | None = None
    """What it puts into `x-ramjet-replica`, as a load balancer does."""
    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and probe header of every request."""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def app(self) -> web.Application:
        """Its HTTP server."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/{page:.*}", self._page)
        return app

    def _see(self, request: web.Request) -> web.Response | None:
        self.asked.append((request.path, request.headers.get("x-ramjet-probe")))
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "Unauthorized")
        return None

    async def _page(self, request: web.Request) -> web.Response:
        if (refusal := self._see(request)) is not None:
            return refusal
        models = {"/v1/models": {"object": "list", "data": [{"id": MODEL, "owned_by": "test"}]}}
        page = {**models, **self.pages}.get(request.path)
        if page is None:
            return web.Response(status=404)
        return web.Response(text=page) if isinstance(page, str) else web.json_response(page)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if (refusal := self._see(request)) is not None:
            return refusal
        if self.gone_after is not None and len(self.bodies) >= self.gone_after:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if self.silent_after is not None and len(self.bodies) >= self.silent_after:
            self.silent.set()
            await asyncio.Event().wait()
        body = await request.json()
        self.bodies.append(body)
        if body["stream"] and not self.streams:
            return _error(400, "stream_options is not supported")
        text = rendered(body["messages"])
        length = count_tokens(text)
        if self.most_tokens is not None and length > self.most_tokens:
            return _error(
                400,
                f"The input ({length} tokens) is longer than the model's context length ({self.most_tokens} tokens).",
            )
        cached = self.cache.serve(text)
        await asyncio.sleep(self.token_s * (length - cached))
        headers = {"x-ramjet-replica": self.name} if self.name else {}
        return await self._answer(request, body, self._usage(length, cached), headers)

    async def _answer(
        self, request: web.Request, body: dict[str, Any], usage: dict[str, Any], headers: dict[str, str]
    ) -> web.StreamResponse:
        if not body["stream"]:
            message = {"role": "assistant", "content": "so it is"}
            return web.json_response({"choices": [{"index": 0, "message": message}], "usage": usage}, headers=headers)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **headers})
        await response.prepare(request)
        for said in ({"role": "assistant", "content": ""}, {"content": "so it"}, {"content": " is"}):
            await response.write(_event({"choices": [{"index": 0, "delta": said}], "usage": None}))
        if body.get("stream_options", {}).get("include_usage"):
            await response.write(_event({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _usage(self, length: int, cached: int) -> dict[str, Any]:
        told = self.reports and (cached or not self.drops_zero)
        return {
            "prompt_tokens": length,
            "completion_tokens": 2,
            "total_tokens": length + 2,
            "prompt_tokens_details": {"cached_tokens": cached} if told else None,
        }


@asynccontextmanager
async def serving(replica: Replica) -> AsyncIterator[Replica]:
    """The replica on a free loopback port."""
    runner = web.AppRunner(replica.app(), access_log=None, shutdown_timeout=0.05, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    replica.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield replica
    finally:
        await runner.cleanup()


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


def taught(characters: float = CHARACTERS, template: int = 7) -> Writer:
    """A writer that has had two answers from an engine with this tokenizer and template."""
    writer = Writer("nonce")
    for tokens in (256, 2_048):
        text = writer.text("calibration", tokens)
        text = text[: len(text) // CHARACTERS * CHARACTERS]
        writer.learn(len(text), template + math.ceil(len(text) / characters))
    return writer
