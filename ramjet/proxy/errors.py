"""The one table that turns what went wrong into what the client is told."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


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
TOO_SLOW = Refusal("client_stall", 408, "invalid_request_error", "request_too_slow")
NO_KEY = Refusal("refused", 401, "authentication_error", "invalid_api_key")
SHED = Refusal("shed", 429, "rate_limit_error", "overloaded")
HELD_TOO_LONG = Refusal("shed", 429, "rate_limit_error", "held_too_long")
FORBIDDEN = Refusal("refused", 403, "permission_error", "engine_admin_path")
NO_REPLICA = Refusal("no_replica", 503, "api_error", "no_replica")
CANNOT_CONNECT = Refusal("upstream_connect", 502, "api_error", "replica_unreachable")
RESET = Refusal("upstream_reset", 502, "api_error", "replica_reset")
FIRST_BYTE_TIMEOUT = Refusal("timeout_first_byte", 504, "api_error", "replica_timeout")
INTERNAL = Refusal("internal_error", 500, "api_error", "internal_error")


def error_body(refusal: Refusal, message: str) -> bytes:
    """An error as OpenAI's API shapes it; their SDKs show the message, and so do those of others."""
    error = {"message": message, "type": refusal.kind, "param": None, "code": refusal.code}
    return msgspec.json.encode({"error": error})
