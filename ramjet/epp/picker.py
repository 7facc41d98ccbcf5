"""Picks a replica for each request that Envoy tells of, and watches its answer.

As in the proxy, where to send it is the router's decision and every request ends in exactly one record. What carries the
bytes is Envoy: connecting, trying another replica and giving up on one are its business.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from ramjet.core.fleet import Replica
from ramjet.core.prompt import Envelope, endpoint_of
from ramjet.core.record import Record
from ramjet.core.router import Router
from ramjet.core.splice import ask_for_usage, name_rank
from ramjet.core.visit import Lease, Visit
from ramjet.epp import messages
from ramjet.epp.endpoints import endpoint_at
from ramjet.epp.passage import Answer, Passage, Pick
from ramjet.front import errors, marks
from ramjet.front.door import Door, Refused
from ramjet.front.errors import Refusal
from ramjet.front.front import Front, OnRecord, by_status, heard
from ramjet.front.options import Options

log = structlog.get_logger()

_MARGIN_S = 5.0
"""How much longer than a request is held Envoy is asked to wait for it."""
_FAILED = (
    ("connection_failure", "upstream_connect"),
    ("no_healthy_upstream", "upstream_connect"),
    ("response_timeout", "timeout_first_byte"),
    ("per_try_timeout", "timeout_first_byte"),
    ("idle_timeout", "upstream_stall"),
    ("upstream_reset", "upstream_reset"),
)
"""What Envoy's own answers say of how a replica failed it, and what that is called here."""


class Stream(Protocol):
    """The messages of one request, both ways."""

    async def read(self) -> pb.ProcessingRequest | None:
        """The next one; None after the last."""

    async def write(self, message: pb.ProcessingResponse) -> None:
        """Answer."""


class _EnvoyLeft(Exception):
    """Nobody waits for the answer any longer."""


@dataclass(slots=True, eq=False)
class _Request:
    """What is known of one request while it is under way."""

    stream: _Ahead
    arrived_at: float
    passage: Passage = field(default_factory=Passage)
    request_id: str = ""
    endpoint: str = "other"
    prompt: Envelope | None = None
    visit: Visit | None = None
    prompt_bytes: int = 0
    held_bytes: int = 0
    outcome: str | None = None
    """None where its answer tells."""
    status: int | None = None


