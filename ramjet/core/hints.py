"""What a client says of whose a prompt is: the name of a session, or of a user. Never enough alone.

Names are reused: agents give their session's to children and to side calls, gateways make up one for each request or
one for all. So a hint is only ever weighed together with the prompt, in `conversations`. Of the name itself nothing is
kept but a hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import xxhash

Said = tuple[str, ...]
"""A kind of hint, and what the client said: as it came, to be hashed at once."""

_MOST_CHARACTERS = 512
"""A longer one is no name; Claude Code's `metadata.user_id`, the longest known, has about 200."""

AGENT_HEADERS = (
    # Claude Code: its children have the session's id too, and since 2.1.139 one of their own beside it.
    ("x-claude-code-session-id", "x-claude-code-agent-id"),
    # Codex: children share the session's id, and have a thread of their own. Older ones spell both with underscores.
    ("session-id", "thread-id"),
    ("session_id", "thread_id"),
    # OpenCode, and whoever serves its users; children have sessions of their own.
    ("x-session-affinity",),
    ("x-opencode-session",),
    # What most routers read: vLLM's, Dynamo, Ray, AIPerf.
    ("x-session-id",),
    # SGLang's gateway.
    ("x-smg-routing-key",),
)
"""Headers of known agents and routers, the more telling first. Those that stand together name one conversation."""

SESSION_FIELDS = ("prompt_cache_key", "session_id")
"""Fields of a body that name a session."""
_USER = "user"


class Hint(NamedTuple):
    """What a client said, hashed. Hints of different kinds cannot be compared."""

    kind: str
    value: int
    """64 bits, seeded with the deployment's secret."""

    @property
    def names_session(self) -> bool:
        """Whether it names a session; a user has many conversations, with one system prompt and at the same time."""
        return self.kind != _USER


def in_headers(headers: Mapping[str, str], configured: str | None) -> Said | None:
    """The first hint in a request's headers, whose names are compared without regard to case by `headers`.

    Args:
        headers: the request's.
        configured: a header that is asked before all others; None for none.
    """
    asked = AGENT_HEADERS if configured is None else ((configured.lower(),), *AGENT_HEADERS)
    for kind, *more in asked:
        if (name := headers.get(kind)) is not None and _is_name(name):
            return (kind, name, *(part for each in more if _is_name(part := headers.get(each))))
    return None


def in_body(fields: Mapping[str, Any]) -> Said | None:
    """The first hint in a request's body; Anthropic's `metadata.user_id` is a user like OpenAI's `user`."""
    for kind in (*SESSION_FIELDS, _USER):
        if (name := fields.get(kind)) is not None and _is_name(name):
            return kind, name
    metadata = fields.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return (_USER, user) if _is_name(user) else None


def hashed(said: Said, seed: int) -> Hint:
    """A hint without the words. `seed` is 64 bits, from the deployment's secret."""
    return Hint(said[0], xxhash.xxh3_64_intdigest("\0".join(said).encode(errors="surrogatepass"), seed))


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= _MOST_CHARACTERS
