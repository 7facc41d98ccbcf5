"""How large a replica's pools are in effect: what was said of them, corrected by what reports show was kept and lost.

A pool that lets go of what was used least recently loses a thing when enough others have been used since. How much that
is, the thing itself included, is its distance: what was lost at a distance shows that the pool is smaller than that, and
what was found though it was believed to be gone, that it is larger than believed. Reports may be odd, so each moves
little. Where nobody has said how large a pool is, three losses beyond all that was found say it, by the middle one.

A hybrid replica has two pools, and a report teaches only of the one that can have been used up. Nothing but arithmetic is
done here: what is at which distance, `beliefs` sees.
"""

from __future__ import annotations

from ramjet.core.cache import Lost
from ramjet.core.pools import Pools

STEP = 0.05
"""The part of a pool by which one loss lowers what is believed of its size."""

SURE_REPORTS = 5
"""So many reported counts, all of them where a snapshot may lie, are no accident: one in a thousand where pages have 64."""

SURE_LOSSES = 3
"""So many losses in a row that the token pool does not explain: there is another pool, that of snapshots. And so many
beyond all that was found say how large a pool is of which nobody has said that: a single one may have any reason."""

ROOM = 0.7
"""What was lost at less than this part of the token pool was lost while it had room. Not nearer to all of it: answers
that run and other clients take room too, and what was said may be too much."""

_DRIFT = 0.002
"""By which a size grows for each report of something kept: a replica that once had less for us may have more again."""
_OUTLIVED, _OUTLIVED_AGAIN = 0.02, 0.1
"""By which it grows for a report of something kept beyond it, and for another one with no loss between them, or where nobody
has said the size. Who is taken for far too small is spared so much that hardly anything is there to be found beyond it: it
would stay what it is taken for."""
_LEAST, _MOST = 0.3, 1.3
"""Parts of what a pool is said to be, between which reports are believed."""