class Picker(Front):
    """Serves the streams of one Envoy or several.

    Args:
        router: decides, and is told what happened.
        options: limits, switches and keys.
        on_record: told of every finished request, once.
    """

    def __init__(self, router: Router, options: Options, on_record: OnRecord) -> None:
        super().__init__(router, Door(options), on_record)
        self._endpoints: dict[str, str | None] = {}
        """What Envoy calls URLs; None for one where it could not go."""

    async def serve(self, stream: Stream) -> None:
        """Serve one request, from its head to the end of its answer."""
        async with asyncio.TaskGroup() as tasks:
            request = _Request(_Ahead(stream, tasks), time.monotonic())
            self.entered()
            try:
                await self._serve(request)
            except _EnvoyLeft:
                pass
            except Exception as error:  # noqa: BLE001 - a fault of ours costs this request and no other
                # Its message may quote the request, so the log gets only what it was and where.
                where = "".join(traceback.format_tb(error.__traceback__)[-4:])
                log.error("internal_error", request_id=request.request_id, error=type(error).__name__, where=where)  # noqa: TRY400
                request.outcome = "internal_error"
                if request.passage.answer is None:
                    await self._refuse(request, errors.INTERNAL, "Ramjet failed; its log has the request's id")
            finally:
                request.stream.close()
                arrival = None if request.visit is None else request.visit.arrival
                self.left(self._finish(request), arrival, request.held_bytes)

    # -- the request ------------------------------------------------------------------------------------------------

    async def _serve(self, request: _Request) -> None:
        passage = request.passage
        try:
            while not passage.is_complete:
                _, answers = await self._take(request)
                self._look(request)
                await request.stream.write_all(answers)
            visit = request.visit = await self._arrive(request)
        except Refused as refused:
            after = self.retry_after_s if refused.refusal is errors.SHED else None
            await self._refuse(request, refused.refusal, str(refused), after)
            return
        lease = self._router.place(visit, time.monotonic()) or await self._held(request, visit)
        if lease is None or not self._may_go(passage, lease.replica.url):  # one that was added while it was held
            await self._turn_away(request, visit)
            return
        await request.stream.write_all(passage.picked(self._pick(request, visit, lease)))
        passage.forget_body()
        self.door.held_bytes -= request.held_bytes
        request.held_bytes = 0
        await self._watch(request, visit)

    async def _take(self, request: _Request) -> tuple[pb.ProcessingRequest, list[pb.ProcessingResponse]]:
        """Take in the next message; returns it and what Envoy waits for after it.

        Raises:
            _EnvoyLeft: there is none.
        """
        message = await request.stream.next()
        if message is None:
            raise _EnvoyLeft
        return message, request.passage.take(message, time.monotonic())

    def _look(self, request: _Request) -> None:
        """Look at what has come of a request.

        Raises:
            Refused: it is not let in.
        """
        passage = request.passage
        if not request.request_id:
            request.request_id = marks.request_id_of(passage.headers)
            request.endpoint = endpoint_of(passage.path)
            self.door.check_head(passage.method, passage.path, passage.headers)
            length = passage.headers.get("content-length", "")
            request.prompt_bytes = int(length) if length.isdigit() else 0
            self.door.check_size(request.prompt_bytes)
        held = passage.body_bytes
        self.door.check_size(held)
        self.door.check_room(held - request.held_bytes)
        self.door.held_bytes += held - request.held_bytes
        request.held_bytes = held

    async def _arrive(self, request: _Request) -> Visit:
        passage, body = request.passage, request.passage.body
        request.prompt_bytes = len(body) or request.prompt_bytes
        request.prompt, arrival = await self.reader.read(
            passage.headers, body, request.endpoint, request.request_id, sliced=False
        )
        visit = self._router.arrive(arrival, request.arrived_at)
        visit.shunned.update(url for url in self._router.fleet.urls if not self._may_go(passage, url))
        return visit

    def _may_go(self, passage: Passage, url: str) -> bool:
        """Whether Envoy can be sent there, and wants to be."""
        endpoint = self._endpoint(url)
        return endpoint is not None and (passage.subset is None or endpoint in passage.subset)

    async def _held(self, request: _Request, visit: Visit) -> Lease | None:
        """Wait until the router lets a held request in; None for one that it does not hold, or held for too long.

        Raises:
            _EnvoyLeft: its client has left.
        """
        if visit.held_since is None:
            return None
        if request.passage.is_timed:
            await request.stream.write(messages.more_time(self._router.policy.terms.max_hold_s + _MARGIN_S))
        entering = request.stream.tasks.create_task(self.room.wait(visit, _say_nothing, None))
        try:
            await asyncio.wait([entering, request.stream.coming()], return_when=asyncio.FIRST_COMPLETED)
            if not entering.done():
                # Nothing comes while Envoy waits for the pick, but the end.
                raise _EnvoyLeft
            return await entering
        finally:
            entering.cancel()

    async def _turn_away(self, request: _Request, visit: Visit) -> None:
        if visit.gave_up:
            most = f"routing.admission.max_hold_s = {self._router.policy.terms.max_hold_s:g} s"
            message = f"no replica had room for this conversation for {most}; try later"
            await self._refuse(request, errors.HELD_TOO_LONG, message, self.retry_after_s)
            return
        among = "" if request.passage.subset is None else f" of the {len(request.passage.subset)} that it may go to"
        message = f"no replica{among} can serve this request now; try again"
        await self._refuse(request, errors.NO_REPLICA, message, self.retry_after_s)

    async def _refuse(
        self, request: _Request, refusal: Refusal, message: str, retry_after_s: int | None = None
    ) -> None:
        """Answer in Ramjet's own name."""
        request.outcome, request.status = refusal.outcome, refusal.status
        put = {"content-type": "application/json", marks.REQUEST_ID: request.request_id}
        if retry_after_s is not None:
            put["retry-after"] = str(retry_after_s)
        if refusal.status == 401:
            put["www-authenticate"] = "Bearer"
        await request.stream.write(messages.refusal(refusal.status, errors.error_body(refusal, message), put))

    # -- the pick ---------------------------------------------------------------------------------------------------

    def _pick(self, request: _Request, visit: Visit, lease: Lease) -> Pick:
        passage, options, prompt, replica = request.passage, self.door.options, request.prompt, lease.replica
        asked = sent = None
        if prompt is not None and passage.may_change_body:
            if passage.sees_answer and replica.whole in options.ask_usage:
                asked = ask_for_usage(passage.body, prompt, request.endpoint)
            sent = None if asked is None else b"".join(asked)
            if replica.rank is not None:
                sent = b"".join(name_rank(passage.body if sent is None else sent, replica.rank, request.endpoint))
        put, drop = messages.changed_for(
            passage.headers,
            request.request_id,
            plain=prompt is not None,
            key=options.replica_keys.get(replica.whole),
            drop_key=bool(options.client_keys),
            rank=replica.rank,
        )
        chosen = [replica, *self._second(visit, replica)]
        return Pick(
            endpoints=[endpoint for each in chosen if (endpoint := self._endpoint(each.url)) is not None],
            put=put,
            drop=drop,
            body=sent,
            marks=[
                {
                    marks.REQUEST_ID: request.request_id,
                    "x-ramjet-replica": each.name,
                    "x-ramjet-reason": lease.reason if each is replica else "retry",
                }
                for each in chosen
            ],
            watch=prompt is not None,
            hide_usage=asked is not None,
        )

    def _second(self, visit: Visit, replica: Replica) -> list[Replica]:
        """Another replica, to which the same request could go unchanged after this one; nothing where there is none."""
        options, now = self.door.options, time.monotonic()
        others = [
            other
            for other in self._router.offers.able(visit)
            if other.url != replica.url
            and other.rank == replica.rank
            and options.replica_keys.get(other.whole) == options.replica_keys.get(replica.whole)
            and (other.whole in options.ask_usage) >= (replica.whole in options.ask_usage)
        ]
        return [min(others, key=lambda each: (each.ahead_s(now), each.in_flight))] if others else []

    def _endpoint(self, url: str) -> str | None:
        """What Envoy calls a URL; None, and once a warning, where it could not go there."""
        if url not in self._endpoints:
            try:
                self._endpoints[url] = endpoint_at(url)
            except ValueError as error:
                self._endpoints[url] = None
                log.warning("replica_not_for_envoy", error=str(error))
        return self._endpoints[url]

    # -- the answer -------------------------------------------------------------------------------------------------

    async def _watch(self, request: _Request, visit: Visit) -> None:
        """Look at the answer as it passes.

        Raises:
            _EnvoyLeft: it ended early.
        """
        passage, router = request.passage, self._router
        while not passage.has_ended:
            message, answers = await self._take(request)
            answer, now = passage.answer, time.monotonic()
            if answer is not None:
                if message.HasField("response_headers"):
                    request.status = answer.status
                    self._found_out(request, visit, answer, now)
                if visit.lease is not None and visit.lease.open:
                    heard(visit.lease.replica, answer.status, now)
                if visit.first_token_at is None and passage.observer.first_token_at is not None:
                    router.first_token(visit, passage.observer.first_token_at)
                    self.room.admit_soon()
            # What it meant is known before it is answered: after the last of them Envoy is gone.
            await request.stream.write_all(answers)

    def _found_out(self, request: _Request, visit: Visit, answer: Answer, now: float) -> None:
        """Envoy has tried another replica: the books follow it there."""
        lease = visit.lease
        if lease is None or answer.served in {None, self._endpoint(lease.replica.url)}:
            return
        fleet, rank = self._router.fleet, lease.replica.rank
        other = next((each for each in fleet if each.rank == rank and self._endpoint(each.url) == answer.served), None)
        log.info("carried_elsewhere", request_id=request.request_id, replica=lease.replica.name, endpoint=answer.served)
        if other is not None:
            self._router.carried(visit, other.name, now)
        else:
            self._router.failed(visit, now, all_ranks=False)
        self.room.admit_soon()

    # -- the end ----------------------------------------------------------------------------------------------------

    def _finish(self, request: _Request) -> Record:
        now, usage = time.monotonic(), request.passage.observer.usage
        outcome, status = request.outcome or self._outcome(request.passage), request.status
        if request.visit is not None:
            return self._router.finish(request.visit, now, outcome=outcome, status=status, usage=usage)
        return Record(
            request_id=request.request_id,
            endpoint=request.endpoint,
            prompt_bytes=request.prompt_bytes,
            duration_s=now - request.arrived_at,
            outcome=outcome,
            status=status,
            probe=marks.PROBE in request.passage.headers,
        )

    def _outcome(self, passage: Passage) -> str:
        """How a request ended that was not refused."""
        answer = passage.answer
        if answer is not None and (passage.has_ended or not passage.sees_answer):
            return "stream_error_event" if passage.observer.error else _outcome(answer)
        return "shutdown" if self.stopping else "client_disconnect"


