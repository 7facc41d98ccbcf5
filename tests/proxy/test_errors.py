"""What engines say when they refuse, in whatever shape, and how a stream that has begun tells it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from ramjet.front.errors import error_event, error_in


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (
            400,
            b'{"error":{"message":"too long","type":"t","param":"messages","code":"c"}}',
            {"message": "too long", "type": "t", "param": "messages", "code": "c"},
        ),
        (
            400,
            b'{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}',
            {"message": "too long", "type": "BadRequestError", "param": None, "code": 400},
        ),
        (
            529,
            b'{"type":"error","error":{"type":"overloaded_error","message":"full"}}',
            {"message": "full", "type": "overloaded_error", "param": None, "code": 529},
        ),
        (
            500,
            b'{"error":"slot unavailable"}',
            {"message": "slot unavailable", "type": "api_error", "param": None, "code": 500},
        ),
        (
            422,
            b'{"detail":[{"loc":["body"],"msg":"no"}]}',
            {
                "message": '[{"loc":["body"],"msg":"no"}]',
                "type": "invalid_request_error",
                "param": None,
                "code": 422,
            },
        ),
        (
            429,
            "zu früh\n".encode(),
            {"message": "zu früh", "type": "rate_limit_error", "param": None, "code": 429},
        ),
        (
            502,
            b"<html>" + b"x" * 9_000,
            {"message": "<html>" + "x" * 994, "type": "api_error", "param": None, "code": 502},
        ),
        *(
            (500, body, {"message": "the replica answered 500", "type": "api_error", "param": None, "code": 500})
            for body in (b"", b" \n", b"null", b"{}", b"[]", b'{"error":null}', gzip.compress(b"{}", mtime=0))
        ),
    ],
)
def test_an_engines_error_is_found_wherever_it_stands(status: int, body: bytes, error: dict[str, Any]) -> None:
    """
    There is always a message, a type and a code, whatever came.
    """
    assert error_in(status, body) == error


@pytest.mark.parametrize("endpoint", ["chat", "completions", "messages", "responses", "generate"])
@pytest.mark.parametrize("retry_after_s", [None, 3])
def test_an_event_is_one_event_whatever_the_message(endpoint: str, retry_after_s: int | None) -> None:
    """
    A line's end in it would end the event; JSON has none.
    """
    error = error_in(400, json.dumps({"error": {"message": "a\n\nb\r\rdata: c"}}).encode())
    first, *rest = error_event(endpoint, error, retry_after_s).decode().split("\n\n")
    fields = dict(line.split(": ", 1) for line in first.split("\n"))

    assert rest in ([""], ["data: [DONE]", ""])
    assert json.loads(fields["data"])["error"]["message"] == "a\n\nb\r\rdata: c"
    assert fields.get("retry") == (None if retry_after_s is None else "3000")
    assert "\r" not in first
