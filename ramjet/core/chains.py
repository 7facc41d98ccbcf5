"""The blocks that an engine says it holds, and which prompts of ours they belong to.

An engine's blocks are of tokens and named by its own hashes; a prompt is known here by hashes of its bytes, and nobody
tokenises. What both have in common is lengths: an engine reports how long a prompt was and how much of it was cached, and
just there its new blocks begin and end. So a prompt is found among what was stored while it ran, by where its blocks
begin and end, and where that fits more than one, it belongs to none.

Nothing is believed for what is stored here; the use is to hear at once what of a prompt is gone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ramjet.core.cache import Blocks

MOST_BLOCKS = 1_000_000
"""What is kept of one replica. A block of a prompt takes some 120 bytes, so 120 MB: a pool of 16 million tokens where a
block has 16 of them, of one million where it has one. One of an answer, which vLLM tells of by itself, takes 600."""

DEVICE = "GPU"
"""The medium on which a block is of use at once; a copy anywhere else can come back."""

Hash = int | bytes
"""An engine's own name for a block and all that comes before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Blocks that follow one another have been stored."""

    hashes: list[Hash]
    parent: Hash | None
    """The block before them; None where they begin a prompt."""
    block_tokens: int
    medium: str = DEVICE
    special: str | None = None
    """Why they are not a plain attention model's; None: they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Blocks have been let go."""

    hashes: list[Hash]
    medium: str = DEVICE


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks have been let go."""


Event = Stored | Removed | Cleared


class Unfit(ValueError):
    """What this replica says cannot be used; the message says why, and what would help."""


class Cut(NamedTuple):
    """A prompt of which the engine no longer holds everything."""

    blocks: Blocks
    left_tokens: int
    """What it still holds, in the tokens that the prompt's own blocks are estimated at."""
    is_first: bool
    """Whether it held all of it until now."""


