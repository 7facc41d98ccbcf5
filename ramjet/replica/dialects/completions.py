"""`/v1/completions`."""

from __future__ import annotations

from ramjet.replica.dialects.base import DONE, Ask, Body, Dialect, Reply, frame, read_ask, with_usage
from ramjet.sim.prompt import render_raw


class Completions(Dialect):
    """OpenAI's text completions: the prompt is taken as it is."""

    path = "/v1/completions"

    def read(self, body: Body) -> Ask:
        """Understand a request."""
        return read_ask(body, render_raw(body.get("prompt")), "max_tokens")

    def whole(self, reply: Reply) -> Body:
        """A `text_completion`."""
        return _answer(reply, reply.text, reply.finish_reason) | with_usage(reply)

    def token(self, reply: Reply, at: int) -> bytes:
        """One piece of text."""
        return frame(_answer(reply, reply.tokens[at], None) | {"usage": None})

    def closing(self, reply: Reply) -> bytes:
        """Why it ended, the usage if it was asked for, and `[DONE]`."""
        ended = _answer(reply, "", reply.finish_reason)
        told = frame(ended | {"choices": []} | with_usage(reply))
        return frame(ended | {"usage": None}) + (told if reply.include_usage else b"") + DONE


def _answer(reply: Reply, text: str, finish_reason: str | None) -> Body:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason, "matched_stop": None}
    return {
        "id": f"cmpl-{reply.identity}",
        "object": "text_completion",
        "created": reply.created_at,
        "model": reply.model,
        "choices": [choice],
    }
