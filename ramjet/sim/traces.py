"""Recorded sessions of coding agents, as requests: sizes, times, and how much of a prompt was there before. No text.

Reads the lines of a packed trace; `ramjet/lab/data/README.md` says what is in them. Prompts are built one after the
other, each from what it keeps of its agent's last and what it adds, so that a whole trace costs little time and memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import xxhash

from ramjet.core.cache import Blocks

BLOCK_TOKENS = 64
MAIN = "main"
"""The agent that the user talks to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a recorded session."""

    conversation: str
    agent: str
    """`MAIN` or a sub-agent's name; each has a row of prompts of its own."""
    at_s: float
    """When it was sent, from the conversation's beginning."""
    think_s: float | None
    """How long the client waited before it sent; None where that was not recorded."""
    prompt_tokens: int
    answer_tokens: int
    """0 for an answer that was broken off."""
    blocks: Blocks
    """The prompt's full blocks. Equal hashes are equal prefixes, in this and in all other conversations."""


class _Line(msgspec.Struct, gc=False):
    """A line of a packed trace: the head of a conversation, the head of a sub-agent, or a request."""

    conv: str | None = None
    block: int = BLOCK_TOKENS
    sub: str | None = None
    tools: int = 0
    system: int = 0
    a: int | str = 0
    t: float = 0.0
    think: float | None = None
    prompt_tokens: int = msgspec.field(name="in", default=0)
    answer_tokens: int = msgspec.field(name="out", default=0)
    keep: int = 0
    add: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TraceConversation:
    """One recorded session: a main agent's requests and those of its sub-agents, in the order of the recording."""

    name: str
    _lines: tuple[_Line, ...]

    def __len__(self) -> int:
        """How many requests it has."""
        return sum(line.conv is None and line.sub is None for line in self._lines)

    def requests(self, seed: int = 0) -> Iterator[TraceRequest]:
        """Its requests. Another seed makes another conversation of the same shape, behind the same tools and system."""
        writer = _Writer(xxhash.xxh3_64_intdigest(self.name.encode(), seed=seed))
        for line in self._lines:
            if line.conv is not None or line.sub is not None:
                writer.begin(line.sub or MAIN, line.tools, line.system)
                continue
            agent = line.a if isinstance(line.a, str) else MAIN
            blocks = writer.write(agent, line.keep, line.add)
            if not 0 <= line.prompt_tokens - BLOCK_TOKENS * len(blocks) < BLOCK_TOKENS:
                raise ValueError(f"{self.name}: a prompt of {line.prompt_tokens} tokens has {len(blocks)} full blocks")
            yield TraceRequest(
                conversation=self.name,
                agent=agent,
                at_s=line.t,
                think_s=line.think,
                prompt_tokens=line.prompt_tokens,
                answer_tokens=line.answer_tokens,
                blocks=blocks,
            )


def read(lines: Iterable[str | bytes]) -> Iterator[TraceConversation]:
    """Take a packed trace apart, conversation by conversation.

    Raises:
        ValueError: a line is not of that form.
    """
    decoder = msgspec.json.Decoder(_Line)
    session: list[_Line] = []
    for text in lines:
        line = decoder.decode(text)
        if line.conv is None and not session:
            raise ValueError("a trace begins with the head of a conversation")
        if line.conv is not None:
            if line.block != BLOCK_TOKENS:
                raise ValueError(f"{line.conv}: blocks of {line.block} tokens, and only {BLOCK_TOKENS} are known")
            yield from _conversation(session)
            session = []
        session.append(line)
    yield from _conversation(session)


def _conversation(lines: list[_Line]) -> Iterator[TraceConversation]:
    if lines:
        yield TraceConversation(lines[0].conv or "", tuple(lines))


class _Writer:
    """Writes the prompts of one conversation."""

    def __init__(self, own: int) -> None:
        self._own = own
        """What tells its blocks from those of other conversations."""
        self._heads: dict[str, tuple[int, int]] = {}
        self._prompts: dict[str, array[int]] = {}
        self._ends = array("I")
        self._known: dict[int, int] = {}
        """The hash of each block number: equal numbers are equal blocks behind equal prefixes."""
        self._common: set[tuple[int, int]] = set()
        """Heads that a prompt of this conversation has begun with."""

    def begin(self, agent: str, tools: int, system: int) -> None:
        """An agent with a tool list and a system prompt of so many tokens."""
        self._heads[agent] = tools, system

    def write(self, agent: str, keep: int, added: Iterable[tuple[int, int]]) -> Blocks:
        """The agent's next prompt."""
        hashes = self._prompts[agent][:keep] if keep else array("Q")
        head = self._heads.get(agent, (0, 0))
        # Tool list and system prompt are taken for the same wherever both have the same length; the trace does not say.
        # A head that comes with other numbers later on is another text, and this conversation's own.
        common = 0 if head in self._common else sum(head) // BLOCK_TOKENS
        self._common.add(head)
        chain = hashes[-1] if hashes else xxhash.xxh3_64_intdigest(b"%d %d" % head)
        known, digest, own = self._known, xxhash.xxh3_64_intdigest, self._own
        for first, count in added:
            for number in range(first, first + count):
                if (found := known.get(number)) is None:
                    shared = len(hashes) < common
                    found = digest(b"head", chain) if shared else digest(number.to_bytes(8, "little"), chain ^ own)
                    known[number] = found
                hashes.append(found)
                chain = found
        self._prompts[agent] = hashes
        if (missing := len(hashes) - len(self._ends)) > 0:
            end = BLOCK_TOKENS * len(self._ends)
            self._ends.extend(range(end + BLOCK_TOKENS, end + BLOCK_TOKENS * missing + 1, BLOCK_TOKENS))
        return Blocks(hashes, self._ends[: len(hashes)])
