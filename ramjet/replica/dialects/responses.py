"""`/v1/responses`, OpenAI's API of items."""

from __future__ import annotations

from ramjet.replica.dialects.base import Ask, Body, Dialect, Reply, frame, read_ask
from ramjet.sim.prompt import render_responses


class Responses(Dialect):
    """OpenAI's responses, without a store: a request must bring its whole history."""

    path = "/v1/responses"

    def read(self, body: Body) -> Ask:
        """Understand a request."""
        if body.get("previous_response_id") is not None:
            raise ValueError("previous_response_id is not supported: this replica stores no responses")
        return read_ask(body, render_responses(body), "max_output_tokens")

    def whole(self, reply: Reply) -> Body:
        """A finished `response`."""
        ended = _response(reply, _status(reply)) | {"output": [_item(reply, _status(reply))], "usage": _usage(reply)}
        return ended | ({} if reply.stopped else {"incomplete_details": {"reason": "max_output_tokens"}})

    def opening(self, reply: Reply) -> bytes:
        """A head before the prompt is read: bytes that are no sign of a first token."""
        begun = {"response": _response(reply, "in_progress")}
        return _event("response.created", 0, begun) + _event("response.in_progress", 1, begun)

    def first(self, reply: Reply) -> bytes:
        """The start of the one message and of its one part."""
        added = {"output_index": 0, "item": _item(reply, "in_progress")}
        return _event("response.output_item.added", 2, added) + _event(
            "response.content_part.added", 3, _place(reply) | {"part": _part("")}
        )

    def token(self, reply: Reply, at: int) -> bytes:
        """One piece of the part."""
        piece = {"delta": reply.tokens[at], "logprobs": []}
        return _event("response.output_text.delta", 4 + at, _place(reply) | piece)

    def broken(self, message: str) -> bytes:
        """An `error` event; the stream ends with it."""
        return frame({"type": "error", "code": "server_error", "message": message, "param": None}, "error")

    def closing(self, reply: Reply) -> bytes:
        """The ends of part and message, then the whole response once more."""
        after, place = 4 + len(reply.tokens), _place(reply)
        done = {"output_index": 0, "item": _item(reply, _status(reply))}
        return (
            _event("response.output_text.done", after, place | {"text": reply.text, "logprobs": []})
            + _event("response.content_part.done", after + 1, place | {"part": _part(reply.text)})
            + _event("response.output_item.done", after + 2, done)
            + _event("response.completed", after + 3, {"response": self.whole(reply)})
        )


def _event(kind: str, number: int, payload: Body) -> bytes:
    return frame({"type": kind, "sequence_number": number} | payload, kind)


def _status(reply: Reply) -> str:
    return "completed" if reply.stopped else "incomplete"


def _place(reply: Reply) -> Body:
    return {"item_id": f"msg_{reply.identity}", "output_index": 0, "content_index": 0}


def _part(text: str) -> Body:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(reply: Reply, status: str) -> Body:
    content = [] if status == "in_progress" else [_part(reply.text)]
    return {
        "id": f"msg_{reply.identity}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _response(reply: Reply, status: str) -> Body:
    return {
        "id": f"resp_{reply.identity}",
        "object": "response",
        "created_at": reply.created_at,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _usage(reply: Reply) -> Body:
    # The fields are not optional here, so a miss is a 0; None only where nothing is reported at all.
    cached = {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0} if reply.reports_cached else None
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": cached,
        "output_tokens": len(reply.tokens),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + len(reply.tokens),
    }
