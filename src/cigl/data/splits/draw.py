"""Random numbers of the data: a pure function of seed, purpose, epoch and place, with no state to lose.

Philox' raw stream and numpy's SeedSequence are frozen by numpy's compatibility promise (NEP 19), which its
``permutation`` and ``integers`` are not; so those two lines are written out here. Global generators are not touched.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

_MASK64 = (1 << 64) - 1


def raw(count: int, seed: int, purpose: str, *place: int) -> npt.NDArray[np.uint64]:
    """``count`` random 64-bit words for this purpose at this place (an epoch, a batch or an image)."""
    entropy = [seed & _MASK64, zlib.crc32(purpose.encode()), *place]
    words: npt.NDArray[np.uint64] = np.random.Philox(np.random.SeedSequence(entropy)).random_raw(count)
    return words


def order(count: int, seed: int, purpose: str, *place: int) -> npt.NDArray[np.int64]:
    """A random order of ``count`` things.

    >>> order(5, 0, "shuffle", 0)
    array([4, 2, 3, 0, 1])
    """
    return np.argsort(raw(count, seed, purpose, *place), kind="stable")


def stratified(labels: npt.NDArray[np.int64], total: int, seed: int, purpose: str) -> npt.NDArray[np.bool_]:
    """Which of the examples are drawn: ``total`` of them, whole ones of each class by largest remainders."""
    kinds, counts = np.unique(labels, return_counts=True)
    exact = counts * (total / len(labels))
    parts = np.floor(exact).astype(np.int64)
    short = np.argsort(parts - exact, kind="stable")[: total - int(parts.sum())]
    parts[short] += 1
    drawn = np.zeros(len(labels), dtype=bool)
    for kind, part in zip(kinds, parts, strict=True):
        members = np.flatnonzero(labels == kind)
        drawn[members[order(len(members), seed, purpose, int(kind))[:part]]] = True
    return drawn


def below(words: npt.NDArray[np.uint64], limit: int) -> npt.NDArray[np.int64]:
    """Integers in [0, limit) from the upper halves of the words (limit < 2**32; the bias is below 2**-32 * limit)."""
    return ((words >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32)).astype(np.int64)


def unit(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
