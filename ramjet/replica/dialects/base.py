"""What every dialect has in common: what is asked, what is answered, and the methods that turn one into the other."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ramjet.sim.profile import EngineName

Body = dict[str, Any]

DEFAULT_MAX_TOKENS = 16
"""Where the request does not say; OpenAI's default for completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request, whatever its dialect."""

    text: str
    """The rendered prompt."""
    max_tokens: int
    ignore_eos: bool
    """Write `max_tokens`, even where the answer would end by itself."""
    model: str | None
    stream: bool
    include_usage: bool
    """Whether a stream of OpenAI's kind ends with the usage."""
    rank: int | None = None
    """The data-parallel rank that the body names, as SGLang reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer, whatever its dialect. Known from the start, but for what says otherwise."""

    engine: EngineName
    """Whose way of reporting it has."""

    identity: str
    """32 hexadecimal digits."""
    model: str
    created_at: int
    """Unix time in seconds."""
    prompt_tokens: int
    cached_tokens: int = 0
    """Known from the first token on."""
    reports_cached: bool
    drops_zero: bool
    """Whether a complete miss looks as if nothing were reported."""
    read_s: float = 0.0
    """From the start of reading to the first token, in the replica's own seconds; known from there on."""
    written_s: float = 0.0
    """From the first token to the last; known at the end."""
    tokens: tuple[str, ...]
    stopped: bool
    """The answer ended by itself; otherwise `max_tokens` ended it."""
    include_usage: bool

    @property
    def told_tokens(self) -> int | None:
        """What usage says of the reuse; None where it says nothing."""
        return self.cached_tokens if self.reports_cached and (self.cached_tokens or not self.drops_zero) else None

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.tokens)

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for why it ended."""
        return "stop" if self.stopped else "length"


class Dialect(ABC):
    """One API of the engines: how it asks, answers, streams and refuses."""

    path: str
    engines: tuple[EngineName, ...] | None = None
    """Those that have it; None for all."""
    reads_rank_header = True
    """Whether a header may name the data-parallel rank."""

    @abstractmethod
    def read(self, body: Body) -> Ask:
        """Understand a request. Raises ValueError, with a message for the client."""

    @abstractmethod
    def whole(self, reply: Reply) -> Body:
        """The answer in one piece."""

    def opening(self, reply: Reply) -> bytes:  # noqa: ARG002 - most dialects are silent until the first token
        """What a stream says before the prompt is read."""
        return b""

    def first(self, reply: Reply) -> bytes:  # noqa: ARG002 - /generate has nothing to say here
        """What comes with the first token, before its text."""
        return b""

    @abstractmethod
    def token(self, reply: Reply, at: int) -> bytes:
        """The generated token number `at`, counted from 0."""

    @abstractmethod
    def closing(self, reply: Reply) -> bytes:
        """What a stream says after the last token."""

    def error(self, message: str, status: int, engine: EngineName) -> Body:
        """A refusal, in the engine's own variant of OpenAI's shape."""
        kind = "BadRequestError" if status < 500 else "InternalServerError"
        match engine:
            case "sglang":
                return {"object": "error", "message": message, "type": kind, "param": None, "code": status}
            case "vllm":
                return {"error": {"message": message, "type": kind, "param": None, "code": status}}
            case "llama.cpp":
                kind = "invalid_request_error" if status < 500 else "server_error"
                return {"error": {"code": status, "message": message, "type": kind}}

    def broken(self, message: str) -> bytes:
        """What a stream says when generating failed in the middle of it."""
        error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
        return frame({"error": error}) + DONE


def frame(payload: Body, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(payload, ensure_ascii=False)}\n\n".encode("utf-8", "surrogatepass")


DONE = b"data: [DONE]\n\n"


def usage(reply: Reply) -> Body:
    """Usage as the engine reports it on OpenAI's endpoints."""
    told: Body | None = None if reply.told_tokens is None else {"cached_tokens": reply.told_tokens}
    counts: Body = {
        "prompt_tokens": reply.prompt_tokens,
        "total_tokens": reply.prompt_tokens + len(reply.tokens),
        "completion_tokens": len(reply.tokens),
    }
    match reply.engine:
        case "sglang":
            rest = {"prompt_tokens_details": told, "reasoning_tokens": 0, "completion_tokens_details": None}
        case "vllm":
            told = None if told is None else told | {"created_cache_tokens": 0, "multimodal_tokens": None}
            rest = {"prompt_tokens_details": told, "completion_tokens_details": None}
        case "llama.cpp":
            rest = {} if told is None else {"prompt_tokens_details": told}
    return counts | rest


def with_usage(reply: Reply) -> Body:
    """What goes beside an answer's choices at its end: the usage, and llama.cpp's timings."""
    if reply.engine != "llama.cpp":
        return {"usage": usage(reply)}
    timings = {
        "cache_n": reply.cached_tokens,
        "prompt_n": reply.prompt_tokens - reply.cached_tokens,
        "prompt_ms": round(1_000 * reply.read_s, 3),
        "predicted_n": len(reply.tokens),
        "predicted_ms": round(1_000 * reply.written_s, 3),
    }
    return {"usage": usage(reply), "timings": timings}


def read_ask(body: Body, text: str, *limits: str) -> Ask:
    """The facts all dialects write alike; the first of `limits` that is given bounds the answer."""
    options = body.get("stream_options")
    model = body.get("model")
    rank = body.get("routed_dp_rank")
    rank = body.get("data_parallel_rank") if rank is None else rank
    if rank is not None and type(rank) is not int:
        raise ValueError("routed_dp_rank must be a whole number")
    return Ask(
        text=text,
        max_tokens=_limit(body, limits),
        ignore_eos=body.get("ignore_eos") is True,
        model=model if isinstance(model, str) else None,
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        rank=rank,
    )


def _limit(body: Body, names: tuple[str, ...]) -> int:
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number, at least 1")
        return value
    return DEFAULT_MAX_TOKENS
