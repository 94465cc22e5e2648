"""A sparse weight, prepared once for all programs that use it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
_TILE = 2  # a tile of several output channels has half as many vectors of each

Places = np.ndarray[Any, np.dtype[np.int64]]


class Shared(NamedTuple):
    """Non-zeros by block of input channels, by output channels side by side, by which of these use an input."""

    blocks: int
    rows: np.ndarray[Any, np.dtype[np.int32]]  # where each list of inputs starts
    firsts: np.ndarray[Any, np.dtype[np.int32]]  # where each (block, channels side by side) starts in values
    positions: Places  # of the inputs
    outputs: Places  # the first of the channels that use them
    values: np.ndarray[Any, np.dtype[np.float32]]

    def bytes(self) -> int:
        return sum(each.nbytes for each in self[1:])


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

        output, position = np.divmod(np.flatnonzero(dense != 0), dense.shape[1])  # five times as fast as nonzero
        self.density = len(output) / dense.size
        lanes = library.lanes(library.isa()) if library.available() else 8
        self.blocks = self._blocks(len(output), lanes)
        block = self._block(position, self.blocks)
        order = np.argsort(block, kind="stable")
        output, position, block = output[order], position[order], block[order]
        counts = np.bincount(block * self.outputs + output, minlength=self.blocks * self.outputs)
        self.rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        # (input channel, kernel row, kernel column) as one number
        self.positions = position.astype(np.uint16 if dense.shape[1] <= 1 << 16 else np.int32)
        self.values = np.ascontiguousarray(dense[output, position])
        self._shared: dict[int, Shared] = {}

    def shared(self, channels: int) -> Shared:
        """Sorted for the kernel that has so many output channels side by side, which share the inputs they load."""
        if channels not in self._shared:
            self._shared[channels] = self._share(channels)
        return self._shared[channels]

    def _share(self, channels: int) -> Shared:
        size, lists, groups = math.prod(self.shape[1:]), (1 << channels) - 1, -(-self.outputs // channels)
        blocks = self._blocks(len(self.values), _TILE * channels)
        positions = self.positions.astype(np.int64)
        group, user = np.divmod(self.output, channels)
        place = self._block(positions, blocks) * groups + group
        key = place * size + positions
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(np.diff(key[order], prepend=-1))  # of the non-zeros that share an input
        users = np.add.reduceat(1 << user[order], first) if first.size else first
        place, position = np.divmod(key[order][first], size)
        each = place * lists + users - 1
        by_users = np.argsort(each, kind="stable")
        count = np.diff(first, append=len(order))[by_users]
        start = np.cumsum(count) - count
        values = self.values[order[np.repeat(first[by_users] - start, count) + np.arange(len(order))]]
        rows = np.bincount(each, minlength=blocks * groups * lists)
        firsts = np.bincount(np.repeat(place, np.diff(first, append=len(order))), minlength=blocks * groups)
        return Shared(
            blocks,
            np.concatenate([[0], np.cumsum(rows)]).astype(np.int32),
            (np.cumsum(firsts) - firsts).astype(np.int32),
            position[by_users],
            (place % groups * channels)[by_users],
            values,
        )

    def _blocks(self, nonzeros: int, lanes: int) -> int:
        """Of input channels whose activations stay in the first-level cache together."""
        wanted = -(-self.inputs * self.kernel[0] * lanes // _BLOCK)
        return int(max(1, min(wanted, nonzeros // (_WORTH * self.outputs), self.inputs)))

    def _block(self, position: Places, blocks: int) -> Places:
        found: Places = position // math.prod(self.kernel) * blocks // self.inputs
        return found

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
        return sum(each.nbytes for each in arrays if each is not None) + sum(map(Shared.bytes, self._shared.values()))


def pack(network: Network) -> None:
    """Hold the weights as their non-zeros alone, where there are kernels for the layer and that is the smaller form."""
    for unit in network.units:
        if isinstance(unit.operation, op.Weighted):
            unit.operation.weight.shrink(Packed)
