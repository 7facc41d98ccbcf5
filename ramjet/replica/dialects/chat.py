"""`/v1/chat/completions`."""

from __future__ import annotations

from ramjet.replica.dialects.base import DONE, Ask, Body, Dialect, Reply, frame, read_ask, with_usage
from ramjet.sim.prompt import render_chat


class Chat(Dialect):
    """OpenAI's chat completions."""

    path = "/v1/chat/completions"

    def read(self, body: Body) -> Ask:
        """Understand a request."""
        return read_ask(body, render_chat(body), "max_completion_tokens", "max_tokens")

    def whole(self, reply: Reply) -> Body:
        """A `chat.completion`."""
        message = {"role": "assistant", "content": reply.text, "reasoning_content": None, "tool_calls": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": reply.finish_reason,
            "matched_stop": None,
        }
        return _head(reply, "chat.completion") | {"choices": [choice]} | with_usage(reply)

    def first(self, reply: Reply) -> bytes:
        """The role and an empty content; llama.cpp's is null."""
        return _chunk(reply, {"role": "assistant", "content": None if reply.engine == "llama.cpp" else ""})

    def token(self, reply: Reply, at: int) -> bytes:
        """One piece of content."""
        return _chunk(reply, {"content": reply.tokens[at]})

    def closing(self, reply: Reply) -> bytes:
        """Why it ended, the usage if it was asked for, and `[DONE]`."""
        ended = _chunk(reply, {"content": None}, reply.finish_reason)
        told = frame(_head(reply, "chat.completion.chunk") | {"choices": []} | with_usage(reply))
        return ended + (told if reply.include_usage else b"") + DONE


def _head(reply: Reply, kind: str) -> Body:
    return {
        "id": f"chatcmpl-{reply.identity}",
        "object": kind,
        "created": reply.created_at,
        "model": reply.model,
    }


def _chunk(reply: Reply, delta: Body, finish_reason: str | None = None) -> bytes:
    delta = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None} | delta
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": None,
        "finish_reason": finish_reason,
        "matched_stop": None,
    }
    return frame(_head(reply, "chat.completion.chunk") | {"choices": [choice], "usage": None})
