"""Drop and grow: scores in, positions out. Plain numpy, one implementation for every device.

Positions are indices into the flattened (row-major) tensor. Ties go to the lower position. A partition
finds the threshold: ``torch.topk`` takes ten times as long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cigl.errors import CiglError
from cigl.sparsify.random_mask import Positions

Scores = npt.NDArray[np.float32]


def largest(scores: Scores, count: int) -> npt.NDArray[np.int64]:
    """The positions of the ``count`` largest scores, in ascending order.

    >>> largest(np.array([1.0, 3.0, 2.0, 3.0, 3.0], np.float32), 2)
    array([1, 3])
    """
    if count <= 0:
        return np.empty(0, np.int64)
    if count >= scores.size:
        return np.arange(scores.size)
    threshold = np.partition(scores, scores.size - count)[scores.size - count]
    chosen = np.flatnonzero(scores >= threshold)
    surplus = chosen.size - count
    if surplus:  # several scores equal the threshold: the highest positions among them go
        ties = np.flatnonzero(scores[chosen] == threshold)
        chosen = np.delete(chosen, ties[ties.size - surplus :])
    return chosen


class Change(NamedTuple):
    """A topology round: the active positions after it, and where the mask really changed."""

    active: Positions
    dropped: npt.NDArray[np.int64]
    grown: npt.NDArray[np.int64]


def change(active: Positions, keep_scores: Scores, grow_scores: Scores | None, keep: int, grow: int) -> Change:
    """Keep the ``keep`` best of the active weights, then grow ``grow`` of all that are outside them.

    ``keep_scores`` has one score per active weight, ``grow_scores`` one per position of the tensor. As in
    RigL, a weight that is dropped and grown again simply stays: it is neither in ``dropped`` nor in ``grown``.
    """
    for scores in (keep_scores, grow_scores):
        if scores is not None and scores.size and np.isnan(scores.max()):
            raise CiglError("the method's score is NaN: a topology round needs numbers.")
    kept = np.zeros(active.size, bool)
    kept[largest(keep_scores, keep)] = True
    candidates = active[~kept]
    if grow_scores is None or grow == 0:
        return Change(active[kept], candidates.astype(np.int64), np.empty(0, np.int64))
    outside = np.maximum(grow_scores, np.finfo(np.float32).min)
    outside[active[kept]] = -np.inf
    chosen = largest(outside, grow)
    stays = np.isin(chosen, candidates, assume_unique=True)
    dropped = np.setdiff1d(candidates, chosen[stays], assume_unique=True)
    after = np.concatenate([active[kept], chosen.astype(np.uint32)])
    after.sort()
    return Change(after, dropped.astype(np.int64), chosen[~stays])
