"""One request and its answer, as they pass through Envoy: its messages go in, those that it waits for come out.

No socket and no clock: whoever reads the messages asks, after each, whether it is time to pick a replica, and what has
been seen of the answer. In which pieces bodies come, and what Envoy waits for after each, is known here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from ramjet.core.stream import Observer, PlainObserver
from ramjet.epp import messages
from ramjet.epp.messages import BUFFERED, BUFFERED_PARTIAL, DUPLEX, NONE
from ramjet.front.answers import observer_of

_WHOLE = frozenset({BUFFERED, BUFFERED_PARTIAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Where a request is to go, and as what."""

    endpoints: Sequence[str]
    """The first is the choice, the others may be tried after it."""
    put: Mapping[str, str] = field(default_factory=dict)
    """Headers of the request that are set."""
    drop: Iterable[str] = ()
    """Headers of the request that are taken out."""
    body: bytes | None = None
    """What its body becomes; None where it stays as it is."""
    marks: Sequence[Mapping[str, str]] = ()
    """Headers that are set of an answer, by the endpoint that gives it."""
    watch: bool = False
    """Whether it has a prompt, so that its answer is looked into."""
    hide_usage: bool = False
    """Whether its client did not ask for usage."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer."""

    status: int
    named: Mapping[bytes, bytes]
    """Its headers by name."""
    served: str | None
    """The endpoint that gave it; None where Envoy does not say."""
    details: str | None
    """How Envoy came by it; None where it does not say."""