class Capacity:
    """One pool's size, in tokens or in slots."""

    def __init__(self, told: int | None, *, sure_losses: int = SURE_LOSSES) -> None:
        """
        Args:
            told: the size that somebody has said it has; None: nobody has.
            sure_losses: so many say it where nobody has.
        """
        self._sure_losses = sure_losses
        self._told = told
        self._size: float | None = told
        self._ceiling: float = told or 0.0
        """What it drifts up to."""
        self._outlived = False
        """Whether something was found beyond it, and nothing was lost since."""
        self._found: float = 0.0
        """The largest distance at which something was found, as long as the size is not known..."""
        self._lost: list[int] = []
        """...and those at which something was lost beyond that."""

    @property
    def size(self) -> int | None:
        """What it is taken for; None where nothing is known."""
        return None if self._size is None else int(self._size)

    @property
    def least(self) -> float:
        """It is no smaller than this, as far as is known."""
        return self._found if self._size is None else self._size

    def resize(self, told: int | None) -> None:
        """It is said to be of another size; what was learned of the part that conversations get stays.

        Where nothing is said any more, nothing is known: what was learned was a part of what was said.
        """
        if told is None and self._told is not None:
            self._told, self._size, self._ceiling = None, None, 0.0
        if told is not None and told != self._told:
            before = self._told or self._size or told
            self._size = told * (1.0 if self._size is None else self._size / before)
            self._ceiling = told * (self._ceiling or before) / before
            self._told = told
            self._set(self._size)

    def found(self, distance: int) -> None:
        """Something was found at a distance: that tells only as long as the size is not known."""
        self._found = max(self._found, distance)

    def lost(self, distance: int) -> None:
        """Something was lost at a distance."""
        self._outlived = False
        if self._size is None:
            if distance <= self._found:
                # One of both is odd: if it is what was found, it is forgotten in time.
                self._found *= 1 - STEP / 5
                return
            self._lost = sorted(each for each in (*self._lost, distance) if each > self._found)
            if len(self._lost) >= self._sure_losses:
                self._size = self._ceiling = self._lost[len(self._lost) // 2]
            return
        self._ceiling = max(self._size, (1 - STEP / 2) * self._ceiling)
        self._set(max((1 - STEP) * self._size, min(distance, self._size)))

    def kept(self) -> None:
        """Something was found that was believed to be there."""
        if self._size is not None:
            self._size = max(self._size, min(self._ceiling, (1 + _DRIFT) * self._size))

    def outlived(self) -> None:
        """Something was found that was believed to have gone for want of room."""
        if self._size is not None:
            again = self._outlived or self._told is None
            self._outlived = True
            self._set((1 + (_OUTLIVED_AGAIN if again else _OUTLIVED)) * self._size)
            self._ceiling = max(self._size, self._ceiling)

    def _set(self, size: float) -> None:
        if self._told is not None:
            size = min(_MOST * self._told, max(_LEAST * self._told, size))
        self._size = max(1.0, size)


class Capacities:
    """Both pools of a replica, and whether there are two."""

    def __init__(self, told: Pools) -> None:
        self.tokens = Capacity(told.tokens)
        # Three losses have shown by then that there are slots.
        self.slots = Capacity(told.slots, sure_losses=1)
        self._told = told
        self.has_states = told.slots is not None
        """Whether snapshots are counted: their pool was told of, or is the only explanation of what was lost."""
        self._on_grid = 0
        """Reported counts that a snapshot could lie at, in a row; less than 0: there was one where none can."""
        self._odd = 0
        """Losses far nearer than the token pool is large, since one that it explains."""

    @property
    def has_snapshots(self) -> bool | None:
        """Whether reuse ends at snapshots alone: it is said to have them, or enough reports are where they lie."""
        if self.has_states:
            return True
        return False if self._on_grid < 0 else True if self._on_grid >= SURE_REPORTS else None

    def resize(self, told: Pools) -> None:
        """The pools are said to be of another size."""
        self.tokens.resize(told.tokens)
        self.slots.resize(told.slots)
        self._told = told
        self.has_states |= told.slots is not None

    def restarted(self) -> None:
        """The replica may have come back with another model: its counts are to be seen anew."""
        self._on_grid = 0

    def reported(self, cached_tokens: int) -> None:
        """An engine has said how much it reused: that shows where reuse can end."""
        if not cached_tokens or self._on_grid < 0:
            return
        if cached_tokens % self._told.grid == 0:
            self._on_grid += 1
            return
        self._on_grid = -1
        if self._told.slots is None:
            self.slots, self.has_states = Capacity(None, sure_losses=1), False

    def lost(self, tokens: int, slots: int) -> Lost | None:
        """Something was gone that had these distances: learn of the pool that was the reason; None where it is not known."""
        known = self.tokens.size
        part = tokens / known if known else 0.0
        if self.has_states and part < (ROOM if self.slots.size is None else slots / self.slots.least):
            self.slots.lost(slots)
            return "snapshot_pool"
        if known and part < ROOM:
            self._odd += 1
            self.has_states |= self._odd >= SURE_LOSSES and self._on_grid >= SURE_REPORTS
            return None
        self._odd = 0
        self.tokens.lost(tokens)
        return "token_pool"

    def evicted(self, tokens: int) -> None:
        """The engine has let go of something that had this distance, by its own word, and for want of tokens."""
        known = self.tokens.size
        # Nearer than that it was others who needed the room: that says nothing of what conversations get without them.
        if not known or tokens >= ROOM * known:
            self._odd = 0
            self.tokens.lost(tokens)

    @property
    def asks_for_finds(self) -> bool:
        """Whether what is found where it was believed to be would teach something."""
        return self.tokens.size is None or (self.has_states and self.slots.size is None)

    def found(self, tokens: int, slots: int) -> None:
        """Something was there that had these distances."""
        self.tokens.found(tokens)
        if self.has_states:
            self.slots.found(slots)

    def kept(self) -> None:
        """Something was there, as believed."""
        self.tokens.kept()
        self.slots.kept()

    def outlived(self, pool: Lost) -> None:
        """Something was there that was believed to have gone for want of room in a pool."""
        if pool == "token_pool":
            self.tokens.outlived()
        elif pool == "snapshot_pool":
            self.slots.outlived()
