"""From a request's body to what decides its prefix: the model, and the prompt in the order the engine renders it.

It reads, and refuses to judge: a body it cannot read has no prompt, is forwarded as it came, and the engine says what
is wrong with it. Text keeps no trace of how it was wrapped: a string and a list with one text part render alike, and so
they are alike here; the order of JSON keys and cache markers never matter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ramjet.core import hints
from ramjet.core.volatile import without_volatile_lines

MEDIA_SIZE = 4_096
"""What an image, a sound or a file counts for, in bytes of text: about 1,000 tokens, however long its base64 is."""

_SYSTEM_ROLES = frozenset({"system", "developer"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_MEDIA_PARTS = frozenset(
    ("image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file", "document")
)
# What a message or a part carries beside its prompt: identifiers the template never renders, and Anthropic's cache
# marker, which moves from turn to turn.
_NOT_RENDERED = frozenset({"cache_control", "id", "status"})


NAMESPACE = ("model", "lora_path", "cache_salt", "extra_key")
"""Fields whose values make up a prompt's namespace."""

SMALL_BYTES = 2 << 20
MOST_OBJECTS, MOST_COMMAS = 100_000, 4_000_000
"""Decoding is one step that nothing interrupts: a million tiny messages would take a third of a second of it. Counting is
not for nothing either, 0.4 ms a megabyte, so in small bodies nobody counts."""
_COUNTED_BYTES = 1 << 20


class Unreadable(ValueError):
    """The body is not a prompt that this module understands; routing goes on without one."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A stretch of the prompt.

    `size` is its length in bytes of text (an image counts `MEDIA_SIZE`). `identity` is what of it tells conversations
    apart, where that is not the same (None = it is): volatile lines are left out. `ends_message` marks the end of a
    message, `opens_head` and `ends_head` the start and the end of the first user message: before it are tools and system,
    and up to its end conversations with the same opening are alike. `opens_answer` marks the start of an answer of the
    assistant's: an earlier request ended before it.
    """

    data: bytes
    size: int
    identity: bytes | None = None
    ends_message: bool = False
    ends_head: bool = False
    opens_head: bool = False
    opens_answer: bool = False


class Envelope(msgspec.Struct, frozen=True):
    """What a request says around its prompt's text."""

    model: str | None
    stream: bool
    stream_options: Any
    """As the client sent it; `msgspec.UNSET` when it did not."""
    namespace: bytes
    """Model, adapter and cache salt: the same text in another namespace shares nothing."""
    said: hints.Said | None = None
    """What the client says of whose it is; None when it says nothing."""
    asks: frozenset[str] = frozenset()
    """Names of the body's fields, but for those that are null or false, which say no more than if they were not there."""


class Prompt(Envelope, frozen=True, kw_only=True):
    """What routing needs of one request."""

    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        """Length of the rendered prompt in bytes of text."""
        return sum(piece.size for piece in self.pieces)


def read(body: bytes | bytearray, endpoint: str) -> Prompt:
    """Read the prompt of a request.

    Args:
        body: the request's body, JSON in UTF-8.
        endpoint: one of `ENDPOINTS`' values; only those that generate have a prompt.

    Raises:
        Unreadable: no prompt can be told from it, with the reason.
    """
    render = _RENDERERS.get(endpoint)
    if render is None:
        raise Unreadable(f"endpoint {endpoint} has no prompt")
    check_size(body)
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Unreadable("not a JSON object")
    return Prompt(**_around(fields), pieces=tuple(render(fields)))


def envelope_of(fields: Mapping[str, Any]) -> Envelope:
    """What the fields of a body say around its prompt; of those that are the prompt it only counts that they are there."""
    return Envelope(**_around(fields))


def _around(fields: Mapping[str, Any]) -> dict[str, Any]:
    model = fields.get("model")
    return {
        "model": model if isinstance(model, str) else None,
        "stream": fields.get("stream") is True,
        "stream_options": fields.get("stream_options", msgspec.UNSET),
        "namespace": _canonical([fields.get(name) for name in NAMESPACE]),
        "said": hints.in_body(fields),
        "asks": frozenset([name for name, value in fields.items() if value is not None and value is not False]),
    }


