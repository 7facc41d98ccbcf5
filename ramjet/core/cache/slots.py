"""The cache of an engine without a tree: a few sequences, each of which a request takes over whole (llama.cpp).

The sibling of `engine`: the same life of a request, for engines that keep one sequence in each of a few slots. A prompt
goes to the sequence that it is most like; a recurrent model resumes only at one of that sequence's checkpoints.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field

from ramjet.core.cache.engine import Hit, Seat
from ramjet.core.cache.spec import SlotSpec
from ramjet.core.cache.tree import Blocks, shared_blocks


@dataclass(slots=True, eq=False)
class Sequence:
    """What a slot holds."""

    blocks: Blocks
    tokens: int = 0
    checkpoints: list[int] = field(default_factory=list)
    """Lengths in tokens at which the state was saved, rising."""
    used_at: float = 0.0
    seat: Seat | None = None
    """Who runs in it."""


class SlotCache:
    """An engine's slots; `enter`, `forward` for each chunk, `leave`, as in `EngineCache`."""

    def __init__(self, spec: SlotSpec) -> None:
        self.spec = spec
        self.sequences = [Sequence(_nothing()) for _ in range(spec.slots)]
        self._idle_on_host: list[Sequence] = []
        """Least recently used first."""

    @property
    def running(self) -> int:
        """Slots in which a request runs."""
        return sum(each.seat is not None for each in self.sequences)

    @property
    def used_tokens(self) -> int:
        """Tokens in all slots."""
        return sum(each.tokens for each in self.sequences)

    @property
    def held_tokens(self) -> int:
        """Tokens in the slots in which a request runs."""
        return sum(each.tokens for each in self.sequences if each.seat is not None)

    def find(self, blocks: Blocks, prompt_tokens: int) -> Hit:
        """How much of a prompt can be reused now. Changes nothing."""
        sequence = self._most_alike(blocks, prompt_tokens)
        if sequence is None:
            return Hit(0, 0, 0)
        return self._hit(sequence, blocks, prompt_tokens, on_host=sequence in self._idle_on_host)

    def enter(self, blocks: Blocks, prompt_tokens: int, answer_tokens: int, now: float) -> Seat | None:
        """Give a request a slot; None while all are taken. See `EngineCache.enter`."""
        idle = [each for each in self.sequences if each.seat is None]
        if not idle:
            return None
        alike = self._most_alike(blocks, prompt_tokens)
        on_host = alike is not None and alike in self._idle_on_host
        if alike is not None and not on_host:
            place = alike
        else:
            place = min(idle, key=lambda each: (bool(each.tokens), each.used_at))
            if alike is not None:
                # Before the one that makes way takes its room there.
                self._idle_on_host.remove(alike)
            self._put_on_host(place)
            source = alike or Sequence(_nothing())
            place.blocks, place.tokens, place.checkpoints = source.blocks, source.tokens, source.checkpoints
        hit = self._hit(place, blocks, prompt_tokens, on_host=on_host)
        seat = Seat(blocks, prompt_tokens, hit, hit.tokens, hit.tokens, answer_tokens)
        place.seat, place.used_at = seat, now
        self._shorten(place, hit)
        return seat

    def forward(self, seat: Seat, tokens: int, now: float) -> None:
        """The engine has read so many more tokens of the prompt."""
        place = self._place(seat)
        seat.read_tokens += tokens
        depth = bisect_right(seat.blocks.ends, seat.read_tokens)
        place.blocks = Blocks(seat.blocks.hashes[:depth], seat.blocks.ends[:depth])
        place.tokens, place.used_at = seat.read_tokens, now
        if self.spec.checkpoints is not None:
            self._checkpoint(place, seat)

    def write(self, seat: Seat, tokens: int) -> None:
        """The engine has generated so many more tokens."""
        seat.read_tokens += tokens
        self._place(seat).tokens = seat.read_tokens

    def leave(self, seat: Seat, now: float, blocks: Blocks | None = None) -> None:
        """The request is over. See `EngineCache.leave`."""
        place = self._place(seat)
        if blocks is not None:
            # The last token generated was never read.
            place.tokens = seat.read_tokens - 1
            depth = bisect_right(blocks.ends, place.tokens)
            place.blocks = Blocks(blocks.hashes[:depth], blocks.ends[:depth])
        place.seat, place.used_at = None, now

    def clear(self) -> None:
        """Forget everything."""
        self.sequences = [Sequence(_nothing()) for _ in range(self.spec.slots)]
        self._idle_on_host.clear()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _place(self, seat: Seat) -> Sequence:
        return next(each for each in self.sequences if each.seat is seat)

    def _most_alike(self, blocks: Blocks, prompt_tokens: int) -> Sequence | None:
        """The sequence that shares most of a prompt, if that is enough; one in a slot rather than one on the host."""
        best, most = None, self.spec.least_alike * prompt_tokens
        for sequence in (*self.sequences, *self._idle_on_host):
            same = 0 if sequence.seat is not None else blocks.tokens(_shared(sequence, blocks))
            if same and (same > most or (best is None and same >= most)):
                best, most = sequence, same
        return best

    def _hit(self, sequence: Sequence, blocks: Blocks, prompt_tokens: int, *, on_host: bool = False) -> Hit:
        known = depth = _shared(sequence, blocks)
        depth = min(depth, bisect_right(blocks.ends, prompt_tokens - 1))
        whole = known == len(sequence.blocks) and blocks.tokens(depth) == sequence.tokens
        if self.spec.checkpoints is not None and not whole:
            # The state stands at the sequence's end, and nothing leads back from there but a checkpoint.
            at = bisect_right(sequence.checkpoints, blocks.tokens(depth))
            depth = bisect_right(blocks.ends, sequence.checkpoints[at - 1]) if at else 0
        tokens = blocks.tokens(depth)
        return Hit(depth, tokens, blocks.tokens(known), tokens if on_host else 0)

    def _shorten(self, place: Sequence, hit: Hit) -> None:
        place.blocks = Blocks(place.blocks.hashes[: hit.depth], place.blocks.ends[: hit.depth])
        place.tokens = hit.tokens
        del place.checkpoints[bisect_right(place.checkpoints, hit.tokens) :]

    def _checkpoint(self, place: Sequence, seat: Seat) -> None:
        """Save the state near the prompt's end, and on the way there at the end of forwards that are far apart."""
        tail = max(0, seat.prompt_tokens - self.spec.tail_tokens)
        done = seat.read_tokens >= seat.prompt_tokens
        at = (tail if done else min(seat.read_tokens, tail)) // self.spec.page_tokens * self.spec.page_tokens
        last = place.checkpoints[-1] if place.checkpoints else 0
        if at > last and (done or at - last >= self.spec.checkpoint_tokens):
            place.checkpoints.append(at)
            assert self.spec.checkpoints is not None
            del place.checkpoints[: -self.spec.checkpoints]

    def _put_on_host(self, place: Sequence) -> None:
        if not place.tokens or not self.spec.host_tokens:
            return
        copy = Sequence(place.blocks, place.tokens, place.checkpoints, place.used_at)
        self._idle_on_host.append(copy)
        while sum(each.tokens for each in self._idle_on_host) > self.spec.host_tokens:
            self._idle_on_host.pop(0)


def _nothing() -> Blocks:
    return Blocks(array("Q"), array("I"))


def _shared(sequence: Sequence, blocks: Blocks) -> int:
    """How many blocks a prompt begins with that a sequence begins with too."""
    return shared_blocks(sequence.blocks.hashes, blocks.hashes, 0) if len(sequence.blocks) and len(blocks) else 0
