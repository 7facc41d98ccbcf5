"""One request, from the client's socket to a replica's and back.

It moves bytes and reads the clock; where to send them is the router's decision, what they mean the observer's, what
the client is told the error table's. Whatever happens, the request ends in exactly one record.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import structlog
from aiohttp import web
from multidict import CIMultiDict

from ramjet.core.fingerprint import fingerprint
from ramjet.core.prompt import Prompt, Unreadable, endpoint_of, read
from ramjet.core.record import Record
from ramjet.core.retry import Failure, may_retry
from ramjet.core.router import Arrival, Router, Visit
from ramjet.core.splice import ask_for_usage
from ramjet.core.stream import JsonObserver, Observer, PlainObserver, SseObserver
from ramjet.proxy import errors, headers
from ramjet.proxy.errors import Refusal
from ramjet.proxy.paths import is_engine_admin
from ramjet.proxy.upstream import ReplicaFailed, Upstream

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the handler needs of the configuration."""

    body_bytes: int = 64 << 20
    header_bytes: int = 64 << 10
    first_byte_s: float = 1_800.0
    gap_s: float = 300.0
    allow_engine_admin: bool = False
    ask_usage: frozenset[str] = frozenset()
    """Replicas that may be asked for usage on streams."""
    seed: int = 0
    """Of all hashes: 64 bits of the deployment's secret."""


@dataclass(slots=True, eq=False)
class Exchange:
    """What is known of one request while it is under way."""

    request: web.Request
    request_id: str
    endpoint: str
    body: bytes | None = None
    prompt: Prompt | None = None
    visit: Visit | None = None
    observer: Observer = field(default_factory=PlainObserver)
    response: web.StreamResponse | None = None
    """Set from the moment on that the client has been sent a byte."""
    writing: bool = False
    """Whether it is the client that is waited for, and not the replica."""
    outcome: str = "internal_error"
    status: int | None = None


class ClientLeft(Exception):
    """The client's connection is gone; there is nobody to answer."""


