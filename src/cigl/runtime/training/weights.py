"""The parameters of layers with the patterns of their active entries, read anew after each topology round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from cigl.runtime.training.nodes import Weights
from cigl.runtime.training.patterns import Pattern

Positions = np.ndarray[Any, np.dtype[np.uint32]]


class Patterns:
    """``active`` gives the sorted active positions of each sparse parameter; all others are dense."""

    def __init__(self, active: Mapping[nn.Parameter, Callable[[], Positions]]):
        self._active = active
        self._patterns: dict[nn.Parameter, Pattern] = {}
        self._found: dict[tuple[nn.Parameter, nn.Parameter | None], Weights] = {}
        self.version = 0  # a program is of one

    def changed(self) -> None:
        self._patterns.clear()
        self._found.clear()
        self.version += 1

    def of(self, weight: nn.Parameter, bias: nn.Parameter | None) -> Weights:
        """A layer's; the same object for every use of the same parameters, so that their gradients add up."""
        key = (weight, bias)
        if key not in self._found:
            self._found[key] = Weights(weight, bias, self._pattern(weight))
        return self._found[key]

    def density(self, weight: nn.Parameter) -> float:
        return self._pattern(weight).count / weight.numel()

    def _pattern(self, weight: nn.Parameter) -> Pattern:
        if weight not in self._patterns:
            active = self._active.get(weight)
            positions = np.arange(weight.numel()) if active is None else active()
            self._patterns[weight] = Pattern(tuple(weight.shape), weight.stride(), positions)
        return self._patterns[weight]
