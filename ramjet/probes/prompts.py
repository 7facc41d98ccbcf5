"""Made-up prompts of a wanted length in tokens, for an engine whose tokenizer is not known.

Pure. Every text is decided by the run's nonce and a label, so that no run finds the prompts of an earlier one, and what
is longer begins with what is shorter. How many characters make a token is learned from the engine's own counts.
"""

from __future__ import annotations

import random

_VOCABULARY = """
    act add age air all and any arm art ask bad bag bar bed big bit box boy bus but buy can cap car cat cup cut day dog
    dry due ear eat egg end eye far fat few fit fix fly fun gas get guy hat her hit hot how ice ill job joy key kid
    lab law lay leg let lie lot low man map may men met mix net new not now off oil old one our out own pay per pop put
    raw red row run sad say sea see set she shy sir sit six sky son sun tap tax tea ten tie tip too top toy try two
    use van via was way web who why win yes yet you bug fan
"""
WORDS = tuple(_VOCABULARY.split())
"""128 common words of three letters: with the blank before it each is one token of today's vocabularies, and one of four
characters for simulated replicas, so that lengths come out to the token."""

WORD_CHARACTERS = 4
_BLOCK_WORDS = 1_024
# Until the first answer has told better: four characters a token, and a chat template of ten.
_GUESS = (float(WORD_CHARACTERS), 10.0)


def write(nonce: str, label: str, characters: int) -> str:
    """The first so many characters of an endless text."""
    chance = random.Random(f"{nonce} {label}")
    words: list[str] = []
    # Drawn in whole blocks: chance is then asked for the same words however long the text is to be.
    # The last word has no blank behind it, so that words for exactly so many characters are one too few.
    while len(words) * WORD_CHARACTERS <= characters:
        words += [WORDS[number % len(WORDS)] for number in chance.randbytes(_BLOCK_WORDS)]
    return " ".join(words)[:characters]


def branch(trunk: str, at_characters: int, other: str, characters: int) -> str:
    """A text that shares exactly the first `at_characters` of the trunk, and then is `other`."""
    # A word that only begins alike would be shared in part, and its token might not be.
    start = 0
    while trunk[at_characters : at_characters + 1] == other[start : start + 1]:
        start += WORD_CHARACTERS
    return (trunk[:at_characters] + other[start:])[:characters]


class Writer:
    """Writes the prompts of one run, and learns from the engine's counts how long they have to be."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._shortest: tuple[int, int] | None = None
        self._longest: tuple[int, int] | None = None

    @property
    def characters_per_token(self) -> float:
        """Characters of text in a token."""
        return self._fit()[0]

    @property
    def overhead_tokens(self) -> float:
        """What a prompt has beside its text: the chat template's own tokens, before it and after it."""
        return self._fit()[1]

    def learn(self, characters: int, prompt_tokens: int) -> None:
        """The engine counted so many tokens for a prompt of one message with so many characters."""
        point = (characters, prompt_tokens)
        if self._shortest is None or point < self._shortest:
            self._shortest = point
        if self._longest is None or point > self._longest:
            self._longest = point

    def characters(self, tokens: int) -> int:
        """Characters of the text in a prompt of so many tokens; at least enough to tell it from any other."""
        each, overhead = self._fit()
        return max(16 * WORD_CHARACTERS, round((tokens - overhead) * each))

    def text(self, label: str, tokens: int) -> str:
        """The text of a prompt of so many tokens, template included."""
        return write(self._nonce, label, self.characters(tokens))

    def branch(self, trunk: str, at_tokens: int, label: str, tokens: int) -> str:
        """The text of a prompt that leaves another at `at_tokens`, or up to the template's length before that.

        The template has tokens before the text and after it, and nobody says how many are where; both counted as if
        they came first, what is shared is never more than was asked for.
        """
        at = self.characters(at_tokens) // WORD_CHARACTERS * WORD_CHARACTERS
        length = max(self.characters(tokens), at + 16 * WORD_CHARACTERS)
        # Some words may be left out at its start, so that it differs there.
        other = write(self._nonce, label, length - at + _BLOCK_WORDS * WORD_CHARACTERS)
        return branch(trunk, at, other, length)

    def _fit(self) -> tuple[float, float]:
        if self._shortest is None or self._longest is None:
            return _GUESS
        (few, short), (many, long) = self._shortest, self._longest
        if many > few and long > short:
            each = (many - few) / (long - short)
            return each, max(0.0, short - few / each)
        overhead = _GUESS[1]
        return few / max(1.0, short - overhead), overhead
