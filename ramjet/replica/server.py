"""The HTTP server of a simulated replica: an engine's API, prefix cache and waiting times, without a model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from typing import Any

from aiohttp import web

from ramjet.core.cache import Blocks
from ramjet.core.chains import Cleared, Event
from ramjet.engines.kv_events import of_rank
from ramjet.replica.dialects import DIALECTS, Ask, Dialect, Reply
from ramjet.replica.driver import Driver, Run
from ramjet.replica.faults import ErrorEvent, Faults, OfRequest, ResetMidStream, Status, Wedge
from ramjet.replica.kv_events import publishing
from ramjet.replica.report import REPORTS, Report, metrics
from ramjet.sim.engine import Batch, Engine, Job
from ramjet.sim.profile import Profile
from ramjet.sim.tokens import Prompt, write_answer

BODY_LIMIT_BYTES = 64 * 2**20
"""Room for a prompt of 500,000 tokens with images beside it."""

RANK = "x-data-parallel-rank"
"""By which a client names the rank that is to serve a request."""

# aiohttp takes 0 for "no limit". Requests that still run at shutdown are cancelled after this, not finished.
_SHUTDOWN_S = 0.05


class _Refused(Exception):
    """A request is not taken; the message is for its client."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.more = more
        """What else stands in the error."""
        self.headers: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class _Rank:
    """A data-parallel rank: a model copy with a cache of its own."""

    report: Report
    driver: Driver


