"""Text as a simulated replica's tokens: four characters each, in pages with chained hashes. And text of its own."""

from __future__ import annotations

from array import array

import xxhash

from ramjet.core.cache import Blocks

TOKEN_CHARACTERS = 4
"""About what English and code take with today's vocabularies; the seed's 600,000 bytes are its 150,000 tokens."""

MEDIA_TOKENS = 1_000
"""What an image costs, whatever its size."""

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


class Prompt:
    """A rendered prompt: its length, its full pages, and how they go on with an answer.

    The text itself is not kept, only what does not fill a page.
    """

    __slots__ = ("_page_characters", "_page_tokens", "_rest", "blocks", "seed", "tokens")

    def __init__(self, text: str, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._page_characters = page_tokens * TOKEN_CHARACTERS
        self.tokens = count_tokens(text)
        self.blocks = self._blocks(self._hash(array("Q"), text))
        full = len(self.blocks) * self._page_characters
        self._rest = text[full:]
        self.seed = xxhash.xxh3_64_intdigest(_encoded(self._rest), self.blocks.hashes[-1] if full else 0)
        """One unsigned 64-bit number for the whole text."""

    def followed_by(self, more: str) -> Blocks:
        """The full pages of this prompt with more text behind it; what follows the last of them is never cached."""
        return self._blocks(self._hash(self.blocks.hashes[:], self._rest + more))

    def _hash(self, hashes: array[int], text: str) -> array[int]:
        """Add the hashes of a text's full pages, each seeded with the one before: equal hashes are equal beginnings."""
        size, before = self._page_characters, hashes[-1] if hashes else 0
        starts = range(0, len(text) - size + 1, size)
        # In ASCII a page is as long in bytes, and encoding once is most of the difference for a long prompt.
        whole = memoryview(text.encode()) if text.isascii() else None
        for start in starts:
            page = whole[start : start + size] if whole is not None else _encoded(text[start : start + size])
            before = xxhash.xxh3_64_intdigest(page, before)
            hashes.append(before)
        return hashes

    def _blocks(self, hashes: array[int]) -> Blocks:
        page = self._page_tokens
        return Blocks(hashes, array("I", range(page, page * len(hashes) + 1, page)))


def count_tokens(text: str) -> int:
    """Tokens of a text, the last one perhaps not full."""
    return -(-len(text) // TOKEN_CHARACTERS)


def blocks_of(text: str, page_tokens: int) -> Blocks:
    """The full pages of a text."""
    return Prompt(text, page_tokens).blocks


def text_of_ids(ids: list[int]) -> str:
    """Token ids as text of as many tokens, different for different ids. Raises ValueError outside 0 to 2^32 - 1."""
    try:
        return "".join(token.to_bytes(TOKEN_CHARACTERS, "big").decode("latin-1") for token in ids)
    except OverflowError:
        raise ValueError("token ids must lie between 0 and 4294967295") from None


def text_of_media(content: str) -> str:
    """An image as text of `MEDIA_TOKENS` tokens that differs where the image does."""
    mark = f"{xxhash.xxh3_64_intdigest(_encoded(content)):016x}"
    return mark * (MEDIA_TOKENS * TOKEN_CHARACTERS // len(mark))


def write_answer(seed: int, tokens: int) -> tuple[str, ...]:
    """Words without meaning, a token each; what is longer begins as what is shorter, for the same seed."""
    # No blank at either end: a client that trims the answer it repeats would lose the cache for it.
    return tuple(f"{_word(seed, at)}." if at == 0 else f" {_word(seed, at)}" for at in range(tokens))


def _word(seed: int, at: int) -> str:
    """Three letters: a consonant, a vowel, a consonant."""
    chosen = xxhash.xxh3_64_intdigest(at.to_bytes(4, "big"), seed)
    chosen, first = divmod(chosen, len(_CONSONANTS))
    chosen, second = divmod(chosen, len(_VOWELS))
    return _CONSONANTS[first] + _VOWELS[second] + _CONSONANTS[chosen % len(_CONSONANTS)]


def _encoded(text: str) -> bytes:
    # JSON may carry half a surrogate pair, and plain UTF-8 would refuse it.
    return text.encode("utf-8", "surrogatepass")
