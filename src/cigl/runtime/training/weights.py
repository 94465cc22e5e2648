"""The parameters of layers with the patterns of their active entries, read anew after each topology round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from cigl.runtime.training.nodes import Weights
from cigl.runtime.training.patterns import Pattern

Positions = np.ndarray[Any, np.dtype[np.uint32]]


class Patterns:
    """``active`` gives the sorted active positions of each sparse parameter; all others are dense."""

    def __init__(self, active: Mapping[nn.Parameter, Callable[[], Positions]]):
        self._active = active
        self._patterns: dict[tuple[nn.Parameter, tuple[int, ...]], Pattern] = {}
        self._found: dict[tuple[Pattern, nn.Parameter | None], Weights] = {}
        self._gradients: dict[nn.Parameter, tuple[StorageWeakRef, int]] = {}
        self.version = 0  # a program is of one

    def changed(self) -> None:
        self._patterns.clear()
        self._found.clear()
        self._gradients.clear()
        self.version += 1

    def of(self, weight: nn.Parameter, bias: nn.Parameter | None) -> Weights:
        """A layer's; the same object for every use of the same parameters, so that their gradients add up."""
        key = (self._pattern(weight), bias)
        if key not in self._found:
            self._found[key] = Weights(weight, bias, key[0])
        return self._found[key]

    def returned(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """A gradient that is zero outside the pattern leaves for autograd, which may add others to it."""
        self._gradients[parameter] = StorageWeakRef(gradient.untyped_storage()), gradient._version

    def made(self, parameter: nn.Parameter, gradient: Tensor) -> bool:
        """Whether this is that gradient, and nothing was written to it since."""
        found = self._gradients.get(parameter)
        if found is None or found[0].expired() or found[1] != gradient._version:
            return False
        return bool(found[0].cdata == gradient.untyped_storage()._cdata)

    def density(self, weight: nn.Parameter) -> float:
        return self._pattern(weight).count / weight.numel()

    def _pattern(self, weight: nn.Parameter) -> Pattern:
        key = (weight, weight.stride())
        if key not in self._patterns:
            active = self._active.get(weight)
            positions = np.arange(weight.numel()) if active is None else active()
            self._patterns[key] = Pattern(tuple(weight.shape), weight.stride(), positions)
        return self._patterns[key]
