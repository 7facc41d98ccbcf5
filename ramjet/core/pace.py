"""How fast a replica reads, learned from its first tokens."""

from __future__ import annotations


class Pace:
    """How much longer a replica takes to read than the formula says, learned from first tokens.

    The formula's numbers are the seed's hardware; one factor corrects both, for what an error of it does is to scale all
    seconds alike. Robust: the middle of what was seen lately.
    """

    BESIDE_S = 0.2
    """What a first token waits for beside the reading, where nobody is before."""
    LEAST_S = 0.5
    """Shorter readings say too much about that."""

    def __init__(self) -> None:
        self._seen: list[float] = []
        self._expected = 1.0
        self.factor = 1.0

    @property
    def is_known(self) -> bool:
        """Whether it has been seen often enough to speak for itself."""
        return len(self._seen) >= 2

    def expect(self, factor: float) -> None:
        """What it is taken for as long as it is not known."""
        if not self.is_known:
            self._expected = factor
            self._settle()

    def learn(self, expected_s: float, took_s: float, *, at_most: bool = False) -> bool:
        """A prompt that should have taken so long by the formula took so long, nobody being before it.

        Returns whether that taught anything.

        Args:
            expected_s: by the formula, a factor of 1.
            took_s: until its first token.
            at_most: it took no longer, and nobody knows how much less: that teaches only of a replica that is twice as fast
                as it is believed to be, or whatever was a little quicker would draw it down for good.
        """
        if expected_s < self.LEAST_S or (at_most and took_s >= self.factor * expected_s / 2):
            return False
        self._seen = [*self._seen[-14:], took_s / (expected_s + self.BESIDE_S)]
        self._settle()
        return True

    def _settle(self) -> None:
        # What was expected counts once: a single odd reading moves little.
        ranked = sorted(self._seen if self.is_known else [*self._seen, self._expected])
        self.factor = min(100.0, max(0.001, ranked[len(ranked) // 2]))
