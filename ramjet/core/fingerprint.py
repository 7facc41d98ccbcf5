"""A prompt's fingerprint: chained hashes of its blocks, over the whole prompt.

Chained means that a hash names everything before it too: two prompts that agree at block d agree in all of the first d
blocks. Where blocks end depends only on what lies before, never on what follows, so a conversation's next turn has all
the blocks of the turn before. Hashes are seeded with the deployment's secret: prompts are hostile input.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import xxhash

from ramjet.core.prompt import Piece, Prompt

# Small blocks at the head, where short prompts and shared system prompts end; larger ones behind, where 4 KB are a
# thousand tokens of a conversation that has many: (a block that starts before this byte, is at most this long).
_BLOCK_BYTES = ((1_024, 256), (16_384, 1_024), (1 << 62, 4_096))
_LEAST_BLOCK_BYTES = 256
"""A message's end also ends a block, unless the block would be shorter than this."""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """`hashes[i]` names the prompt up to byte `ends[i]`; the first `head` blocks reach to the first user message's end.

    `size_bytes` is the whole prompt's length, which may lie beyond the last block by less than a block. `preamble` names
    what comes before the first user message, tools and system prompt, whether or not a block ends there; None where
    nothing does.
    """

    hashes: array[int]
    ends: array[int]
    head: int
    size_bytes: int
    preamble: int | None = None

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprint:
    """`usable` is what an engine could reuse; `identity` tells conversations apart and leaves volatile lines out.

    They are the same object unless the prompt has volatile lines.
    """

    usable: Chain
    identity: Chain


def fingerprint(prompt: Prompt, seed: int) -> Fingerprint:
    """Hash a whole prompt; 1 MB takes about 0.3 ms. `seed` is 64 bits, from the deployment's secret."""
    usable = _chain(prompt, seed, _data)
    if all(piece.identity is None for piece in prompt.pieces):
        return Fingerprint(usable, usable)
    return Fingerprint(usable, _chain(prompt, seed, _identity))


def _data(piece: Piece) -> tuple[bytes, int]:
    return piece.data, piece.size


def _identity(piece: Piece) -> tuple[bytes, int]:
    return (piece.data, piece.size) if piece.identity is None else (piece.identity, len(piece.identity))


def _chain(prompt: Prompt, seed: int, view: Callable[[Piece], tuple[bytes, int]]) -> Chain:
    chain = xxhash.xxh3_64(prompt.namespace, seed=seed)
    hashes, ends = array("Q"), array("Q")
    head = at = cut = 0
    preamble: int | None = None
    most = _BLOCK_BYTES[0][1]
    for piece in prompt.pieces:
        data, size = view(piece)
        if piece.opens_head and at:
            preamble = chain.intdigest()
        if size == len(data):
            rest = memoryview(data)
            while len(rest) >= (room := most - (at - cut)):
                chain.update(rest[:room])
                rest = rest[room:]
                at = cut = at + room
                hashes.append(chain.intdigest())
                ends.append(at)
                most = _most(at)
            chain.update(rest)
            at += len(rest)
        else:
            # An image: all of it is hashed, but it is not cut, and it counts for what it is worth to the engine.
            chain.update(data)
            at += size
        ends_block = at - cut >= most or (piece.ends_message and at - cut >= _LEAST_BLOCK_BYTES)
        if ends_block or (piece.ends_head and at > cut):
            cut = at
            hashes.append(chain.intdigest())
            ends.append(at)
            most = _most(at)
        if piece.ends_head:
            head = len(hashes)
    if not hashes and at:
        # Shorter than one block: it can be told only from an identical prompt, which is better than not at all.
        hashes.append(chain.intdigest())
        ends.append(at)
    return Chain(hashes, ends, head or len(hashes), at, preamble)


def _most(at: int) -> int:
    return next(most for below, most in _BLOCK_BYTES if at < below)


assert all(first[0] < second[0] for first, second in pairwise(_BLOCK_BYTES))
