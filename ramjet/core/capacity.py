"""How large a pool is in effect: what was said of it, corrected by what reports show was kept and was lost.

A pool that lets go of what was used least recently loses a thing when enough others have been used since. How much that
was is the thing's distance. What was lost at a distance shows that the pool is smaller than that, and what was found
though it was believed to be gone, that it is larger than believed. Single reports may be odd, so each moves little. Where
nobody has said how large a pool is, the first loss beyond all that was found says it.
"""

from __future__ import annotations

STEP = 0.05
"""The part of a pool by which one report moves what is believed of its size."""

_DRIFT = 0.002
"""By which it grows for each report of something kept: a replica that once had less for us may have more again."""
_LEAST, _MOST = 0.3, 1.3
"""Parts of what a pool is said to be, between which reports are believed."""


class Capacity:
    """One pool's size, in tokens or in slots."""

    def __init__(self, told: int | None) -> None:
        """
        Args:
            told: the size that somebody has said it has; None: nobody has.
        """
        self._told = told
        self._size: float | None = told
        self._ceiling: float = 0.0 if told is None else told
        """What it drifts up to."""
        self.most_found = 0
        """The largest distance at which something was found, as long as the size is not known."""

    @property
    def size(self) -> int | None:
        """What it is taken for; None where nothing is known."""
        return None if self._size is None else int(self._size)

    def resize(self, told: int | None) -> None:
        """It is said to be of another size; what was learned of the part that conversations get stays."""
        if told == self._told:
            return
        part = 1.0 if not self._told or self._size is None else self._size / self._told
        ceiling = 1.0 if not self._told else self._ceiling / self._told
        self._told = told
        if told is not None:
            self._size, self._ceiling = part * told, ceiling * told

    def found(self, distance: int) -> None:
        """Something was found at a distance: tells only as long as the size is not known."""
        self.most_found = max(self.most_found, distance)

    def lost(self, distance: int) -> None:
        """Something was lost at a distance."""
        if self._size is None:
            if distance > self.most_found:
                self._size = self._ceiling = distance
        else:
            self._set(max((1 - STEP) * self._size, min(distance, self._size)))
            self._ceiling = max(self._size, self._ceiling - 0.5 * STEP * self._ceiling)

    def kept(self) -> None:
        """Something was found that was believed to be there."""
        if self._size is not None:
            self._size = max(self._size, min(self._ceiling, (1 + _DRIFT) * self._size))

    def outlived(self) -> None:
        """Something was found that was believed to be gone."""
        if self._size is not None:
            self._set((1 + STEP) * self._size)
            self._ceiling = max(self._size, self._ceiling)

    def _set(self, size: float) -> None:
        if self._told is not None:
            size = min(_MOST * self._told, max(_LEAST * self._told, size))
        self._size = max(1.0, size)
