"""What valid requests and answers look like: the seeds of all mutations."""

from __future__ import annotations

import json
from typing import Any

_TOOLS = [
    {
        "type": "function",
        "function": {"name": "search", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
    }
]
_LONG = "The quick brown fox jumps over the lazy dog. " * 40
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}

REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hello"}]}),
    ("/v1/chat/completions", {
        "model": "m", "stream": True, "tools": _TOOLS, "max_tokens": 8, "messages": [
            {"role": "system", "content": "It is now 12:30, 2026-01-01T12:30:00.\nBe brief."},
            {"role": "user", "content": _LONG},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{\"q\":1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
        ],
    }),
    ("/v1/chat/completions", {
        "stream": True, "stream_options": {"include_usage": True}, "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, _IMAGE, {"type": "text", "text": _LONG}]}],
    }),
    ("/v1/chat/completions", {"model": "m", "stream": True, "stream_options": None, "messages": [{"role": "user", "content": "stream_options"}]}),
    ("/v1/chat/completions", {"model": "m", "stream": True, "stream_options": {}, "messages": [{"role": "user", "content": "x"}], "lora_path": "l"}),
    ("/v1/completions", {"model": "m", "prompt": _LONG, "stream": True}),
    ("/v1/completions", {"model": "m", "prompt": ["one"], "echo": False}),
    ("/v1/completions", {"model": "m", "prompt": [1, 2, 3, 70_000], "temperature": 0.5}),
    ("/v1/messages", {
        "model": "m", "max_tokens": 9, "stream": True, "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc=1;\n"}, {"type": "text", "text": _LONG, "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}],
    }),
    ("/v1/responses", {"model": "m", "instructions": "Be brief.", "input": "hello", "stream": True}),
    ("/v1/responses", {"model": "m", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": _LONG}, {"type": "input_image", "image_url": "data:,x"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]}),
    ("/generate", {"text": _LONG, "sampling_params": {"max_new_tokens": 4}, "stream": True}),
    ("/generate", {"input_ids": list(range(500)), "rid": "r"}),
    ("/v1/embeddings", {"model": "m", "input": ["a", "b"]}),
    ("/tokenize", {"prompt": "a"}),
)  # fmt: skip

_USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 3,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 8},
}
_CHAT = {"id": "c", "object": "chat.completion", "model": "m", "usage": _USAGE,
         "choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}]}  # fmt: skip

BODIES: tuple[dict[str, Any], ...] = (
    _CHAT,
    {"id": "m", "type": "message", "content": [{"type": "text", "text": "fine"}],
     "usage": {"input_tokens": 4, "output_tokens": 2, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 1}},
    {"id": "r", "object": "response", "output": [], "usage": {"input_tokens": 4, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 3}},
    {"text": "fine", "meta_info": {"prompt_tokens": 9, "cached_tokens": 5, "completion_tokens": 1}},
    {"error": {"message": "too long", "type": "invalid_request_error", "code": None}},
    {"object": "list", "data": [{"embedding": [0.1, 0.2], "index": 0}], "usage": {"prompt_tokens": 3, "total_tokens": 3}},
)  # fmt: skip

USAGE_CHUNK = {"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": _USAGE}


def _token(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}], **more}


STREAMS: tuple[tuple[Any, ...], ...] = (
    (_token("", usage=None), _token("a", usage=None), _token("b", usage=None), USAGE_CHUNK, "[DONE]"),
    (_token("a"), _token("b"), "[DONE]"),
    (_token("a"), {"error": {"message": "out of memory", "code": 500}}, "[DONE]"),
    ({"id": "c", "choices": [{"index": 0, "text": "a"}]}, {"id": "c", "choices": [], "usage": _USAGE}, "[DONE]"),
    ({"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 9}}},
     {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
     {"type": "message_delta", "usage": {"output_tokens": 5}}, {"type": "message_stop"}),
    ({"type": "response.created", "response": {}}, {"type": "response.output_text.delta", "delta": "a"},
     {"type": "response.completed", "response": {"usage": {"input_tokens": 4, "output_tokens": 2}}}),
    ({"text": "a", "meta_info": {"prompt_tokens": 4, "cached_tokens": 0}}, {"text": "ab", "meta_info": {"prompt_tokens": 4, "cached_tokens": 2}}, "[DONE]"),
    (_token("x" * 3_000), _token("y", choices_logprobs=["z" * 70_000]), {"id": "c", "choices": [], "usage": _USAGE, "pad": "p" * 66_000}, "[DONE]"),
)  # fmt: skip


def event(payload: Any, end: bytes = b"\n\n") -> bytes:
    """One server-sent event; a text stands as it is, anything else as JSON."""
    data = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"))
    return b"data: " + data.encode("utf-8", "surrogatepass") + end
