"""An HTTP/1.1 answer put together from the bytes of a connection, however they are cut. Pure."""

from __future__ import annotations

MOST_BYTES = 16 << 20
"""Of one page: the metrics of an engine with many labels have some hundred kilobytes."""
_MOST_HEAD_BYTES = 64 << 10


class Answer:
    """What has come of one answer to a GET."""

    __slots__ = ("_bytes", "_chunked", "_length", "_pieces", "_size", "body", "keeps", "status")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._length: int | None = None
        self._chunked = False
        self._pieces: list[bytes] = []
        self._size = 0
        self.status = 0
        """0 until the head has come."""
        self.keeps = True
        """Whether the connection can be used again."""
        self.body: bytes | None = None
        """None until all of it has come."""

    def feed(self, data: bytes) -> None:
        """More bytes have come.

        Raises:
            ValueError: this is no answer, or too much of one.
        """
        self._bytes += data
        while not self.status:
            end = self._bytes.find(b"\r\n\r\n")
            if end < 0:
                if len(self._bytes) > _MOST_HEAD_BYTES:
                    raise ValueError("no end of the head")
                return
            self._read_head(bytes(self._bytes[:end]))
            del self._bytes[: end + 4]
        if self._chunked:
            self._read_chunks()
        elif self._length is not None and len(self._bytes) >= self._length:
            self.body = bytes(self._bytes[: self._length])
        if len(self._bytes) + self._size > MOST_BYTES:
            raise ValueError("too much")

    def end(self) -> None:
        """The connection has been closed; where nobody said how long the body is, that is its end."""
        if self.status and self.body is None and self._length is None and not self._chunked:
            self.body = bytes(self._bytes)

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, rest = first.partition(b" ")
        status = int(rest[:3])
        if not version.startswith(b"HTTP/1.") or not 100 <= status <= 599:
            raise ValueError("no HTTP")
        if status < 200:
            return  # the answer proper is still to come
        self.keeps = version != b"HTTP/1.0"
        for line in lines:
            name, _, value = line.partition(b":")
            name, value = name.lower(), value.strip().lower()
            if name == b"content-length":
                self._length = int(value) if value.isdigit() else None
            elif name == b"transfer-encoding":
                self._chunked = b"chunked" in value
            elif name == b"connection":
                self.keeps = value == b"keep-alive" or (self.keeps and b"close" not in value)
        if status in {204, 304}:
            self._length = 0
        self._length = None if self._chunked else self._length
        self.keeps = self.keeps and (self._chunked or self._length is not None)
        if self._length is not None and self._length > MOST_BYTES:
            raise ValueError("too much")
        self.status = status

    def _read_chunks(self) -> None:
        while (at := self._bytes.find(b"\r\n")) >= 0:
            length = int(self._bytes[:at].split(b";")[0], 16)
            if not 0 <= length <= MOST_BYTES:
                raise ValueError("too much")
            if not length:
                # Trailers, which end with an empty line.
                if self._bytes.startswith(b"\r\n", at + 2) or self._bytes.find(b"\r\n\r\n", at) >= 0:
                    self.body = b"".join(self._pieces)
                return
            if len(self._bytes) < at + 2 + length + 2:
                return
            self._pieces.append(bytes(self._bytes[at + 2 : at + 2 + length]))
            self._size += length
            del self._bytes[: at + 2 + length + 2]
