"""Where the active entries of a weight lie, in the orders in which the kernels read them.

The forward kernel goes through the entries output by output; the gradient of the input is the same kernel on the
transposed pattern. Both sort by blocks of inputs first, so that what a block reads stays in the first-level cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cigl.runtime.network.operations import Pair
from cigl.runtime.program import library

Ints = np.ndarray[Any, np.dtype[np.int32]]

# Inputs (times the kernel's rows) whose activations are meant to stay in the first-level cache, by floats in a vector.
_BLOCK = {8: 128, 16: 32}
_WORTH = 8  # entries per output and block, below which blocks cost more than they bring


@dataclass(frozen=True, eq=False)
class Order:
    """Entries sorted by block of inputs, then by output; ``rows`` tells where each (block, output) starts."""

    blocks: int
    rows: Ints
    entries: Ints  # their numbers in the order they were given in
    channel: Ints  # of the input, and the row and column of the kernel, per entry
    ky: Ints
    kx: Ints

    @classmethod
    def of(cls, output: Ints, channel: Ints, ky: Ints, kx: Ints, outputs: int, inputs: int, taps: int) -> Order:
        """From entries that are sorted by output."""
        wanted = -(-inputs * taps // _BLOCK[library.lanes(library.isa())])
        blocks = int(max(1, min(wanted, len(output) // (_WORTH * outputs), inputs)))
        key: Ints = output
        entries: Ints = np.arange(len(output), dtype=np.int32)
        if blocks > 1:
            block_of = (np.arange(inputs) * blocks // inputs).astype(np.uint16)  # numpy sorts these by radix
            block = block_of[channel]
            entries = np.argsort(block, kind="stable").astype(np.int32)
            key = block[entries] * np.int32(outputs) + output[entries]
        counts = np.bincount(key, minlength=blocks * outputs)
        rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return cls(blocks, rows, entries, channel[entries], ky[entries], kx[entries])


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class Pattern:
    """The active entries of a weight [O, I] or [O, I, kh, kw], at sorted row-major ``positions``.

    >>> pattern = Pattern((2, 3), (3, 1), np.array([1, 5]))
    >>> pattern.forward.channel, pattern.places
    (array([1, 2], dtype=int32), array([1, 5], dtype=int32))

    A random mask Z may switch entries off for a step: they count as zero, have no gradient, and stay as they are.
    """

    off: np.ndarray[Any, np.dtype[np.uint8]] | None = None  # 1 at the entries that Z has switched off, by position

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], positions: np.ndarray[Any, Any]):
        self.outputs, self.inputs, kh, kw = shape if len(shape) == 4 else (*shape, 1, 1)
        self.kernel = (kh, kw)
        self.count = len(positions)
        self._positions = positions.astype(np.int32)
        self._transposed: dict[Pair, tuple[Order, Ints]] = {}
        place = self._positions
        if strides != _row_major(shape):
            place = (np.stack(self._parts[: len(strides)]) * np.array(strides, np.int32)[:, None]).sum(
                0, dtype=np.int32
            )
        self.places: Ints = place  # in the memory of the dense weight, by position
        self.ranks: Ints = np.empty(self.count, np.int32)  # in the order of the forward kernel, by position
        self.ranks[self.forward.entries] = np.arange(self.count, dtype=np.int32)

    def switch_off(self, key: int, threshold: int) -> None:
        """Draw Z: the entries whose hash with this key is below the threshold (sparsify/tensors/random_numbers.py)."""
        self.off = np.empty(self.count, np.uint8)
        positions, off = self._positions.ctypes.data, self.off.ctypes.data
        library.get().cigl_draw(positions, self.count, key, threshold, off, torch.get_num_threads())

    def switched_off(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The positions that Z has switched off."""
        assert self.off is not None
        return self._positions[np.flatnonzero(self.off)].astype(np.int64)

    def pack(self, weight: Tensor, values: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Write the entries of this weight in the order of the forward kernel."""
        library.get().cigl_pack(
            weight.data_ptr(),
            *(self.places.ctypes.data, self.ranks.ctypes.data, address(self.off)),
            *(values.ctypes.data, self.count, torch.get_num_threads()),
        )

    def forget(self) -> None:
        """Drop what is only needed to assemble a program; it is computed again for the next one."""
        self._transposed.clear()
        for name in ("_parts", "forward"):
            vars(self).pop(name, None)

    @cached_property
    def _parts(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Output, input, row and column of the kernel. In 32 bits, because division takes most of the time."""
        kh, kw = self.kernel
        rest, ky = self._positions, np.zeros_like(self._positions)
        kx = ky
        if kh * kw > 1:
            rest, tap = np.divmod(self._positions, np.int32(kh * kw))
            ky, kx = np.divmod(tap, np.int32(kw))
        output, channel = np.divmod(rest, np.int32(self.inputs))
        return output, channel, ky, kx

    @cached_property
    def forward(self) -> Order:
        return Order.of(*self._parts, self.outputs, self.inputs, self.kernel[0])

    def transposed(self, stride: Pair) -> tuple[Order, Ints]:
        """For the gradient of the input, and where each of its entries stands in the forward order."""
        if stride not in self._transposed:
            self._transposed[stride] = self._transpose(stride)
        return self._transposed[stride]

    def _transpose(self, stride: Pair) -> tuple[Order, Ints]:
        """Pixels of the input that differ in their place within a stride are reached by different taps of the kernel:
        each such phase is a channel of its own.
        """
        output, channel, ky, kx = self._parts
        phases = min(stride[0], self.kernel[0]), min(stride[1], self.kernel[1])
        row = (channel * phases[0] + ky % stride[0]) * phases[1] + kx % stride[1]
        rows = self.inputs * phases[0] * phases[1]
        by_row = np.argsort(row.astype(np.uint16) if rows <= 1 << 16 else row, kind="stable")  # 16 bits: by radix
        order = Order.of(row[by_row], output[by_row], ky[by_row], kx[by_row], rows, self.outputs, self.kernel[0])
        return order, self.ranks[by_row[order.entries]]


def address(array: np.ndarray[Any, Any] | None) -> int | None:
    return None if array is None else array.ctypes.data