class Replica:
    """One simulated replica; `running_replica` starts and stops it."""

    def __init__(
        self,
        profile: Profile,
        speed: float,
        faults: Faults,
        log: Callable[[str], None] | None,
        *,
        whole_runs: bool = False,
        on_blocks: Sequence[Callable[[Event], None]] = (),
    ) -> None:
        self.profile = profile
        self.speed = speed
        """How many of its seconds pass in a real one."""
        self.url = ""
        """Where it listens, without a path; empty until it does."""
        self.requests = 0
        """Requests for an answer that arrived, refused ones too."""
        self._faults = faults
        self._log = log
        self._whole_runs = whole_runs
        self._on_blocks = on_blocks
        self._started_at = asyncio.get_running_loop().time()
        self._boot()

    def _boot(self) -> None:
        """A new engine with nothing in it, in each of its ranks."""
        self._ranks = [self._new_rank(rank) for rank in range(self.profile.ranks)]
        self._turns = cycle(range(self.profile.ranks))
        for each in self._ranks:
            for line in each.report.boot():
                self._write(each.report, line)
        for tell in self._on_blocks:
            tell(Cleared())  # as SGLang does when it starts

    def _new_rank(self, rank: int) -> _Rank:
        report = REPORTS[self.profile.engine](self.profile, self.speed, rank)
        tell = self._on_blocks[rank] if self._on_blocks else None
        engine = Engine(self.profile, on_batch=partial(self._batch, rank), on_blocks=tell, whole_runs=self._whole_runs)
        return _Rank(report, Driver(engine, self.speed * self._faults.pace(self.age_s)))

    @property
    def engines(self) -> list[Engine]:
        """What it simulates, rank by rank; others after a restart."""
        return [each.driver.engine for each in self._ranks]

    @property
    def engine(self) -> Engine:
        """The first of them."""
        return self.engines[0]

    @property
    def in_flight(self) -> int:
        """Requests inside, waiting or running. Those whose client has left are until the forward they are in ends."""
        return sum(each.running + each.waiting for each in self.engines)

    @property
    def _report(self) -> Report:
        """Of what is the same for all ranks."""
        return self._ranks[0].report

    @property
    def age_s(self) -> float:
        """Since it was started, in its own seconds."""
        return (asyncio.get_running_loop().time() - self._started_at) * self.speed

    def app(self) -> web.Application:
        """The HTTP application."""
        app = web.Application(client_max_size=BODY_LIMIT_BYTES)
        for dialect in DIALECTS:
            if dialect.engines is None or self.profile.engine in dialect.engines:
                app.router.add_post(dialect.path, partial(self._generate, dialect))
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        for path in self._report.pages:
            app.router.add_get(path, self._page)
        for path in self._report.flush_paths:
            app.router.add_get(path, self._flush)
            app.router.add_post(path, self._flush)
        return app

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _generate(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        fault = self._faults.of_request(self.requests, self.age_s)
        try:
            # Read whatever happens: the goodbye of a client is not heard behind a body that nobody takes.
            raw = await _read(request)
            if isinstance(fault, Status):
                raise _simulated(fault)
            if isinstance(fault, Wedge):
                await asyncio.get_running_loop().create_future()
            ask = _understood(dialect, raw)
            rank = self._rank(dialect, ask, request.headers.get(RANK))
            job, reply = self._job(ask)
        except _Refused as refused:
            body = dialect.error(str(refused), refused.status, self.profile.engine)
            if "code" in body.get("error", {}):
                body["error"] |= refused.more
            return web.json_response(body, status=refused.status, headers=refused.headers)
        with self._ranks[rank].driver.running(job) as run:
            answer = _Answer(request, dialect, run, reply, fault)
            await (answer.stream() if ask.stream else answer.whole())
        return await answer.end()

    def _rank(self, dialect: Dialect, ask: Ask, header: str | None) -> int:
        """The rank that is to serve a request: the one that is named, else each in its turn."""
        ranks, is_sglang = len(self._ranks), self.profile.engine == "sglang"
        named = ask.rank if is_sglang else None
        if header is not None and dialect.reads_rank_header:
            try:
                named = int(header)
            except ValueError:
                if is_sglang:
                    message = f"Invalid X-Data-Parallel-Rank header: must be an integer, got '{header}'"
                    raise _Refused(400, message) from None
        if named is None or (ranks == 1 and named == 0):
            return next(self._turns)
        if not 0 <= named < ranks:
            raise _Refused(400, f"routed_dp_rank={named} out of range [0, {ranks})")
        return named

    def _job(self, ask: Ask) -> tuple[Job, Reply]:
        """The request as the engine sees it, and the answer that it will get."""
        profile, prompt = self.profile, Prompt(ask.text, self.profile.page_tokens)
        ends_at = ask.max_tokens if ask.ignore_eos else profile.answer_tokens
        answer_tokens = min(ask.max_tokens, ends_at)
        if prompt.tokens + answer_tokens > profile.most_tokens:
            message, more = self._report.too_long(prompt.tokens, answer_tokens)
            raise _Refused(400, message, **more)
        tokens = write_answer(prompt.seed, answer_tokens)

        def with_answer(written: int) -> Blocks:
            return prompt.followed_by("".join(tokens[:written]))

        reply = Reply(
            engine=profile.engine,
            identity=uuid.uuid4().hex,
            model=ask.model or profile.model,
            created_at=_unix_time(),
            prompt_tokens=prompt.tokens,
            reports_cached=profile.reports_cached,
            drops_zero=profile.drops_zero,
            tokens=tokens,
            stopped=ends_at < ask.max_tokens,
            include_usage=ask.include_usage,
        )
        return Job(prompt.blocks, prompt.tokens, answer_tokens, with_answer), reply

    # -- about itself -------------------------------------------------------------------------------------------------

    async def _health(self, _request: web.Request) -> web.Response:
        told = self._report.health
        return web.Response() if told is None else web.json_response(told)

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response(self._report.models(_unix_time()))

    async def _metrics(self, _request: web.Request) -> web.Response:
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(text=metrics([(each.report, each.driver.engine) for each in self._ranks]), headers=kind)

    async def _page(self, request: web.Request) -> web.Response:
        pages = [each.report.pages[request.path](each.driver.engine) for each in self._ranks]
        return web.json_response(self._report.joined(pages))

    async def _flush(self, _request: web.Request) -> web.Response:
        # SGLang too refuses while requests run or wait: they use what would be thrown away.
        flushed = [each.driver.flush() for each in self._ranks]
        if not all(flushed):
            return web.Response(status=400, text=f"Cache not flushed: {self.in_flight} requests in flight.\n")
        return web.Response(text="Cache flushed.\n")

    def _batch(self, rank: int, batch: Batch) -> None:
        report, driver = self._ranks[rank].report, self._ranks[rank].driver
        line = report.line(batch, driver.engine)
        if line is not None:
            self._write(report, line)

    def _write(self, report: Report, line: str) -> None:
        if self._log is not None:
            self._log(datetime.now(UTC).strftime(report.stamp) + line)

    def stop(self) -> None:
        """Nothing moves in it any more."""
        for each in self._ranks:
            each.driver.stop()

    # -- faults -------------------------------------------------------------------------------------------------------

    @property
    def restarts(self) -> bool:
        """Whether it is to restart by itself."""
        return bool(self._faults.restarts)

    def pace(self) -> None:
        """Change its speed whenever a fault begins or ends."""
        loop = asyncio.get_running_loop()
        for at_s in self._faults.turns_s:
            if at_s:
                loop.call_at(self._started_at + at_s / self.speed, self._turn, at_s)

    def _turn(self, at_s: float) -> None:
        pace = self._faults.pace(at_s)
        slower = f"all takes {1 / pace:.3g} times as long" if pace else "stands still"
        self._tell("over, at its own pace again" if pace == 1 else slower)
        for each in self._ranks:
            each.driver.run_at(self.speed * pace)

    def _tell(self, what: str) -> None:
        """Beside the engine's lines, what no engine would say of itself."""
        if self._log is not None:
            self._log(f"ramjet sim: fault after {self.age_s:.1f} s: {what}")

    async def restart(self, runner: web.AppRunner, site: web.TCPSite, host: str) -> None:
        """Restart whenever a fault says so: break all connections, refuse new ones for a while, forget everything."""
        loop = asyncio.get_running_loop()
        for fault in self._faults.restarts:
            await asyncio.sleep(self._started_at + fault.at_s / self.speed - loop.time())
            port = site.port
            self._tell(f"restarts, and nobody listens for {fault.for_s:g} s")
            await site.stop()
            assert runner.server is not None
            for connection in runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            self.stop()
            await asyncio.sleep(fault.for_s / self.speed)
            self._boot()
            site = web.TCPSite(runner, host, port)
            await site.start()


class _Answer:
    """One answer on its way out, and what goes wrong with it."""

    def __init__(self, request: web.Request, dialect: Dialect, run: Run, reply: Reply, fault: OfRequest | None) -> None:
        self._request = request
        self._dialect = dialect
        self._run = run
        self._reply = reply
        self._fault = fault if isinstance(fault, ResetMidStream | ErrorEvent) else None
        # A fault behind the last token is one at it.
        self._most = len(reply.tokens) if self._fault is None else min(len(reply.tokens), self._fault.after_tokens)
        self._stream: web.StreamResponse | None = None

    async def whole(self) -> None:
        """Wait for it."""
        await self._run.until(self._most)
        self._read()

    async def stream(self) -> None:
        """Send it token by token, as far as it goes."""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = self._stream = web.StreamResponse(headers=headers)
        dialect = self._dialect
        if opening := dialect.opening(self._reply):
            await response.prepare(self._request)
            await response.write(opening)
        sent = 0
        while sent < self._most:
            written = min(await self._run.until(sent + 1), self._most)
            piece = b""
            if not sent:
                self._read()
                piece = dialect.first(self._reply)
                await response.prepare(self._request)
            # What came at once goes at once; a client that is slow holds up nobody but itself.
            await response.write(piece + b"".join(dialect.token(self._reply, at) for at in range(sent, written)))
            sent = written
        if not response.prepared:
            await response.prepare(self._request)

    async def end(self) -> web.StreamResponse:
        """Send its end. Only now is it nowhere in the engine: who has seen the end finds the answer in the cache."""
        self._read()
        if isinstance(self._fault, ResetMidStream):
            return await self._reset()
        if isinstance(self._fault, ErrorEvent):
            message = self._fault.message
            if self._stream is None:
                return web.json_response(self._dialect.error(message, 500, self._reply.engine), status=500)
            closing = self._dialect.broken(message)
        elif self._stream is None:
            return web.json_response(self._dialect.whole(self._reply))
        else:
            closing = self._dialect.closing(self._reply)
        await self._stream.write(closing)
        await self._stream.write_eof()
        return self._stream

    def _read(self) -> None:
        """Put in the reply what is known of it by now."""
        job = self._run.job
        started, first, ended = job.started_at or 0.0, job.first_at, job.ended_at
        self._reply = replace(
            self._reply,
            cached_tokens=job.cached_tokens or 0,
            read_s=0.0 if first is None else first - started,
            written_s=0.0 if first is None or ended is None else ended - first,
        )

    async def _reset(self) -> web.StreamResponse:
        transport = self._request.transport
        if transport is not None:
            raw = transport.get_extra_info("socket")
            if raw is not None:
                # A reset instead of a goodbye.
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        # The handler is cancelled as soon as the loop hears of it.
        await asyncio.get_running_loop().create_future()
        raise ConnectionResetError


@asynccontextmanager
async def running_replica(
    profile: Profile,
    *,
    speed: float = 1.0,
    host: str = "127.0.0.1",
    port: int = 0,
    faults: Faults | None = None,
    log: Callable[[str], None] | None = None,
    whole_runs: bool = False,
    kv_events: tuple[str, str | None] | None = None,
) -> AsyncIterator[Replica]:
    """A replica that listens until the block ends, which aborts what it still works on.

    Args:
        profile: what to simulate.
        speed: how many of its seconds pass in a real one.
        host: where to listen.
        port: 0 takes a free one.
        faults: what goes wrong.
        log: called with every line of the engine's log.
        whole_runs: after its first token, let an answer come in as few pieces as may be, when their last token is due:
            sending each by itself is most of what a replica costs.
        kv_events: where to publish what its cache stores and lets go, and where to do so again on demand; not for slots.

    Raises:
        OSError: the address is taken, or not ours.
    """
    async with contextlib.AsyncExitStack() as stack:
        tells: list[Callable[[Event], None]] = []
        if kv_events is not None:
            events, replay = kv_events
            for rank in range(profile.ranks):
                again = None if replay is None else of_rank(replay, rank)
                tells.append((await stack.enter_async_context(publishing(of_rank(events, rank), again))).tell)
        replica = Replica(profile, speed, faults or Faults(), log, whole_runs=whole_runs, on_blocks=tells)
        # Without handler_cancellation a client that leaves would be answered to the end.
        runner = web.AppRunner(replica.app(), handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        replica.url = f"http://{f'[{host}]' if ':' in host else host}:{site.port}"
        stack.callback(replica.stop)
        replica.pace()
        if replica.restarts:
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            stack.callback(tasks.create_task(replica.restart(runner, site, host), name="restart").cancel)
        yield replica


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _Refused(413, f"body exceeds the limit of {BODY_LIMIT_BYTES:,} bytes") from None


def _understood(dialect: Dialect, raw: bytes) -> Ask:
    try:
        body = json.loads(raw)
        if not isinstance(body, dict):
            raise _Refused(400, "the body must be a JSON object")
        return dialect.read(body)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, str(error)) from None


def _simulated(fault: Status) -> _Refused:
    refused = _Refused(fault.status, f"simulated fault: {fault.status}")
    if fault.retry_after_s is not None:
        refused.headers["Retry-After"] = str(fault.retry_after_s)
    return refused


def _unix_time() -> int:
    return int(datetime.now(UTC).timestamp())
