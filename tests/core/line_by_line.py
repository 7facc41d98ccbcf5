"""What is to be seen in a stream, by definition: every line of it is taken up as it ends, whatever it holds."""

from __future__ import annotations

from typing import Any

from ramjet.core import stream
from ramjet.core.usage import Usage, merged, usage_in, usage_object


class LineByLine:
    """As `SseObserver`, which goes through a piece only where a search has found something in it."""

    def __init__(self, *, hide_usage: bool) -> None:
        self.first_token_at: float | None = None
        self.usage: Usage | None = None
        self.error = False
        self._hides = hide_usage
        self._line = b""
        self._event: list[bytes] = []
        """The event's bytes that the client has not been given, one by one."""
        self._is_shown = not hide_usage
        """Whether the event's bytes go to the client as they come."""
        self._is_usage = False
        self._meta: bytes | None = None
        self._seen: dict[str, Any] = {}

    def feed(self, data: bytes, now: float) -> bytes:
        """Take in the next bytes; returns those that may go to the client now."""
        out = b""
        if data and self._line.endswith(b"\r") and not data.startswith(b"\n"):
            out += self._end_line(now)
        for at in range(len(data)):
            octet = data[at : at + 1]
            self._line += octet
            if self._is_shown:
                out += octet
            else:
                self._event.append(octet)
            # A CR at the very end may be half of a CRLF.
            if octet == b"\n" or (octet == b"\r" and at + 1 < len(data) and data[at + 1] != ord("\n")):
                out += self._end_line(now)
        if len(self._event) > stream.MOST_HELD_BYTES:
            out += self._show()
            self._is_shown = True
        return out

    def close(self) -> bytes:
        """The stream has ended; returns what was held back."""
        out = self._end_line(None) if self._line else b""
        if self._meta is not None:
            self._count(stream._decode(self._meta) or {})
        return out if self._is_usage and len(self._event) <= stream.MOST_HELD_BYTES else out + self._show()

    def _end_line(self, now: float | None) -> bytes:
        line, self._line = self._line, b""
        if not line.strip(b"\r\n"):
            if self._is_usage and len(self._event) <= stream.MOST_HELD_BYTES:
                self._event.clear()
            self._is_usage, self._is_shown = False, not self._hides
            return self._show()
        if len(line) <= stream.MOST_LINE_BYTES:
            if line.startswith(b"data:"):
                self._look_into(line[5:].strip(), now)
            self.error = self.error or line.startswith(b"error:")
        return b""

    def _show(self) -> bytes:
        shown = b"".join(self._event)
        self._event.clear()
        return shown

    def _look_into(self, payload: bytes, now: float | None) -> None:
        # An API that has meta_info has it in every event.
        if b'"meta_info"' in payload and (self.first_token_at is None or self._meta is not None):
            self._meta = payload
        tells_usage = payload.count(b'"usage"') > payload.count(b'"usage":null')
        if self.first_token_at is None or tells_usage or b'"error"' in payload or b'"response.failed"' in payload:
            event = stream._decode(payload) or {}
            if self.first_token_at is None and now is not None and stream._has_token(event):
                self.first_token_at = now
            self.error = self.error or stream._is_error(event)
            self._count(event)
            if not self._is_shown and event.get("choices") == [] and event.get("usage"):
                self._is_usage = True

    def _count(self, event: dict[str, Any]) -> None:
        found = usage_object(event)
        if found is not None:
            self._seen = merged(self._seen, found)
            self.usage = usage_in(self._seen)
