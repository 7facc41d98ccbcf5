"""What a simulated replica does with a prompt: what it finds and keeps of it, how long it reads, what it answers.

One owner of the cache with synchronous methods: no clock, no socket, no await. Time comes in as an argument and goes
out as seconds to wait; `replica` does the waiting.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import TracebackType

from ramjet.core.cache import Blocks, Node, PrefixCache
from ramjet.demo.tokens import BLOCK_TOKENS, blocks_of, count_tokens, fingerprint

# Reading u tokens up to length L takes a*u + b*(L^2 - m^2) seconds, m = L - u. The two numbers give the seed's three:
# 3.3 s at 20,000 tokens, 17 s at 100,000, 57 s at 313,000.
READ_S = 0.1655e-3
READ_SQUARED_S = 5.3e-11

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A simulated replica's properties."""

    model: str = "demo"
    """The name it lists; a request may give any other, as with SGLang, and gets it back."""
    pool_tokens: int = 499_968
    """Its token pool (seed)."""
    speed: float = 1.0
    """How many times faster than the seed's hardware it reads and writes."""
    decode_s: float = 0.02
    """Seconds per generated token at speed 1."""
    answer_tokens: int = 256
    """Where an answer ends by itself, if `max_tokens` allows that many."""
    report_cache: bool = True
    """Whether usage says how much of the prompt was reused; SGLang's `--enable-cache-report`."""

    def prefill_s(self, prompt_tokens: int, cached_tokens: int) -> float:
        """Seconds from the start of reading to the first token."""
        unread = READ_S * (prompt_tokens - cached_tokens)
        return (unread + READ_SQUARED_S * (prompt_tokens**2 - cached_tokens**2)) / self.speed

    @property
    def token_s(self) -> float:
        """Seconds between two generated tokens."""
        return self.decode_s / self.speed


class Work:
    """One request inside the engine; leaving its `with` block gives back all that it took."""

    __slots__ = ("_engine", "answer", "blocks", "cached_tokens", "prompt_tokens", "started", "stopped", "tail", "text")

    def __init__(self, engine: Engine, text: str, max_tokens: int, answer_tokens: int) -> None:
        self._engine = engine
        self.text = text
        self.prompt_tokens = count_tokens(text)
        self.blocks = blocks_of(text)
        self.answer = write_answer(fingerprint(text), min(max_tokens, answer_tokens))
        """The answer, token by token; it is known before it is written."""
        self.stopped = answer_tokens < max_tokens
        """Whether the answer ends by itself, and not at `max_tokens`."""
        self.cached_tokens = 0
        """Tokens reused; known once the work has started."""
        self.started = False
        self.tail: Node | None = None
        """The end of what this work holds in the cache."""

    def __enter__(self) -> Work:
        self._engine.works.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._engine.works.discard(self)
        self._engine.hold(self, None)


class Engine:
    """The cache of a simulated replica and the requests that use it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.cache = PrefixCache(profile.pool_tokens)
        self.works: set[Work] = set()
        """All requests inside, waiting or running."""
        self.prompt_tokens_total = 0
        self.cached_tokens_total = 0

    @property
    def running(self) -> int:
        """Requests that are being read or written."""
        return sum(work.started for work in self.works)

    @property
    def waiting(self) -> int:
        """Requests whose reading has not begun."""
        return len(self.works) - self.running

    @property
    def held_tokens(self) -> int:
        """Tokens that running requests keep from eviction, each shared prefix counted once."""
        held = {node for work in self.works if work.tail is not None for node in work.tail.path()}
        return sum(node.tokens for node in held)

    def accept(self, text: str, max_tokens: int, *, ignore_eos: bool = False) -> Work:
        """Take a rendered prompt in. Raises ValueError for one that is longer than the token pool."""
        work = Work(self, text, max_tokens, max_tokens if ignore_eos else self.profile.answer_tokens)
        if work.prompt_tokens > self.profile.pool_tokens:
            raise ValueError(
                f"prompt of {work.prompt_tokens:,} tokens exceeds the token pool of {self.profile.pool_tokens:,}"
            )
        return work

    def start(self, work: Work, now: float) -> float | None:
        """Look the prompt up and begin to read it.

        Returns the seconds that reading takes; None while there is no room for it beside what is running.
        """
        depth = self.cache.match(work.blocks).depth
        found = Blocks(work.blocks.hashes[:depth], work.blocks.ends[:depth])
        # Held from here on: what was found must still be there when reading is done.
        self.hold(work, self.cache.insert(found, now))
        unread_tokens = BLOCK_TOKENS * (len(work.blocks) - depth)
        if self.running and self.held_tokens + unread_tokens > self.profile.pool_tokens:
            self.hold(work, None)
            return None
        work.started = True
        # The last token is always read: its answer is the first one generated.
        work.cached_tokens = min(BLOCK_TOKENS * depth, work.prompt_tokens - 1)
        self.prompt_tokens_total += work.prompt_tokens
        self.cached_tokens_total += work.cached_tokens
        return self.profile.prefill_s(work.prompt_tokens, work.cached_tokens)

    def prefilled(self, work: Work, now: float) -> None:
        """The prompt has been read: it can be reused from here on."""
        self.hold(work, self.cache.insert(work.blocks, now))

    def finish(self, work: Work, now: float) -> None:
        """The answer has been written: the next turn, which repeats it, will find it."""
        self.cache.insert(blocks_of(work.text + "".join(work.answer)), now)

    def hold(self, work: Work, tail: Node | None) -> None:
        """Keep the path to `tail` from eviction, in place of what this work held before."""
        if tail is not None:
            self.cache.hold(tail)
        if work.tail is not None:
            self.cache.release(work.tail)
        work.tail = tail


def write_answer(seed: int, tokens: int) -> tuple[str, ...]:
    """Words without meaning, four characters a token; what is longer begins as what is shorter, for the same seed."""
    chance = random.Random(seed)
    words = ["".join(chance.choice(letters) for letters in (_CONSONANTS, _VOWELS, _CONSONANTS)) for _ in range(tokens)]
    # No blank at either end: a client that trims the answer it repeats would lose the cache for it.
    return tuple(f"{word}." if at == 0 else f" {word}" for at, word in enumerate(words))
