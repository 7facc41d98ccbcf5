"""How likely a quiet conversation is to come back: learned from the pauses between turns (Kaplan and Meier 1958).

One estimate for all conversations. A study on ten workloads found that knowing every return exactly would shorten
nobody's wait, so nothing finer is kept.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from math import exp, log1p

_BINS = 48
_FIRST_S = 0.25
_GROWTH = 1.22
_EDGES = [0.0, *(_FIRST_S * _GROWTH**at for at in range(_BINS - 1))]
"""Where each bin of idle times begins, in seconds: the last at 47 minutes, so the bins span what a cache does."""
_WIDTHS = [after - before for before, after in zip(_EDGES, [*_EDGES[1:], 2 * _EDGES[-1]], strict=True)]

_PRIOR_WEIGHT = 6.0
"""Observations that the prior counts for in each bin."""
_PRIOR_RATES = ((60.0, 1 / 25), (300.0, 1 / 90), (math.inf, 1 / 900))
"""Returns a second up to an idle time: agents come back within half a minute, people within minutes or not at all."""


class Returns:
    """The chance of a return, by how long a conversation has been quiet."""

    def __init__(self) -> None:
        self._at_risk = [_PRIOR_WEIGHT] * _BINS
        self._came = [
            _PRIOR_WEIGHT * (1 - exp(-_rate(edge) * width)) for edge, width in zip(_EDGES, _WIDTHS, strict=True)
        ]
        self._log_quiet: list[float] | None = None

    def came_back(self, idle_s: float, *, given_up: bool = False) -> None:
        """A conversation has come back after so long; `given_up` says that nobody expected it any more."""
        last = _bin(idle_s)
        self._came[last] += 1.0
        self._log_quiet = None
        if not given_up:
            self._watched(last)

    def gave_up(self) -> None:
        """A conversation is no longer expected. It counts as quiet for ever, until it comes back after all.

        Were it forgotten here, all that is known of longer pauses would come from those who did return.
        """
        self._watched(_BINS - 1)

    def probability(self, idle_s: float, within_s: float) -> float:
        """The chance that a conversation that has been quiet for `idle_s` comes back within the next `within_s`."""
        if self._log_quiet is None:
            self._log_quiet = self._log_quiet_at_edges()
        # Asked for every conversation that a long prompt would push out: no calls in here. Within a bin the rate is
        # constant, and beyond the last it stays as it was there.
        quiet, until_s = self._log_quiet, idle_s + within_s
        at = bisect_right(_EDGES, idle_s) - 1 if idle_s > 0.0 else 0
        begins = quiet[at] + (quiet[at + 1] - quiet[at]) * (idle_s - _EDGES[at]) / _WIDTHS[at]
        at = bisect_right(_EDGES, until_s) - 1 if until_s > 0.0 else 0
        ends = quiet[at] + (quiet[at + 1] - quiet[at]) * (until_s - _EDGES[at]) / _WIDTHS[at]
        return 1.0 - exp(ends - begins)

    def _watched(self, last: int) -> None:
        """Somebody could have come back in every bin up to this one."""
        for at in range(last + 1):
            self._at_risk[at] += 1.0
        self._log_quiet = None

    def _log_quiet_at_edges(self) -> list[float]:
        """Logarithm of the chance to be quiet until each bin begins, and until the last one ends."""
        total, sums = 0.0, []
        for came, at_risk in zip(self._came, self._at_risk, strict=True):
            sums.append(total)
            total += log1p(-min(0.999, came / at_risk))
        return [*sums, total]


def _bin(idle_s: float) -> int:
    return bisect_right(_EDGES, idle_s if idle_s > 0.0 else 0.0) - 1


def _rate(idle_s: float) -> float:
    return next(rate for until, rate in _PRIOR_RATES if idle_s < until)
