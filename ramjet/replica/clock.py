"""The replica's own time: it runs faster than the loop's, slower, or not at all. Pure: what the loop says is told."""

from __future__ import annotations


class Clock:
    """Virtual seconds that pass `rate` times as fast as real ones; virtual time never falls."""

    def __init__(self, rate: float, now: float) -> None:
        """
        Args:
            rate: virtual seconds in a real one; 0 stands still.
            now: the real time at which virtual time is 0.
        """
        self._rate = rate
        self._real = now
        self._virtual = 0.0

    def at(self, now: float) -> float:
        """The virtual time at a real one."""
        return self._virtual + max(0.0, now - self._real) * self._rate

    def when(self, virtual: float) -> float | None:
        """The real time of a virtual one; None while it never comes."""
        if not self._rate:
            return None
        return self._real + (virtual - self._virtual) / self._rate

    def run_at(self, rate: float, now: float) -> None:
        """Go on at another rate from now."""
        self.set_back(self.at(now), now)
        self._rate = rate

    def set_back(self, virtual: float, now: float) -> None:
        """It is no later than this, now: whoever simulates could not keep up."""
        self._virtual, self._real = virtual, now
