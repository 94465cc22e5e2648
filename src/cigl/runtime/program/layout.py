"""How a value lies in memory.

A batch of at least a vector's width lies with its images side by side: a vector is one pixel of 8 (or 16) images,
a value is [row][channel][pixel][image], and every tap of every convolution is an aligned load. A smaller batch, or one
of large images, is run image by image, with neighbouring pixels in a vector: [channel][row][pixel]. A network without
pixels takes several vectors of images at once, where others have pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cigl.runtime.program.interface import View

_ALIGN = 16  # floats: a cache line
_LARGE = 1 << 20  # floats: where a value of several images side by side would live in memory, not in a cache
_WIDEST = 8  # vectors of images side by side in networks without pixels


def up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def vectors_of(images: int, width: int) -> int:
    """Vectors of images side by side in a network without pixels.

    >>> vectors_of(20, 8), vectors_of(1000, 8)
    (4, 8)
    """
    vectors = 1
    while vectors < _WIDEST and vectors * width < images:
        vectors *= 2
    return vectors


@dataclass(frozen=True)
class Layout:
    """Vectors of ``width`` floats that hold ``lanes`` images (or one: pixels), ``spread`` of them side by side."""

    width: int
    lanes: int
    spread: int

    @classmethod
    def choose(cls, images: int, width: int, shapes: Sequence[tuple[int, ...]]) -> Layout:
        """For vectors of ``width`` floats and values of these shapes."""
        flat = all(len(shape) == 1 for shape in shapes)
        large = not flat and max(math.prod(shape) for shape in shapes) * width > _LARGE
        if images == 1 or large or (images < width and not flat):
            return cls(width, 1, 1)
        return cls(width, width, vectors_of(images, width) if flat else 1)

    @property
    def block(self) -> int:
        """Images that run through the whole program together."""
        return self.lanes * self.spread

    def view(self, shape: tuple[int, ...], padding: tuple[int, int]) -> tuple[View, int]:
        """A value's place if it began at 0, and the floats it takes. Neighbours share the padding between them."""
        channels, height, columns = (*shape, 1, self.spread)[:3] if len(shape) == 1 else shape
        y, x = padding
        if self.lanes > 1:
            gap = max(x, int(columns > 8))  # channels a power of two apart would share a few lines of the cache
            channel = (columns + gap) * self.lanes
            row = channels * channel
            first = y * row + x * self.lanes
            size = first + (height + y) * row
        elif len(shape) == 1:  # read one by one, not as vectors
            return View(0, 1, 1, channels, 1, 1), up(channels, _ALIGN)
        else:
            row = up(columns + x, self.width)
            channel = (height + y) * row
            channel += _ALIGN * (channel % 256 == 0)  # as above
            first = y * row + up(x, self.width)
            size = first + channels * channel + up(x, self.width)
        return View(first, row, channel, channels, height, columns), up(size, _ALIGN)
