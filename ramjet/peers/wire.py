"""News as they lie in the store: facts in MessagePack, sealed with the deployment's secret.

Whoever can write to the store, by mistake or not, tells nobody anything: what is not sealed with the secret is not read.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ramjet.core.news import Fact

VERSION = 1
"""Of the format; part of the keys' names, so that Ramjets of different formats do not hear one another."""
_SEAL_BYTES = 16


class Batch(Struct, frozen=True, array_like=True):
    """What a Ramjet tells at a time."""

    router: int
    """Who: 64 bits that each process makes up when it starts."""
    number: int
    """Of its batches, from 1."""
    at: float
    """When, by its own clock, as the facts' times are."""
    facts: Sequence[Fact]


_decoder = msgspec.msgpack.Decoder(Batch)


class Seal:
    """What only those who have the secret can make."""

    def __init__(self, secret: str) -> None:
        """
        Args:
            secret: the deployment's.
        """
        self._key = _derived(secret, b"ramjet peers")
        self.deployment = _derived(secret, b"ramjet keys")[:8].hex()
        """Names the deployment in the store, and says nothing of its secret."""

    def seal(self, batch: Batch) -> bytes:
        """A batch as it is stored."""
        packed = msgspec.msgpack.encode(batch)
        return self._seal(packed) + packed

    def open(self, stored: bytes) -> Batch | None:
        """The batch that was stored; None where it was not sealed with this secret, or is none."""
        view = memoryview(stored)
        if not hmac.compare_digest(self._seal(view[_SEAL_BYTES:]), view[:_SEAL_BYTES]):
            return None
        try:
            return _decoder.decode(view[_SEAL_BYTES:])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def _seal(self, packed: bytes | memoryview) -> bytes:
        return hashlib.blake2b(packed, key=self._key, digest_size=_SEAL_BYTES).digest()


def _derived(secret: str, purpose: bytes) -> bytes:
    return hashlib.blake2b(secret.encode(), digest_size=32, person=purpose).digest()