class Handler:
    """Proxies every path that is not Ramjet's own.

    Args:
        router: decides, and is told what happened.
        upstream: carries the bytes.
        options: limits and switches.
        on_record: called once for every finished request.
    """

    def __init__(
        self, router: Router, upstream: Upstream, options: Options, on_record: Callable[[Record], None]
    ) -> None:
        self._router = router
        self._upstream = upstream
        self._options = options
        self._on_record = on_record
        self.active = 0
        self.idle = asyncio.Event()
        """Set while no request is under way."""
        self.idle.set()
        self.draining = False
        """Running answers go on; connections are closed after them."""
        self.stopping = False
        """The time for that is over: answers are being cut."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one request."""
        arrived_at = time.monotonic()
        exchange = Exchange(request, headers.request_id_of(request.headers), endpoint_of(request.raw_path))
        self.active += 1
        self.idle.clear()
        try:
            return await self._serve(exchange, arrived_at)
        except (asyncio.CancelledError, ClientLeft) as left:
            # Nobody's fault, and closing the upstream connection has told the engine.
            exchange.outcome = "shutdown" if self.stopping else "client_disconnect"
            exchange.status = exchange.response.status if exchange.response is not None else None
            if isinstance(left, asyncio.CancelledError):
                raise
            return exchange.response or web.Response(status=499)
        except Exception as error:  # noqa: BLE001 - a fault of ours costs this request and no other
            # Its message may quote the request, so the log gets only what it was and where.
            where = "".join(traceback.format_tb(error.__traceback__)[-4:])
            fault = type(error).__name__
            log.error("internal_error", request_id=exchange.request_id, error=fault, where=where)  # noqa: TRY400
            if exchange.response is not None:
                return self._cut(exchange, "internal_error")
            return await self._refuse(exchange, errors.INTERNAL, "Ramjet failed; its log has the request's id")
        finally:
            self._finish(exchange, arrived_at)
            self.active -= 1
            if not self.active:
                self.idle.set()

    def answered(self, request: web.Request, endpoint: str, status: int, started_at: float) -> None:
        """Record a request that Ramjet has answered itself."""
        exchange = Exchange(request, headers.request_id_of(request.headers), endpoint)
        exchange.status = status
        exchange.outcome = _by_status(status)
        self._finish(exchange, started_at)

    # -- the request ------------------------------------------------------------------------------------------------

    async def _serve(self, exchange: Exchange, arrived_at: float) -> web.StreamResponse:
        request = exchange.request
        if not self._options.allow_engine_admin and is_engine_admin(request.raw_path):
            return await self._refuse(
                exchange,
                errors.FORBIDDEN,
                "this path administers the engine; call the replica itself, or set allow_engine_admin: true",
            )
        if sum(len(name) + len(value) for name, value in request.raw_headers) > self._options.header_bytes:
            return await self._refuse(
                exchange,
                errors.HEADERS_TOO_LARGE,
                f"request headers exceed limits.header_bytes = {self._options.header_bytes:,} bytes",
            )
        exchange.body = await self._read_body(request)
        if exchange.body is None:
            return await self._refuse(
                exchange,
                errors.TOO_LARGE,
                f"request body exceeds limits.body_bytes = {self._options.body_bytes:,} bytes; raise it or send less",
            )
        exchange.visit = self._router.arrive(self._arrival(exchange), arrived_at)
        refusal, message = errors.NO_REPLICA, "no replica can serve this request now; try again"
        while lease := self._router.place(exchange.visit, time.monotonic()):
            try:
                return await self._attempt(exchange, exchange.visit, lease.replica.name, lease.replica.url)
            except ReplicaFailed as failed:
                self._blame(lease.replica.name, failed)
                self._router.failed(exchange.visit)
                refusal, message = _REFUSALS[failed.failure], f"replica {lease.replica.name} failed: {failed}"
                if not may_retry(failed.failure, len(exchange.visit.tried)):
                    break
        return await self._refuse(exchange, refusal, message)

    async def _read_body(self, request: web.Request) -> bytes | None:
        """The whole body; None when it is longer than the limit."""
        most = self._options.body_bytes
        if (request.content_length or 0) > most:
            return None
        pieces, size = [], 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size > most:
                return None
            pieces.append(piece)
        return b"".join(pieces)

    def _arrival(self, exchange: Exchange) -> Arrival:
        request, body = exchange.request, exchange.body or b""
        prompt = print_ = None
        # What is compressed, or says that it is no JSON, is the engine's to read.
        if (
            body
            and not request.headers.get("content-encoding")
            and "json" in request.headers.get("content-type", "json")
        ):
            try:
                prompt = read(body, exchange.endpoint)
                print_ = fingerprint(prompt, self._options.seed)
            except Unreadable as reason:
                log.debug("prompt_unreadable", request_id=exchange.request_id, reason=str(reason))
        exchange.prompt = prompt
        return Arrival(
            request_id=exchange.request_id,
            endpoint=exchange.endpoint,
            body_bytes=len(body),
            stream=prompt.stream if prompt is not None else False,
            model=prompt.model if prompt is not None else None,
            fingerprint=print_,
            probe=headers.PROBE in request.headers,
        )

    # -- one replica ------------------------------------------------------------------------------------------------

    async def _attempt(self, exchange: Exchange, visit: Visit, replica: str, url: str) -> web.StreamResponse:
        """Send the request to one replica and pass its answer on.

        Raises:
            ReplicaFailed: before a byte had reached the client; it may be tried elsewhere.
        """
        request, prompt, body = exchange.request, exchange.prompt, exchange.body
        spliced = None
        if prompt is not None and body is not None and replica in self._options.ask_usage:
            spliced = ask_for_usage(body, prompt, exchange.endpoint)
        limit = asyncio.timeout(self._options.first_byte_s)
        try:
            async with (
                limit,
                self._upstream.send(
                    request.method,
                    url + _path_of(request),
                    headers.to_replica(request.headers, exchange.request_id, plain=prompt is not None),
                    (spliced or body) if request.body_exists or body else None,
                ) as answer,
            ):
                exchange.observer = _observer(answer, watch=prompt is not None, hide_usage=spliced is not None)
                return await self._relay(exchange, visit, answer, limit, untouched=spliced is None)
        except TimeoutError:
            if exchange.response is None:
                raise ReplicaFailed(
                    Failure.FIRST_BYTE, f"no byte in limits.first_byte_s = {self._options.first_byte_s:g} s"
                ) from None
            return self._cut(exchange, "client_stall" if exchange.writing else "upstream_stall")
        except aiohttp.ClientError as error:
            if exchange.response is None:
                raise ReplicaFailed(Failure.RESET, type(error).__name__) from error
            return self._cut(exchange, "upstream_reset")

    async def _relay(
        self,
        exchange: Exchange,
        visit: Visit,
        answer: aiohttp.ClientResponse,
        limit: asyncio.Timeout,
        *,
        untouched: bool,
    ) -> web.StreamResponse:
        """Pass the answer on as it comes. The head waits for the first bytes: until then another replica may answer."""
        gap_s, observer, loop = self._options.gap_s, exchange.observer, asyncio.get_running_loop()
        lease = visit.lease
        response = web.StreamResponse(
            status=answer.status, reason=answer.reason, headers=headers.to_client(answer.headers, keep_length=untouched)
        )
        response.headers["x-ramjet-replica"] = lease.replica.name if lease is not None else ""
        response.headers["x-ramjet-reason"] = lease.reason if lease is not None else ""
        data = await answer.content.readany()
        await self._start(exchange, response)
        while data:
            now = time.monotonic()
            out = observer.feed(data, now)
            if visit.first_token_at is None and observer.first_token_at is not None:
                self._router.first_token(visit, observer.first_token_at)
            exchange.writing = True
            await _write(response, out)
            exchange.writing = False
            limit.reschedule(loop.time() + gap_s)
            data = await answer.content.readany()
        await _write(response, observer.close())
        await _end(response)
        exchange.outcome = _outcome(answer.status, observer)
        return response

    async def _start(self, exchange: Exchange, response: web.StreamResponse) -> None:
        """Send the head; from now on the client has seen a byte."""
        exchange.response, exchange.status = response, response.status
        response.headers[headers.REQUEST_ID] = exchange.request_id
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            # Other proxies on the way buffer unless told not to.
            response.headers.setdefault("cache-control", "no-cache")
            response.headers.setdefault("x-accel-buffering", "no")
        if self.draining:
            response.force_close()
        try:
            await response.prepare(exchange.request)
        except ConnectionError:
            raise ClientLeft from None

    def _cut(self, exchange: Exchange, outcome: str) -> web.StreamResponse:
        """The replica died in the middle: close the client's connection, so that the answer does not look complete."""
        exchange.outcome = outcome
        if exchange.request.transport is not None:
            exchange.request.transport.close()
        assert exchange.response is not None
        return exchange.response

    async def _refuse(self, exchange: Exchange, refusal: Refusal, message: str) -> web.StreamResponse:
        """Answer in Ramjet's own name."""
        response = web.Response(
            status=refusal.status,
            body=errors.error_body(refusal, message),
            headers=CIMultiDict({"content-type": "application/json"}),
        )
        if refusal is errors.TOO_LARGE:
            response.force_close()
        exchange.outcome = refusal.outcome
        await self._start(exchange, response)
        await _end(response)
        return response

    # -- the end ----------------------------------------------------------------------------------------------------

    def _blame(self, replica: str, failed: ReplicaFailed) -> None:
        """A replica on whose port nobody listens is down at once, and has lost its cache."""
        log.warning("replica_failed", replica=replica, failure=failed.failure.value, error=str(failed))
        if failed.failure is Failure.REFUSED:
            if self._router.fleet[replica].probed(error=str(failed), refused=True):
                log.warning("replica_down", replica=replica, error=str(failed))
            self._router.restarted(replica)

    def _finish(self, exchange: Exchange, arrived_at: float) -> None:
        now, request = time.monotonic(), exchange.request
        usage = exchange.observer.usage
        if exchange.visit is not None:
            record = self._router.finish(
                exchange.visit, now, outcome=exchange.outcome, status=exchange.status, usage=usage
            )
        else:
            record = Record(
                request_id=exchange.request_id,
                endpoint=exchange.endpoint,
                prompt_bytes=len(exchange.body or b"") or request.content_length or 0,
                duration_s=now - arrived_at,
                outcome=exchange.outcome,
                status=exchange.status,
                probe=headers.PROBE in request.headers,
            )
        self._on_record(record)


