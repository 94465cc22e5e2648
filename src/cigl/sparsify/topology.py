"""Drop and grow: scores in, positions out. Plain numpy, one implementation for every device.

Positions are indices into the flattened (row-major) tensor. Ties go to the lower position. A partition
finds the threshold, where ``torch.topk`` would take ten times as long; where few of many are wanted, a
sample first shows which ones can be among them at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cigl.errors import CiglError
from cigl.sparsify.random_numbers import Positions

Scores = npt.NDArray[np.float32]
_STRIDE = 61  # of the sample; a prime, so that it doesn't run along a row or column


def largest(scores: Scores, count: int) -> npt.NDArray[np.int64]:
    """The positions of the ``count`` largest scores, in ascending order.

    >>> largest(np.array([1.0, 3.0, 2.0, 3.0, 3.0], np.float32), 2)
    array([1, 3])
    """
    if count <= 0:
        return np.empty(0, np.int64)
    if count >= scores.size:
        return np.arange(scores.size)
    candidates = _candidates(scores, count)
    few = scores if candidates is None else scores[candidates]
    threshold = np.partition(few, few.size - count)[few.size - count]
    chosen = np.flatnonzero(few >= threshold)
    surplus = chosen.size - count
    if surplus:  # several scores equal the threshold: the highest positions among them go
        ties = np.flatnonzero(few[chosen] == threshold)
        chosen = np.delete(chosen, ties[ties.size - surplus :])
    return chosen if candidates is None else candidates[chosen]


def _candidates(scores: Scores, count: int) -> npt.NDArray[np.int64] | None:
    """Positions that hold all of the ``count`` largest scores and not many more, if a sample finds them."""
    sample = scores[::_STRIDE]
    expected = count / _STRIDE
    rank = int(expected + 4 * expected**0.5 + 4)  # with a margin, so that a miss is rare
    if rank * 8 > sample.size:
        return None
    bound = np.partition(sample, sample.size - rank)[sample.size - rank]
    found = np.flatnonzero(scores >= bound)
    return found if count <= found.size <= scores.size // 2 else None


class Change(NamedTuple):
    """A topology round: the active positions after it, and where the mask really changed."""

    active: Positions
    dropped: Positions
    grown: Positions


def change(active: Positions, keep_scores: Scores, grow_scores: Scores | None, keep: int, grow: int) -> Change:
    """Keep the ``keep`` best of the active weights, then grow ``grow`` of all that are outside them.

    ``keep_scores`` has one score per active weight; ``grow_scores`` has one per position of the tensor and
    is overwritten. As in RigL, a weight that is dropped and grown again simply stays: it is neither in
    ``dropped`` nor in ``grown``.
    """
    for scores in (keep_scores, grow_scores):
        if scores is not None and scores.size and np.isnan(scores.max()):
            raise CiglError("the method's score is NaN: a topology round needs numbers.")
    kept = np.zeros(active.size, bool)
    kept[largest(keep_scores, keep)] = True
    stay, out = active[kept], active[~kept]
    if grow_scores is None or grow == 0:
        return Change(stay, out, np.empty(0, np.uint32))
    grow_scores[stay] = -np.inf
    chosen = largest(grow_scores, grow).astype(np.uint32)
    was_out = np.zeros(grow_scores.size, bool)
    was_out[out] = True
    again = was_out[chosen]
    was_out[chosen] = False
    after = np.concatenate([stay, chosen])
    after.sort()
    return Change(after, out[was_out[out]], chosen[~again])
