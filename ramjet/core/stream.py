"""Watch a response go by: when its first token came, what usage it reported, whether it ended in an error.

Bytes go in as the network cut them and the bytes for the client come out, the same ones but for a usage chunk that the
client did not ask for. Where the network cuts never matters. What is kept is bounded whatever the engine sends.
"""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

import msgspec

from ramjet.core.usage import Usage, merged, usage_in, usage_object

MOST_LINE_BYTES = 1 << 20
"""A longer line of a stream (logprobs, an image) is passed on and not looked into."""
MOST_HELD_BYTES = 64 << 10
"""A usage chunk is a few hundred bytes; an event longer than this is none and is not held back to see."""
MOST_BODY_BYTES = 4 << 20
"""Of a longer answer only the end is looked into, where engines put the usage."""
_TAIL_BYTES = 64 << 10
_AT_ONCE_BYTES = 8 << 10
"""So much of a piece is searched before any of it passes: what is found early must not cost a search to the end."""
_BARE_ERROR = b"error:"
"""How llama.cpp told of an error before it had events."""
_TOLD_USAGE = re.compile(rb'"usage"(?!: ?null)')
"""Engines that were asked for usage have a null for it in every chunk but the last."""


class Observer(Protocol):
    """Sees a response's bytes and says what they meant."""

    first_token_at: float | None
    usage: Usage | None
    error: bool
    """Whether the response carried an error, or ended in one."""

    def feed(self, data: bytes, now: float) -> bytes:
        """Take in the next bytes; returns those that may go to the client now."""

    def close(self) -> bytes:
        """The response has ended; returns what was held back."""


class PlainObserver:
    """Sees a response that is neither a stream nor JSON: passes it on and has nothing to say."""

    def __init__(self) -> None:
        self.first_token_at: float | None = None
        self.usage: Usage | None = None
        self.error = False

    def feed(self, data: bytes, now: float) -> bytes:  # noqa: ARG002
        """Pass the bytes on."""
        return data

    def close(self) -> bytes:
        """Nothing was held back."""
        return b""


class JsonObserver(PlainObserver):
    """Sees an answer in one JSON document; the usage is read once, at its end. Such an answer has no first token."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, now: float) -> bytes:  # noqa: ARG002
        """Pass the bytes on and keep them, or only the last of them once there are too many."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MOST_BODY_BYTES:
            while len(self._pieces) > 1 and self._size - len(self._pieces[0]) >= _TAIL_BYTES:
                self._size -= len(self._pieces.pop(0))
            self._pieces[0] = self._pieces[0][-_TAIL_BYTES:] if len(self._pieces) == 1 else self._pieces[0]
        return data

    def close(self) -> bytes:
        """Read the usage."""
        body = b"".join(self._pieces)
        self._pieces.clear()
        message = _decode(body)
        if message is None:
            message = _usage_in_tail(body)
        if message is not None:
            found = usage_object(message)
            self.usage = None if found is None else usage_in(found)
        return b""


