"""What reading a body costs, from its bytes to its fingerprint, as it grows; and what is kept to read on from.

    python benchmarks/reading.py [--json]

A body is one of an agent's: a system prompt and tools, then questions, answers with tool calls, and their results, 5 KB a
message. Its first reading knows nothing; the next is of the turn after, which adds 10 KB. Both are made as the proxy makes
them, in steps between which others get their turn. Times are of the processor, each the best of several, for what else
the machine does is not their cost.

Memory is what the C library says is in use, of the process that reads prompts that share nothing and routes them, with
and without what is kept of bodies: by MB of their text.
"""

# It stands alone, as a benchmark does.
# ruff: noqa: INP001

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from random import Random
from time import process_time
from typing import Any

import click

from ramjet.build import fleet_of, policy_of
from ramjet.config import ReplicaSettings, Settings
from ramjet.core.bodies import Bodies, Reading, whole
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival

SIZES_KB = (1, 4, 16, 64, 256, 600, 1_200, 4_000)
KNOWN = (1, 10, 100, 1_000)
KNOWN_KB = 256
MEMORY_KB, MEMORY_TALKS = 1_200, 40
MESSAGE_BYTES = 5_000
TURN_BYTES = 10_000
TURNS = 12
"""Next turns of which the cheapest counts."""
FIRST = 6
SEED = 0x5EED

Step = float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What bodies of one size cost."""

    kb: int
    known: int
    """Conversations of that size that are known meanwhile."""
    first_ms: float
    next_ms: float
    steps: int
    longest_ms: float
    """Of the first reading's steps."""
    whole_ms: float
    """As it is without steps, and with nothing known."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--memory", is_flag=True, hidden=True)
def main(*, as_json: bool, memory: bool) -> None:
    """Measure it."""
    if memory:
        click.echo(json.dumps(_memory()))
        return
    rows = [_measured(kb, 1) for kb in SIZES_KB]
    grown = [_measured(KNOWN_KB, known) for known in KNOWN]
    kept = _memory_apart()
    if as_json:
        click.echo(
            json.dumps({"sizes": [*map(asdict, rows)], "known": [*map(asdict, grown)], "memory": kept}, indent=1)
        )
        return
    click.echo("   KB known  first ms   in steps  longest ms   next ms  whole ms")
    for row in (*rows, *grown):
        click.echo(
            f"{row.kb:5} {row.known:5} {row.first_ms:9.3f} {row.steps:10} {row.longest_ms:11.3f} {row.next_ms:9.3f}"
            f" {row.whole_ms:9.3f}"
        )
    if kept is not None:
        click.echo(
            f"memory by MB of prompts: {kept['bodies']:.4f} MB for bodies, {kept['router']:.4f} MB for routing beside them"
        )


# -- bodies ---------------------------------------------------------------------------------------------------------------


def _words(chance: Random, size: int) -> str:
    return "".join(chance.choices(_WORDS, k=size // 7))


_WORDS = [word + " " for word in Random(0).sample([f"{number:06x}" for number in range(5_000)], 2_000)] + [
    "return\n",
    '"x"\t',
]


def _messages(chance: Random) -> Iterator[dict[str, Any]]:
    """A conversation without end."""
    yield {"role": "system", "content": _words(chance, 600)}
    while True:
        yield {"role": "user", "content": _words(chance, MESSAGE_BYTES)}
        call = {"name": "read_file", "arguments": json.dumps({"path": _words(chance, 200)})}
        yield {
            "role": "assistant",
            "content": _words(chance, MESSAGE_BYTES),
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        }
        yield {"role": "tool", "tool_call_id": "call_1", "content": _words(chance, MESSAGE_BYTES)}
        yield {"role": "assistant", "content": [{"type": "text", "text": _words(chance, MESSAGE_BYTES)}]}


class Talk:
    """A conversation, turn by turn."""

    def __init__(self, number: int, kb: int) -> None:
        self._coming = _messages(Random(number))
        self._messages: list[dict[str, Any]] = []
        self._bytes = 0
        self._grow(1_000 * kb)

    def body(self) -> bytes:
        """As it is now, with tools behind the messages where it is long enough for any."""
        tools = [{"type": "function", "function": {"name": f"tool_{each}", "parameters": {}}} for each in range(10)]
        body = {"model": "glm", "messages": self._messages, "stream": True}
        return json.dumps(body if self._bytes < MESSAGE_BYTES else {**body, "tools": tools}).encode()

    def next(self) -> bytes:
        """The next turn's."""
        self._grow(self._bytes + TURN_BYTES)
        return self.body()

    def _grow(self, size: int) -> None:
        while self._bytes < size:
            message = next(self._coming)
            if isinstance(message["content"], str):
                message["content"] = message["content"][: max(100, size - self._bytes)]
            self._messages.append(message)
            self._bytes += len(json.dumps(message))


