"""The cache of an engine: a token pool, a pool of state snapshots, and a host tier behind both.

It follows SGLang's unified radix cache (0.5.20): one radix tree, two evictions that know nothing of each other, reuse
down to the deepest live snapshot only. A model of attention layers alone is the case without snapshots; vLLM's hybrid
models are the case whose snapshots live in the token pool. Nothing here takes time: `ramjet.sim` says when things happen.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from ramjet.core.cache.spec import CacheSpec, HostTier, Snapshots
from ramjet.core.cache.tree import NOTHING, Blocks, Match, Node, PrefixCache

Lost = Literal["token_pool", "snapshot_pool", "per_path"]
"""Where room was short when something was let go; `per_path` is the cap on a conversation's snapshots."""


class Hit(Struct, frozen=True):
    """How much of a prompt can be reused."""

    depth: int
    """Blocks."""
    tokens: int
    known_tokens: int
    """Tokens whose KV is there, reusable or not."""
    host_tokens: int = 0
    """The part of `tokens` that comes back from the host."""
    host_state: bool = False
    """Whether the state at its end does."""


NO_HIT = Hit(0, 0, 0)


class Seat(Struct, eq=False):
    """A running request's place in the cache."""

    blocks: Blocks
    prompt_tokens: int
    hit: Hit
    read_tokens: int
    """What the engine has of its prompt, reused or read."""
    kept_tokens: int
    """The part of that which is in the tree."""
    reserved_tokens: int
    """What it may still take of the token pool, beyond what the tree holds for it."""
    fork_tokens: int | None = None
    """Where it left another prompt, and saves the state for those who do the same."""
    answer_tokens: int = 0
    """The most it may generate."""
    written_tokens: int = 0
    """What it has generated so far."""
    saved_tokens: int | None = None
    """Where the state lies that it hands over when it ends; None where the tree has all it had."""
    tail: Node | None = None
    """The end of the path that it keeps from eviction..."""
    depth: int = 0
    """...and the blocks of that path."""
    snapshot: Node | None = None
    """The snapshot that it keeps."""


