"""Least squares that a few odd samples do not spoil, with what was believed before and no coefficient below 0."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

ROUNDS = 4
BELIEF = 0.01
"""A belief counts like so much of a sample: where nothing was seen, something must be said."""

Sample = tuple[tuple[float, ...], float]


def robust(samples: Sequence[Sample], believed: Sequence[Sample], *, least: float) -> list[float]:
    """Coefficients, none below 0, for which sums of terms are nearest to what was seen.

    A square counts by what was seen: between shares, where the noise of short waits would tell how fast long prompts are
    read, and seconds, where a few long ones would be all there is.
    What is far off is left out in the next round: a reading beside somebody that nobody knew of, a restart.
    """
    kept, solved = samples, [0.0]
    for _ in range(ROUNDS):
        solved = _not_negative([*((each, 1.0) for each in kept), *((each, BELIEF) for each in believed)], least)
        offs = [abs(_sum(solved, terms) - seen) / max(seen, least) for terms, seen in samples]
        most = max(0.05, 3 * median(offs))
        kept = [each for each, off in zip(samples, offs, strict=True) if off <= most]
    return solved


def _not_negative(weighted: Sequence[tuple[Sample, float]], least: float) -> list[float]:
    """Weighted least squares; a coefficient that comes out negative is left out, the most negative first."""
    used = list(range(len(weighted[0][0][0])))
    # Each term in units of its largest, or the squares of tokens would drown the rest.
    units = [max(abs(terms[at]) for (terms, _), _ in weighted) or 1.0 for at in used]
    solved = [0.0] * len(used)
    while used:
        matrix = [[0.0] * len(used) for _ in used]
        right = [0.0] * len(used)
        for (terms, seen), weight in weighted:
            share = weight / max(seen, least)
            row = [terms[at] / units[at] for at in used]
            for i, one in enumerate(row):
                right[i] += share * one * seen
                for j, other in enumerate(row):
                    matrix[i][j] += share * one * other
        found = _solved(matrix, right)
        if min(found) >= 0:
            for at, value in zip(used, found, strict=True):
                solved[at] = value / units[at]
            break
        del used[found.index(min(found))]
    return solved


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with pivots; a row that says nothing gives 0."""
    size = len(right)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        right[column], right[pivot] = right[pivot], right[column]
        if abs(matrix[column][column]) < 1e-12:
            continue
        for row in range(column + 1, size):
            factor = matrix[row][column] / matrix[column][column]
            right[row] -= factor * right[column]
            for at in range(column, size):
                matrix[row][at] -= factor * matrix[column][at]
    found = [0.0] * size
    for row in reversed(range(size)):
        rest = right[row] - sum(matrix[row][at] * found[at] for at in range(row + 1, size))
        found[row] = rest / matrix[row][row] if abs(matrix[row][row]) >= 1e-12 else 0.0
    return found


def _sum(solved: Sequence[float], terms: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(solved, terms, strict=True))
