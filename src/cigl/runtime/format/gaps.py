"""Where the non-zeros of a flattened tensor are, a byte each: how many zeros stand before it.

A byte below 255 skips that many elements and then stands on a non-zero; 255 skips 255 elements and stands on none.
The zeros after the last non-zero are written too, as far as 255s reach, so that the bytes account for all but the
last 254 elements: a short file can't ask for a huge tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cigl.common.errors import CiglError

ESCAPE = 255

Positions = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def encode(positions: Positions, size: int) -> Bytes:
    """The gaps of increasing ``positions`` in a tensor of ``size`` elements.

    >>> encode(np.array([0, 3, 600]), 1000).tolist()
    [0, 2, 255, 255, 86, 255]
    """
    escapes, rest = np.divmod(np.diff(positions, prepend=-1) - 1, ESCAPE)
    ends = np.cumsum(escapes + 1)
    after = size - 1 - (int(positions[-1]) if positions.size else -1)
    gaps = np.full((int(ends[-1]) if ends.size else 0) + after // ESCAPE, ESCAPE, np.uint8)
    gaps[ends - 1] = rest
    return gaps


def decode(gaps: Bytes, count: int, size: int) -> Positions:
    """The positions of ``count`` non-zeros among ``size`` elements; gaps that do not match these numbers are refused.

    >>> decode(np.array([0, 2, 255, 255, 86, 255], np.uint8), 3, 1000).tolist()
    [0, 3, 600]
    """
    stands = gaps != ESCAPE
    reached = np.cumsum(gaps.astype(np.int64) + stands)
    covered = int(reached[-1]) if reached.size else 0
    if not 0 <= size - covered < ESCAPE:
        raise CiglError(f"the gaps cover {covered} elements, but the tensor has {size}")
    positions: Positions = reached[stands] - 1
    if positions.size != count:
        raise CiglError(f"the gaps lead to {positions.size} elements, but there are {count} values")
    return positions
