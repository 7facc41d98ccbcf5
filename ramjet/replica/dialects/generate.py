"""`/generate`, SGLang's own API."""

from __future__ import annotations

from ramjet.replica.dialects.base import DONE, Ask, Body, Dialect, Reply, frame, read_ask
from ramjet.sim.prompt import render_raw


class Generate(Dialect):
    """SGLang's native endpoint: it reports reuse whatever the flags, and each frame repeats the text so far."""

    path = "/generate"
    engines = ("sglang",)
    reads_rank_header = False

    def read(self, body: Body) -> Ask:
        """Understand a request."""
        sampling = body.get("sampling_params") or {}
        if not isinstance(sampling, dict):
            raise ValueError("sampling_params must be one object: one prompt at a time")  # noqa: TRY004 - see Dialect.read
        given = "text" if body.get("text") is not None else "input_ids"
        facts = {name: sampling.get(name) for name in ("max_new_tokens", "ignore_eos")}
        return read_ask(body | facts, render_raw(body.get(given)), "max_new_tokens")

    def whole(self, reply: Reply) -> Body:
        """The text and its `meta_info`."""
        return _written(reply, len(reply.tokens))

    def token(self, reply: Reply, at: int) -> bytes:
        """The text up to this token."""
        return frame(_written(reply, at + 1))

    def closing(self, reply: Reply) -> bytes:  # noqa: ARG002 - the last token's frame has said it all
        """`[DONE]`."""
        return DONE


def _written(reply: Reply, tokens: int) -> Body:
    return {
        "text": "".join(reply.tokens[:tokens]),
        "meta_info": {
            "id": reply.identity,
            "finish_reason": _finish_reason(reply) if tokens == len(reply.tokens) else None,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": tokens,
            "cached_tokens": reply.cached_tokens,
        },
    }


def _finish_reason(reply: Reply) -> Body:
    return {"type": "stop", "matched": 0} if reply.stopped else {"type": "length", "length": len(reply.tokens)}
