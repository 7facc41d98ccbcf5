"""One request, from the client's socket to a replica's and back.

It moves bytes and reads the clock; where to send them is the router's decision, what they mean the observer's, what
the client is told the error table's. Whatever happens, the request ends in exactly one record.
"""

from __future__ import annotations

import asyncio
import re
import time
import traceback

import structlog
from aiohttp import web

from ramjet.core.fleet import Replica
from ramjet.core.prompt import endpoint_of
from ramjet.core.record import Record
from ramjet.core.retry import Failure, may_retry
from ramjet.core.router import Router
from ramjet.core.slices import body_of
from ramjet.core.splice import ask_for_usage, name_rank
from ramjet.core.visit import Arrival, Lease, Visit
from ramjet.front import errors, marks
from ramjet.front.answers import check_head, is_plain_stream, observer_of
from ramjet.front.door import Refused
from ramjet.front.front import Front, OnRecord, by_status, heard
from ramjet.front.options import Options
from ramjet.front.reading import ASIDE_BYTES
from ramjet.http1.client import Client, ReplicaFailed, read_at_most
from ramjet.http1.connection import Answer, Broken, Buffers
from ramjet.proxy import headers
from ramjet.proxy.door import Door
from ramjet.proxy.exchange import Exchange, KeptAnswer
from ramjet.proxy.limits import Limit, Limits
from ramjet.proxy.models import merged_models
from ramjet.proxy.reply import ClientLeft, Nothing, Reply

log = structlog.get_logger()

_SECONDS = re.compile(r"[0-9]{1,9}\Z")
_BUSY = frozenset({429, 503})
_NONE_SERVES = "no replica can serve this request now; try again"
_NONE_FOUND = "no replica has been found yet; try again"
_MOST_ERROR_BYTES = 64 << 10
_MOST_START_BYTES = 1 << 20
"""An answer of one token is shorter, whatever an engine adds."""
_MODELS_TIMEOUT_S = 5.0
_SHORT_BYTES = 64 << 10
"""An answer that is whole and no longer is the transport's at once, whatever the client does: nothing is waited for."""


