"""Requests and answers as Envoy tells of them: however it cuts them, what comes out is what went in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from ramjet.epp import messages
from ramjet.epp.messages import BUFFERED, DUPLEX, NONE, STREAMED, Mode
from ramjet.epp.passage import Passage, Pick

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "warm " * 30_000}]}).encode()
CHUNKS = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    *({"choices": [{"index": 0, "delta": {"content": f"word {number}"}}]} for number in range(5)),
    {"choices": [], "usage": {"prompt_tokens": 19_845, "prompt_tokens_details": {"cached_tokens": 12_288}}},
]
SHOWN = b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in CHUNKS[:-1]) + b"data: [DONE]\n\n"
STREAM = b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in CHUNKS) + b"data: [DONE]\n\n"
PICK = Pick(endpoints=["10.0.0.7:30000", "10.0.0.8:30000"], put={"x-request-id": "1"}, watch=True)


def head(
    request: Mode = BUFFERED, answer: Mode = STREAMED, *, is_last: bool = False, **more: str
) -> pb.ProcessingRequest:
    given = {":method": "POST", ":path": "/v1/chat/completions", "content-length": str(len(BODY)), **more}
    return pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=headers(given), end_of_stream=is_last),
        protocol_config=pb.ProtocolConfiguration(request_body_mode=request, response_body_mode=answer),
    )


def headers(given: dict[str, str]) -> base_pb2.HeaderMap:
    return base_pb2.HeaderMap(headers=[{"key": name, "raw_value": value.encode()} for name, value in given.items()])


def answered(**given: str) -> pb.ProcessingRequest:
    given = {":status": "200", "content-type": "text/event-stream"} | given
    return pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=headers(given)))


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


def kinds(said: Sequence[pb.ProcessingResponse]) -> list[str | None]:
    return [each.WhichOneof("response") for each in said]


def put(mutation: pb.HeaderMutation) -> dict[str, str]:
    return {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}


def asked(mode: Mode, answer: Mode = STREAMED, pick: Pick = PICK) -> Passage:
    """A passage whose request is on its way to a replica."""
    passage = Passage()
    passage.take(head(mode, answer), 0)
    passage.take(pb.ProcessingRequest(request_body=pb.HttpBody(body=BODY, end_of_stream=True)), 0)
    passage.picked(pick)
    return passage


def test_a_body_that_envoy_keeps_stays_with_it() -> None:
    """
    The head is let go, the pick comes with the body's answer, and the body is not sent back.
    """
    passage = Passage()

    assert kinds(passage.take(head(), 0)) == ["request_headers"]
    assert passage.take(pb.ProcessingRequest(request_body=pb.HttpBody(body=BODY, end_of_stream=True)), 0) == []
    assert passage.is_complete
    (said,) = passage.picked(PICK)
    assert said.dynamic_metadata["envoy.lb"][messages.PICKED] == "10.0.0.7:30000,10.0.0.8:30000"
    assert put(said.request_body.response.header_mutation) == {
        "x-request-id": "1",
        messages.PICKED: "10.0.0.7:30000,10.0.0.8:30000",
    }
    assert not said.request_body.response.HasField("body_mutation")


def test_a_body_that_changes_has_its_new_length() -> None:
    """
    Envoy refuses another body under the old length.
    """
    passage = Passage()
    passage.take(head(), 0)
    passage.take(pb.ProcessingRequest(request_body=pb.HttpBody(body=BODY, end_of_stream=True)), 0)
    (said,) = passage.picked(Pick(endpoints=["10.0.0.7:30000"], body=BODY + b" "))

    assert said.request_body.response.body_mutation.body == BODY + b" "
    assert put(said.request_body.response.header_mutation)["content-length"] == str(len(BODY) + 1)


@given(places=st.lists(st.integers(0, len(BODY)), max_size=6), trailers=st.booleans())
def test_where_a_streamed_body_is_cut_never_matters(places: list[int], trailers: bool) -> None:
    """
    Nothing goes back before all of it is here; then its head with the pick, its bytes in small pieces, and its end once.
    """
    passage, pieces = Passage(), cut(BODY, places)

    assert passage.take(head(DUPLEX, DUPLEX), 0) == []
    for number, piece in enumerate(pieces, 1):
        assert not passage.is_complete
        is_last = number == len(pieces) and not trailers
        assert passage.take(pb.ProcessingRequest(request_body=pb.HttpBody(body=piece, end_of_stream=is_last)), 0) == []
    if trailers:
        assert passage.take(pb.ProcessingRequest(request_trailers=pb.HttpTrailers()), 0) == []
    assert passage.is_complete
    first, *rest = passage.picked(PICK)
    ends = [rest.pop()] if trailers else []

    assert kinds([first, *ends]) == ["request_headers", *(["request_trailers"] if trailers else [])]
    assert messages.PICKED in put(first.request_headers.response.header_mutation)
    sent = [each.request_body.response.body_mutation.streamed_response for each in rest]
    assert b"".join(each.body for each in sent) == BODY
    assert all(len(each.body) <= messages.MOST_CHUNK_BYTES for each in sent)
    assert [each.end_of_stream for each in sent] == [False] * (len(sent) - 1) + [not trailers]


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX, STREAMED, NONE])
def test_a_request_without_a_body_is_complete_with_its_head(mode: Mode) -> None:
    """
    One message, one answer.
    """
    passage = Passage()

    assert passage.take(head(mode, is_last=True), 0) == []
    assert passage.is_complete
    assert kinds(passage.picked(PICK)) == ["request_headers"]


@pytest.mark.parametrize("mode", [STREAMED, NONE])
def test_a_body_that_is_not_shown_before_the_pick_is_not_waited_for(mode: Mode) -> None:
    """
    The pick answers the head; pieces that come after it are let pass.
    """
    passage = Passage()
    passage.take(head(mode), 0)

    assert passage.is_complete
    assert not passage.sees_prompt
    assert kinds(passage.picked(PICK)) == ["request_headers"]
    piece = pb.ProcessingRequest(request_body=pb.HttpBody(body=b"x"))
    assert passage.take(piece, 0) == [pb.ProcessingResponse(request_body=pb.BodyResponse())]


@given(places=st.lists(st.integers(0, len(STREAM)), max_size=20), hidden=st.booleans())
def test_pieces_that_envoy_keeps_are_answered_one_by_one(places: list[int], hidden: bool) -> None:
    """
    Each as soon as it has come; put together they are what the replica sent, less the usage that only Ramjet asked for.
    """
    passage = asked(BUFFERED, STREAMED, Pick(endpoints=PICK.endpoints, watch=True, hide_usage=hidden))
    passage.take(answered(), 1)
    pieces, out = cut(STREAM, places), b""
    for number, piece in enumerate(pieces, 1):
        part = pb.HttpBody(body=piece, end_of_stream=number == len(pieces))
        (said,) = passage.take(pb.ProcessingRequest(response_body=part), 1 + number)
        mutation = said.response_body.response.body_mutation
        out += {None: piece, "body": mutation.body, "clear_body": b""}[mutation.WhichOneof("mutation")]

    assert out == (SHOWN if hidden else STREAM)
    assert passage.has_ended
    assert passage.observer.usage is not None
    assert passage.observer.usage.cached_tokens == 12_288
    assert passage.observer.first_token_at is not None


@given(places=st.lists(st.integers(0, len(STREAM)), max_size=20), hidden=st.booleans(), trailers=st.booleans())
def test_pieces_that_envoy_lets_go_all_come_back(places: list[int], hidden: bool, trailers: bool) -> None:
    """
    In order, and the last of them says that it is, unless trailers follow.
    """
    passage = asked(DUPLEX, DUPLEX, Pick(endpoints=PICK.endpoints, watch=True, hide_usage=hidden))
    said = passage.take(answered(), 1)
    pieces = cut(STREAM, places)
    for number, piece in enumerate(pieces, 1):
        part = pb.HttpBody(body=piece, end_of_stream=number == len(pieces) and not trailers)
        said += passage.take(pb.ProcessingRequest(response_body=part), 1 + number)
    if trailers:
        said += passage.take(pb.ProcessingRequest(response_trailers=pb.HttpTrailers()), 99)

    first, *bodies = said
    assert kinds([first]) == ["response_headers"]
    if trailers:
        assert kinds([bodies.pop()]) == ["response_trailers"]
    sent = [each.response_body.response.body_mutation.streamed_response for each in bodies]
    assert b"".join(each.body for each in sent) == (SHOWN if hidden else STREAM)
    assert [each.end_of_stream for each in sent].count(True) == (0 if trailers else 1)
    assert trailers or sent[-1].end_of_stream
    assert passage.has_ended


def test_what_envoy_does_not_say_of_its_modes_is_what_the_protocol_asks_for() -> None:
    """
    Envoys before 1.34 do not say it, and gateways set both bodies to stream in both directions.
    """
    passage, message = Passage(), head()
    message.ClearField("protocol_config")

    assert passage.take(message, 0) == []
    assert passage.sees_prompt
    assert passage.sees_answer


@pytest.mark.parametrize(
    ("told", "subset"),
    [
        (None, None),
        ([], frozenset()),
        (["10.0.0.7:30000", "10.0.0.8:30000"], frozenset({"10.0.0.7:30000", "10.0.0.8:30000"})),
        ("10.0.0.7:30000, 10.0.0.8:30000", frozenset({"10.0.0.7:30000", "10.0.0.8:30000"})),
        ("", frozenset()),
    ],
)
def test_the_subset_is_told_apart_from_none(told: object, subset: frozenset[str] | None) -> None:
    """
    An empty one is one of which nothing may be picked; some senders write it as a text with commas.
    """
    passage, message = Passage(), head()
    if told is not None:
        hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.update({"x-gateway-destination-endpoint-subset": told})
    passage.take(message, 0)

    assert passage.subset == subset


def test_who_answered_is_told_by_the_protocol_or_by_envoy() -> None:
    """
    The protocol's metadata first, an attribute of Envoy's else.
    """
    message = answered()
    message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "10.0.0.7:30000"})
    passage = asked(BUFFERED)
    passage.take(message, 0)
    assert passage.answer is not None
    assert passage.answer.served == "10.0.0.7:30000"

    message.metadata_context.filter_metadata["envoy.lb"].update({f"{messages.PICKED}-served": "10.0.0.8:30000"})
    passage = asked(BUFFERED)
    passage.take(message, 0)
    assert passage.answer is not None
    assert passage.answer.served == "10.0.0.8:30000"


def test_bytes_that_are_no_text_pass_in_headers() -> None:
    """
    They come back as they were.
    """
    given = {"x-name": b"caf\xe9"}
    came = base_pb2.HeaderMap(headers=[{"key": name, "raw_value": value} for name, value in given.items()])
    found = messages.headers_in(came)

    assert [each.header.raw_value for each in messages.changes(found).set_headers] == [b"caf\xe9"]
