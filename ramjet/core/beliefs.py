"""What we believe each replica holds, corrected by every report, and the ratio by which bytes become tokens.

Beliefs are never trusted further than the next `cached_tokens`: it trims what was believed of the prompt, and where a
replica's pool is known it teaches how much of it conversations really get.
"""

from __future__ import annotations

from collections import OrderedDict

from ramjet.core.cache import Blocks, PrefixCache

TRUSTED_TOKENS = 1_024
"""A belief about fewer tokens than this teaches nothing when it fails: engines reuse whole pages, blocks and chunks."""


class Belief:
    """What one replica holds, as a cache of its own."""

    def __init__(self, pool_tokens: int | None) -> None:
        self.cache = PrefixCache(pool_tokens)
        self._pool_tokens = pool_tokens
        self._share = 1.0

    @property
    def pool_tokens(self) -> int | None:
        """The part of the pool that conversations were seen to get; None where the pool is not known."""
        return self.cache.pool_tokens

    def resize(self, pool_tokens: int | None) -> None:
        """The pool is said to be another size; what was learned of the part that conversations get stays."""
        self._pool_tokens = pool_tokens
        self.cache.pool_tokens = None if pool_tokens is None else int(pool_tokens * self._share)

    def report(self, blocks: Blocks, believed_depth: int, cached_tokens: int, now: float) -> None:
        """Take in what the engine said it reused of a prompt that it has now read to the end.

        Args:
            blocks: the prompt.
            believed_depth: blocks that were believed to be there when it was sent.
            cached_tokens: what the engine reused.
            now: the time of the report.
        """
        believed = blocks.tokens(believed_depth)
        if believed >= TRUSTED_TOKENS and cached_tokens < believed / 2:
            # It was gone, and so was all that grew from there, also in other conversations. This prompt is back.
            depth = next((depth for depth in range(believed_depth, 0, -1) if blocks.tokens(depth) <= cached_tokens), 0)
            self.cache.trim(blocks, depth)
            self._share = max(0.3, self._share * 0.95)
        elif believed >= TRUSTED_TOKENS and cached_tokens >= 0.9 * believed:
            self._share = min(1.0, self._share + 0.002)
        self.resize(self._pool_tokens)
        self.cache.insert(blocks, now)


class TokenRatios:
    """Bytes of prompt that make a token, learned for each model; 4 until a model has said otherwise.

    Bounded: clients may send any model name, the least recently used is forgotten.
    """

    DEFAULT = 4.0
    """The original's production median was 4.2 bytes of body a token."""

    def __init__(self, most_models: int = 256) -> None:
        self._ratios: OrderedDict[str | None, float] = OrderedDict()
        self._most = most_models

    def bytes_per_token(self, model: str | None) -> float:
        """The ratio for a model."""
        return self._ratios.get(model, self.DEFAULT)

    def learn(self, model: str | None, prompt_bytes: int, prompt_tokens: int) -> None:
        """Take in the engine's count for a whole prompt; short prompts are mostly template and teach nothing."""
        if prompt_tokens < 64 or not prompt_bytes:
            return
        seen = min(64.0, max(0.25, prompt_bytes / prompt_tokens))
        old = self._ratios.get(model)
        self._ratios[model] = seen if old is None else old + 0.1 * (seen - old)
        self._ratios.move_to_end(model)
        if len(self._ratios) > self._most:
            self._ratios.popitem(last=False)
