"""A simulated replica: a real HTTP server with an engine's API, prefix cache and waiting times, without a model."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from aiohttp import web

from ramjet.core.cache import PrefixCache
from ramjet.demo.dialects import DIALECTS, Ask, Dialect, Reply
from ramjet.demo.engine import Engine, Profile, Work
from ramjet.demo.report import metrics, models, server_info

BODY_LIMIT_BYTES = 64 * 2**20
"""Room for a prompt of 500,000 tokens with images beside it."""

# aiohttp takes 0 for "no limit". Requests that still run at shutdown are cancelled after this, not finished.
_SHUTDOWN_S = 0.05


class Replica:
    """One simulated replica; `running_replica` starts and stops it."""

    def __init__(self, profile: Profile) -> None:
        self.engine = Engine(profile)
        self.url = ""
        """Where it listens, without a path; empty until it does."""
        self.requests = 0
        """Requests for an answer that arrived, refused ones too."""
        # One prompt is read at a time, in order of arrival.
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    @property
    def profile(self) -> Profile:
        """Its properties."""
        return self.engine.profile

    @property
    def cache(self) -> PrefixCache:
        """What it holds."""
        return self.engine.cache

    @property
    def in_flight(self) -> int:
        """Requests inside, waiting or running."""
        return len(self.engine.works)

    def app(self) -> web.Application:
        """The HTTP application."""
        app = web.Application(client_max_size=BODY_LIMIT_BYTES)
        for dialect in DIALECTS:
            app.router.add_post(dialect.path, partial(self._generate, dialect))
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get("/get_server_info", self._server_info)
        app.router.add_post("/flush_cache", self._flush_cache)
        return app

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _generate(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        try:
            ask = dialect.read(_decoded(await request.read()))
            work = self.engine.accept(ask.text, ask.max_tokens, ignore_eos=ask.ignore_eos)
        except web.HTTPRequestEntityTooLarge:
            message = f"body exceeds the limit of {BODY_LIMIT_BYTES:,} bytes"
            return web.json_response(dialect.error(message, 413), status=413)
        except (ValueError, RecursionError) as error:
            return web.json_response(dialect.error(str(error), 400), status=400)
        reply = self._reply(ask, work)
        if ask.stream:
            return await self._stream(request, dialect, work, reply)
        return web.json_response(dialect.whole(await self._answer(work, reply)))

    def _reply(self, ask: Ask, work: Work) -> Reply:
        return Reply(
            identity=uuid.uuid4().hex,
            model=ask.model or self.profile.model,
            created_at=_unix_time(),
            prompt_tokens=work.prompt_tokens,
            cached_tokens=0,
            report_cache=self.profile.report_cache,
            tokens=work.answer,
            stopped=work.stopped,
            include_usage=ask.include_usage,
        )

    async def _answer(self, work: Work, reply: Reply) -> Reply:
        async with self._inside(work):
            first_at = await self._prefill(work)
            await _until(first_at + self.profile.token_s * (len(work.answer) - 1))
            self.engine.finish(work, _now())
        return replace(reply, cached_tokens=work.cached_tokens)

    async def _stream(self, request: web.Request, dialect: Dialect, work: Work, reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        async with self._inside(work):
            if opening := dialect.opening(reply):
                await response.prepare(request)
                await response.write(opening)
            first_at = await self._prefill(work)
            reply = replace(reply, cached_tokens=work.cached_tokens)
            await response.prepare(request)
            await response.write(dialect.first(reply) + dialect.token(reply, 0))
            for at in range(1, len(reply.tokens)):
                await _until(first_at + self.profile.token_s * at)
                await response.write(dialect.token(reply, at))
            self.engine.finish(work, _now())
        # Only now: a client that has seen the end must find its answer in the cache and nothing in flight.
        await response.write(dialect.closing(reply))
        await response.write_eof()
        return response

    # -- the engine's time --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _inside(self, work: Work) -> AsyncIterator[None]:
        """Let the work in; however it ends, what it took is free afterwards and who waits for room is told."""
        try:
            with work:
                yield
        finally:
            self._left.set()

    async def _prefill(self, work: Work) -> float:
        """Wait for the turn and for room, read the prompt; returns when (monotonic) the first token was there."""
        async with self._turn:
            while (seconds := self.engine.start(work, _now())) is None:
                # Nobody else waits here, for nobody else has the turn; those who run will leave.
                self._left.clear()
                await self._left.wait()
            await asyncio.sleep(seconds)
            first_at = _now()
            self.engine.prefilled(work, first_at)
        return first_at

    # -- about itself -------------------------------------------------------------------------------------------------

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response(models(self.profile, _unix_time()))

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=metrics(self.engine))

    async def _server_info(self, _request: web.Request) -> web.Response:
        return web.json_response(server_info(self.profile))

    async def _flush_cache(self, _request: web.Request) -> web.Response:
        # SGLang too refuses while requests run or wait: they use what would be thrown away.
        if self.in_flight:
            return web.Response(status=400, text=f"cache not flushed: {self.in_flight} requests in flight\n")
        self.cache.clear()
        return web.Response(text="cache flushed\n")


@asynccontextmanager
async def running_replica(
    profile: Profile | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Replica]:
    """A replica that listens until the block ends; port 0 takes a free one. Leaving aborts what it still works on."""
    replica = Replica(profile or Profile())
    # Without handler_cancellation a client that leaves would be answered to the end.
    runner = web.AppRunner(replica.app(), handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = runner.addresses[0][1]
        replica.url = f"http://[{host}]:{bound}" if ":" in host else f"http://{host}:{bound}"
        yield replica
    finally:
        await runner.cleanup()


def _decoded(raw: bytes) -> dict[str, object]:
    body = json.loads(raw)
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")  # noqa: TRY004 - a client's mistake, not a caller's
    return body


def _now() -> float:
    return asyncio.get_running_loop().time()


def _unix_time() -> int:
    return int(datetime.now(UTC).timestamp())


async def _until(at: float) -> None:
    """Sleep to a monotonic instant; yields even if that has passed, so that a fast replica does not stop the others."""
    await asyncio.sleep(max(0.0, at - _now()))
