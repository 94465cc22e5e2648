"""What a program records: values, and the steps between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from cigl.runtime.packed import Packed

Floats = np.ndarray[Any, np.dtype[np.float32]]
Pair = tuple[int, int]


class Kind(IntEnum):
    """As in kernels/program.h."""

    LOAD = 0
    STORE = 1
    CONV = 2
    DOT = 3
    ELEMENTWISE = 4
    SPLIT = 5
    MAX_POOL = 6
    AVG_POOL = 7
    MEAN = 8
    FLATTEN = 9


@dataclass(eq=False, frozen=True)
class Value:
    """What an operation yields, per image: (channels, height, width) or (features,)."""

    shape: tuple[int, ...]
    source: Value | None = None  # an input that this is another reading of


@dataclass
class Step:
    kind: Kind
    x: Value
    out: Value
    add: Value | None = None
    normed: Value | None = None
    keep: bool = True
    packed: Packed | None = None
    scale: Floats | None = None
    shift: Floats | None = None
    relu: bool = False
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    count_padding: bool = False

    def reads(self) -> list[Value]:
        return [self.x] if self.add is None else [self.x, self.add]

    def writes(self) -> list[Value]:
        return ([self.out] if self.keep else []) + ([] if self.normed is None else [self.normed])