class Ran(NamedTuple):
    """A prompt of ours that an engine has read to its end, and what it said of it."""

    blocks: Blocks
    prompt_tokens: int
    cached_tokens: int
    since: float
    """When it was sent: its blocks cannot have been stored before."""

    def estimated(self, tokens: int) -> int:
        """A length that the engine has counted, in the tokens that the prompt's own blocks are estimated at."""
        return min(self.blocks.ends[-1], tokens * self.blocks.ends[-1] // self.prompt_tokens)


@dataclass(slots=True, eq=False)
class _Trunk:
    """Where a chain of blocks begins."""

    parent: Hash | None
    base: int | None
    """Blocks before it: 0 at the beginning of a prompt; None where the feed began later than the chain, until a report
    tells it."""


@dataclass(slots=True, eq=False)
class _Link:
    """A prompt of ours to which blocks belong."""

    ran: Ran
    is_whole: bool = True


class _Run:
    """Blocks that were stored together, one after the other."""

    __slots__ = ("above", "at", "children", "hashes", "key", "link", "start", "trunk")

    def __init__(self, hashes: list[Hash], trunk: _Trunk, above: _Run | None, start: int, at: float) -> None:
        self.hashes = hashes
        self.trunk = trunk
        self.above = above
        self.start = start
        """Blocks of its trunk before it."""
        self.at = at
        self.children: set[_Run] | None = None
        self.link: _Link | None = None
        self.key = -self.end if trunk.base is None else trunk.base + self.end
        """Under what it waits for its prompt: the length down to its end, or, below 0, the part of that which is known."""

    @property
    def end(self) -> int:
        return self.start + len(self.hashes)

    def path(self) -> Iterator[_Run]:
        """This run, the one it goes on from, and so on."""
        run: _Run | None = self
        while run is not None:
            yield run
            run = run.above


class Chains:
    """What one engine holds, as far as it has said so."""

    def __init__(self) -> None:
        self.block_tokens: int | None = None
        """Tokens of a block; None until one has been stored."""
        self.has_copies = False
        """Whether it has said of any block that it is somewhere else than on the device."""
        self._runs: dict[Hash, _Run] = {}
        # Runs that belong to no prompt yet, by their keys.
        self._free: dict[int, set[_Run]] = {}
        # Blocks with copies elsewhere, by where; and those of them that the device has let go.
        self._copies: dict[Hash, set[str]] = {}
        self._away: set[Hash] = set()
        self._cuts: dict[_Link, int] = {}

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._runs)

    def stored(self, event: Stored, at: float) -> None:
        """Take blocks in.

        Raises:
            Unfit: they are not a plain attention model's, or cannot be told apart, or are too many.
        """
        if event.medium != DEVICE:
            self.has_copies = True
            for name in event.hashes:
                if name in self._runs:
                    self._copies.setdefault(name, set()).add(event.medium)
            return
        if event.special is not None:
            raise Unfit(event.special)
        if self.block_tokens not in {None, event.block_tokens} or event.block_tokens < 1:
            raise Unfit(f"blocks of {self.block_tokens} and of {event.block_tokens} tokens: no plain attention model's")
        self.block_tokens = event.block_tokens
        if not event.hashes:
            return
        self._away.difference_update(event.hashes)
        parent, fresh = self._beyond(event)
        if fresh:
            self._grow(parent, fresh, at)

    def removed(self, event: Removed) -> None:
        """Let blocks go; what grew from them can no longer be reached either."""
        for name in event.hashes:
            copies = self._copies.get(name)
            if event.medium == DEVICE:
                if copies:
                    self._away.add(name)
                    continue
            else:
                if copies is None:
                    continue
                copies.discard(event.medium)
                if copies:
                    continue
                del self._copies[name]
                if name not in self._away:
                    continue
            run = self._runs.get(name)
            if run is not None:
                self._cut(run, _place(run, name))

    def cuts(self) -> list[Cut]:
        """What has been cut of our prompts since this was last asked."""
        size = self.block_tokens or 0
        told = [
            Cut(link.ran.blocks, link.ran.estimated(blocks * size), link.is_whole)
            for link, blocks in self._cuts.items()
        ]
        for link in self._cuts:
            link.is_whole = False
        self._cuts = {}
        return told

    def link(self, ran: Ran) -> bool | None:
        """Find the blocks of a prompt that has been read.

        Returns whether they are its own now; False where they might be another's; None where none are there that could be
        its, or not yet.
        """
        if self.block_tokens is None:
            return None
        whole, cached = ran.prompt_tokens // self.block_tokens, ran.cached_tokens // self.block_tokens
        fitting = [
            run for key in (whole, cached - whole) for run in self._free.get(key, ()) if _fits(run, whole, cached, ran)
        ]
        if len(fitting) > 1:
            # Two prompts of one length: the one that goes on from the same conversation is the one.
            fitting = [run for run in fitting if _goes_on(run, ran)] or fitting
        if len(fitting) != 1:
            return False if fitting else None
        (run,) = fitting
        if run.trunk.base is None:
            run.trunk.base = whole - run.end
        path = list(run.path())
        mine = [each for each in path if each.link is None]
        before = next((each.link for each in path if each.link is not None), None)
        if before is None or not _extends(ran.blocks, before.ran.blocks):
            before = _Link(ran)
        before.ran, before.is_whole = ran, True
        for each in mine:
            self._unfree(each)
            each.link = before
        return True

    # -- inside -----------------------------------------------------------------------------------------------------

    def _beyond(self, event: Stored) -> tuple[Hash | None, list[Hash]]:
        """The part of stored blocks that was not there, and the block before it."""
        parent, hashes, runs = event.parent, event.hashes, self._runs
        if hashes[0] in runs and self._before(hashes[0]) != parent:
            raise Unfit("its hashes do not name what comes before a block: a newer version of the engine is needed")
        known = 0
        while known < len(hashes) and hashes[known] in runs:
            parent, known = hashes[known], known + 1
        upto = known
        while upto < len(hashes) and hashes[upto] not in runs:
            upto += 1
        fresh = hashes[known:upto]
        if len(runs) + len(fresh) > MOST_BLOCKS:
            raise Unfit(f"more than {MOST_BLOCKS:,} blocks: give it larger pages (--page-size, --block-size)")
        if len(set(fresh)) < len(fresh):
            raise Unfit("two blocks have one hash: a newer version of the engine is needed")
        return parent, fresh

    def _before(self, name: Hash) -> Hash | None:
        run = self._runs[name]
        place = _place(run, name)
        if place:
            return run.hashes[place - 1]
        above = run.above
        return run.trunk.parent if above is None else above.hashes[run.start - above.start - 1]

    def _grow(self, parent: Hash | None, fresh: list[Hash], at: float) -> None:
        above = None if parent is None else self._runs.get(parent)
        if above is None:
            run = _Run(fresh, _Trunk(parent, 0 if parent is None else None), None, 0, at)
        else:
            assert parent is not None
            run = _Run(fresh, above.trunk, above, above.start + _place(above, parent) + 1, at)
            above.children = above.children or set()
            above.children.add(run)
        for name in fresh:
            self._runs[name] = run
        self._free.setdefault(run.key, set()).add(run)

    def _cut(self, run: _Run, keep: int) -> None:
        """Take a run's blocks from one on, and all that grew from them."""
        depth = (run.trunk.base or 0) + run.start + keep
        going = [child for child in run.children or () if child.start > run.start + keep]
        if run.children is not None:
            run.children.difference_update(going)
        if not keep and run.above is not None and run.above.children is not None:
            run.above.children.discard(run)
        self._drop(run, keep, depth)
        for each in going:
            going.extend(each.children or ())
            self._drop(each, 0, depth)

    def _drop(self, run: _Run, keep: int, depth: int) -> None:
        if run.link is None:
            self._unfree(run)
        else:
            self._cuts[run.link] = min(depth, self._cuts.get(run.link, depth))
        for name in run.hashes[keep:]:
            del self._runs[name]
            self._copies.pop(name, None)
            self._away.discard(name)
        del run.hashes[keep:]

    def _unfree(self, run: _Run) -> None:
        waiting = self._free.get(run.key)
        if waiting is not None:
            waiting.discard(run)
            if not waiting:
                del self._free[run.key]


