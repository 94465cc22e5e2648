"""Where a curve turns, as far as its intervals tell."""

from __future__ import annotations

from collections.abc import Sequence


def turning_points(mean: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[int]:
    """The first and last place, and between them the peaks and troughs that stand clear of each other.

    >>> turning_points([1, 5, 4.9, 2, 6], [0.9, 4.9, 4.8, 1.9, 5.9], [1.1, 5.1, 5.0, 2.1, 6.1])
    [0, 1, 3, 4]
    """
    found = [0]
    extreme = 0
    for i in range(1, len(mean)):
        rising = mean[extreme] > mean[found[-1]]
        if (mean[i] > mean[extreme]) == rising or extreme == found[-1]:
            extreme = i if abs(mean[i] - mean[found[-1]]) > abs(mean[extreme] - mean[found[-1]]) else extreme
        elif high[i] < low[extreme] or low[i] > high[extreme]:  # clear of the extreme: that was a turn
            if high[found[-1]] < low[extreme] or low[found[-1]] > high[extreme]:
                found.append(extreme)
            extreme = i
    return found if found[-1] == len(mean) - 1 else [*found, len(mean) - 1]