class EngineCache(PrefixCache):
    """An engine's pools. `enter`, `forward` for each chunk, `leave`: that is a request's life in here."""

    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec.pool_tokens)
        self.spec = spec
        self.snapshots: OrderedDict[Node, float] = OrderedDict()
        """Snapshots on the device, least recently used first, with the time of that use."""
        self.host_tokens = 0
        self.host_snapshots = 0
        self.running = 0
        """Requests that have a seat."""
        self.private_tokens = 0
        """Tokens of running requests that are not in the tree."""
        self.held_tokens = 0
        """Tokens in the tree that running requests keep from eviction."""
        self.locked_snapshots = 0
        self.on_lost: Callable[[Sequence[int], Lost], None] | None = None
        """Told of what the device lets go for want of room: the hashes of a run's blocks, or, where reuse ends at snapshots,
        the hash before one; and which room."""
        self._trimming: Lost | None = None
        self._reserved_tokens = 0
        # What only the host holds, least recently used first: runs, and states whose device copy is gone.
        self._host_only: OrderedDict[Node, None] = OrderedDict()
        self._host_states: OrderedDict[Node, None] = OrderedDict()

    @property
    def used_tokens(self) -> int:
        """What is taken of the token pool."""
        taken, states = self.tokens + self.private_tokens, self.spec.snapshots
        return taken + states.tokens_each * self.used_slots if states is not None and states.tokens_each else taken

    @property
    def used_slots(self) -> int:
        """What is taken of the snapshot pool: cached snapshots and what running requests have for themselves."""
        states = self.spec.snapshots
        return 0 if states is None else len(self.snapshots) + states.private * self.running

    @property
    def busy_slots(self) -> int:
        """Slots that cannot be freed, what SGLang logs as `mamba num`: a thrashing pool does not show in it."""
        states = self.spec.snapshots
        return 0 if states is None else self.locked_snapshots + states.private * self.running

    # -- a request's life -------------------------------------------------------------------------------------------

    def find(self, blocks: Blocks, prompt_tokens: int) -> Hit:
        """How much of a prompt can be reused now. At least its last token is always read. Changes nothing."""
        return self.look(blocks, prompt_tokens)[1]

    def look(self, blocks: Blocks, prompt_tokens: int) -> tuple[Match, Hit]:
        """What is there of a prompt, and how much of it can be reused. Changes nothing."""
        found = self.match(blocks)
        return found, self.hit(blocks, prompt_tokens, found)

    def enter(
        self,
        blocks: Blocks,
        prompt_tokens: int,
        answer_tokens: int,
        now: float,
        *,
        anyway: bool = False,
        found: Match | None = None,
    ) -> Seat | None:
        """Give a request its seat, and bring back from the host what it reuses.

        Args:
            blocks: the prompt's full pages.
            prompt_tokens: its length.
            answer_tokens: the most it may generate; the room is reserved, so that nobody has to be thrown out later.
            now: the time.
            anyway: seat it even where there is no room: a belief cannot refuse what has been sent.
            found: what is there of it, where that is known.

        Returns None while there is no room for it beside those that run.
        """
        found = self.match(blocks) if found is None else found
        hit = self.hit(blocks, prompt_tokens, found)
        need = prompt_tokens - hit.tokens + answer_tokens
        if not anyway and not self._has_room(found.node, hit, need):
            return None
        most = prompt_tokens - self.spec.reads_last
        fork = self._fork(hit, most)
        seat = Seat(blocks, prompt_tokens, hit, hit.tokens, hit.tokens, need, fork, answer_tokens)
        self.running += 1
        self._reserved_tokens += need
        if found.node is not None:
            # A run is cut where a prompt leaves it, whether or not that is where it can resume.
            depth = min(found.depth, bisect_right(blocks.ends, most))
            end = self._end_at(found, depth, now)
            found = NOTHING if end is None else Match(depth, end, depth - len(end.hashes))
            if (tail := self._end_at(found, hit.depth, now)) is not None:
                self.hold(tail)
                seat.tail, seat.depth = tail, hit.depth
                if self.spec.snapshots is not None:
                    self._lock(seat, tail)
                self._bring_back(tail, now)
                self.touch(tail, now)
        self._free_slots()
        self._free_tokens()
        return seat

    def forward(self, seat: Seat, tokens: int, now: float) -> None:
        """The engine has read so many more tokens of the prompt."""
        if self._forward(seat, tokens, now) and seat.tail is not None:
            self.touch(seat.tail, now)

    def _forward(self, seat: Seat, tokens: int, now: float) -> bool:
        """Take what was read; whether the tree has grown by it. Its path is still to be marked as used."""
        start, end = seat.read_tokens, seat.read_tokens + tokens
        seat.read_tokens = end
        self.private_tokens += tokens
        self._free_tokens()
        states = self.spec.snapshots
        if states is None:
            return self._keep(seat, end, now)
        if tokens < states.grid_tokens:
            return False
        at = start + tokens // states.grid_tokens * states.grid_tokens
        if seat.fork_tokens is not None and start < seat.fork_tokens < end:
            at = seat.fork_tokens
        if states.hands_over and end == seat.prompt_tokens and seat.answer_tokens == 1:
            # It ends with this forward: nothing is saved beside what it hands over.
            seat.saved_tokens = at
            return False
        return self._keep(seat, at, now)

    @property
    def _leaves_one_run(self) -> bool:
        """Whether chunk after chunk of a prompt comes to one run in pieces: no snapshot stays at their ends."""
        states = self.spec.snapshots
        if self.spec.host is not None:
            return False
        if states is None:
            return True
        return states.per_path is not None and states.cap_first and not (states.tokens_each or states.hands_over)

    def _read_on(self, seat: Seat, now: float) -> bool:
        """All that is left of a prompt, as `_forward` for each chunk would: whether the tree has grown by it.

        The tree is made last, and the same goes for it: runs and snapshots in the same order. Of the snapshots at the ends
        of chunks the cap leaves the last few; what is between two of them is one run, in pieces.
        """
        states, blocks, chunk = self.spec.snapshots, seat.blocks, self.spec.chunk_tokens
        if states is None and self.pool_tokens is None:
            # What is read at once goes at once, and here nothing goes for room.
            return self._forward(seat, seat.prompt_tokens - seat.read_tokens, now)
        grid = 1 if states is None else states.grid_tokens
        saves: bool | None = None
        pieces: list[int] = []
        saved: list[int] = []
        depth, kept = seat.depth, seat.kept_tokens
        while (left := seat.prompt_tokens - seat.read_tokens) > 0:
            tokens = min(left, chunk)
            at = seat.read_tokens + tokens // grid * grid
            seat.read_tokens += tokens
            self.private_tokens += tokens
            if self.pool_tokens is not None and self.tokens + self.private_tokens > self.pool_tokens:
                self._free_tokens()
            end = bisect_right(blocks.ends, at, depth)
            if tokens < grid or blocks.tokens(end) <= kept:
                continue
            depth, kept = end, blocks.ends[end - 1]
            pieces.append(depth)
            if states is None:
                continue
            if saves is None:
                saves = self._can_save(seat, states)
                if saves:
                    self._lock(seat, None)
            if saves:
                saved.append(depth)
                self._cap_ahead(seat, saved, states)
                if states.slots is not None and self.used_slots + len(saved) > states.slots:
                    self._free_slots(len(saved))
                    while len(saved) > 1 and self.used_slots + len(saved) > states.slots:
                        self._tell_of(blocks, saved.pop(0), self._short_of)
        return bool(pieces) and self._take_in(seat, pieces, saved, now)

    def _take_in(self, seat: Seat, pieces: Sequence[int], saved: Sequence[int], now: float) -> bool:
        """Put what was read in these pieces into the tree, with snapshots at some of their ends; the last has one if any has."""
        for end in saved or pieces[-1:]:
            before = seat.depth
            kept = seat.blocks.tokens(end) - seat.kept_tokens
            self.private_tokens -= kept
            tail = self._extend(seat, end, now)
            tail.cuts = array("I", [piece - before for piece in pieces if before < piece < end])
            seat.kept_tokens += kept
            given = min(seat.reserved_tokens, kept)
            seat.reserved_tokens -= given
            self._reserved_tokens -= given
            if saved:
                tail.snapshot = True
                self.snapshots[tail] = now
        if saved:
            self._lock(seat, seat.tail)
        return True

    def _cap_ahead(self, seat: Seat, saved: list[int], states: Snapshots) -> None:
        """As `_cap`, for a path whose last runs are not in the tree yet: `saved` are the snapshots of those."""
        assert states.per_path is not None
        above: list[Node] = []
        tail = seat.tail
        while tail is not None:
            if tail.snapshot:
                above.append(tail)
            tail = tail.parent
        over = len(above) + len(saved) - states.per_path
        for node in reversed(above) if over > 0 else ():
            # What is read next grows from the last of them.
            if over > 0 and not node.locks and len(node.children or ()) == (node is not seat.tail):
                self._tell(node, "per_path")
                self._drop_snapshot(node)
                over -= 1
        while over > 0 and len(saved) > 1:
            self._tell_of(seat.blocks, saved.pop(0), "per_path")
            over -= 1

    def write(self, seat: Seat, tokens: int) -> None:
        """The engine has generated so many more tokens. The last of them is never in the cache: nobody has read it."""
        read = tokens if seat.written_tokens else max(0, tokens - 1)
        seat.written_tokens += tokens
        seat.read_tokens += read
        self.private_tokens += read
        self._free_tokens()

    def leave(self, seat: Seat, now: float, blocks: Blocks | None = None) -> None:
        """The request is over.

        Args:
            seat: its place, which is free now.
            now: the time.
            blocks: prompt and answer in full pages, as far as the engine has them; None for one that was aborted while
                its prompt was read: what was read stays in the tree.
        """
        states = self.spec.snapshots
        # What it hands over lies in a slot that it had for itself.
        self.running -= 1
        at = seat.saved_tokens
        if blocks is not None:
            seat.blocks = blocks
            if states is None:
                at = seat.read_tokens
            elif (track := seat.read_tokens // states.answer_grid * states.answer_grid) > seat.prompt_tokens:
                at = track
        if at is not None and self._keep(seat, at, now) and seat.tail is not None:
            self.touch(seat.tail, now)
        self.private_tokens -= seat.read_tokens - seat.kept_tokens
        self._reserved_tokens -= seat.reserved_tokens
        if seat.tail is not None:
            self.release(seat.tail)
        self._lock(seat, None)
        # One that was seated without room may have held more than the pool.
        self._free_slots()
        self._free_tokens()

    def read(self, seat: Seat, now: float) -> None:
        """The engine has read, or will have, the rest of the prompt: for those who do not watch it chunk by chunk."""
        has_grown, known_tokens = False, seat.hit.known_tokens
        while (left := seat.prompt_tokens - seat.read_tokens) > 0:
            if self._leaves_one_run and (seat.kept_tokens >= known_tokens or self.pool_tokens is None):
                # Nothing is there beyond: no run is cut, and no other is met.
                has_grown |= self._read_on(seat, now)
                break
            has_grown |= self._forward(seat, min(left, self.spec.chunk_tokens), now)
        if has_grown and seat.tail is not None:
            self.touch(seat.tail, now)

    def use_again(self, blocks: Blocks, prompt_tokens: int, now: float) -> Node | None:
        """What it comes to that a prompt is entered, read and left where all of it is there, and nothing has to go for it.

        Returns the end of its path, which is marked as used; None where it is not that simple, and nothing was done.
        """
        if self.spec.snapshots is not None or self.spec.host is not None:
            return None
        found = self.match(blocks)
        left = prompt_tokens - blocks.ends[-1]
        if found.depth < len(blocks) or left < self.spec.reads_last or not self.has_room(left, 0):
            return None
        tail = self._end_at(found, found.depth, now)
        if tail is not None:
            self.touch(tail, now)
        return tail

    def has_room(self, tokens: int, slots: int) -> bool:
        """Whether so much more goes in without anything having to go."""
        states = self.spec.snapshots
        if states is not None and states.slots is not None and self.used_slots + slots > states.slots:
            return False
        return self.pool_tokens is None or self.used_tokens + tokens <= self.pool_tokens

    def serve(self, blocks: Blocks, prompt_tokens: int, now: float) -> Hit | None:
        """A request's whole life at once; None if there was no room."""
        seat = self.enter(blocks, prompt_tokens, 1, now)
        if seat is not None:
            self.read(seat, now)
            self.leave(seat, now)
        return None if seat is None else seat.hit

    def clear(self) -> None:
        """Forget everything that nobody uses; the engine refuses this while requests run."""
        super().clear()
        self.snapshots.clear()
        self._host_only.clear()
        self._host_states.clear()
        self.host_tokens = self.host_snapshots = 0

    def trim(self, blocks: Blocks, depth: int, lost_to: Lost | None = None) -> None:
        """As any prefix cache does; `lost_to` is told of all that goes."""
        self._trimming = lost_to
        super().trim(blocks, depth)
        self._trimming = None

    def trim_snapshots(self, blocks: Blocks, depth: int, lost_to: Lost | None = None) -> None:
        """Forget this prompt's own snapshots beyond its first `depth` blocks: what others have below stays."""
        found = self.match(blocks)
        end = found.above + (len(found.node.hashes) if found.node is not None else 0)
        for node in list(found.node.path()) if found.node is not None else ():
            if end <= depth:
                return
            if node.snapshot and not node.locks and end <= found.depth:
                if lost_to is not None:
                    self._tell(node, lost_to)
                self._drop_snapshot(node)
            end -= len(node.hashes)

    def become(self, spec: CacheSpec) -> None:
        """It is of other sizes than it was taken for, or of another kind.

        Where snapshots were not thought of, one is assumed at the end of every prompt that is held.
        """
        before, self.spec = self.spec.snapshots, spec
        if before is None and spec.snapshots is not None:
            for node in self._order:
                if not node.children:
                    node.snapshot = True
                    self.snapshots[node] = node.touched_at
        elif spec.snapshots is None:
            while self.snapshots:
                self._drop_snapshot(next(iter(self.snapshots)))

    def least_used(self) -> Iterator[Node]:
        """What the device holds, in the order in which it would go."""
        return iter(self._order)

    def most_used(self) -> Iterator[Node]:
        """The same, last first."""
        return reversed(self._order)

    # -- seats ------------------------------------------------------------------------------------------------------

    def hit(self, blocks: Blocks, prompt_tokens: int, found: Match) -> Hit:
        """How much can be reused of what was found of a prompt. Changes nothing."""
        depth, node, host_state = found.depth, found.node, False
        if node is None:
            return NO_HIT
        known, most = blocks.tokens(depth), prompt_tokens - self.spec.reads_last
        if known > most:
            depth = min(depth, bisect_right(blocks.ends, most))
        if self.spec.snapshots is not None:
            end = found.above + len(node.hashes)
            while node is not None and not (end <= depth and (node.snapshot or node.host_snapshot)):
                end -= len(node.hashes)
                node = node.parent
            depth, host_state = end, node is not None and not node.snapshot
        tokens = known if depth == found.depth else blocks.tokens(depth)
        host_tokens = 0
        if self.spec.host is not None and found.node is not None:
            host_tokens = sum(_before(each, tokens) for each in found.node.path() if not each.on_device)
        return Hit(depth, tokens, known, host_tokens, host_state)

    def _has_room(self, deepest: Node | None, hit: Hit, need: int) -> bool:
        states = self.spec.snapshots
        # Each that runs has its private slots, and one for the snapshot that it starts from or saves.
        slots = 0 if states is None else (states.private + 1) * (self.running + 1)
        if states is not None and states.slots is not None and slots > states.slots:
            return False
        if self.pool_tokens is None:
            return True
        if deepest is not None:
            need += sum(_before(node, hit.tokens) for node in deepest.path() if not node.holders)
        free = self.pool_tokens - self.held_tokens - self._reserved_tokens
        return need + self._snapshot_tokens(slots) <= free

    def _fork(self, hit: Hit, most_tokens: int) -> int | None:
        states = self.spec.snapshots
        if states is None or not states.forks or states.grid_tokens == 1:
            return None
        fork = min(hit.known_tokens, most_tokens) // states.grid_tokens * states.grid_tokens
        return fork if fork > hit.tokens else None

    def _keep(self, seat: Seat, upto_tokens: int, now: float) -> bool:
        """Put a request's tokens into the tree down to a length, with a snapshot there; False if they are there.

        The path is held and not yet marked as used: that is to be done before anybody can take something from it.
        """
        depth, states = bisect_right(seat.blocks.ends, upto_tokens), self.spec.snapshots
        kept = seat.blocks.tokens(depth) - seat.kept_tokens
        if kept <= 0:
            return False
        if states is not None and not states.cap_first:
            self._free_slots(1)
        # Handed over: what the tree already had of it is freed.
        self.private_tokens -= kept
        tail = self._extend(seat, depth, now)
        seat.kept_tokens += kept
        given = min(seat.reserved_tokens, kept)
        seat.reserved_tokens -= given
        self._reserved_tokens -= given
        before = seat.snapshot
        is_new = states is not None and self._save(seat, tail, states, now)
        if self.spec.host is not None and self.spec.host.policy == "write_through":
            self._write_through(tail)
        if states is not None:
            if is_new:
                self._cap(tail, None if states.cap_first else before)
            self._free_slots()
        self._free_tokens()
        return True

    def _extend(self, seat: Seat, depth: int, now: float) -> Node:
        """Put the first `depth` blocks of a request into the tree, below what it has there, and hold them.

        What only the host held is on the device again. Makes no room.
        """
        blocks, above = seat.blocks, seat.tail
        if depth < len(blocks):
            blocks = Blocks(blocks.hashes[:depth], blocks.ends[:depth])
        known = NOTHING if above is None else Match(seat.depth, above, seat.depth - len(above.hashes))
        found = self.match(blocks, known)
        tail = self._end_at(found, found.depth, now)
        if found.depth < depth:
            tail = self._grow(tail, blocks, found.depth, now)
        assert tail is not None
        node: Node | None = tail
        while node is not None and node is not above:
            if not node.on_device:
                self._on_device_again(node)
            self._hold_run(node)
            node = node.parent
        seat.tail, seat.depth = tail, depth
        return tail

    # -- snapshots --------------------------------------------------------------------------------------------------

    def _snapshot_tokens(self, slots: int) -> int:
        return 0 if self.spec.snapshots is None else slots * self.spec.snapshots.tokens_each

    def _save(self, seat: Seat, node: Node, states: Snapshots, now: float) -> bool:
        """Save the state at the end of a run, for a request that keeps it; whether it was not there."""
        is_new = not node.snapshot
        if is_new:
            if not self._can_save(seat, states):
                return False
            node.snapshot = True
            self._host_states.pop(node, None)
        self.snapshots[node] = now
        self.snapshots.move_to_end(node)
        self._lock(seat, node)
        return is_new

    def _can_save(self, seat: Seat, states: Snapshots) -> bool:
        """Whether there would be room for one more snapshot in use if all that are not were let go."""
        given_up = states.cap_first and seat.snapshot is not None and seat.snapshot.locks == 1
        busy = self.busy_slots + 1 - given_up
        if states.slots is not None and busy > states.slots:
            return False
        taken = self.held_tokens + self._reserved_tokens + self._snapshot_tokens(busy)
        return self.pool_tokens is None or not states.tokens_each or taken <= self.pool_tokens

    def _lock(self, seat: Seat, node: Node | None) -> None:
        """Keep this snapshot for a request, instead of the one it kept before."""
        if node is not None:
            self.locked_snapshots += not node.locks
            node.locks += 1
        if seat.snapshot is not None:
            seat.snapshot.locks -= 1
            self.locked_snapshots -= not seat.snapshot.locks
        seat.snapshot = node

    def _cap(self, tail: Node, in_use: Node | None) -> None:
        """Drop the shallowest snapshots of a path that has too many, but none at a fork and none in use."""
        states = self.spec.snapshots
        if states is None or states.per_path is None:
            return
        # A long prompt comes by here after each chunk, and its path grows by a run with each.
        saved: list[Node] = []
        above: Node | None = tail
        while above is not None:
            if above.snapshot:
                saved.append(above)
            above = above.parent
        over = len(saved) - states.per_path
        for node in reversed(saved):
            if over <= 0:
                return
            if node is tail or node is in_use or node.locks or node.children is None or len(node.children) != 1:
                continue
            if not any(child.on_device for child in node.children):
                continue
            self._tell(node, "per_path")
            self._drop_snapshot(node)
            over -= 1

    def _drop_snapshot(self, node: Node) -> None:
        node.snapshot = False
        del self.snapshots[node]
        if node.host_snapshot:
            self._host_states[node] = None

    def _free_slots(self, more: int = 0) -> None:
        """Let go of the least recently used snapshots until the pool is kept, with room for so many more."""
        states = self.spec.snapshots
        if states is None or states.slots is None:
            return
        while self.used_slots + more > states.slots and self._evict_snapshot():
            pass

    def _evict_snapshot(self) -> bool:
        node = next((node for node in self.snapshots if not node.locks), None)
        if node is None:
            return False
        states, host = self.spec.snapshots, self.spec.host
        assert states is not None
        if not states.tail_with_kv or node.holders or not _is_device_leaf(node):
            if host is not None and host.policy == "write_back":
                self._copy_state(node, host)
            self._tell(node, self._short_of)
            self._drop_snapshot(node)
        else:
            self._evict(node, self._short_of)
        return True

    @property
    def _short_of(self) -> Lost:
        """The pool that snapshots are in."""
        states = self.spec.snapshots
        return "token_pool" if states is None or states.tokens_each else "snapshot_pool"

    def _tell(self, node: Node, pool: Lost, beyond: int = 0) -> None:
        """Say that a run goes, or its snapshot; of a run in pieces, those that end beyond so many of its blocks."""
        if self.on_lost is None:
            return
        if self.spec.snapshots is not None:
            if node.snapshot:
                self.on_lost(node.hashes[-1:], pool)
            return
        end = len(node.hashes)
        for start in node.pieces(beyond):
            self.on_lost(node.hashes[start:end], pool)
            end = start

    def _tell_of(self, blocks: Blocks, depth: int, pool: Lost) -> None:
        """Say that a snapshot goes that never was in the tree: the one after so many blocks."""
        if self.on_lost is not None:
            self.on_lost(blocks.hashes[depth - 1 : depth], pool)

    # -- tokens -----------------------------------------------------------------------------------------------------

    def _free_tokens(self) -> None:
        """Let go of the least recently used leaves until the pool is kept."""
        while self.pool_tokens is not None and self.used_tokens > self.pool_tokens:
            leaf = self._victim()
            states = self.spec.snapshots
            if states is not None and states.tokens_each:
                # One pool for both: whichever was used longer ago.
                state = next((node for node in self.snapshots if not node.locks), None)
                if state is not None and (leaf is None or self.snapshots[state] < leaf.touched_at):
                    self._evict_snapshot()
                    continue
            if leaf is None:
                return
            self._evict(leaf, "token_pool")

    def _evict(self, leaf: Node, pool: Lost) -> None:
        """Take a leaf from the device, and with it the leaves without a snapshot that this uncovers; else its last piece."""
        states = self.spec.snapshots
        in_a_row = states is not None and states.tail_with_kv and states.chain_with_kv
        while True:
            above = leaf.parent
            if leaf.cuts and not in_a_row:
                self._tell(leaf, pool, leaf.cuts[-1])
                self._cut(leaf, leaf.cuts[-1])
                return
            self._tell(leaf, pool)
            self._leave_device(leaf)
            if not in_a_row or above is None:
                return
            if above.holders or above.snapshot or not above.on_device or not _is_device_leaf(above):
                return
            leaf = above

    def hold(self, tail: Node) -> None:
        """Keep the path that ends in `tail` from being evicted, until `release`."""
        node: Node | None = tail
        while node is not None:
            self._hold_run(node)
            node = node.parent

    def _hold_run(self, node: Node) -> None:
        if not node.holders:
            self.held_tokens += node.tokens
        node.holders += 1

    def release(self, tail: Node) -> None:
        """Give back one `hold`."""
        node: Node | None = tail
        while node is not None:
            node.holders -= 1
            if not node.holders:
                self.held_tokens -= node.tokens
            node = node.parent

    # -- the tree ---------------------------------------------------------------------------------------------------

    def _end_at(self, found: Match, depth: int, now: float) -> Node | None:
        """The node that ends with the first `depth` blocks of what was found."""
        node = found.node
        if node is None or not depth:
            return None
        above = found.above
        while above >= depth:
            node = node.parent
            assert node is not None
            above -= len(node.hashes)
        inside = depth - above
        return node if inside == len(node.hashes) else self._split(node, inside, now)

    def _may_extend(self, tail: Node) -> bool:
        return super()._may_extend(tail) and tail.on_device and not (tail.snapshot or tail.host or tail.host_snapshot)

    def _split(self, node: Node, at: int, now: float) -> Node:
        upper = super()._split(node, at, now)
        upper.on_device, upper.host = node.on_device, node.host
        if not node.on_device:
            # It was used when the whole run was.
            upper.touched_at = node.touched_at
            del self._order[upper]
            self._host_only[upper] = None
            return upper
        if self.spec.cut_is_use:
            node.touched_at = now
            self._order.move_to_end(node)
        # Neither it nor what is above may stand before the lower half in the order of eviction.
        self.touch(upper, now)
        return upper

    def _remove(self, top: Node) -> None:
        """Take a run and all below it out of the tree, except what running requests use: the engine has that."""
        below = [top]
        for node in below:
            below.extend(node.children or ())
        for node in reversed(below):
            if not node.holders:
                if self._trimming is not None:
                    self._tell(node, self._trimming)
                self._detach(node)

    def _cut(self, node: Node, keep: int) -> None:
        if node.holders:
            return
        if self._trimming is not None:
            self._tell(node, self._trimming, keep)
        if node.snapshot:
            self._drop_snapshot(node)
        if node.host_snapshot:
            self._drop_host_state(node)
        lost = node.ends[-1] - node.ends[keep - 1]
        self.host_tokens -= lost * node.host
        self.tokens += lost * (not node.on_device)
        super()._cut(node, keep)

    def _detach(self, leaf: Node) -> None:
        if leaf.snapshot:
            del self.snapshots[leaf]
        if leaf.host:
            self.host_tokens -= leaf.tokens
        if leaf.host_snapshot:
            self.host_snapshots -= 1
            self._host_states.pop(leaf, None)
        if not leaf.on_device:
            # As if it had been there, for the tree counts what it takes out.
            self.tokens += leaf.tokens
            self._order[leaf] = None
            del self._host_only[leaf]
        super()._detach(leaf)

    # -- the host tier ----------------------------------------------------------------------------------------------

    def _leave_device(self, node: Node) -> None:
        host = self.spec.host
        if host is not None and host.policy == "write_back":
            self._copy(node, host)
        if not node.host:
            # What only the host has of its continuations can never be reached again.
            self._remove(node)
            return
        if node.snapshot:
            node.snapshot = False
            del self.snapshots[node]
            if node.host_snapshot:
                self._host_states[node] = None
        node.on_device = False
        self.tokens -= node.tokens
        del self._order[node]
        self._host_only[node] = None

    def _write_through(self, tail: Node) -> None:
        host = self.spec.host
        assert host is not None
        for node in reversed(list(tail.path())):
            if not self._copy(node, host):
                return

    def _copy(self, node: Node, host: HostTier) -> bool:
        """Copy a run and its snapshot to the host, as far as there is room; whether its tokens are there."""
        if not node.host:
            if not self._free_host_tokens(host, node.tokens):
                return False
            node.host = True
            self.host_tokens += node.tokens
        if node.snapshot:
            self._copy_state(node, host)
        return True

    def _copy_state(self, node: Node, host: HostTier) -> None:
        if node.host_snapshot or host.slots is None:
            return
        room = int(host.slots * host.usable)
        while self.host_snapshots >= room:
            oldest = next(iter(self._host_states), None)
            if oldest is None:
                return
            self._drop_host_state(oldest)
        node.host_snapshot = True
        self.host_snapshots += 1

    def _drop_host_state(self, node: Node) -> None:
        node.host_snapshot = False
        self.host_snapshots -= 1
        del self._host_states[node]

    def _free_host_tokens(self, host: HostTier, tokens: int) -> bool:
        room = int(host.tokens * host.usable)
        while self.host_tokens + tokens > room:
            # Only leaf by leaf, and only what the device no longer has.
            leaf = next((each for each in self._host_only if not each.children), None)
            if leaf is None:
                return False
            self._detach(leaf)
        return True

    def _bring_back(self, tail: Node, now: float) -> None:
        """Copy a path from the host to the device, and its last snapshot."""
        for node in tail.path():
            if not node.on_device:
                self._on_device_again(node)
        if self.spec.snapshots is not None:
            tail.snapshot = True
            self._host_states.pop(tail, None)
            self.snapshots[tail] = now
            self.snapshots.move_to_end(tail)

    def _on_device_again(self, node: Node) -> None:
        node.on_device = True
        self.tokens += node.tokens
        del self._host_only[node]
        self._order[node] = None


def _is_device_leaf(node: Node) -> bool:
    return not any(child.on_device for child in node.children or ())


def _before(node: Node, length_tokens: int) -> int:
    """Tokens of a run that lie before a length."""
    return max(0, min(node.ends[-1], length_tokens) - node.start)
