"""Text as a simulated replica's tokens: four characters each, in blocks of 64 with chained hashes."""

from __future__ import annotations

from array import array

import xxhash

from ramjet.core.cache import Blocks

BLOCK_TOKENS = 64
"""Reuse ends on a multiple of this, as with SGLang's `--page-size 64`."""

TOKEN_CHARACTERS = 4
"""About what English and code take with today's vocabularies; the seed's 600,000 bytes are its 150,000 tokens."""

MEDIA_TOKENS = 1_000
"""What an image costs, whatever its size."""

_BLOCK_CHARACTERS = BLOCK_TOKENS * TOKEN_CHARACTERS


def count_tokens(text: str) -> int:
    """Tokens of a text, the last one perhaps not full."""
    return -(-len(text) // TOKEN_CHARACTERS)


def blocks_of(text: str) -> Blocks:
    """The full blocks of a text; what follows the last of them is never cached."""
    chain, hashes = xxhash.xxh3_64(), array("Q")
    for start in range(0, len(text) - _BLOCK_CHARACTERS + 1, _BLOCK_CHARACTERS):
        chain.update(_encoded(text[start : start + _BLOCK_CHARACTERS]))
        hashes.append(chain.intdigest())
    return Blocks(hashes, array("I", range(BLOCK_TOKENS, BLOCK_TOKENS * len(hashes) + 1, BLOCK_TOKENS)))


def fingerprint(text: str) -> int:
    """One unsigned 64-bit number for a whole text."""
    return xxhash.xxh3_64_intdigest(_encoded(text))


def text_of_ids(ids: list[int]) -> str:
    """Token ids as text of as many tokens, different for different ids. Raises ValueError outside 0 to 2^32 - 1."""
    try:
        return "".join(token.to_bytes(TOKEN_CHARACTERS, "big").decode("latin-1") for token in ids)
    except OverflowError:
        raise ValueError("token ids must lie between 0 and 4294967295") from None


def text_of_media(content: str) -> str:
    """An image as text of `MEDIA_TOKENS` tokens that differs where the image does."""
    mark = f"{fingerprint(content):016x}"
    return mark * (MEDIA_TOKENS * TOKEN_CHARACTERS // len(mark))


def _encoded(text: str) -> bytes:
    # JSON may carry half a surrogate pair, and plain UTF-8 would refuse it.
    return text.encode("utf-8", "surrogatepass")
