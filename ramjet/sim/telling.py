"""An engine's cache that says what it stores and lets go, as engines do in their KV events."""

from __future__ import annotations

from collections.abc import Callable

from ramjet.core.cache import Blocks, CacheSpec, EngineCache, Node
from ramjet.core.chains import Cleared, Event, Removed, Stored


class TellingCache(EngineCache):
    """Tells of pages, by their hashes; what only its host tier has still counts as held, as it does for a prompt."""

    def __init__(self, spec: CacheSpec, tell: Callable[[Event], None]) -> None:
        super().__init__(spec)
        self._told = tell

    def clear(self) -> None:
        """Forget everything that nobody uses."""
        super().clear()
        self._told(Cleared())

    def _grow(self, tail: Node | None, blocks: Blocks, depth: int, now: float) -> Node:
        parent = blocks.hashes[depth - 1] if depth else None
        self._told(Stored(hashes=list(blocks.hashes[depth:]), parent=parent, block_tokens=self.spec.page_tokens))
        return super()._grow(tail, blocks, depth, now)

    def _cut(self, node: Node, keep: int) -> None:
        going = node.hashes[keep:]
        super()._cut(node, keep)
        if len(node.hashes) == keep:
            self._told(Removed(hashes=list(going)))

    def _detach(self, leaf: Node) -> None:
        self._told(Removed(hashes=list(leaf.hashes)))
        super()._detach(leaf)
