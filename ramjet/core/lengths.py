"""How long a prompt is in tokens, of which only its bytes are seen: known where an engine has counted, else estimated."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import truediv

from ramjet.core.cache import Blocks
from ramjet.core.conversations import Conversation
from ramjet.core.fingerprint import Chain

_MOST_TOKENS = (1 << 32) - 1
"""What an end in `Blocks` can hold."""


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


def scale(known: Conversation | None, bytes_per_token: float) -> Callable[[Sequence[int]], list[int]]:
    """From places in the prompt in bytes, in order, to the tokens before them.

    What the conversation's last prompt took is known from the engine; only what is new is estimated from its bytes.
    """
    known_bytes, known_tokens = (known.prompt_bytes, known.prompt_tokens) if known is not None else (0, 0)

    def tokens(places: Sequence[int]) -> list[int]:
        if not places:
            return []
        # A long prompt has hundreds of blocks, at every turn: no call for each of them.
        if not known_bytes:
            found = list(map(int, map(truediv, places, repeat(bytes_per_token))))
        else:
            new = bisect_left(places, known_bytes)
            found = [at * known_tokens // known_bytes for at in places[:new]]
            found += [known_tokens + int((at - known_bytes) / bytes_per_token) for at in places[new:]]
        return [min(_MOST_TOKENS, each) for each in found] if found and found[-1] > _MOST_TOKENS else found

    return tokens


def in_tokens(chain: Chain, tokens: Callable[[Sequence[int]], list[int]]) -> Blocks:
    """A prompt's blocks, each with the tokens up to its end."""
    return Blocks(chain.hashes, array("I", tokens(chain.ends)))
