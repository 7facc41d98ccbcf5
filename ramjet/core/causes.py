"""What made a turn cold: the inference, and the memory of who pushed out what that it draws on.

What Ramjet knows comes in three degrees. What it did itself, it knows: where it sent the last turn, which replica it saw
restart, what the client altered. What the belief had let go is known as well as the belief is: why and for whom. And where
the belief was wrong, for the engine had lost what it was believed to hold, only arithmetic is left: which pool was full,
and which had room. Where that does not decide, the answer is `unknown`: wrong would be worse.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from msgspec import Struct

from ramjet.core.cache import Lost

CAUSES = ("moved", "token_pool", "snapshot_pool", "branch", "prefix_changed", "restart", "host_tier", "unknown")
"""What can have made a turn cold; `docs/metrics.md` says how each is told."""

FULL_RATIO = 0.9
"""A pool that is believed so full is taken for full: answers and other clients use it too."""
ROOMY_RATIO = 0.5
"""And one that is not even believed half full has room, whatever was not counted."""
CLOSE_TOKENS = 1_024
"""Two counts that are nearer than this are taken for one: what Ramjet counts in tokens is estimated from bytes."""


class Loss(Struct, frozen=True, gc=False):
    """Something that a belief has let go."""

    pool: Lost
    by: int | None
    """Id of the conversation that needed the room; None where that is not known."""
    of_state: bool
    """Whether it was a snapshot: alone, or with the run that ended there."""
    number: int
    """Later losses have higher ones."""
    was_told: bool = False
    """Whether the engine has said so, and not only the belief."""


class Evictions:
    """Who pushed out what, of all replicas together: the latest losses, by the block that they begin or end with.

    Bounded: the oldest loss is forgotten. An entry takes some 300 bytes, so that all of them take 5 MB.
    """

    def __init__(self, most: int = 16_384) -> None:
        self._losses: OrderedDict[tuple[str, int], Loss] = OrderedDict()
        self._numbers = count()
        self._most = most

    def __len__(self) -> int:
        return len(self._losses)

    def note(
        self, replica: str, block: int, pool: Lost, by: int | None, *, of_state: bool, was_told: bool = False
    ) -> None:
        """A replica is believed to have let go of something.

        Args:
            replica: its name.
            block: hash of the first block of a run, or of the last one before a snapshot.
            pool: where room was short.
            by: id of the conversation that needed it.
            of_state: whether it was a snapshot.
            was_told: whether it is the engine's own word.
        """
        key = replica, block
        self._losses[key] = Loss(pool, by, of_state, next(self._numbers), was_told)
        self._losses.move_to_end(key)
        if len(self._losses) > self._most:
            self._losses.popitem(last=False)

    def latest(self, replica: str, hashes: Sequence[int], *, known: int, enough: int) -> Loss | None:
        """The last loss among a prompt's blocks that made it cold: until then enough of it could be reused.

        Args:
            replica: its name.
            hashes: the blocks.
            known: so many of them are there.
            enough: snapshots before so many would not have been.
        """
        last: Loss | None = None
        for at, block in enumerate(hashes):
            loss = self._losses.get((replica, block))
            counts = loss is not None and at + 1 >= (enough if loss.of_state else known + 1)
            if loss is not None and counts and (last is None or loss.number > last.number):
                last = loss
        return last

    def deepest(self, replica: str, hashes: Sequence[int], *, beyond: int) -> Loss | None:
        """The loss farthest down a prompt, beyond so many blocks, for which a pool was short; None if there was none."""
        for block in reversed(hashes[beyond:]):
            loss = self._losses.get((replica, block))
            if loss is not None and loss.pool != "per_path":
                return loss
        return None


class Pressure(NamedTuple):
    """How short of room a replica was believed to be when a request was sent there. A tuple: each request makes one."""

    tokens_ratio: float | None = None
    """The part of its token pool that was used; None where its size is not known."""
    slots_ratio: float | None = None
    """The part of its snapshot pool that was used, one more request included; None where its size is not known."""
    newer_tokens_ratio: float = 0.0
    """The part of the token pool that was used later than what the prompt would have found..."""
    newer_slots_ratio: float = 0.0
    """...and of the snapshot pool: what is nearer to all of it was nearer to being pushed out there."""
    has_snapshots: bool | None = None
    """Whether the model resumes at snapshots alone: the configuration says so, or the counts that were reported do."""
    has_host: bool = False
    """Whether there is a host tier."""


class Clues(NamedTuple):
    """What was known of a turn when it was placed, as far as it bears on how much of it was there."""

    expected_tokens: int
    """What was believed to be reusable at the replica."""
    reusable_tokens: int
    """The longest prefix that the prompt shares with any earlier turn."""
    diverged_at_tokens: int
    """Where the prompt leaves what came before: the end of that prefix, or where its head was changed."""
    head_changed: bool = False
    """Whether the client altered the head, so that no replica could reuse what follows."""
    left_inside: bool = False
    """Whether the prompt leaves the conversation before the end of its last prompt."""
    home_tokens: int | None = None
    """What the replica of the last turn was believed to hold of it; None where it is the same one, or there was none."""
    restarted: bool = False
    """Whether the replica of the last turn has lost its cache since."""
    known_tokens: int = 0
    """Tokens of the prompt that the replica of the last turn was believed to hold, reusable or not."""
    shared_tokens: int = 0
    """The part of the prompt that other living conversations have too."""
    loss: Loss | None = None
    """What the belief had let go of the prompt there, where that was too much."""
    pressure: Pressure = Pressure()

    def cause(self, cached_tokens: int) -> str:
        """What made the turn cold, given what the engine reused; one of `CAUSES`."""
        needed = self.reusable_tokens / 2
        if self.head_changed:
            return "prefix_changed"
        if self.restarted:
            return "restart"
        if self.home_tokens is not None and (self.home_tokens >= needed or self.loss is None):
            # Whoever moves a conversation that its home had lost has not made it cold; but that has to be known.
            return "moved"
        was_predicted = self.home_tokens is not None or self.expected_tokens < needed
        if self.home_tokens is None and self._came_back(cached_tokens, was_predicted=was_predicted):
            return "host_tier"
        if not was_predicted:
            return self._by_arithmetic()
        if self.loss is not None and self.loss.pool != "per_path":
            return self.loss.pool
        if self.left_inside and self.known_tokens >= needed:
            return "branch"
        return self._by_arithmetic()

    def pushed_out_by(self, cause: str) -> int | None:
        """Id of the conversation that needed the room, where a pool was the cause."""
        return self.loss.by if self.loss is not None and cause in {self.loss.pool, "host_tier"} else None

    def _came_back(self, cached_tokens: int, *, was_predicted: bool) -> bool:
        """Whether a part of what the device had lost came back from the host: more than others keep there."""
        elsewise = max(self.shared_tokens, self.expected_tokens if was_predicted else 0)
        return self.pressure.has_host and cached_tokens > elsewise + CLOSE_TOKENS

    def _by_arithmetic(self) -> str:
        """Which pool was short, where the engine had lost what the belief still had."""
        pressure = self.pressure
        tokens_full = None if pressure.tokens_ratio is None else pressure.tokens_ratio >= FULL_RATIO
        if pressure.has_snapshots is None:
            return "unknown"
        if not pressure.has_snapshots:
            return "token_pool" if tokens_full else "unknown"
        slots_ratio = pressure.slots_ratio
        if slots_ratio is None and self.left_inside:
            # The belief knows of no snapshots: perhaps there never was one where the prompt leaves.
            return "unknown"
        slots_full = None if slots_ratio is None else slots_ratio >= FULL_RATIO
        if tokens_full is None:
            return "snapshot_pool" if slots_full else "unknown"
        if not tokens_full:
            return "unknown" if slots_ratio is not None and slots_ratio < ROOMY_RATIO else "snapshot_pool"
        if slots_full:
            nearer = pressure.newer_slots_ratio >= pressure.newer_tokens_ratio
            return "snapshot_pool" if nearer else "token_pool"
        return "unknown" if slots_full is None else "token_pool"
