"""An engine's publisher as SGLang and vLLM have it, over real sockets, which does what a test says: skip, garble, forget."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

PAGE = 16


def stored(names: Sequence[int], parent: int | None = None, *, array: bool = False) -> Any:
    """The event of blocks that were stored, as a map or as an array."""
    fields = {"block_hashes": list(names), "parent_block_hash": parent, "token_ids": [1] * (PAGE * len(names)),
              "block_size": PAGE, "lora_id": None, "medium": "GPU"}  # fmt: skip
    return ["BlockStored", *fields.values()] if array else {"type": "BlockStored"} | fields


def removed(names: Sequence[int], *, array: bool = False) -> Any:
    """The event of blocks that are gone."""
    return (
        ["BlockRemoved", list(names)]
        if array
        else {"type": "BlockRemoved", "block_hashes": list(names), "medium": None}
    )


class Publisher:
    """Counts messages from 0, keeps them, and sends them again when it is asked to."""

    def __init__(self, *, topics: bool) -> None:
        self.events = self.replay = "tcp://127.0.0.1:*"
        self.number = 0
        self.kept: dict[int, bytes] = {}
        self.asked: list[int] = []
        """What the replay was asked for."""
        self._topics = topics
        self._context = zmq.asyncio.Context()
        self.open()

    def open(self) -> None:
        """Listen, where it did before."""
        # XPUB is PUB that tells of its subscribers.
        self._pub, self._router = self._context.socket(zmq.XPUB), self._context.socket(zmq.ROUTER)
        for socket, endpoint in ((self._pub, self.events), (self._router, self.replay)):
            socket.linger = 0
            socket.bind(endpoint)
        self.events, self.replay = (each.getsockopt_string(zmq.LAST_ENDPOINT) for each in (self._pub, self._router))

    def close(self) -> None:
        """Break all connections, and listen no more."""
        self._pub.close()
        self._router.close()

    def restart(self) -> None:
        """Another process, with nothing in its cache."""
        self.close()
        self.number, self.kept = 0, {}
        self.open()

    async def subscribed(self) -> None:
        """Wait until somebody listens."""
        async with asyncio.timeout(10):
            assert await self._pub.recv() == b"\x01"

    async def send(self, *events: Any, loses: bool = False, keeps: bool = True) -> None:
        """Publish a message; or lose it on the way, or forget it at once."""
        await self.send_raw(msgspec.msgpack.encode([1.0, events, 0]), loses=loses, keeps=keeps)

    async def send_raw(self, message: bytes, *, loses: bool = False, keeps: bool = True) -> None:
        """The same with any bytes."""
        number, self.number = self.number, self.number + 1
        if keeps:
            self.kept[number] = message
        if not loses:
            await self._pub.send_multipart((b"kv-events", number.to_bytes(8, "big"), message))

    async def send_frames(self, *frames: bytes) -> None:
        """What is no message at all."""
        await self._pub.send_multipart(frames)

    async def serve(self) -> None:
        """Answer those who ask for what they have missed, until cancelled."""
        while True:
            try:
                who, empty, start = await self._router.recv_multipart()
            except zmq.ZMQError:  # it is being closed
                await asyncio.sleep(0.01)
                continue
            assert empty == b""
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            # Newer versions send the topic too, which older ones left out.
            topic = (b"kv-events",) * self._topics
            for number, message in self.kept.items():
                if number >= first:
                    await self._router.send_multipart((who, b"", *topic, number.to_bytes(8, "big"), message))
            await self._router.send_multipart((who, b"", *(b"",) * self._topics, b"\xff" * 8, b""))


@contextlib.asynccontextmanager
async def publisher(*, topics: bool = True) -> AsyncIterator[Publisher]:
    """One that listens on free ports until the block ends."""
    made = Publisher(topics=topics)
    try:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(made.serve())
            yield made
            serving.cancel()
    finally:
        made.close()
        made._context.destroy(linger=0)
