"""A radix tree of blocks over a token pool: what is common to every prefix cache.

Without a pool it is the history of everything seen, which is the best that any cache could have done. It does not know
what a block contains: blocks are chained hashes, so equal hashes at one depth mean equal prefixes down to it.
`engine` adds what an engine keeps beside the tokens.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from msgspec import Struct

# What the process really pays, measured by tests/test_memory.py (100,000 conversations of 50 KB) and rounded up:
# a node with its two arrays, its place in the order of use and in the index; a block is a hash (8) and an end (4).
NODE_BYTES = 700
BLOCK_BYTES = 12


class Blocks(Struct, frozen=True, eq=False):
    """A prompt as blocks: `hashes[i]` names the whole prefix up to block i, `ends[i]` is its length in tokens.

    Both arrays have one entry per block; `ends` never falls. Hashes are unsigned 64-bit, ends unsigned 32-bit.
    """

    hashes: array[int]
    ends: array[int]

    def __len__(self) -> int:
        return len(self.hashes)

    def tokens(self, depth: int) -> int:
        """Length in tokens of the first `depth` blocks."""
        return self.ends[depth - 1] if depth else 0


class Node:
    """A run of blocks that nothing branches off, and who is using it."""

    __slots__ = (
        "children", "cuts", "ends", "hashes", "holders", "host", "host_snapshot", "locks", "on_device", "owner",
        "parent", "snapshot", "start", "touched_at",
    )  # fmt: skip

    def __init__(self, hashes: array[int], ends: array[int], start: int, parent: Node | None, now: float) -> None:
        self.hashes = hashes
        self.ends = ends
        self.start = start
        """Tokens before this run."""
        self.parent = parent
        self.children: set[Node] | None = None
        self.cuts: Sequence[int] = ()
        """Blocks of it after which one of its pieces ends, but for the last: what was read at once goes at once."""
        self.holders = 0
        """How many users hold this run or one below it; a held run is not evicted."""
        self.owner: object = None
        """Whoever inserted the run last; the cache only carries it."""
        self.touched_at = now
        self.on_device = True
        """Whether the device holds its tokens; if not, the host does."""
        self.snapshot = False
        """Whether the device holds the state as it stood after its last block."""
        self.locks = 0
        """How many running requests keep that snapshot."""
        self.host = False
        """Whether the host holds a copy of its tokens."""
        self.host_snapshot = False
        """Whether the host holds a copy of that state."""

    @property
    def tokens(self) -> int:
        """Tokens in this run alone."""
        return self.ends[-1] - self.start

    def pieces(self, beyond: int = 0) -> list[int]:
        """Where its pieces begin, in blocks of it, the last first; those that end beyond so many blocks."""
        return [0, *self.cuts][bisect_right(self.cuts, beyond) :][::-1]

    def path(self) -> Iterator[Node]:
        """This node, its parent, and so on up to the first block of the prompt."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


class Match(Struct, frozen=True):
    """How far a prompt is known: `depth` blocks, the last of them in `node` (None when nothing is known).

    A router makes one for each replica and request.
    """

    depth: int
    node: Node | None
    above: int
    """Blocks before those of `node`."""


NOTHING = Match(0, None, 0)