_REFUSALS = {
    Failure.REFUSED: errors.CANNOT_CONNECT,
    Failure.UNREACHABLE: errors.CANNOT_CONNECT,
    Failure.RESET: errors.RESET,
    Failure.FIRST_BYTE: errors.FIRST_BYTE_TIMEOUT,
}


async def _write(response: web.StreamResponse, data: bytes) -> None:
    if data:
        try:
            await response.write(data)
        except ConnectionError:
            raise ClientLeft from None


async def _end(response: web.StreamResponse) -> None:
    try:
        await response.write_eof()
    except ConnectionError:
        raise ClientLeft from None


def _path_of(request: web.Request) -> str:
    """Path and query as they came over the wire; a client that speaks to a proxy names the host too."""
    path = request.raw_path
    return path if path.startswith("/") else request.rel_url.raw_path_qs


def _observer(answer: aiohttp.ClientResponse, *, watch: bool, hide_usage: bool) -> Observer:
    if not watch or answer.status != 200 or answer.headers.get("content-encoding", "identity") != "identity":
        return PlainObserver()
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return SseObserver(hide_usage=hide_usage)
    return JsonObserver() if "json" in kind else PlainObserver()


def _outcome(status: int, observer: Observer) -> str:
    return "stream_error_event" if observer.error else _by_status(status)


def _by_status(status: int) -> str:
    return "ok" if status < 400 else "http_4xx" if status < 500 else "http_5xx"