def _place(run: _Run, name: Hash) -> int:
    """Where in a run a block is; mostly it is the last, for engines let go of ends first."""
    return len(run.hashes) - 1 if run.hashes[-1] == name else run.hashes.index(name)


def _fits(run: _Run, whole: int, cached: int, ran: Ran) -> bool:
    """Whether a run may be the end of a prompt: it is as long, and what is new of it begins where the cached part ended."""
    base = run.trunk.base
    if base is not None and base + run.end != whole:
        return False
    for each in run.path():
        if each.at < ran.since or run.end - each.start > whole - cached:
            return False
        if run.end - each.start == whole - cached:
            return True
    return False


def _goes_on(run: _Run, ran: Ran) -> bool:
    """Whether what comes before a run's new blocks is known to be the beginning of this prompt."""
    before = next((each.link for each in run.path() if each.link is not None), None)
    # Half of what was cached is past what all conversations begin with, and not at an end that only estimates tell.
    depth = bisect_right(ran.blocks.ends, ran.estimated(ran.cached_tokens // 2))
    if before is None or not 0 < depth <= len(before.ran.blocks):
        return False
    return before.ran.blocks.hashes[depth - 1] == ran.blocks.hashes[depth - 1]


def _extends(blocks: Blocks, other: Blocks) -> bool:
    """Whether a prompt has all of another."""
    return 0 < len(other) <= len(blocks) and blocks.hashes[len(other) - 1] == other.hashes[-1]
