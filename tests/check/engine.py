"""A small engine of vLLM's kind: pages as captured, a counter that moves when it works, and a server's habits."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.engines.answers import answers


@dataclass(eq=False)
class Engine:
    """What it does, and what it was asked."""

    pages: dict[str, str] = field(default_factory=lambda: dict(answers("vllm-0.32.0-llama")))
    running: int = 0
    counted: int = 1_000
    health_status: int = 200
    health_tokens: int = 0
    """What a look at its health makes the model work through."""
    others_tokens: int = 0
    """What somebody else makes it work through between two looks at its metrics."""
    key: str | None = None
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 5_000, "completion_tokens": 1})
    reports: bool = False
    reuses: bool = True
    chat_status: int = 200
    url: str = ""
    prompts: list[str] = field(default_factory=list)
    marks: list[str | None] = field(default_factory=list)

    def metrics(self) -> str:
        """As captured, with the load and the counter of now."""
        self.counted += self.others_tokens
        text = self.pages["/metrics"]
        for name, now in (
            ("num_requests_running", self.running),
            ("num_requests_waiting", 0),
            ("prompt_tokens_total", self.counted),
        ):
            text, times = re.subn(rf"^(vllm:{name}\{{.*\}}) .*$", rf"\1 {now}", text, flags=re.MULTILINE)
            assert times == 1
        return text

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        if request.path == "/health":
            self.counted += self.health_tokens
            return web.Response(status=self.health_status)
        if request.path == "/v1/chat/completions":
            return await self.chat(request)
        if request.path not in self.pages:
            return web.Response(status=404)
        return web.Response(text=self.metrics() if request.path == "/metrics" else self.pages[request.path])

    async def chat(self, request: web.Request) -> web.Response:
        """An answer of one token."""
        prompt = (await request.json())["messages"][0]["content"]
        seen = prompt in self.prompts
        self.prompts.append(prompt)
        self.marks.append(request.headers.get("x-ramjet-probe"))
        if self.chat_status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.chat_status)
        usage = None if self.usage is None else dict(self.usage)
        if usage is not None and self.reports:
            usage["prompt_tokens_details"] = {"cached_tokens": 4_992 if seen and self.reuses else 0}
        return web.json_response({"choices": [{"message": {"content": "a"}}], "usage": usage})


@contextlib.asynccontextmanager
async def serving(engine: Engine, *, keeps_s: float = 60.0) -> AsyncIterator[Engine]:
    """The engine on a free port, until the block ends.

    Args:
        engine: what answers.
        keeps_s: how long it keeps a connection that nothing is sent on.
    """
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", engine.answer)
    runner = web.AppRunner(app, keepalive_timeout=keeps_s, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{site.port}"
    try:
        yield engine
    finally:
        await runner.cleanup()
        await asyncio.sleep(0)
