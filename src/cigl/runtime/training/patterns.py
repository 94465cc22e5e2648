"""Where the active entries of a weight lie, in the orders in which the kernels read them.

The forward kernel goes through the entries output by output; the gradient of the input is the same kernel on the
transposed pattern. Both sort by blocks of inputs first, so that what a block reads stays in the first-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cigl.runtime.compile.operations import Pair

Ints = np.ndarray[Any, np.dtype[np.int32]]

_BLOCK = 128  # inputs (times the kernel's rows) whose activations are meant to stay in the first-level cache
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
        wanted = -(-inputs * taps // _BLOCK)
        blocks = int(max(1, min(wanted, len(output) // (_WORTH * outputs), inputs)))
        key, entries = output.astype(np.int64), np.arange(len(output), dtype=np.int32)
        if blocks > 1:
            block = (channel.astype(np.int64) * blocks // inputs).astype(np.uint16)  # numpy sorts these by radix
            entries = np.argsort(block, kind="stable").astype(np.int32)
            key = block[entries] * np.int64(outputs) + output[entries]
        counts = np.bincount(key, minlength=blocks * outputs)
        rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return cls(blocks, rows, entries, channel[entries], ky[entries], kx[entries])


class Pattern:
    """The active entries of a weight [O, I] or [O, I, kh, kw], at sorted row-major ``positions``.

    >>> pattern = Pattern((2, 3), (3, 1), np.array([1, 5]))
    >>> pattern.forward.channel, pattern.places
    (array([1, 2], dtype=int32), array([1, 5], dtype=int32))
    """

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], positions: np.ndarray[Any, Any]):
        self.outputs, self.inputs, kh, kw = shape if len(shape) == 4 else (*shape, 1, 1)
        self.kernel = (kh, kw)
        self.count = len(positions)
        rest, kx = np.divmod(positions.astype(np.int64), kw)
        rest, ky = np.divmod(rest, kh)
        output, channel = np.divmod(rest, self.inputs)
        steps = (*strides, 0, 0)
        place = output * steps[0] + channel * steps[1] + ky * steps[2] + kx * steps[3]
        self._output, self._channel, self._ky, self._kx = (each.astype(np.int32) for each in (output, channel, ky, kx))
        self.forward = Order.of(self._output, self._channel, self._ky, self._kx, self.outputs, self.inputs, kh)
        self.places = place[self.forward.entries].astype(np.int32)  # in the memory of the dense weight
        self._transposed: dict[Pair, tuple[Order, Ints]] = {}

    def transposed(self, stride: Pair) -> tuple[Order, Ints]:
        """For the gradient of the input, and where each of its entries stands in the forward order."""
        if stride not in self._transposed:
            self._transposed[stride] = self._transpose(stride)
        return self._transposed[stride]

    def _transpose(self, stride: Pair) -> tuple[Order, Ints]:
        """Pixels of the input that differ in their place within a stride are reached by different taps of the kernel:
        each such phase is a channel of its own.
        """
        phases = min(stride[0], self.kernel[0]), min(stride[1], self.kernel[1])
        output = (self._channel * phases[0] + self._ky % stride[0]) * phases[1] + self._kx % stride[1]
        outputs = self.inputs * phases[0] * phases[1]
        by_output = np.argsort(output.astype(np.uint16) if outputs <= 1 << 16 else output, kind="stable")
        channel, ky, kx = (each[by_output] for each in (self._output, self._ky, self._kx))
        order = Order.of(output[by_output], channel, ky, kx, outputs, self.outputs, self.kernel[0])
        place = np.empty(self.count, np.int32)
        place[self.forward.entries] = np.arange(self.count, dtype=np.int32)
        return order, place[by_output[order.entries]]