class SseObserver(PlainObserver):
    """Sees a stream of server-sent events; lines end with LF, CR or CRLF.

    After the first token nearly everything is text. A few searches tell how far a piece has nothing else, however many
    events that is, and so far it passes as it is; only lines in which a word is found that can matter are read.

    Args:
        hide_usage: the client did not ask for the usage that this stream was asked for, so the chunk that holds
            nothing else is kept from it. That takes holding an event back until its end has come.
    """

    def __init__(self, *, hide_usage: bool = False) -> None:
        super().__init__()
        self._hide_usage = hide_usage
        self._line = bytearray()
        self._skip_line = False
        self._held: list[bytes] = []
        self._held_size = 0
        self._passing = not hide_usage
        """Whether the current event's bytes go to the client as they come."""
        self._drop = False
        self._is_text = False
        """Whether the first token has come, whole events have, and nothing is expected but more of them."""
        self._last_meta: bytes | None = None
        """Of SGLang's `/generate`, where every event has it; None in a stream that has had a token and none of these."""
        self._usage_seen: dict[str, Any] = {}

    def feed(self, data: bytes, now: float) -> bytes:
        """Take in the next bytes; returns those that may go to the client now."""
        if self._is_text and data.endswith(b"\n\n") and _is_dull(data):
            return data  # whole events with a token each, as they come one by one
        out: list[bytes] = []
        self._take_in(data, now, out)
        if self._held_size > MOST_HELD_BYTES:
            self._release(out)
            self._passing = True
        self._is_text = self.first_token_at is not None and self._last_meta is None and self._is_between
        return b"".join(out) if self._hide_usage else data

    def close(self) -> bytes:
        """The stream has ended; returns what was held back."""
        out: list[bytes] = []
        if self._line:
            self._end_line(None, out)
        if self._last_meta is not None:
            self._see_usage(_decode(self._last_meta) or {})
        if not self._drop or self._held_size > MOST_HELD_BYTES:
            self._release(out)
        return b"".join(out)

    @property
    def _is_between(self) -> bool:
        """Whether nothing is left of an event that has not ended."""
        return not self._line and not self._held and not self._drop and self._passing is not self._hide_usage

    def _take_in(self, data: bytes, now: float, out: list[bytes]) -> None:
        start = 0
        while start < len(data):
            is_between_lines = not self._line and not self._drop
            stop = self._dull_until(data, start) if is_between_lines and self.first_token_at is not None else start
            if stop == start:
                stop = data.find(b"\n", start) + 1 or len(data)
                self._read(data[start:stop], now, out)
            elif self._hide_usage:
                self._let_pass(data[start:stop], out)
            start = stop

    # -- many lines at once -------------------------------------------------------------------------------------------

    def _dull_until(self, data: bytes, start: int) -> int:
        """Where the first line begins, of those from `start` on, that has to be read: it may matter, or is not whole."""
        if data.startswith(b"\n", start):
            return start
        stop = min(len(data), start + _AT_ONCE_BYTES)
        at = data.find(b"\r", start, stop)
        stop = _told_at(data, start, stop if at < 0 else at)
        stop = data.rfind(b"\n", start, stop) + 1 or start
        if self._last_meta is not None and (at := data.rfind(b'"meta_info"', start, stop)) >= 0:
            line = data[data.rfind(b"\n", start, at) + 1 or start : data.find(b"\n", at)]
            if not line.startswith(b"data:"):
                return start
            self._last_meta = line[5:].strip()
        return stop

    def _let_pass(self, lines: bytes, out: list[bytes]) -> None:
        """Let go what came before the last blank line: nothing of it is to be hidden."""
        end = lines.rfind(b"\n\n") + 2
        if end > 1:
            self._release(out)
            out.append(lines[:end])
            self._passing = False
            lines = lines[end:]
        if lines:
            self._put(lines, out)

    # -- line by line -------------------------------------------------------------------------------------------------

    def _read(self, data: bytes, now: float, out: list[bytes]) -> None:
        if data and self._line.endswith(b"\r") and not data.startswith(b"\n"):
            self._end_line(now, out)
        segments = data.splitlines(keepends=True)
        for place, segment in enumerate(segments, 1 - len(segments)):
            self._take(segment, out)
            # A CR at the very end may be half of a CRLF: the next bytes tell.
            if segment.endswith(b"\n") or (place and segment.endswith(b"\r")):
                self._end_line(now, out)

    def _take(self, segment: bytes, out: list[bytes]) -> None:
        if not self._skip_line:
            self._line += segment
            if len(self._line) > MOST_LINE_BYTES:
                self._skip_line = True
                del self._line[:-2]  # what tells a line's end
        else:
            self._line[:] = (self._line + segment)[-2:]
        self._put(segment, out)

    def _end_line(self, now: float | None, out: list[bytes]) -> None:
        line, skipped = bytes(self._line), self._skip_line
        self._line.clear()
        self._skip_line = False
        if skipped:
            return
        if line.strip(b"\r\n"):
            if line.startswith(b"data:"):
                self._see(line[5:].strip(), now)
            elif line.startswith(_BARE_ERROR):
                self.error = True
            return
        # A blank line ends the event. Whether a long one was held back until now depends on how the network cut it, so
        # its length alone decides.
        if self._drop and self._held_size <= MOST_HELD_BYTES:
            self._held.clear()
            self._held_size = 0
        else:
            self._release(out)
        self._drop, self._passing = False, not self._hide_usage

    def _put(self, segment: bytes, out: list[bytes]) -> None:
        if self._passing:
            out.append(segment)
        else:
            self._held.append(segment)
            self._held_size += len(segment)

    def _release(self, out: list[bytes]) -> None:
        out.extend(self._held)
        self._held.clear()
        self._held_size = 0

    def _see(self, payload: bytes, now: float | None) -> None:
        """Look into one event's data, and decode it only where it can matter: most chunks are one token of text."""
        if b'"meta_info"' in payload and (self.first_token_at is None or self._last_meta is not None):
            self._last_meta = payload
        if self.first_token_at is not None and _told_at(payload, 0, len(payload)) == len(payload):
            return
        event = _decode(payload)
        if event is None:
            return
        if self.first_token_at is None and now is not None and _has_token(event):
            self.first_token_at = now
        self.error = self.error or _is_error(event)
        self._see_usage(event)
        if self._hide_usage and not self._passing and event.get("choices") == [] and event.get("usage"):
            self._drop = True

    def _see_usage(self, event: dict[str, Any]) -> None:
        found = usage_object(event)
        if found is not None:
            self._usage_seen = merged(self._usage_seen, found)
            self.usage = usage_in(self._usage_seen)


