"""One connection to a replica: a request out, an answer in, as HTTP/1.1 has it.

llhttp reads the answer's framing, through httptools; who waits is woken when there is something, and no task runs here.
A connection carries one exchange at a time. Whatever comes while nobody has asked for anything spoils it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Self, cast

import httptools

Fields = Sequence[tuple[bytes, bytes]]
"""The names and values of a head, as they came and in their order."""
Buffers = Sequence[bytes | bytearray | memoryview]
"""Pieces that follow each other."""
Sink = Callable[[bytes], bool]
"""Takes a piece, and says whether it is full."""

_MOST_UNREAD_BYTES = 1 << 20
"""An answer that is read more slowly than it comes is no longer taken in beyond this."""
_MOST_BARE_BYTES = 256 << 10
"""Of a head, or of what follows a body and is none."""
WITHOUT_BODY = frozenset({204, 304})
"""Statuses of answers that end with their heads; a length that is said there is another answer's (RFC 9110, 8.6)."""
_SWITCHING = 101


class Broken(Exception):
    """A connection ended, or what came on it is no HTTP, before the answer was whole."""


class Answer:
    """A replica's answer, as far as it has come. As a context it is wanted inside; then its connection is given back."""

    def __init__(self, connection: Connection, status: int, reason: bytes, fields: Fields) -> None:
        self.status = status
        self.reason = reason
        self.fields = fields
        self.named = {name.lower(): value for name, value in reversed(fields)}
        """The fields by their names in lower case; of those that came twice, the first."""
        self.is_whole = False
        """Whether its last byte has come."""
        self._connection = connection
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._broken: Broken | None = None
        self._sink: Sink | None = None
        self._is_full = False
        self._spilt: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.given_back(self._connection)

    async def read(self) -> bytes:
        """What has come of its body since the last time; waits for something, and is empty at the end only.

        Raises:
            Broken: the rest will never come.
        """
        while not self._pieces:
            if self._broken is not None:
                raise self._broken
            if self.is_whole:
                return b""
            await self._connection.wait()
        data = self._collect()
        self._connection.go_on()
        return data

    async def pour(self, sink: Sink) -> bool:
        """Hand on what comes of its body in the same step in which it comes; nobody is woken for it.

        Args:
            sink: is called with every piece, and says whether it is full: then no more is taken in. What it raises is
                raised here.

        Returns:
            True at the end; False when the sink is full, and this is to be called again when it no longer is.

        Raises:
            Broken: the rest will never come.
        """
        self._sink, self._is_full = sink, False
        try:
            if self._pieces:
                self.take(self._collect())
            if not self._is_full:
                self._connection.go_on()
            while not self.has_news:
                await self._connection.wait()
        finally:
            self._sink = None
        if self._spilt is not None:
            raise self._spilt
        if self._is_full:
            return False
        if self._broken is not None:
            raise self._broken
        return True

    # -- the connection's side --------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether somebody who waits is to be told now."""
        return self._sink is None or self._is_full or self.is_whole or bool(self._broken or self._spilt)

    def take(self, piece: bytes) -> bool:
        """More has come: it goes to whom the answer is poured into, or waits.

        Returns:
            Whether that was all: nobody is to be told of it.
        """
        if self._sink is None or self._is_full or self._spilt is not None:
            self._pieces.append(piece)
            self._unread_bytes += len(piece)
            return False
        try:
            self._is_full = self._sink(piece)
        except Exception as error:  # noqa: BLE001 - it is raised again, by whom it concerns
            self._spilt = error
            return False
        return not self._is_full

    @property
    def is_enough(self) -> bool:
        """Whether no more should come for now."""
        return self._is_full or self._unread_bytes > _MOST_UNREAD_BYTES

    def fail(self, error: Broken) -> None:
        """No more will come, and it is not whole."""
        self._broken = error

    def _collect(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._unread_bytes = 0
        return data


class Connection(asyncio.Protocol):
    """To be made by `loop.create_connection`. `ask` is called again when `is_reusable` says so, and not before."""

    def __init__(self, given_back: Callable[[Connection], None] = lambda _: None) -> None:
        """
        Args:
            given_back: called when nobody wants more of the answer that it carries.
        """
        self.given_back = given_back
        self.unused_since = 0.0
        """When its last answer was whole; the pool's to keep."""
        self._transport: asyncio.Transport | None = None
        self._body: list[bytes] = []
        """What has been read of a body and not been given to the answer."""
        self.on_body = self._body.append
        """Called by the parser with every chunk: there are hundreds in a burst, and no code of ours runs for each."""
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._failed: Broken | None = None
        self._asked = False
        """Whether an exchange is under way."""
        self._has_body = True
        self._keeps = False
        """Whether the other side keeps the connection after this answer."""
        self._paused = False
        # The head that is being read.
        self._reason = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._bare_bytes = 0
        """Of what came since the last piece of a body, or none has come."""
        self._until_close = False

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent on it."""
        transport = self._transport
        return (
            not self._asked
            and self._keeps
            and self._failed is None
            and transport is not None
            and not transport.is_closing()
        )

    async def ask(self, method: str, head: bytes, body: Buffers | None) -> Answer:
        """Send a request, and give its answer once the answer's head has come.

        Args:
            method: as in the head.
            head: the request line and all headers, with the empty line at their end.
            body: what follows, in pieces, unless there is none.

        Raises:
            Broken: there is no answer, or what came is none; then, or where nobody waits any longer, it is closed.
        """
        assert not self._asked
        assert self._transport is not None
        self._begin(has_body=method != "HEAD")
        if self._failed is None:
            if body:
                self._transport.writelines((head, *body))
            else:
                self._transport.write(head)
        while self._answer is None:
            if self._failed is not None:
                raise self._failed
            try:
                await self.wait()
            except asyncio.CancelledError:
                self.close()
                raise
        return self._answer

    async def wait(self) -> None:
        """Until something has come."""
        assert self._waiter is None
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def go_on(self) -> None:
        """Take in more of the answer."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """End it at once: that is how an engine learns that nobody waits for the rest."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        was_asked = self._asked
        if not was_asked:
            self._fail("something came that nobody had asked for")
            return
        self._bare_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"no HTTP: {type(error).__name__}")
        answer = self._answer
        if self._asked and self._give() and self._failed is None:
            return  # as with nearly every piece of a stream
        if self._bare_bytes > _MOST_BARE_BYTES and not (answer is not None and answer.is_whole):
            self._fail("a head without end" if answer is None else "a trailer without end")
            self._wake()
        if answer is None:
            return
        if not answer.is_whole and answer.is_enough and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if answer.has_news:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """It is closed, by the other side or by us."""
        if self._asked and self._until_close and error is None:
            self._complete(keeps=False)
        else:
            self._fail("the connection was closed" if error is None else type(error).__name__)
        self._wake()

    # -- httptools --------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins."""
        if not self._asked:
            self._fail("something came after the answer")
        self._reason, self._fields, self._until_close = b"", [], False

    def on_status(self, reason: bytes) -> None:
        """A piece of the reason has been read."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has been read. What follows a body is not passed on: who has sent the head can no longer add to it."""
        if self._answer is None:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """A head has been read."""
        status = self._parser.get_status_code()
        if (status < 200 and status != _SWITCHING) or not self._asked:
            return  # another head follows, and that is the answer's
        self._answer = Answer(self, status, self._reason, self._fields)
        named = self._answer.named
        is_chunked = b"chunked" in named.get(b"transfer-encoding", b"").lower()
        self._until_close = not is_chunked and b"content-length" not in named and status not in WITHOUT_BODY
        if not self._has_body:
            # llhttp knows nothing of the request, and would take the next answer for this one's body.
            self._complete(keeps=False)

    def on_message_complete(self) -> None:
        """An answer has been read to its end."""
        if self._answer is not None and self._asked:
            self._complete(keeps=self._parser.should_keep_alive())

    # -- inside -----------------------------------------------------------------------------------------------------

    def _begin(self, *, has_body: bool) -> None:
        """An exchange is under way, and nothing of its answer has come."""
        self._asked, self._has_body, self._answer, self._keeps = True, has_body, None, False
        self._bare_bytes = 0

    def _give(self) -> bool:
        """Give the answer what has been read of its body; whether that was all there is to do."""
        body, answer = self._body, self._answer
        if not body or answer is None:
            body.clear()
            return False
        self._bare_bytes = 0
        piece = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        return answer.take(piece)

    def _complete(self, *, keeps: bool) -> None:
        assert self._answer is not None
        self._answer.is_whole = True
        self._give()
        self._asked, self._keeps = False, keeps

    def _fail(self, why: str) -> None:
        if self._failed is None:
            self._failed = Broken(why)
        if self._asked and self._answer is not None:
            self._answer.fail(self._failed)
        self.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
