"""A sparse weight, prepared once for all programs that use it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network
from cigl.runtime.program import library

# Input channels (times the kernel's rows, times a vector's floats) whose activations are meant to stay in the
# first-level cache together.
_BLOCK = 1024
_WORTH = 8  # non-zeros per output channel and block, below which blocks cost more than they bring


class Packed:
    """The non-zeros of a Linear or Conv2d weight, sorted by block of input channels, then by output channel.

    >>> import torch
    >>> weight = torch.zeros(2, 3, 1, 1)
    >>> weight[1, 2] = 5.0
    >>> Packed(weight, None).values
    array([5.], dtype=float32)
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        if weight.dim() not in (2, 4) or not weight.is_floating_point() or weight.numel() == 0:
            raise CiglError(f"a weight must be [O, I] or [O, I, kh, kw] and float, not {tuple(weight.shape)}.")
        if bias is not None and bias.shape != weight.shape[:1]:
            raise CiglError(f"a bias must have one value per output, not {tuple(bias.shape)} for {weight.shape[0]}.")
        self.shape = tuple(weight.shape)
        self.outputs, self.inputs = int(weight.shape[0]), int(weight.shape[1])
        self.kernel = (int(weight.shape[2]), int(weight.shape[3])) if weight.dim() == 4 else (1, 1)
        dense = weight.detach().float().cpu().numpy().reshape(self.outputs, -1)
        self.bias = None if bias is None else bias.detach().float().cpu().numpy().copy()

        taps = self.kernel[0] * self.kernel[1]
        output, position = np.divmod(np.flatnonzero(dense != 0), dense.shape[1])  # five times as fast as nonzero
        lanes = library.lanes(library.isa()) if library.available() else 8
        wanted = -(-self.inputs * self.kernel[0] * lanes // _BLOCK)
        self.blocks = int(max(1, min(wanted, len(output) // (_WORTH * self.outputs), self.inputs)))
        block = position // taps * self.blocks // self.inputs
        order = np.argsort(block, kind="stable")
        output, position, block = output[order], position[order], block[order]
        counts = np.bincount(block * self.outputs + output, minlength=self.blocks * self.outputs)
        self.rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        # (input channel, kernel row, kernel column) as one number
        self.positions = position.astype(np.uint16 if dense.shape[1] <= 1 << 16 else np.int32)
        self.values = np.ascontiguousarray(dense[output, position])

    def unpack(self) -> Tensor:
        """The weight as it was."""
        dense = np.zeros((self.outputs, math.prod(self.shape[1:])), np.float32)
        dense[self.output, self.positions] = self.values
        return torch.from_numpy(dense).reshape(self.shape)

    @property
    def output(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The output channel of each non-zero."""
        return np.tile(np.arange(self.outputs), self.blocks).repeat(np.diff(self.rows))

    @property
    def bytes(self) -> int:
        arrays = (self.rows, self.positions, self.values, self.bias)
        return sum(each.nbytes for each in arrays if each is not None)


def pack(network: Network) -> None:
    """Hold the weights as their non-zeros alone, where there are kernels for the layer and that is the smaller form."""
    for unit in network.units:
        if isinstance(unit.operation, op.Weighted):
            unit.operation.weight.shrink(Packed)