def _is_dull(events: bytes) -> bool:
    """Whether events are short, end their lines with LF, and have none of the words that may matter."""
    at = events.find(b'"usage"')
    return (
        len(events) <= _AT_ONCE_BYTES
        and events.find(b"error") < 0
        and events.find(b"\r") < 0
        and events.find(b'"response.failed"') < 0
        and (at < 0 or _TOLD_USAGE.search(events, at) is None)
    )


def _told_at(text: bytes, start: int, stop: int) -> int:
    """Where between these the first word stands that may tell of usage or of an error, or `stop`.

    What the model wrote cannot look so: its quotes and its line ends are escaped.
    """
    if found := _TOLD_USAGE.search(text, start, stop):
        stop = found.start()
    if (at := text.find(b'"response.failed"', start, stop)) >= 0:
        stop = at
    if text.find(b"error", start, stop) >= 0:  # `in` would take twice as long: it asks first whether that is a number
        if text.startswith(_BARE_ERROR, start):
            return start
        for word in (b'"error"', b"\n" + _BARE_ERROR):
            if (at := text.find(word, start, stop)) >= 0:
                stop = at
    return stop


_DELTA_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio")


def _has_token(event: dict[str, Any]) -> bool:
    """Whether an event carries something the model generated; a role, a ping and an empty text are none."""
    kind = event.get("type")
    if isinstance(kind, str):
        return _has_typed_token(kind, event)
    choices = event.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict):
                delta = choice.get("delta")
                if choice.get("text") or (isinstance(delta, dict) and any(delta.get(name) for name in _DELTA_FIELDS)):
                    return True
        return False
    # SGLang's /generate and llama.cpp's /completion.
    return any(bool(event.get(name)) for name in ("text", "output_ids", "content"))


def _has_typed_token(kind: str, event: dict[str, Any]) -> bool:
    delta = event.get("delta")
    if kind == "content_block_delta":  # Anthropic
        names = ("text", "partial_json", "thinking")
        return isinstance(delta, dict) and any(delta.get(name) for name in names)
    if kind == "content_block_start":
        block = event.get("content_block")
        return isinstance(block, dict) and block.get("type") == "tool_use"
    return kind.endswith(".delta") and bool(delta)  # OpenAI responses


def _is_error(event: dict[str, Any]) -> bool:
    told = event.get("type"), event.get("object")  # vLLM's way, before it had `error`, was an object of that name
    return bool(event.get("error")) or "error" in told or "response.failed" in told


def _decode(data: bytes) -> dict[str, Any] | None:
    try:
        message = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _usage_in_tail(tail: bytes) -> dict[str, Any] | None:
    """Find the usage object in the end of an answer whose beginning is gone."""
    for name in ("usage", "meta_info"):
        before, key, after = tail.rpartition(f'"{name}":'.encode())
        if key and before:
            try:
                found, _ = json.JSONDecoder().raw_decode(after.decode(errors="replace").lstrip())
            except (json.JSONDecodeError, RecursionError):
                continue
            return {name: found}
    return None