class _Ahead:
    """A stream of which the next message can be waited for without taking it."""

    def __init__(self, stream: Stream, tasks: asyncio.TaskGroup) -> None:
        self.tasks = tasks
        self._stream = stream
        self._coming: asyncio.Task[pb.ProcessingRequest | None] | None = None
        self.write: Callable[[pb.ProcessingResponse], Awaitable[None]] = stream.write

    async def write_all(self, messages: Iterable[pb.ProcessingResponse]) -> None:
        """Answer."""
        for each in messages:
            await self.write(each)

    def coming(self) -> asyncio.Task[pb.ProcessingRequest | None]:
        """The next message, when it comes; nobody may give up reading it, for then it would be lost."""
        if self._coming is None:
            self._coming = self.tasks.create_task(self._read())
        return self._coming

    async def _read(self) -> pb.ProcessingRequest | None:
        return await self._stream.read()

    async def next(self) -> pb.ProcessingRequest | None:
        """Take the next message; None after the last."""
        coming, self._coming = self._coming, None
        return await (self._stream.read() if coming is None else coming)

    def close(self) -> None:
        """Nobody waits for a message any longer."""
        if self._coming is not None:
            self._coming.cancel()


def _outcome(answer: Answer) -> str:
    """How a request ended whose answer came whole, be it Envoy's own."""
    details = answer.details or ""
    if answer.status >= 500 and details != "via_upstream":
        for word, outcome in _FAILED:
            if word in details:
                return outcome
    return by_status(answer.status)


def _say_nothing() -> None:
    """There is no stream yet in which to say that a request is held."""
