"""Publish a simulated replica's KV events as SGLang and vLLM do: numbered messages, and the last of them once more on demand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ramjet.core.chains import Cleared, Event, Removed, Stored

if TYPE_CHECKING:
    import zmq.asyncio

_KEPT = 10_000
"""Messages that can be had again, the engines' own default."""
_END = b"\xff" * 8


class KvPublisher:
    """Takes events in as they happen, and sends those of one moment as one message."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._events: list[dict[str, Any]] = []
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=_KEPT)
        self._number = 0

    def tell(self, event: Event) -> None:
        """Something has happened in the cache."""
        if not self._events:
            asyncio.get_running_loop().call_soon(self._send)
        self._events.append(_spelled(event))

    def _send(self) -> None:
        events, self._events = self._events, []
        message = msgspec.msgpack.encode([0.0, events, 0])
        number = self._number.to_bytes(8, "big")
        self._number += 1
        self._kept.append((number, message))
        self._socket.send_multipart((b"", number, message))

    async def serve(self, replay: zmq.asyncio.Socket) -> None:
        """Send again what is asked for, until cancelled."""
        while True:
            who, _, start = await replay.recv_multipart()
            for number, message in [each for each in self._kept if each[0] >= start]:
                await replay.send_multipart((who, b"", b"", number, message))
            await replay.send_multipart((who, b"", b"", _END, b""))


@asynccontextmanager
async def publishing(events: str, replay: str | None) -> AsyncIterator[KvPublisher]:
    """A publisher at these endpoints, as `tcp://HOST:PORT`.

    Raises:
        OSError: an endpoint, its `filename`, is taken, or cannot be one.
    """
    import zmq.asyncio  # noqa: PLC0415 - an extra

    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        again = zmq.asyncio.Context(context).socket(zmq.ROUTER)
        socket.linger = again.linger = 0
        try:
            _bind(socket, events)
            if replay is not None:
                _bind(again, replay)
            publisher = KvPublisher(socket)
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(publisher.serve(again), name="kv events replay")
                yield publisher
                serving.cancel()
        finally:
            again.close()


def _bind(socket: zmq.Socket[Any], endpoint: str) -> None:
    import zmq  # noqa: PLC0415 - an extra

    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise OSError(error.errno, error.strerror, endpoint) from None


def _spelled(event: Event) -> dict[str, Any]:
    match event:
        case Stored():
            return {
                "type": "BlockStored",
                "block_hashes": event.hashes,
                "parent_block_hash": event.parent,
                "token_ids": [0] * (event.block_tokens * len(event.hashes)),
                "block_size": event.block_tokens,
                "lora_id": None,
                "medium": event.medium,
            }
        case Removed():
            return {"type": "BlockRemoved", "block_hashes": event.hashes, "medium": event.medium}
        case Cleared():
            return {"type": "AllBlocksCleared"}
