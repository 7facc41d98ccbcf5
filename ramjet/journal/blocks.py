"""A prompt's chain in few bytes: what it keeps of another chain, and what it adds.

Hashes are salted once more on their way into the file. Those of a fingerprint are quick and seeded with the secret,
which is enough in memory; what lies on a disk for weeks is worth a keyed cryptographic hash. Equal stays equal.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Iterator

from ramjet.core.fingerprint import Chain

EMPTY = Chain(array("Q"), array("Q"), 0, 0)


def salter(secret: str) -> Callable[[int], int]:
    """What turns a fingerprint's hash into a journal's: 64 bits, of no use to anybody without the secret."""
    key = hashlib.blake2b(secret.encode(), digest_size=32, person=b"ramjet journal").digest()
    keyed = hashlib.blake2b(key=key, digest_size=8)

    def salt(value: int) -> int:
        one = keyed.copy()
        one.update(value.to_bytes(8, "little"))
        return int.from_bytes(one.digest(), "little")

    return salt


def kept(base: Chain, chain: Chain) -> int:
    """How many blocks two chains have in common. Hashes are chained, so where one is equal all before it are."""
    low, high = 0, min(len(base), len(chain))
    while low < high:
        middle = (low + high + 1) // 2
        if base.hashes[middle - 1] == chain.hashes[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def pack(chain: Chain, base: Chain, salt: Callable[[int], int]) -> bytes:
    """A chain as what it keeps of `base` and what it adds.

    Unsigned LEB128 numbers but for the hashes: kept blocks, added blocks, the added hashes (8 bytes each, little
    endian), each added block's length in bytes, the prompt's bytes beyond the last block, blocks of the head, and 1 and
    a hash where there is a preamble, else 0.
    """
    keep = kept(base, chain)
    added = array("Q", map(salt, chain.hashes[keep:]))
    if sys.byteorder == "big":
        added.byteswap()
    out = bytearray()
    _number(out, keep)
    _number(out, len(added))
    out += added.tobytes()
    at = chain.ends[keep - 1] if keep else 0
    for end in chain.ends[keep:]:
        _number(out, end - at)
        at = end
    _number(out, chain.size_bytes - at)
    _number(out, chain.head)
    _number(out, chain.preamble is not None)
    if chain.preamble is not None:
        out += salt(chain.preamble).to_bytes(8, "little")
    return bytes(out)


def unpack(packed: bytes, base: Chain) -> tuple[Chain, bytes]:
    """The chain, with its salted hashes, and what follows it.

    Raises:
        ValueError: this is no chain, or one that keeps more than `base` has.
    """
    numbers = _Numbers(packed)
    keep, count = next(numbers), next(numbers)
    if keep > len(base):
        raise ValueError(f"keeps {keep} blocks of a prompt that has {len(base)}")
    hashes, ends = base.hashes[:keep], base.ends[:keep]
    added = array("Q", numbers.take(8 * count))
    if sys.byteorder == "big":
        added.byteswap()
    hashes += added
    at = ends[-1] if keep else 0
    for _ in range(count):
        at += next(numbers)
        ends.append(at)
    size_bytes, head = at + next(numbers), next(numbers)
    preamble = int.from_bytes(numbers.take(8), "little") if next(numbers) else None
    return Chain(hashes, ends, head, size_bytes, preamble), numbers.rest


def _number(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


class _Numbers(Iterator[int]):
    """Reads what `_number` wrote."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._at = 0

    def __next__(self) -> int:
        number = shift = 0
        try:
            while (byte := self._packed[self._at]) > 0x7F:
                number |= (byte & 0x7F) << shift
                shift += 7
                self._at += 1
        except IndexError:
            raise ValueError("ends in the middle of a number") from None
        self._at += 1
        return number | byte << shift

    def take(self, count: int) -> bytes:
        """The next bytes as they are."""
        taken = self._packed[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError("ends in the middle of a hash")
        self._at += count
        return taken

    @property
    def rest(self) -> bytes:
        """What has not been read."""
        return self._packed[self._at :]