# -- what it costs --------------------------------------------------------------------------------------------------------


def _measured(kb: int, known: int) -> Row:
    bodies, talks = Bodies(SEED, 1 << 40), [Talk(number, kb) for number in range(known)]
    for talk in talks[1:]:
        _read(bodies, talk.body())
    body = talks[0].body()
    steps = min((_read(Bodies(SEED), body)[1] for _ in range(FIRST)), key=sum)
    _read(bodies, body)
    following = [sum(_read(bodies, talks[0].next())[1]) for _ in range(TURNS)]
    return Row(
        kb=kb,
        known=known,
        first_ms=sum(steps),
        next_ms=min(following),
        steps=len(steps),
        longest_ms=max(steps),
        whole_ms=min(_timed_whole(body) for _ in range(FIRST)),
    )


def _read(bodies: Bodies, body: bytes) -> tuple[Reading, list[Step]]:
    """A reading, and the milliseconds of each of its steps."""
    # The body has just come in, so it is where the processor finds it at once.
    body.count(b" ")
    running, done, took, began = bodies.steps(body, "chat"), None, [], process_time()
    while True:
        try:
            work = running.send(done)
            done = None if work is None else work()
        except StopIteration as end:
            reading = end.value or whole(body, "chat", SEED)
            took.append(1e3 * (process_time() - began))
            return reading, took
        ended = process_time()
        took.append(1e3 * (ended - began))
        began = ended


def _timed_whole(body: bytes) -> float:
    began = process_time()
    whole(body, "chat", SEED)
    return 1e3 * (process_time() - began)


# -- what is kept ---------------------------------------------------------------------------------------------------------


def _memory_apart() -> dict[str, float] | None:
    """What is kept, measured where every object is the C library's; None where that does not tell."""
    command = [sys.executable, __file__, "--memory"]
    done = subprocess.run(command, env={**os.environ, "PYTHONMALLOC": "malloc"}, stdout=subprocess.PIPE, check=True)  # noqa: S603 - itself
    found: dict[str, float] | None = json.loads(done.stdout)
    return found


def _memory() -> dict[str, float] | None:
    if _in_use() is None:
        return None
    return {"bodies": _kept(routed=False, read=True), "router": _kept(routed=True, read=False)}


def _kept(*, routed: bool, read: bool) -> float:
    """MB by MB of text: two turns of each conversation were read, or routed."""
    replicas = [
        ReplicaSettings(name=name, url=f"http://127.0.0.1:{port}") for name, port in (("a", 9_001), ("b", 9_002))
    ]
    settings = Settings(replicas=replicas)
    router, bodies, text = Router(fleet_of(settings), policy_of(settings)), Bodies(SEED), 0
    _serve(Talk(-1, MEMORY_KB).body(), router, bodies, routed=routed, read=read)
    before = _in_use() or 0
    for number in range(MEMORY_TALKS):
        talk = Talk(number, MEMORY_KB)
        _serve(talk.body(), router, bodies, routed=routed, read=read)
        text += _serve(talk.next(), router, bodies, routed=routed, read=read)
        del talk
    return ((_in_use() or 0) - before) / text


def _serve(body: bytes, router: Router, bodies: Bodies, *, routed: bool, read: bool) -> int:
    """The length of its prompt in bytes of text."""
    reading = _read(bodies, body)[0] if read else whole(body, "chat", SEED)
    size = reading.fingerprint.usable.size_bytes
    if routed:
        arrival = Arrival(
            request_id="x", endpoint="chat", body_bytes=len(body), model="m", fingerprint=reading.fingerprint
        )
        visit = router.arrive(arrival, 0.0)
        assert router.place(visit, 0.0) is not None
        router.finish(visit, 1.0, outcome="ok", status=200, usage=Usage(prompt_tokens=size // 4))
    return size


class _Usage(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


def _in_use() -> int | None:
    """Bytes that are in use; None where the C library does not say."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Usage
    said = libc.mallinfo2()
    return int(said.uordblks + said.hblkhd)


if __name__ == "__main__":
    main()