def check_size(body: bytes | bytearray) -> None:
    """Look whether a body has more in it than can be read.

    Raises:
        Unreadable: it has.
    """
    if len(body) > SMALL_BYTES and (_many(body, b",", MOST_COMMAS) or _many(body, b'{"', MOST_OBJECTS)):
        raise Unreadable("more parts than any conversation has")


def _many(body: bytes | bytearray, what: bytes, most: int) -> bool:
    """Whether something stands in the body more often; counted piece by piece, for a count is one step too."""
    if len(body) <= most:
        return False
    found = 0
    for start in range(0, len(body), _COUNTED_BYTES):
        found += body.count(what, start, start + _COUNTED_BYTES)
        if found > most:
            return True
    return False


ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/generate": "generate",
    "/v1/embeddings": "embeddings",
    "/v1/models": "models",
}
"""Paths that have a name of their own in logs and metrics; every other path is `other`."""


def endpoint_of(path: str) -> str:
    """The name of a path in logs and metrics, from a set that clients cannot make grow."""
    return ENDPOINTS.get(path.partition("?")[0].rstrip("/"), "other")


# -- rendering, one function for each endpoint ------------------------------------------------------------------------


GROWING = {"chat": "messages", "messages": "messages", "responses": "input"}
"""By endpoint: the field with the list of messages, which grows at its end from turn to turn."""

OPENING = ("tools", "functions", "system", "instructions")
"""Fields that are rendered before the messages, wherever they stand in the body."""


def opening(fields: Mapping[str, Any], endpoint: str) -> Iterator[Piece]:
    """What is rendered before the messages: tools, then the system prompt, as the templates of today's models put them.

    Args:
        fields: the body's, of which `OPENING` are looked at.
        endpoint: one of `GROWING`.
    """
    if endpoint == "responses":
        tools, system = fields.get("tools"), fields.get("instructions")
    else:
        tools, system = fields.get("tools") or fields.get("functions"), fields.get("system")
    yield from _render_tools(tools)
    if system is not None:
        yield from _render_message("system", {"content": system}, system=True)


def _render_chat(fields: Mapping[str, Any]) -> Iterator[Piece]:
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise Unreadable("messages is not a list")
    yield from opening(fields, "chat")
    yield from _render_messages(messages)


def _render_responses(fields: Mapping[str, Any]) -> Iterator[Piece]:
    yield from opening(fields, "responses")
    given = fields.get("input")
    yield from _render_messages([{"role": "user", "content": given}] if isinstance(given, str) else given)


def _render_completions(fields: Mapping[str, Any]) -> Iterator[Piece]:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    yield _render_text(prompt)


def _render_generate(fields: Mapping[str, Any]) -> Iterator[Piece]:
    text = fields.get("text")
    yield _render_text(fields.get("input_ids") if text is None else text)


MESSAGE_ENDPOINTS = frozenset({"chat", "messages"})
"""Those whose prompt is a list of messages that a client may send as it likes."""

_RENDERERS: dict[str, Callable[[Mapping[str, Any]], Iterator[Piece]]] = {
    "chat": _render_chat,
    "messages": _render_chat,
    "responses": _render_responses,
    "completions": _render_completions,
    "generate": _render_generate,
}


def _render_text(prompt: object) -> Piece:
    if isinstance(prompt, str):
        data = prompt.encode()
    elif isinstance(prompt, list) and set(map(type, prompt)) == {int}:
        # Token ids: four bytes each, which is also what a token of text takes.
        try:
            data = struct.pack(f"<{len(prompt)}I", *prompt)
        except struct.error:
            raise Unreadable("a token id is outside 32 bits") from None
    else:
        raise Unreadable("the prompt is neither one text nor one list of token ids")
    return Piece(data, len(data))


def _render_tools(tools: object) -> Iterator[Piece]:
    if tools:
        data = b"tools\0" + _canonical([_rendered(tool) for tool in tools] if isinstance(tools, list) else tools)
        yield Piece(data, len(data), ends_message=True)


def _render_messages(messages: object) -> Iterator[Piece]:
    if not isinstance(messages, list):
        raise Unreadable("the messages are not a list")
    place = Place()
    for message in messages:
        yield from place.render(message)


