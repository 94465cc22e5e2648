"""Where sparse kernels are used: a fixed rule of size, density and instruction set.

Never a clock, so that the same seed gives the same bits every time.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cigl.runtime.program import library

# The share of multiply-adds that is left, below which a whole training step was faster than torch's dense one
# (benchmarks/training_speed.py). Torch has fast dense kernels everywhere; our portable ones are not.
WORTH = {"avx512": 0.4, "avx2": 0.4, "portable": 0.05}
WITHOUT_PIXELS = 0.6  # of that for linear layers, whose weights are used once per image: moving them takes longer
LEAST_WORK = 60_000_000  # multiply-adds of a dense forward, below which calls cost more than they save
FEWEST_IMAGES = 8  # or rows: with fewer, a part of every vector is empty


def is_worth(dense: float, sparse: float, images: int, pixels: bool) -> bool:
    """For a subgraph of so many multiply-adds, dense and on the active weights alone; ``pixels``: with convolutions."""
    most = WORTH[library.isa()] * (1 if pixels else WITHOUT_PIXELS)
    return images >= FEWEST_IMAGES and dense >= LEAST_WORK and sparse <= most * dense


def may_be_worth(weights: int, inputs: Sequence[Tensor]) -> bool:
    """Whether a model with so many weights may have enough work, before anything is known but its inputs."""
    return weights * max(map(_places, inputs), default=0) >= LEAST_WORK


def _places(x: Tensor) -> int:
    """How often a weight is used at most: once per image and pixel, or token."""
    if x.dim() <= 2:
        return x.shape[0] if x.dim() and x.is_floating_point() else x.numel()
    return x.numel() // max(1, min(x.shape[1], x.shape[-1]))