class Passage:
    """What has passed of one request and its answer."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.subset: frozenset[str] | None = None
        """Endpoints of which one must be picked; None for any."""
        self.is_complete = False
        """Whether all of the request is here that will be before the pick."""
        self.answer: Answer | None = None
        self.observer: Observer = PlainObserver()
        self.has_ended = False
        """Whether the answer's last byte has passed."""
        self._modes = DUPLEX, DUPLEX
        self.body_bytes = 0
        """Of the request's body, so far."""
        self._body: list[bytes] = []
        self._waits: str | None = None
        """Which part of the request Envoy waits for an answer to, before the pick."""
        self._pick: Pick | None = None

    @property
    def method(self) -> str:
        """The request's."""
        return self.headers.get(":method", "")

    @property
    def path(self) -> str:
        """The request's, with its query."""
        return self.headers.get(":path", "/")

    @property
    def sees_prompt(self) -> bool:
        """Whether bodies of requests come here before the pick."""
        return self._modes[0] in {BUFFERED, BUFFERED_PARTIAL, DUPLEX}

    @property
    def may_change_body(self) -> bool:
        """Whether the body that was seen is all of it, so that another may take its place."""
        return self._modes[0] in {BUFFERED, DUPLEX}

    @property
    def sees_answer(self) -> bool:
        """Whether the bytes of answers come here."""
        return bool(self._modes[1] != NONE)

    @property
    def is_timed(self) -> bool:
        """Whether Envoy waits for the pick so long and no longer, and can be asked for more time."""
        return bool(self._modes[0] != DUPLEX)

    @property
    def body(self) -> bytes:
        """What has come of the request's body."""
        if len(self._body) > 1:
            self._body[:] = [b"".join(self._body)]
        return self._body[0] if self._body else b""

    def forget_body(self) -> None:
        """It is not needed any longer."""
        self._body.clear()

    # -- in, and out ------------------------------------------------------------------------------------------------

    def take(self, message: pb.ProcessingRequest, now: float) -> list[pb.ProcessingResponse]:
        """Take in a message; returns what Envoy waits for after it.

        Where it waits for the pick that is nothing yet, and `is_complete` is set.
        """
        kind = message.WhichOneof("request")
        return list(_TAKE[kind](self, message, now)) if kind in _TAKE else []

    def picked(self, pick: Pick) -> list[pb.ProcessingResponse]:
        """What to tell Envoy, which waits for the pick."""
        self._pick = pick
        return list(self._tell(pick))

    # -- the request ------------------------------------------------------------------------------------------------

    def _request_headers(self, message: pb.ProcessingRequest, _now: float) -> Iterator[pb.ProcessingResponse]:
        self._modes = messages.modes_in(message)
        self.headers = messages.headers_in(message.request_headers.headers)
        self.subset = messages.subset_in(message)
        if message.request_headers.end_of_stream or not self.sees_prompt:
            self._due("headers")
        elif self._modes[0] in _WHOLE:
            # Its body comes when this has been answered, and may change the head still.
            yield pb.ProcessingResponse(request_headers=pb.HeadersResponse())

    def _request_body(self, message: pb.ProcessingRequest, _now: float) -> Iterator[pb.ProcessingResponse]:
        part = message.request_body
        if self._pick is not None:
            yield pb.ProcessingResponse(request_body=pb.BodyResponse())
            return
        self._body.append(part.body)
        self.body_bytes += len(part.body)
        if self._modes[0] in _WHOLE:
            self._due("body")
        elif part.end_of_stream:
            self._due("stream")

    def _request_trailers(self, _message: pb.ProcessingRequest, _now: float) -> Iterator[pb.ProcessingResponse]:
        if self._pick is None:
            self._due("trailers")
        else:
            yield pb.ProcessingResponse(request_trailers=pb.TrailersResponse())

    def _due(self, waits: str) -> None:
        self._waits, self.is_complete = waits, True

    def _tell(self, pick: Pick) -> Iterator[pb.ProcessingResponse]:
        where = messages.picked(pick.endpoints)
        put = {**pick.put, messages.PICKED: ",".join(pick.endpoints)}
        if self._waits == "body":
            body = None
            if pick.body is not None:
                body = messages.whole(pick.body)
                put["content-length"] = str(len(pick.body))
            said = messages.common(messages.changes(put, pick.drop), body)
            yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=said), dynamic_metadata=where)
            return
        said = messages.common(messages.changes(put, pick.drop))
        yield pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=said), dynamic_metadata=where)
        if self._waits == "headers":
            return
        # Streamed in both directions, Envoy has kept nothing of the body: all of it goes back, and without a length.
        body_bytes = self.body if pick.body is None else pick.body
        for piece in messages.pieces(body_bytes, is_last=self._waits == "stream"):
            yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=messages.common(None, piece)))
        if self._waits == "trailers":
            yield pb.ProcessingResponse(request_trailers=pb.TrailersResponse())

    # -- the answer -------------------------------------------------------------------------------------------------

    def _response_headers(self, message: pb.ProcessingRequest, _now: float) -> Iterator[pb.ProcessingResponse]:
        given = messages.named_in(message.response_headers.headers)
        code = given.get(b":status", b"")
        self.answer = answer = Answer(
            int(code) if code.isdigit() else 0, given, messages.served_in(message), messages.details_in(message)
        )
        marks: Mapping[str, str] = {}
        if (pick := self._pick) is not None:
            by_endpoint = dict(zip(pick.endpoints, pick.marks, strict=False))
            marks = by_endpoint.get(answer.served or pick.endpoints[0], {})
            self.observer = observer_of(answer, watch=pick.watch, hide_usage=pick.hide_usage)
        said = messages.common(messages.changes(marks))
        yield pb.ProcessingResponse(response_headers=pb.HeadersResponse(response=said))
        if message.response_headers.end_of_stream:
            self.has_ended = True

    def _response_body(self, message: pb.ProcessingRequest, now: float) -> Iterator[pb.ProcessingResponse]:
        part, observer = message.response_body, self.observer
        out = observer.feed(part.body, now)
        if part.end_of_stream:
            out += observer.close()
            self.has_ended = True
        if self._modes[1] == DUPLEX:
            # What is held back is answered with what follows it.
            if out or part.end_of_stream:
                said = messages.common(None, messages.piece(out, is_last=part.end_of_stream))
                yield pb.ProcessingResponse(response_body=pb.BodyResponse(response=said))
        elif out == part.body:
            yield pb.ProcessingResponse(response_body=pb.BodyResponse())
        else:
            said = messages.common(None, messages.whole(out))
            yield pb.ProcessingResponse(response_body=pb.BodyResponse(response=said))

    def _response_trailers(self, _message: pb.ProcessingRequest, _now: float) -> Iterator[pb.ProcessingResponse]:
        out = self.observer.close()
        if out and self._modes[1] == DUPLEX:
            said = messages.common(None, messages.piece(out, is_last=False))
            yield pb.ProcessingResponse(response_body=pb.BodyResponse(response=said))
        yield pb.ProcessingResponse(response_trailers=pb.TrailersResponse())
        self.has_ended = True


_TAKE = {
    "request_headers": Passage._request_headers,  # noqa: SLF001 - the class' own
    "request_body": Passage._request_body,  # noqa: SLF001
    "request_trailers": Passage._request_trailers,  # noqa: SLF001
    "response_headers": Passage._response_headers,  # noqa: SLF001
    "response_body": Passage._response_body,  # noqa: SLF001
    "response_trailers": Passage._response_trailers,  # noqa: SLF001
}