class PrefixCache:
    """A radix tree over chained block hashes with one pool of tokens, evicted leaf first by least recent use."""

    def __init__(self, pool_tokens: int | None = None) -> None:
        """
        Args:
            pool_tokens: the pool's size in tokens; None when it is not known, and then nothing is evicted for room.
        """
        self.pool_tokens = pool_tokens
        self.tokens = 0
        self.blocks = 0
        # A run is found by the hash of its first block alone: chained hashes make it unique in the whole tree.
        self._index: dict[int, Node] = {}
        # Least recently used first. A path is touched from its tail to its root, so a node never stands before its
        # descendants: the first node without a holder is always a leaf, and a shared system prompt outlives the
        # conversations that grew from it.
        self._order: OrderedDict[Node, None] = OrderedDict()

    @property
    def nodes(self) -> int:
        """How many runs the tree has."""
        return len(self._index)

    @property
    def cost_bytes(self) -> int:
        """Memory this cache takes in the process, estimated."""
        return len(self._index) * NODE_BYTES + self.blocks * BLOCK_BYTES

    @property
    def oldest_at(self) -> float | None:
        """When the least recently used run was touched; None for an empty cache."""
        return next(iter(self._order)).touched_at if self._order else None

    @property
    def oldest_is_held(self) -> bool:
        """Whether somebody holds the least recently used run."""
        return bool(self._order) and next(iter(self._order)).holders > 0

    def match(self, blocks: Blocks, known: Match = NOTHING) -> Match:
        """Find the longest prefix of the prompt that is held. Looking changes nothing, not even the order of use.

        `known` is a part of it that is known to be held, to the end of a run.
        """
        depth, last, above = known.depth, known.node, known.above
        hashes, index = blocks.hashes, self._index
        most = len(hashes)
        while depth < most:
            node = index.get(hashes[depth])
            if node is None:
                break
            last, above = node, depth
            depth += shared_blocks(node.hashes, hashes, depth)
            if depth - above < len(node.hashes):
                break
        return Match(depth, last, above)

    def begins(self, blocks: Blocks) -> bool:
        """Whether anything of a prompt is held. Most of a fleet holds nothing of most prompts."""
        return blocks.hashes[0] in self._index

    def matches(self, blocks: Blocks, found: Match) -> bool:
        """Whether matching this prompt would find just that, which is something; quicker than matching it."""
        hashes, depth, node = blocks.hashes, found.depth, found.node
        assert node is not None
        inside = depth - found.above
        # Equal hashes: everything before is equal too.
        if len(hashes) < depth or hashes[depth - 1] != node.hashes[inside - 1]:
            return False
        if len(hashes) == depth:
            return True
        return hashes[depth] not in self._index if inside == len(node.hashes) else hashes[depth] != node.hashes[inside]

    def insert(self, blocks: Blocks, now: float, found: Match | None = None) -> Node | None:
        """Take the whole prompt in, mark its path as just used, and evict others until the pool is kept.

        `found` is what it matches, where that is known. Returns the node that ends with the prompt's last block that found
        room; None for a prompt without blocks.
        """
        if not blocks.hashes:
            return None
        found = self.match(blocks) if found is None else found
        tail = found.node
        if tail is not None and (inside := found.depth - found.above) < len(tail.hashes):
            # The prompt leaves a longer run or ends inside it: its end must be a node, or a hold would hold too much.
            tail = self._split(tail, inside, now)
        if found.depth < len(blocks):
            tail = self._grow(tail, blocks, found.depth, now)
        assert tail is not None
        self.touch(tail, now)
        self._keep_pool()
        while tail is not None and tail not in self._order:
            tail = tail.parent
        return tail

    def touch(self, tail: Node, now: float) -> None:
        """Mark the path that ends in `tail` as just used."""
        node: Node | None = tail
        while node is not None:
            node.touched_at = now
            self._order.move_to_end(node)
            node = node.parent

    def hold(self, tail: Node) -> None:
        """Keep the path that ends in `tail` from being evicted, until `release`."""
        for node in tail.path():
            node.holders += 1

    def release(self, tail: Node) -> None:
        """Give back one `hold`."""
        for node in tail.path():
            node.holders -= 1

    def trim(self, blocks: Blocks, depth: int) -> None:
        """Forget what is held of this prompt beyond its first `depth` blocks, and all that grew from there.

        A holder of what is forgotten keeps its node, which is then outside the tree.
        """
        found = self.match(blocks)
        if found.node is None or found.depth <= depth:
            return
        node = found.node
        while (before := _depth_before(node)) > depth:
            assert node.parent is not None
            node = node.parent
        if before == depth:
            self._remove(node)
            return
        for child in list(node.children or ()):
            self._remove(child)
        self._cut(node, depth - before)

    def used_depth(self, blocks: Blocks, since: float) -> int:
        """How many blocks of a prompt somebody has used after a time; whoever did has also used all before them."""
        tail, depth = self.match(blocks).node, 0
        for node in tail.path() if tail is not None else ():
            if node.touched_at > since:
                depth += len(node.hashes)
        return min(depth, len(blocks))

    def prune(self, blocks: Blocks, depth: int) -> None:
        """Forget this prompt beyond its first `depth` blocks, as far as nobody holds it and nothing grew from it."""
        node = self.match(blocks).node
        while node is not None and not node.holders and not node.children:
            above, before = node.parent, _depth_before(node)
            if before < depth:
                self._cut(node, min(depth - before, len(node.hashes)))
                return
            self._detach(node)
            node = above

    def expire(self, before: float) -> None:
        """Forget what was last used before `before` and nobody holds."""
        for node in list(self._expired(before)):
            self._remove(node)

    def evict_one(self) -> bool:
        """Forget the least recently used run that nobody holds; False if there is none."""
        leaf = self._victim()
        if leaf is None:
            return False
        self._remove(leaf)
        return True

    def clear(self) -> None:
        """Forget everything, as an engine does when it restarts."""
        self._index.clear()
        self._order.clear()
        self.tokens = self.blocks = 0

    # -- the tree ---------------------------------------------------------------------------------------------------

    def _split(self, node: Node, at: int, now: float) -> Node:
        """Cut a run in two and return the upper half; the lower half stays the same object, for those who hold it."""
        upper = Node(node.hashes[:at], node.ends[:at], node.start, node.parent, now)
        upper.holders, upper.owner, upper.children = node.holders, node.owner, {node}
        if node.parent is not None and node.parent.children is not None:
            node.parent.children.discard(node)
            node.parent.children.add(upper)
        node.parent, node.start = upper, upper.ends[-1]
        node.hashes, node.ends = node.hashes[at:], node.ends[at:]
        if node.cuts:
            upper.cuts = node.cuts[: bisect_left(node.cuts, at)]
            node.cuts = array("I", [cut - at for cut in node.cuts if cut > at])
        self._index[upper.hashes[0]] = upper
        self._index[node.hashes[0]] = node
        self._order[upper] = None
        return upper

    def _grow(self, tail: Node | None, blocks: Blocks, depth: int, now: float) -> Node:
        hashes, ends = blocks.hashes[depth:], blocks.ends[depth:]
        start = tail.ends[-1] if tail is not None else 0
        if ends[0] < start:
            # Token counts are estimates that improve: the same prefix may have been longer when it was first seen.
            ends = array("I", (max(end, start) for end in ends))
        self.tokens += ends[-1] - start
        self.blocks += len(hashes)
        if tail is not None and self._may_extend(tail):
            # A conversation that only grows stays one run.
            tail.hashes.extend(hashes)
            tail.ends.extend(ends)
            return tail
        node = Node(hashes, ends, start, tail, now)
        if tail is not None:
            tail.children = tail.children or set()
            tail.children.add(node)
        self._index[hashes[0]] = node
        self._order[node] = None
        return node

    def _may_extend(self, tail: Node) -> bool:
        return not tail.children and not tail.holders

    def _cut(self, node: Node, keep: int) -> None:
        self.tokens -= node.ends[-1] - node.ends[keep - 1]
        self.blocks -= len(node.hashes) - keep
        del node.hashes[keep:], node.ends[keep:]
        if node.cuts:
            node.cuts = node.cuts[: bisect_left(node.cuts, keep)]

    def _remove(self, top: Node) -> None:
        """Take a run and all below it out of the tree."""
        below = [top]
        for node in below:
            below.extend(node.children or ())
        for node in reversed(below):
            self._detach(node)

    def _detach(self, leaf: Node) -> None:
        self.tokens -= leaf.tokens
        self.blocks -= len(leaf.hashes)
        del self._index[leaf.hashes[0]], self._order[leaf]
        if leaf.parent is not None and leaf.parent.children is not None:
            leaf.parent.children.discard(leaf)
            if not leaf.parent.children:
                leaf.parent.children = None

    # -- room -------------------------------------------------------------------------------------------------------

    def _victim(self) -> Node | None:
        return next((node for node in self._order if not node.holders), None)

    def _expired(self, before: float) -> Iterator[Node]:
        for node in self._order:
            if node.touched_at >= before:
                return
            if not node.holders:
                yield node

    def _keep_pool(self) -> None:
        """Evict from the ends of the least recently used leaves, block by block, until the pool is kept."""
        while self.pool_tokens is not None and (over := self.tokens - self.pool_tokens) > 0:
            leaf = self._victim()
            if leaf is None:
                return
            keep = bisect_right(leaf.ends, leaf.ends[-1] - over)
            if keep:
                self._cut(leaf, keep)
            else:
                self._detach(leaf)


def _depth_before(node: Node) -> int:
    """Blocks of the path that come before this run."""
    return sum(len(above.hashes) for above in node.path()) - len(node.hashes)


def shared_blocks(run: array[int], hashes: array[int], at: int) -> int:
    """How many blocks of `run` the prompt repeats from its block `at` on.

    Chained hashes agree up to one point and never after it, so a binary search finds the point.
    """
    low, high = 0, min(len(run), len(hashes) - at)
    if run[high - 1] == hashes[at + high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if run[middle] == hashes[at + middle]:
            low = middle + 1
        else:
            high = middle
    return low
