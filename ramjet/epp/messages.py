"""Envoy's external processing messages, read and written: what of them is used here, in plain values.

And what the endpoint picker protocol of the Gateway API Inference Extension adds to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import duration_pb2, struct_pb2

from ramjet.front import marks

PICKED = "x-gateway-destination-endpoint"
"""The header, and the key in the metadata, that names the pick and what may be tried after it, comma between them."""
_PICKED_IN = "envoy.lb"
_SERVED = "x-gateway-destination-endpoint-served"
_SUBSET = "x-gateway-destination-endpoint-subset"
_SUBSET_IN = "envoy.lb.subset_hint"
_ATTRIBUTES = "envoy.filters.http.ext_proc"
_UPSTREAM = "upstream.address"
_DETAILS = "response.code_details"

MOST_CHUNK_BYTES = 60 << 10
"""Envoy's documentation advises against chunks of more than 64 KiB."""

_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD

Mode = int
"""How Envoy sends a body, one of these:"""
NONE = processing_mode_pb2.ProcessingMode.NONE
STREAMED = processing_mode_pb2.ProcessingMode.STREAMED
BUFFERED = processing_mode_pb2.ProcessingMode.BUFFERED
BUFFERED_PARTIAL = processing_mode_pb2.ProcessingMode.BUFFERED_PARTIAL
DUPLEX = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED


# -- read ---------------------------------------------------------------------------------------------------------------


def headers_in(headers: base_pb2.HeaderMap) -> dict[str, str]:
    """The headers, pseudo headers among them, by names in lower case; of those with one name the first."""
    found: dict[str, str] = {}
    for each in headers.headers:
        found.setdefault(each.key, each.raw_value.decode(errors="surrogateescape") if each.raw_value else each.value)
    return found


def named_in(headers: base_pb2.HeaderMap) -> dict[bytes, bytes]:
    """The same in bytes, as they came."""
    found: dict[bytes, bytes] = {}
    for each in headers.headers:
        found.setdefault(each.key.encode(), each.raw_value or each.value.encode())
    return found


def modes_in(message: pb.ProcessingRequest) -> tuple[Mode, Mode]:
    """How bodies of the request and of its answer will come, by the first message.

    Envoy says it since 1.34. Of one that does not, the mode is taken for the one that the endpoint picker protocol asks for.
    """
    if not message.HasField("protocol_config"):
        return DUPLEX, DUPLEX
    return message.protocol_config.request_body_mode, message.protocol_config.response_body_mode


def subset_in(message: pb.ProcessingRequest) -> frozenset[str] | None:
    """The endpoints of which one must be picked; None where any may."""
    fields = message.metadata_context.filter_metadata[_SUBSET_IN].fields if _SUBSET_IN in _metadata(message) else {}
    if _SUBSET not in fields:
        return None
    value = fields[_SUBSET]
    if value.WhichOneof("kind") == "list_value":
        listed = [each.string_value for each in value.list_value.values]
    else:
        listed = value.string_value.split(",")
    return frozenset(each.strip() for each in listed if each.strip())


def served_in(message: pb.ProcessingRequest) -> str | None:
    """The endpoint that an answer came from, where Envoy says it: by the protocol, or by an attribute of its own."""
    if _PICKED_IN in _metadata(message):
        fields = message.metadata_context.filter_metadata[_PICKED_IN].fields
        if _SERVED in fields:
            return fields[_SERVED].string_value or None
    return _attribute(message, _UPSTREAM)


def details_in(message: pb.ProcessingRequest) -> str | None:
    """How Envoy came by an answer, where it says that."""
    return _attribute(message, _DETAILS)


def _metadata(message: pb.ProcessingRequest) -> Collection[str]:
    found: Collection[str] = message.metadata_context.filter_metadata
    return found


def _attribute(message: pb.ProcessingRequest, name: str) -> str | None:
    if _ATTRIBUTES not in message.attributes:
        return None
    fields = message.attributes[_ATTRIBUTES].fields
    return (fields[name].string_value or None) if name in fields else None


# -- written ------------------------------------------------------------------------------------------------------------


def changes(put: Mapping[str, str], drop: Iterable[str] = ()) -> pb.HeaderMutation:
    """Headers to be set, whatever they were, and others to be taken out."""
    return pb.HeaderMutation(
        set_headers=[
            base_pb2.HeaderValueOption(
                header=base_pb2.HeaderValue(key=name, raw_value=value.encode(errors="surrogateescape")),
                append_action=_OVERWRITE,
            )
            for name, value in put.items()
        ],
        remove_headers=list(drop),
    )


def changed_for(
    given: Mapping[str, str],
    request_id: str,
    *,
    plain: bool,
    key: str | None,
    drop_key: bool,
    rank: int | None,
) -> tuple[dict[str, str], list[str]]:
    """Which headers of a request to set for a replica, and which to take out.

    Args:
        given: the request's, by names in lower case.
        request_id: replaces the client's, which may not be sane.
        plain: do not offer compression, because the answer is to be looked into. Clients accept that always.
        key: what the replica asks for; it takes the place of the client's.
        drop_key: the client's key was for Ramjet, and is no replica's business.
        rank: the data-parallel rank that it is for, whatever the client wants; None leaves it to client and engine.
    """
    put = {marks.REQUEST_ID: request_id}
    if rank is not None:
        put[marks.RANK] = str(rank)
    if key is not None:
        put["authorization"] = f"Bearer {key}"
    drop = {name for name in given if name.startswith(marks.OURS)}
    if plain:
        drop.add("accept-encoding")
    if key is not None or drop_key:
        drop |= marks.KEYS
    return put, sorted(drop.difference(put))


def picked(endpoints: Sequence[str]) -> struct_pb2.Struct:
    """The pick as dynamic metadata."""
    told = struct_pb2.Struct()
    told.update({_PICKED_IN: {PICKED: ",".join(endpoints)}})
    return told


def common(
    header_mutation: pb.HeaderMutation | None = None, body_mutation: pb.BodyMutation | None = None
) -> pb.CommonResponse:
    """Go on, with these changes."""
    return pb.CommonResponse(header_mutation=header_mutation, body_mutation=body_mutation)


def whole(body: bytes) -> pb.BodyMutation:
    """Another body, or another piece of one, in place of what came."""
    return pb.BodyMutation(body=body) if body else pb.BodyMutation(clear_body=True)


def piece(body: bytes, *, is_last: bool) -> pb.BodyMutation:
    """A piece of a body that is streamed in both directions."""
    return pb.BodyMutation(streamed_response=pb.StreamedBodyResponse(body=body, end_of_stream=is_last))


def pieces(body: bytes, *, is_last: bool) -> Iterator[pb.BodyMutation]:
    """The same of a body of any length."""
    for start in range(0, max(1, len(body)), MOST_CHUNK_BYTES):
        stop = start + MOST_CHUNK_BYTES
        yield piece(body[start:stop], is_last=is_last and stop >= len(body))


def more_time(seconds: float) -> pb.ProcessingResponse:
    """This takes so long: do not give up before."""
    given = duration_pb2.Duration()
    given.FromMilliseconds(int(1_000 * seconds))
    return pb.ProcessingResponse(override_message_timeout=given)


def refusal(status: int, body: bytes, put: Mapping[str, str]) -> pb.ProcessingResponse:
    """An answer that comes from here, and from no replica."""
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status={"code": status}, headers=changes(put), body=body, details="ramjet"
        )
    )
