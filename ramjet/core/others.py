"""What others have at a replica: clients that go there directly, other Ramjets. What its engine says it has in all, less ours.

Our ledger knows what we have sent and not what an engine has made of it, and an engine's figures are some moments old: what
has just ended is still in them, and what has just been sent is not. So of what it says, the most that was ours at any time
since the poll before the last is taken off. Others are underestimated for a second where our own traffic changes fast, and
ours are never taken for theirs. What is sent after a poll is ours, and in the ledger: it is not counted here at all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from msgspec import Struct

STALE_S = 5.0
"""What was said longer ago than this says nothing any more: a replica that is asked every second has missed four answers."""


class Load(NamedTuple):
    """What an engine says it has, or one of its data-parallel ranks; None is unknown."""

    requests: int | None = None
    """Running and waiting."""
    waiting_tokens: int | None = None
    """Of the prompts of those that wait, what has to be read."""
    used_tokens: int | None = None
    """Of its token pool, what running requests keep."""


class Share(Struct, frozen=True, gc=False):
    """What somebody has at a replica."""

    requests: int = 0
    queue_s: float = 0.0
    """Seconds of reading."""
    tokens: int = 0
    """Of the token pool, kept from eviction. What our answers keep is not known to be ours."""

    def beyond(self, other: Share) -> Share:
        """What it is more than the other."""
        return Share(
            max(0, self.requests - other.requests),
            max(0.0, self.queue_s - other.queue_s),
            max(0, self.tokens - other.tokens),
        )

    def most(self, other: Share) -> Share:
        """The larger of both, each by itself."""
        return Share(
            max(self.requests, other.requests), max(self.queue_s, other.queue_s), max(self.tokens, other.tokens)
        )


NOBODY = Share()


class Others:
    """What others have at one replica."""

    __slots__ = ("_at", "_before", "_ours", "_theirs")

    def __init__(self) -> None:
        self._at = -math.inf
        self._theirs = NOBODY
        self._ours = self._before = NOBODY
        """The most that was ours at a time, since the last poll and before that since the one before."""

    def booked(self, ours: Share) -> None:
        """A request has been sent there, and this is what is ours now; what ends makes it less, and is not told."""
        self._ours = self._ours.most(ours)

    def recognised(self, share: Share, since: float) -> None:
        """A peer tells of a request that it sent at a time: if that was before the last poll, it was taken for others'."""
        if since <= self._at:
            self._theirs = self._theirs.beyond(share)

    def told(self, load: Load, ours: Share, wait_s: float, now: float) -> None:
        """An engine has said what it has.

        Args:
            load: that.
            ours: what is ours now.
            wait_s: seconds that it takes to read what it says is waiting.
            now: the time.
        """
        most = self._ours.most(self._before).most(ours)
        self._theirs = Share(load.requests or 0, wait_s, load.used_tokens or 0).beyond(most)
        self._before, self._ours, self._at = self._ours, ours, now

    def at(self, now: float) -> Share:
        """What they have; nothing where that has not been said for a while."""
        return self._theirs if now - self._at <= STALE_S else NOBODY

    def forget(self) -> None:
        """The replica has restarted: nobody has anything there."""
        self._at = -math.inf
