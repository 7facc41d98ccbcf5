"""`/v1/messages`, Anthropic's API."""

from __future__ import annotations

from ramjet.replica.dialects.base import Ask, Body, Dialect, Reply, frame, read_ask
from ramjet.sim.profile import EngineName
from ramjet.sim.prompt import render_messages

_ERRORS = {413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error"}


class Messages(Dialect):
    """Anthropic's messages; unlike elsewhere, `input_tokens` leaves out what was reused."""

    path = "/v1/messages"

    def read(self, body: Body) -> Ask:
        """Understand a request."""
        return read_ask(body, render_messages(body), "max_tokens")

    def whole(self, reply: Reply) -> Body:
        """A `message`."""
        content = [{"type": "text", "text": reply.text}]
        return _message(reply) | {
            "content": content,
            "stop_reason": _stop_reason(reply),
            "usage": _usage(reply, len(reply.tokens)),
        }

    def first(self, reply: Reply) -> bytes:
        """The message's head, with the usage of the prompt, and the start of its one block."""
        return _event("message_start", {"message": _message(reply)}) + _event(
            "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
        )

    def token(self, reply: Reply, at: int) -> bytes:
        """One piece of the block."""
        delta = {"type": "text_delta", "text": reply.tokens[at]}
        return _event("content_block_delta", {"index": 0, "delta": delta})

    def closing(self, reply: Reply) -> bytes:
        """The end of the block, why the message ended, and its end."""
        ended = {
            "delta": {"stop_reason": _stop_reason(reply), "stop_sequence": None},
            "usage": _usage(reply, len(reply.tokens)),
        }
        return _event("content_block_stop", {"index": 0}) + _event("message_delta", ended) + _event("message_stop", {})

    def error(self, message: str, status: int, engine: EngineName) -> Body:  # noqa: ARG002 - all have the same shape
        """A refusal in Anthropic's shape."""
        return {"type": "error", "error": {"type": _ERRORS.get(status, "invalid_request_error"), "message": message}}

    def broken(self, message: str) -> bytes:
        """An `error` event; the stream ends with it."""
        return _event("error", {"error": {"type": "api_error", "message": message}})


def _event(kind: str, payload: Body) -> bytes:
    return frame({"type": kind} | payload, kind)


def _stop_reason(reply: Reply) -> str:
    return "end_turn" if reply.stopped else "max_tokens"


def _message(reply: Reply) -> Body:
    return {
        "id": f"msg_{reply.identity}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(reply, 0),
    }


def _usage(reply: Reply, output_tokens: int) -> Body:
    if not reply.reports_cached:
        return {"input_tokens": reply.prompt_tokens, "output_tokens": output_tokens}
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_read_input_tokens": reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": output_tokens,
    }