@dataclass(slots=True)
class Place:
    """Where in a conversation the next message is: what of the messages before it decides how it is rendered."""

    in_head: bool = True
    """No message but the system's was there."""
    asks: bool = False
    """The last one wants an answer."""

    def render(self, message: object) -> Iterable[Piece]:
        """The next message's pieces.

        Raises:
            Unreadable: it is none.
        """
        if not isinstance(message, dict):
            raise Unreadable("a message is not an object")
        said = message.get("role")
        role = said if isinstance(said, str) else str(message.get("type"))
        system = role in _SYSTEM_ROLES
        ends_head = self.in_head and not system
        opens_answer = self.asks and said == "assistant"
        if ends_head:
            self.in_head = False
        self.asks = _asks(said)
        return _render_message(role, message, system=system, ends_head=ends_head, opens_answer=opens_answer)


def _asks(role: object) -> bool:
    """Whether the assistant is to answer a message of this role."""
    return role != "assistant" and str(role) not in _SYSTEM_ROLES


def turn_ends(messages: Sequence[object]) -> list[int]:
    """How many messages each earlier request of the conversation had: all before one of the assistant's.

    Where several answers follow each other, or one comes first, no request can have ended between them.
    """
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    return [at for at in range(1, len(roles)) if roles[at] == "assistant" and _asks(roles[at - 1])]


def _render_message(
    role: str, message: Mapping[str, Any], *, system: bool, ends_head: bool = False, opens_answer: bool = False
) -> Iterable[Piece]:
    """A message: its role, its content, and whatever else it carries, whatever the order of its keys."""
    content, tail = message.get("content"), b"\1"
    if not message.keys() <= _PLAIN:
        extra = {name: value for name, value in message.items() if name not in _PLAIN and value is not None}
        tail = _canonical(extra) + tail if extra else tail
    if isinstance(content, str):
        # As most are: one piece, and no generator for it.
        before = f"{role}\0"
        return (_text_piece(before, content, tail, system=system, ends_head=ends_head, opens_answer=opens_answer),)
    return _render_parts(role, content, tail, system=system, ends_head=ends_head, opens_answer=opens_answer)


def _render_parts(
    role: str, content: object, tail: bytes, *, system: bool, ends_head: bool, opens_answer: bool
) -> Iterator[Piece]:
    data = f"{role}\0".encode()
    yield Piece(data, len(data), opens_head=ends_head, opens_answer=opens_answer)
    if isinstance(content, list):
        for part in content:
            yield _render_part(part, system=system)
    elif content is not None:
        yield _json_piece(content)
    yield Piece(tail, len(tail), ends_message=True, ends_head=ends_head)


_PLAIN = frozenset({"role", "content"}) | _NOT_RENDERED


def _render_part(part: object, *, system: bool) -> Piece:
    if isinstance(part, str):
        return _text_piece("", part, b"", system=system)
    if not isinstance(part, dict):
        raise Unreadable("a part of a message is neither text nor an object")
    kind, text = part.get("type"), part.get("text")
    if not isinstance(kind, str):
        return _json_piece(_rendered(part))
    if kind in _TEXT_PARTS and isinstance(text, str):
        return _text_piece("", text, b"", system=system)
    if kind in _MEDIA_PARTS:
        return Piece(_canonical(_rendered(part)), MEDIA_SIZE)
    return _json_piece(_rendered(part))


def _text_piece(
    before: str, text: str, tail: bytes, *, system: bool, ends_head: bool = False, opens_answer: bool = False
) -> Piece:
    data = b"".join((before.encode(), text.encode(), tail))
    stable = without_volatile_lines(before + text) if system else None
    identity = None if stable is None else stable.encode() + tail
    return Piece(
        data,
        len(data),
        identity,
        ends_message=bool(tail),
        ends_head=ends_head,
        opens_head=ends_head,
        opens_answer=opens_answer,
    )


def _json_piece(value: object) -> Piece:
    data = _canonical(value)
    return Piece(data, len(data))


def _rendered(value: object) -> object:
    if isinstance(value, dict):
        return {name: inner for name, inner in value.items() if name not in _NOT_RENDERED}
    return value


def _canonical(value: object) -> bytes:
    try:
        return msgspec.json.encode(value, order="sorted")
    except (RecursionError, UnicodeEncodeError) as error:
        raise Unreadable(f"cannot be rendered: {error}") from None
