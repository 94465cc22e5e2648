"""Bins over confidence: right-closed, so that the last one holds confidence 1.0 and the first also holds 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cigl.common.errors import CiglError

Array = NDArray[Any]
MOST = 1000  # bins: each needs many samples to say anything, and every resample keeps a sum for each


def check_bins(bins: int) -> int:
    if not isinstance(bins, (int, np.integer)) or isinstance(bins, bool) or bins < 2:
        raise CiglError(f"bins is {bins!r}: a calibration error needs a whole number of at least 2 bins, usually 15.")
    if bins > MOST:
        raise CiglError(
            f"bins is {bins:,}: give at most {MOST:,}, usually 15; "
            "with few samples in a bin a calibration error is noise."
        )
    return int(bins)


def width_edges(bins: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The edges k / bins of equal-width bins, rounded to ``dtype`` and returned in float64.

    0.3 in float32 is larger than 3/10 in float64, yet whoever wrote it means the edge: so the edges are
    rounded as the confidences were. Dividing (and not ``linspace``) makes 7/10 the same number as 0.7.

    >>> width_edges(4).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    return (torch.arange(bins + 1, dtype=torch.float64) / check_bins(bins)).to(dtype).double()


def mass_edges(confidence: Array, bins: int) -> Array:
    """Edges of bins with equally many samples. Equal confidences always share a bin, whatever their order.

    >>> mass_edges(np.array([0.9, 0.2, 0.4, 0.6]), 2).tolist()
    [0.0, 0.4, 1.0]
    """
    ordered = np.sort(confidence)
    cuts = -(-np.arange(1, check_bins(bins)) * ordered.size // bins)  # ceil(k n / bins)
    return np.concatenate([[0.0], ordered[np.maximum(cuts, 1) - 1], [1.0]])


def bin_of(confidence: Tensor, edges: Tensor) -> Tensor:
    """The number of the bin (a, b] that each confidence is in.

    >>> bin_of(torch.tensor([0.0, 0.25, 0.26, 1.0]), width_edges(4)).tolist()
    [0, 0, 1, 3]
    """
    return torch.bucketize(confidence, edges[1:-1].to(confidence.device, confidence.dtype))
