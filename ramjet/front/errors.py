"""The one table that turns what went wrong into what the client is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

_MOST_TEXT = 1_000
"""Characters of an error page that are worth telling."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that Ramjet gives itself: its name in the record, its status, OpenAI's error type and a code."""

    outcome: str
    status: int
    kind: str
    code: str


HEADERS_TOO_LARGE = Refusal("refused", 431, "invalid_request_error", "headers_too_large")
TOO_LARGE = Refusal("refused", 413, "invalid_request_error", "request_too_large")
NO_TUNNEL = Refusal("refused", 405, "invalid_request_error", "no_tunnel")
BAD_FRAMING = Refusal("refused", 400, "invalid_request_error", "transfer_encoding")
BAD_EXPECTATION = Refusal("refused", 417, "invalid_request_error", "expectation")
TOO_SLOW = Refusal("client_stall", 408, "invalid_request_error", "request_too_slow")
NO_KEY = Refusal("refused", 401, "authentication_error", "invalid_api_key")
SHED = Refusal("shed", 429, "rate_limit_error", "overloaded")
HELD_TOO_LONG = Refusal("shed", 429, "rate_limit_error", "held_too_long")
FORBIDDEN = Refusal("refused", 403, "permission_error", "engine_admin_path")
NO_REPLICA = Refusal("no_replica", 503, "api_error", "no_replica")
CANNOT_CONNECT = Refusal("upstream_connect", 502, "api_error", "replica_unreachable")
RESET = Refusal("upstream_reset", 502, "api_error", "replica_reset")
FIRST_BYTE_TIMEOUT = Refusal("timeout_first_byte", 504, "api_error", "replica_timeout")
NO_STREAM = Refusal("stream_error_event", 502, "api_error", "no_stream")
INTERNAL = Refusal("internal_error", 500, "api_error", "internal_error")


def error_body(refusal: Refusal, message: str) -> bytes:
    """An error as OpenAI's API shapes it; their SDKs show the message, and so do those of others."""
    return msgspec.json.encode({"error": error_of(refusal, message)})


def error_of(refusal: Refusal, message: str) -> dict[str, Any]:
    """What Ramjet refuses, as an error object of OpenAI's."""
    return {"message": message, "type": refusal.kind, "param": None, "code": refusal.code}


def error_in(status: int, body: bytes) -> dict[str, Any]:
    """What an engine's error answer says, as an error object of OpenAI's.

    Engines put it under `error` (OpenAI's way, and Anthropic's), at the top (SGLang) or under `detail` (FastAPI), or
    say it in plain text.
    """
    told = _decoded(body)
    found = told.get("error", told) if isinstance(told, dict) else told
    if not isinstance(found, dict):
        found = {"message": found}
    message = found.get("message") or found.get("detail") or f"the replica answered {status}"
    kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "api_error"
    return {
        "message": message if isinstance(message, str) else msgspec.json.encode(message).decode(),
        "type": found.get("type") or kind,
        "param": found.get("param"),
        "code": found.get("code") or status,
    }


def _decoded(body: bytes) -> object:
    """A body as JSON, else as text; None where it is neither, or compressed."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return body.decode().strip()[:_MOST_TEXT]
    except UnicodeDecodeError:
        return None


def error_event(endpoint: str, error: Mapping[str, Any], retry_after_s: int | None = None) -> bytes:
    """An error told in an event stream, in the endpoint's dialect, with what ends such a stream.

    Args:
        endpoint: one of those that generate.
        error: an error object of OpenAI's.
        retry_after_s: what the header of that name would have said; the stream's own word for it is `retry`, in ms.
    """
    retry = b"" if retry_after_s is None else b"retry: %d\n" % (1_000 * retry_after_s)
    if endpoint == "messages":
        # Anthropic's errors have no more than this.
        told = {"type": "error", "error": {"type": error["type"], "message": error["message"]}}
        return retry + b"event: error\ndata: " + msgspec.json.encode(told) + b"\n\n"
    if endpoint == "responses":
        # The documented event has the error's fields at its top; OpenAI's SDKs raise for what has them under `error`.
        flat = {"type": "error", "sequence_number": 0, **{name: error[name] for name in ("code", "message", "param")}}
        return retry + b"event: error\ndata: " + msgspec.json.encode(flat | {"error": error}) + b"\n\n"
    return retry + b"data: " + msgspec.json.encode({"error": error}) + b"\n\ndata: [DONE]\n\n"