class Handler(Front):
    """Proxies every path that is not Ramjet's own.

    Args:
        router: decides, and is told what happened.
        upstream: carries the bytes.
        options: limits, switches and keys.
        on_record: told of every finished request, once.
    """

    def __init__(
        self,
        router: Router,
        upstream: Client,
        options: Options,
        on_record: OnRecord,
    ) -> None:
        super().__init__(router, door := Door(options), on_record)
        self.door: Door = door
        self._upstream = upstream
        self._limits = Limits()

    @property
    def _options(self) -> Options:
        return self.door.options

    async def handle(self, request: web.BaseRequest) -> Reply:
        """Serve one request."""
        request_id, endpoint = marks.request_id_of(request.headers), endpoint_of(request.raw_path)
        gap_s, now = self._options.gap_s, time.monotonic()
        exchange = Exchange(request, request_id, endpoint, now, gap_s, last_answer=self.draining)
        self.entered()
        try:
            return await self._serve(exchange)
        except (asyncio.CancelledError, ClientLeft) as left:
            # Nobody's fault, and closing the upstream connection has told the engine.
            exchange.outcome = "shutdown" if self.stopping else "client_disconnect"
            if isinstance(left, asyncio.CancelledError):
                raise
            return exchange.reply or exchange.opened or Nothing()
        except Exception as error:  # noqa: BLE001 - a fault of ours costs this request and no other
            # Its message may quote the request, so the log gets only what it was and where.
            where = "".join(traceback.format_tb(error.__traceback__)[-4:])
            log.error("internal_error", request_id=request_id, error=type(error).__name__, where=where)  # noqa: TRY400
            if exchange.reply is not None:
                return exchange.cut("internal_error")
            return await exchange.refuse(errors.INTERNAL, "Ramjet failed; its log has the request's id")
        finally:
            arrival = None if exchange.visit is None else exchange.visit.arrival
            self.left(self._finish(exchange), arrival, len(exchange.body or b""))

    # -- the request ------------------------------------------------------------------------------------------------

    async def _serve(self, exchange: Exchange) -> Reply:
        request = exchange.request
        try:
            self.door.check(request)
            if request.method == "GET" and exchange.endpoint == "models":
                return await self._models(exchange)
            exchange.body = await self.door.body(request)
            self.door.held_bytes += len(exchange.body)
        except Refused as refused:
            retry_after_s = self.retry_after_s if refused.refusal is errors.SHED else None
            return await exchange.refuse(refused.refusal, str(refused), retry_after_s)
        exchange.visit = self._router.arrive(await self._arrival(exchange), exchange.arrived_at)
        return await self._route(exchange, exchange.visit)

    async def _route(self, exchange: Exchange, visit: Visit) -> Reply:
        """Try the replica that is chosen, and once another where that is of use."""
        refusal = errors.NO_REPLICA
        message = _NONE_SERVES if len(self._router.fleet) else _NONE_FOUND
        while lease := self._router.place(visit, time.monotonic()) or await self._held(exchange, visit):
            try:
                return await self._attempt(exchange, visit, lease)
            except ReplicaFailed as failed:
                self._blame(lease.replica, failed)
                # Another rank at the same URL may have room where this one has none, and fails where this one failed.
                self._router.failed(visit, time.monotonic(), all_ranks=failed.failure is not Failure.BUSY)
                refusal, message = _REFUSALS[failed.failure], f"replica {lease.replica.name} failed: {failed}"
                if not may_retry(failed.failure, len(visit.tried)):
                    break
        if visit.gave_up:
            most = f"routing.admission.max_hold_s = {self._router.policy.terms.max_hold_s:g} s"
            refusal, message = errors.HELD_TOO_LONG, f"no replica had room for this conversation for {most}; try later"
            return await exchange.refuse(refusal, message, self.retry_after_s)
        if exchange.busy is not None:
            return await self._pass_on(exchange, exchange.busy)
        return await exchange.refuse(refusal, message, self.retry_after_s if refusal is errors.NO_REPLICA else None)

    async def _held(self, exchange: Exchange, visit: Visit) -> Lease | None:
        """Wait until the router lets a held request in; None for one that it does not hold, or held for too long."""
        return await self.room.wait(
            visit, exchange.comment, self._options.comment_every_s if exchange.asks_for_stream else None
        )

    async def _arrival(self, exchange: Exchange) -> Arrival:
        """Read the prompt and its fingerprint."""
        request, body = exchange.request, exchange.body or b""
        exchange.prompt, arrival = await self.reader.read(request.headers, body, exchange.endpoint, exchange.request_id)
        return arrival

    # -- one replica ------------------------------------------------------------------------------------------------

    async def _attempt(self, exchange: Exchange, visit: Visit, lease: Lease) -> Reply:
        """Send the request to one replica and pass its answer on.

        Raises:
            ReplicaFailed: before a byte had reached the client; it may be tried elsewhere.
        """
        request, prompt, body, replica = exchange.request, exchange.prompt, exchange.body, lease.replica
        options, asked = self._options, None
        if body is not None and len(body) > ASIDE_BYTES:
            await asyncio.sleep(0)  # others come first
        sent: Buffers | None = (body or b"",) if body or request.body_exists else None
        if prompt is not None and body is not None:
            if replica.whole in options.ask_usage:
                asked = ask_for_usage(body, prompt, exchange.endpoint)
            sent = (body,) if asked is None else asked
            if replica.rank is not None:
                sent = name_rank(b"".join(sent), replica.rank, exchange.endpoint)
        head = self._head(request, exchange.request_id, replica, plain=prompt is not None)
        try:
            with self._limits.of(options.first_byte_s) as limit:
                if lease.starts:
                    await self._read_starts(exchange, visit, lease, limit)
                with await self._upstream.send(request.method, replica.url, _path_of(request), head, sent) as answer:
                    untouched = asked is None
                    del body, sent, asked  # it has been sent: only who may send it again keeps it
                    check_head(answer)
                    if answer.status in _BUSY:
                        await self._keep_busy(exchange, lease, answer)
                    exchange.observer = observer_of(answer, watch=prompt is not None, hide_usage=not untouched)
                    return await self._relay(exchange, visit, lease, answer, limit, untouched=untouched)
        except TimeoutError:
            if exchange.reply is None:
                silence = f"no byte in limits.first_byte_s = {options.first_byte_s:g} s"
                raise ReplicaFailed(Failure.FIRST_BYTE, silence) from None
            return exchange.cut("client_stall" if exchange.writing else "upstream_stall")
        except Broken as error:
            if exchange.reply is None:
                raise ReplicaFailed(Failure.RESET, str(error)) from error
            return exchange.cut("upstream_reset")

    async def _read_starts(self, exchange: Exchange, visit: Visit, lease: Lease, limit: Limit) -> None:
        """Have the starts of a long prompt read, one after another: between two of them, others get their turn.

        Raises:
            ReplicaFailed: the replica is busy, or what it said is no answer.
        """
        request, body = exchange.request, exchange.body or b""
        while lease.starts:
            name = f"{exchange.request_id}-{lease.slices + 1}"
            head = self._head(request, name, lease.replica, plain=True)
            start = await self.reader.off_the_loop(body_of, body, exchange.endpoint, lease.starts[0].cut)
            rank = lease.replica.rank
            sent = (start,) if rank is None else name_rank(start, rank, exchange.endpoint)
            url, path = lease.replica.url, _path_of(request)
            with await self._upstream.send(request.method, url, path, head, sent) as answer:
                check_head(answer)
                if answer.status in _BUSY:
                    await self._keep_busy(exchange, lease, answer)
                observer = observer_of(answer, watch=True, hide_usage=False)
                observer.feed(await read_at_most(answer, _MOST_START_BYTES), time.monotonic())
                observer.close()
            now = time.monotonic()
            limit.begin_anew(self._options.first_byte_s, now)
            heard(lease.replica, answer.status, now)
            if answer.status == 200:
                self._router.start_read(visit, now, observer.usage)
            else:
                # The engine will say so of the request itself, or take that whole.
                refused = {"request_id": exchange.request_id, "replica": lease.replica.name, "status": answer.status}
                log.info("slice_refused", **refused)
                self._router.send_whole(visit, now)

    async def _relay(
        self,
        exchange: Exchange,
        visit: Visit,
        lease: Lease,
        answer: Answer,
        limit: Limit,
        *,
        untouched: bool,
    ) -> Reply:
        """Pass the answer on as it comes. The head waits for the first bytes: until then another replica may answer."""
        if exchange.opened is not None and not is_plain_stream(answer):
            return await self._tell(exchange, lease, answer)
        gap_s, observer = self._options.gap_s, exchange.observer
        data = await answer.read()
        if not answer.is_whole or len(data) > _SHORT_BYTES:
            limit.begin_anew(gap_s, time.monotonic())
        reply = exchange.start(headers.to_client(answer, lease.replica.name, lease.reason, as_it_came=untouched))
        self._let_go(exchange)
        last = b""

        def take(data: bytes) -> bool:
            nonlocal last
            now = time.monotonic()
            heard(lease.replica, answer.status, now)
            out = observer.feed(data, now)
            if visit.first_token_at is None and observer.first_token_at is not None:
                self._router.first_token(visit, observer.first_token_at)
                self.room.admit_soon()
            if answer.is_whole:
                last += out  # and leaves in one write with the end
                return False
            limit.begin_anew(gap_s, now)
            return reply.put(out)

        is_behind = bool(data) and take(data)
        # Whatever was whole when it was read has been read to its end.
        is_whole = answer.is_whole
        while not is_whole:
            if is_behind:
                await exchange.drain()
                limit.begin_anew(gap_s, time.monotonic())
            is_whole = await answer.pour(take)
            is_behind = not is_whole
        last += observer.close()
        exchange.outcome = "stream_error_event" if observer.error else by_status(answer.status)
        return await exchange.end(last)

    async def _tell(self, exchange: Exchange, lease: Lease, answer: Answer) -> Reply:
        """Tell the client of an answer that cannot go on where a stream was opened while it was held."""
        if answer.status >= 400:
            return await self._pass_on(exchange, await self._keep(lease, answer))
        lease.replica.answered(time.monotonic())
        message = (
            f"replica {lease.replica.name} did not answer with a plain event stream, as one was held and had begun"
        )
        return await exchange.refuse(errors.NO_STREAM, message)

    async def _keep_busy(self, exchange: Exchange, lease: Lease, answer: Answer) -> None:
        """Keep a replica's "busy" for the client, in case no other replica can serve either.

        Raises:
            ReplicaFailed: always; the replica is up, and not to blame.
        """
        exchange.busy = await self._keep(lease, answer)
        raise ReplicaFailed(Failure.BUSY, f"status {answer.status}")

    async def _keep(self, lease: Lease, answer: Answer) -> KeptAnswer:
        """Read an error answer, or its beginning where it is long."""
        body = await read_at_most(answer, _MOST_ERROR_BYTES)
        lease.replica.answered(time.monotonic())
        head = headers.to_client(answer, lease.replica.name, lease.reason, as_it_came=False)
        return KeptAnswer(head, body, answer.named.get(b"retry-after", b"").decode(errors="replace"))

    # -- answers of Ramjet's own --------------------------------------------------------------------------------------

    async def _pass_on(self, exchange: Exchange, kept: KeptAnswer) -> Reply:
        """Give the client the replica's own words, its Retry-After among them."""
        status = kept.head.status
        exchange.outcome = by_status(status)
        if exchange.opened is not None:
            retry_after_s = int(kept.retry_after) if _SECONDS.match(kept.retry_after) else None
            return await exchange.tell(status, errors.error_in(status, kept.body), retry_after_s)
        exchange.start(kept.head)
        return await exchange.end(kept.body)

    async def _models(self, exchange: Exchange) -> Reply:
        replicas = {
            each.url: self._head(exchange.request, exchange.request_id, each, plain=True) for each in self._router.fleet
        }
        exchange.body = b""
        status, body = await merged_models(self._router.fleet, self._upstream, replicas, _MODELS_TIMEOUT_S)
        exchange.outcome = by_status(status)
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        exchange.start(headers.of_ours(status, fields))
        return await exchange.end(body)

    def _head(self, request: web.BaseRequest, request_id: str, replica: Replica, *, plain: bool) -> bytes:
        options = self._options
        return headers.to_replica(
            request.raw_headers,
            request_id,
            plain=plain,
            key=options.replica_keys.get(replica.whole),
            drop_key=bool(options.client_keys),
            rank=replica.rank,
        )

    # -- the end ----------------------------------------------------------------------------------------------------

    def _blame(self, replica: Replica, failed: ReplicaFailed) -> None:
        """A replica on whose port nobody listens is down at once, and has lost its cache."""
        if failed.failure is Failure.BUSY:
            return
        log.warning("replica_failed", replica=replica.name, failure=failed.failure.value, error=str(failed))
        if failed.failure is Failure.REFUSED:
            for each in self._router.probed(replica.url, time.monotonic(), error=str(failed), refused=True):
                log.warning("replica_down", replica=each.name, error=each.last_error)

    def _let_go(self, exchange: Exchange) -> None:
        """No other replica can be asked any more, so nobody needs the body: an answer may take minutes."""
        if exchange.body:
            self.door.held_bytes -= len(exchange.body)
            exchange.body = b""

    def _finish(self, exchange: Exchange) -> Record:
        now, request = time.monotonic(), exchange.request
        outcome, status, usage = exchange.outcome, exchange.status, exchange.observer.usage
        if exchange.visit is not None:
            return self._router.finish(exchange.visit, now, outcome=outcome, status=status, usage=usage)
        return Record(
            request_id=exchange.request_id,
            endpoint=exchange.endpoint,
            prompt_bytes=len(exchange.body or b"") or request.content_length or 0,
            duration_s=now - exchange.arrived_at,
            outcome=outcome,
            status=status,
            probe=marks.PROBE in request.headers,
        )


_REFUSALS = {
    Failure.REFUSED: errors.CANNOT_CONNECT,
    Failure.UNREACHABLE: errors.CANNOT_CONNECT,
    Failure.RESET: errors.RESET,
    Failure.BUSY: errors.NO_REPLICA,
    Failure.FIRST_BYTE: errors.FIRST_BYTE_TIMEOUT,
}


def _path_of(request: web.BaseRequest) -> str:
    """Path and query as they came over the wire; a client that speaks to a proxy names the host too."""
    path = request.raw_path
    if path.startswith("/"):
        return path
    named = request.rel_url.raw_path_qs if "://" in path else ""
    return named if named.startswith("/") else f"/{named}"
