"""The engine's own token counts, in the shapes that the APIs put them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

_MOST_TOKENS = 1 << 31
"""No prompt is this long; a count beyond it is a fault of the engine's, and says nothing."""
_READ, _WRITTEN = "cache_read_input_tokens", "cache_creation_input_tokens"


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """The engine's own token counts for one request; None where it did not say, which is not the same as 0."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None

    def merged(self, later: Usage) -> Usage:
        """A later report wins over an earlier one; what it leaves out stays."""
        return Usage(
            prompt_tokens=_first(later.prompt_tokens, self.prompt_tokens),
            cached_tokens=_first(later.cached_tokens, self.cached_tokens),
            completion_tokens=_first(later.completion_tokens, self.completion_tokens),
        )


def usage_object(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """The object that holds the counts of a response, or of one event of a stream; None where there is none.

    OpenAI: `usage` (chat, completions) and `response.usage` (the events of responses). Anthropic: `usage` and
    `message.usage`. SGLang's `/generate`: `meta_info`.
    """
    found = message.get("usage")
    for wrapper in ("response", "message"):
        inner = message.get(wrapper)
        if not isinstance(found, dict) and isinstance(inner, dict):
            found = inner.get("usage")
    if not isinstance(found, dict):
        found = message.get("meta_info")
    return found if isinstance(found, dict) else None


def merged(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Both objects in one: a later value wins over an earlier one, and what is absent or null erases nothing."""
    together = dict(earlier)
    for name, value in later.items():
        before = together.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            together[name] = merged(before, value)
        elif value is not None or name not in together:
            together[name] = value
    return together


def usage_in(found: Mapping[str, Any]) -> Usage:
    """The counts in such an object."""
    cached = _count(_details(found), "cached_tokens")
    if cached is None:
        cached = _count(found, "cached_tokens")
    prompt = _count(found, "prompt_tokens", "input_tokens")
    if _WRITTEN in found or _READ in found:
        # Anthropic's input_tokens leave out what was read from the cache or written to it.
        read, written = _count(found, _READ), _count(found, _WRITTEN)
        cached = cached if read is None else read
        prompt = None if prompt is None else prompt + (read or 0) + (written or 0)
    completion = _count(found, "completion_tokens", "output_tokens")
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)


def _details(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict):
            return details
    return {}


def _count(fields: Mapping[str, Any], *names: str) -> int | None:
    """The first of these that is a count."""
    for name in names:
        value = fields.get(name)
        if type(value) is int and 0 <= value < _MOST_TOKENS:
            return value
    return None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
