"""What one replica says of the blocks it holds, message by message: what is missing, what it means, whether to trust it.

Messages are numbered. One that is missing may have said that a block is gone, so without it nothing that was heard before
counts any more, and what is believed is what reports teach, as if there were no feed. That is the answer to every doubt
here: forget, and begin again with the next message.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Literal

from ramjet.core.chains import Chains, Cleared, Cut, Event, Ran, Removed, Stored, Unfit

WAITS_S = 5.0
"""How long the blocks of a prompt that has ended are waited for: SGLang tells of an answer's only every 40 tokens."""

SILENT_AFTER = 3
"""So many prompts in a row that must have been stored, and nothing heard meanwhile: nobody speaks at the other end."""

SURE_TOKENS = 1_024
"""Reading so many tokens stores a block, however large an engine's are."""

_MOST_WAITING = 1_024

KINDS = ("stored", "removed", "cleared")

NOT_CONNECTED = "not connected"
SILENT = "connected, and silent while prompts were read: is publisher zmq set in the engine's --kv-events-config?"
UNREADABLE = "a message cannot be read: is this the address that events are published at?"

Source = Literal["live", "gap", "past"]
"""Where a message comes from: it came by itself, or out of the replay, to fill a gap, or to learn of what was before."""

Effect = Cut | Literal["cleared", "restarted"]
"""What follows for beliefs: of a prompt only so much is left, or of all prompts nothing."""


class Feed:
    """One replica's feed."""

    def __init__(self) -> None:
        self.chains = Chains()
        self.doubt: str | None = NOT_CONNECTED
        """Why nothing is known by it; None while it is believed."""
        self.events = dict.fromkeys(KINDS, 0)
        """Those taken in, by their kind."""
        self.filled_gaps = 0
        """Gaps that the replay has filled..."""
        self.lost_gaps = 0
        """...and those that it has not, or messages that nobody could read: all that was known was forgotten."""
        self.linked = 0
        """Prompts whose blocks were found..."""
        self.unlinked = 0
        """...and those whose were not."""
        self.cut_tokens = 0
        """Prompt tokens that were believed to be there until the feed said that they are gone."""
        self._next: int | None = None
        """The number of the next message; None where any may be."""
        self._latest = -1
        """The last that came by itself, and not from the replay."""
        self._heard_at = -math.inf
        self._waiting: deque[tuple[float, Ran]] = deque()
        self._unheard = 0
        self._is_connected = False
        self._is_unfit = False

    def connected(self) -> None:
        """Somebody is at the other end; what was said before is not known."""
        self._begin_again()
        self._is_connected, self._is_unfit, self.doubt = True, False, None

    def disconnected(self) -> None:
        """The connection is gone, and what is said from now on is not heard."""
        self._begin_again()
        self._is_connected, self.doubt = False, NOT_CONNECTED

    def missing(self, number: int) -> int | None:
        """The first message to ask the replay for before this one is taken; None if none is missing."""
        return self._next if self._next is not None and number > self._next else None

    def take(
        self, number: int | None, events: Sequence[Event] | None, now: float, *, source: Source = "live"
    ) -> list[Effect]:
        """Take in a message.

        Args:
            number: its number; None where it has none.
            events: what it says; None where that cannot be read.
            now: the time.
            source: where it comes from.

        Returns what follows for beliefs.
        """
        effects: list[Effect] = []
        if not self._is_connected:
            return effects
        if number is None:
            self._lost()
            self._next, self.doubt = None, UNREADABLE
            return effects
        if source == "live":
            if number <= self._latest:
                # Each process counts from 0: this is another.
                self._begin_again()
                effects.append("restarted")
            self._latest = number
        if self._next is not None and number < self._next:
            return effects  # the replay was quicker
        if self._next is not None and number > self._next:
            self._lost()
        self._next, self._heard_at, self._unheard = number + 1, now, 0
        if events is None:
            self._lost()
            self.doubt = UNREADABLE
            return effects
        if self._is_unfit:
            return effects
        self.doubt = None
        try:
            for event in events:
                effects += self._event(event, -math.inf if source == "past" else now)
            effects += self.chains.cuts()
        except Unfit as unfit:
            self._forget()
            self._is_unfit, self.doubt = True, str(unfit)
        self.look(now)
        return [] if source == "past" else effects

    def ran(self, ran: Ran, now: float) -> None:
        """A prompt has been read to its end there."""
        size = self.chains.block_tokens
        if self._is_unfit or not self._is_connected:
            return
        if size is not None and ran.prompt_tokens // size <= ran.cached_tokens // size:
            return  # nothing new of it was stored
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft()
            self.unlinked += 1
        self._waiting.append((now + WAITS_S, ran))
        self.look(now)

    def look(self, now: float) -> None:
        """Look for the blocks of those that have run; to be asked now and then, for some never come."""
        waiting, self._waiting = self._waiting, deque()
        for until, ran in waiting:
            found = self.chains.link(ran)
            if found:
                self.linked += 1
            elif found is None and now < until:
                self._waiting.append((until, ran))
            else:
                self.unlinked += 1
                if self._heard_at < ran.since and ran.prompt_tokens - ran.cached_tokens >= SURE_TOKENS:
                    self._unheard += 1
        if self._unheard >= SILENT_AFTER and self.doubt is None:
            self._forget()
            self.doubt = SILENT

    # -- inside -----------------------------------------------------------------------------------------------------

    def _event(self, event: Event, at: float) -> list[Effect]:
        match event:
            case Stored():
                self.events["stored"] += 1
                self.chains.stored(event, at)
            case Removed():
                self.events["removed"] += 1
                self.chains.removed(event)
            case Cleared():
                self.events["cleared"] += 1
                self._forget()
                return ["cleared"]
        return []

    def _lost(self) -> None:
        self.lost_gaps += 1
        self._forget()

    def _forget(self) -> None:
        self.chains = Chains()
        self.unlinked += len(self._waiting)
        self._waiting.clear()

    def _begin_again(self) -> None:
        self._forget()
        self._next, self._latest, self._unheard = None, -1, 0
