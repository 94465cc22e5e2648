"""Steps: calls of kernels, on values of so many images.

In a program a value is a number of images, each (channels, height, width) if torch has four dimensions, else
(features,). What steps an operation becomes is said in emitting.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from cigl.runtime.network.operations import Pair

if TYPE_CHECKING:
    from cigl.runtime.program.packed import Packed

Floats = np.ndarray[Any, np.dtype[np.float32]]
Shape = tuple[int, ...] | None  # of a float32 tensor with values; None for anything else, which no kernel takes


class Kind(IntEnum):
    """The kernels, in the order of the lists at the end of conv.h, plain.h, training.h, gradients.h and channels.h."""

    CONV = 0
    LOAD = 1
    STORE = 2
    DOT = 3
    ELEMENTWISE = 4
    SPLIT = 5
    MAX_POOL = 6
    AVG_POOL = 7
    MEAN = 8
    FLATTEN = 9
    AFFINE = 10
    STATISTICS = 11
    MASK = 12
    NORM = 13
    NORM_GRADIENT = 14
    SUM_BLOCKS = 15
    WEIGHT_GRADIENT = 16
    MERGE = 17
    MAX_POOL_GRADIENT = 18
    AVG_POOL_GRADIENT = 19
    MEAN_GRADIENT = 20
    UNFLATTEN = 21
    SCATTER = 22
    LAYER_NORM = 23
    SOFTMAX = 24
    SHUFFLE = 25


@dataclass(eq=False, frozen=True)
class Value:
    """What a step computes, per image: (channels, height, width) or (features,)."""

    shape: tuple[int, ...]


@dataclass
class Step:
    """One call of a kernel; what its fields mean is said in kernels/program.h."""

    kind: Kind
    x: Value
    out: Value
    add: Value | None = None
    gate: Value | None = None
    parts: tuple[Value, ...] = ()  # that `out` consists of; copied, unless they lie there already
    normed: Value | None = None
    keep: bool = True  # whether `out` is written; a convolution with a norm may write `normed` alone
    packed: Packed | None = None
    scale: Floats | None = None
    shift: Floats | None = None
    eps: float = 0.0
    activation: str = ""
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    count_padding: bool = False

    def reads(self) -> tuple[Value, ...]:
        others = (each for each in (self.add, self.gate) if each is not None)
        return (*(self.parts or (self.x,)), *others)

    def writes(self) -> tuple[Value, ...]:
        return (self.out,) * self.keep + (() if self.normed is None else (self.normed,))


def per_image(shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """How a program sees a tensor: the number of images and the shape of each.

    >>> per_image((2, 3, 8, 8)), per_image((2, 5, 7))
    ((2, (3, 8, 8)), (10, (7,)))
    """
    return (shape[0], shape[1:]) if len(shape) == 4 else (math.prod(shape[:-1]), shape[-1:])
