"""What a streamed answer costs on its way through: microseconds of processor time for each of its chunks.

    python benchmarks/streams.py [--chunks 200] [--runs 100] [--json]

A chunk is an event of some 200 bytes, as an engine writes it for a token, in an HTTP chunk of its own. They come as
the network brings them: all in one piece, as in a burst; ten to a piece; and each alone. Timed are

* observer: what looks for the first token, usage and errors, and hides the usage that the client did not ask for; from
  the first chunk to the last.
* way: all that happens to a piece between the replica's connection and the client's, the observer included. The first
  token has gone before: with it goes what an answer costs that has but one (`make bench`).

One request after another goes through the server, the handler and the client towards replicas as they are; only the
sockets are left out, so the kernel is not in the figures. The best of several runs is shown, for what else the machine
does can only make it worse.
"""

# It stands alone, as a benchmark does.
# ruff: noqa: INP001

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from time import thread_time
from typing import Any

import click
import uvloop

from ramjet.core.fleet import Fleet, Replica
from ramjet.core.policies import Policy
from ramjet.core.router import Router
from ramjet.core.stream import SseObserver
from ramjet.front.options import Options
from ramjet.http1.client import Client
from ramjet.http1.connection import Connection
from ramjet.logs import configure
from ramjet.proxy.handler import Handler
from ramjet.proxy.server import Bounds, proxy_runner

COME = {"in a burst": None, "in tens": 10, "alone": 1}
"""How many to a piece; None for all."""
USAGE = {"prompt_tokens": 951, "completion_tokens": 200, "prompt_tokens_details": {"cached_tokens": 896}}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def chat(tokens: int) -> list[dict[str, Any]]:
    """A chat's stream, with a null for usage in all chunks but the last."""
    told = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
    }

    def chunk(text: str) -> dict[str, Any]:
        choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
        return {**told, "model": "m", "choices": [choice], "usage": None}

    return [chunk(""), *(chunk(f" tok{at}") for at in range(tokens)), {**chunk(""), "choices": [], "usage": USAGE}]


def messages(tokens: int) -> list[dict[str, Any]]:
    """The same in Anthropic's words."""
    delta = {"type": "content_block_delta", "index": 0}
    return [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 55, "output_tokens": 1}}},
        *({**delta, "delta": {"type": "text_delta", "text": f" tok{at}"}} for at in range(tokens)),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": tokens}},
    ]


def generate(tokens: int) -> list[dict[str, Any]]:
    """The same in SGLang's, which tell of usage in every event."""
    told = {"id": "0123456789abcdef0123456789abcdef", "finish_reason": None, "prompt_tokens": 951, "cached_tokens": 896}
    return [
        {"text": f" tok{at}", "output_ids": [at], "meta_info": {**told, "completion_tokens": at}}
        for at in range(tokens + 2)
    ]


STREAMS = {"/v1/chat/completions": chat, "/v1/messages": messages, "/generate": generate}


class Wire(asyncio.Transport):
    """A connection without a socket: what is written is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self._is_closed = False

    def write(self, data: Any) -> None:
        """Keep it."""
        self.written.append(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Keep them."""
        self.written.extend(list_of_data)

    def get_write_buffer_size(self) -> int:
        """The other side takes all at once."""
        return 0

    def is_closing(self) -> bool:
        """Whether it has been closed."""
        return self._is_closed

    def close(self) -> None:
        """Close it."""
        self._is_closed = True

    abort = close


class Wired(Client):
    """A client with one connection, which has no socket."""

    def __init__(self) -> None:
        super().__init__(connect_s=1.0, idle_s=60.0)
        self.wire = Wire()
        self.connection = Connection()
        self.connection.connection_made(self.wire)

    async def _connect(self, place: object) -> Connection:
        del place
        return self.connection


def observed_s(events: list[bytes], come: int | None) -> float:
    """Seconds that it takes to watch a stream."""
    observer, pieces = SseObserver(hide_usage=True), joined(events, come)
    began = thread_time()
    for piece in pieces:
        observer.feed(piece, 0.0)
    observer.close()
    took_s = thread_time() - began
    assert observer.usage is not None
    return took_s


async def passed_s(path: str, events: list[bytes], come: int | None, runs: int) -> float:
    """Seconds that it takes to pass on what follows on the first token; of the best of so many requests."""
    fleet, upstream, client = Fleet(), Wired(), Wire()
    fleet.add(Replica("r0", "http://127.0.0.1:1"))
    handler = Handler(Router(fleet, Policy()), upstream, Options(ask_usage=frozenset({"r0"})), lambda *_: None)
    serving = proxy_runner(handler, fleet, Bounds(header_bytes=1 << 16, client_idle_s=60.0))
    await serving.setup()
    assert serving.server is not None
    server = serving.server()
    server.connection_made(client)
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}],"text":"x"}'
    request = b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    pieces, receive, took_s = joined(chunks[2:], come), upstream.connection.data_received, []
    for _ in range(runs):
        upstream.wire.written.clear()
        server.data_received(request)
        await until(lambda: upstream.wire.written)
        receive(HEAD + chunks[0] + chunks[1])
        await until(lambda: client.written and events[1] in client.written[-1])
        client.written.clear()
        began = thread_time()
        for piece in pieces:
            receive(piece)
        took_s.append(thread_time() - began)
        assert sum(map(len, client.written)) > sum(map(len, events[2:-1])), "not all chunks have reached the client"
        receive(b"0\r\n\r\n")
        await until(handler.idle.is_set)
    await serving.cleanup()
    await upstream.close()
    return min(took_s)


async def until(is_so: Callable[[], object]) -> None:
    """Let the loop run until that is so."""
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0)


def joined(chunks: list[bytes], come: int | None) -> list[bytes]:
    """Chunks as they come."""
    step = come or len(chunks)
    return [b"".join(chunks[at : at + step]) for at in range(0, len(chunks), step)]


def sse(event: dict[str, Any]) -> bytes:
    """An event as it is sent."""
    kind = f"event: {event['type']}\n" if "type" in event else ""
    return f"{kind}data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


@click.command()
@click.option("--chunks", type=click.IntRange(10, 100_000), default=200, show_default=True, help="In an answer.")
@click.option("--runs", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(chunks: int, runs: int, *, as_json: bool) -> None:
    """Measure it."""
    configure("json", "error")
    rows = []
    for path, events_of in STREAMS.items():
        events = [sse(event) for event in events_of(chunks)]
        for name, come in COME.items():
            seen_s = min(observed_s(events, come) for _ in range(runs))
            way_s = uvloop.run(passed_s(path, events, come, runs))
            us = {"observer_us": 1e6 * seen_s / chunks, "way_us": 1e6 * way_s / chunks}
            rows.append({"path": path, "come": name, **us})
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    click.echo(f"us of processor time for each of {chunks} chunks, best of {runs}\n")
    click.echo(f"{'':22} {'chunks come':12} {'observer':>9} {'way':>7}")
    for row in rows:
        click.echo(f"{row['path']:22} {row['come']:12} {row['observer_us']:9.2f} {row['way_us']:7.2f}")


if __name__ == "__main__":
    main()
