"""The parameters of layers with the patterns of their active entries, read anew after each topology round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cigl.runtime.training.nodes import Weights
from cigl.runtime.training.patterns import Pattern

Positions = np.ndarray[Any, np.dtype[np.uint32]]


class Patterns:
    """``active`` gives the sorted active positions of each sparse parameter; all others are dense."""

    def __init__(self, active: Mapping[nn.Parameter, Callable[[], Positions]]):
        self._active = active
        self._patterns: dict[tuple[nn.Parameter, tuple[int, ...]], Pattern] = {}
        self._found: dict[tuple[Pattern, nn.Parameter | None], Weights] = {}
        self._gradients: dict[nn.Parameter, _Gradient] = {}
        self._lent: dict[nn.Parameter, None] = {}  # gradients of the step under way
        self._is_apart = False
        self.version = 0  # a program is of one
        self.second_derivatives = False  # whether the training asks for any

    def is_sparse(self, weight: Tensor) -> bool:
        return weight in self._active

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

    def switch_off(self, weight: nn.Parameter, key: int, threshold: int) -> None:
        """Draw Z over the active entries of a weight, for the step under way."""
        self._pattern(weight).switch_off(key, threshold)

    def under_z(self, weight: nn.Parameter, tensor: Tensor) -> Tensor:
        """The weight's ``tensor`` without what is switched off here."""
        if weight not in self._active or (pattern := self._pattern(weight)).off is None:
            return tensor
        off = torch.zeros(weight.numel(), dtype=torch.bool)
        off[torch.from_numpy(pattern.switched_off())] = True
        return tensor.masked_fill(off.view(weight.shape), 0.0)

    def end_step(self) -> None:
        """Nothing is switched off any more."""
        for pattern in self._patterns.values():
            pattern.off = None
        self._lent.clear()

    def computed(self) -> list[tuple[nn.Parameter, Pattern]]:
        """The sparse parameters whose gradient, or a part of it, was computed on their patterns in this step."""
        return [(weight, self._pattern(weight)) for weight in self._lent if weight in self._active]

    # Gradients

    def gradient(self, weight: nn.Parameter) -> Tensor:
        """A dense tensor that is zero outside the pattern: the last step's, if nobody has it any more."""
        if self._is_apart:
            return torch.zeros_like(weight)
        pattern, last = self._pattern(weight), self._gradients.get(weight)
        if last is None or last.pattern is not pattern or not last.is_free():
            last = self._gradients[weight] = _Gradient(torch.zeros_like(weight), pattern)
        self._lent[weight] = None
        return last.lend()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Gradients are computed for something else than the step under way."""
        self._is_apart = True
        try:
            yield
        finally:
            self._is_apart = False

    def at_active(self, weight: nn.Parameter, gradient: Tensor) -> Tensor:
        """A gradient where kernels compute one."""
        if weight not in self._active:
            return gradient
        return gradient.reshape(-1)[torch.from_numpy(self._active[weight]().astype(np.int64))]

    def has_lent(self, weight: nn.Parameter) -> bool:
        """Whether a gradient was asked for in the step under way."""
        return weight in self._lent

    def made(self, weight: nn.Parameter, gradient: Tensor) -> bool:
        """Whether this is the gradient that was lent last, and nothing was written to it since."""
        last = self._gradients.get(weight)
        return last is not None and last.is_same(gradient) and last.version == gradient._version

    def masked(self, weight: nn.Parameter, gradient: Tensor) -> None:
        """Whatever was written to it, it is zero outside the pattern now."""
        last = self._gradients.get(weight)
        if last is not None and last.is_same(gradient):
            last.version = gradient._version

    def density(self, weight: nn.Parameter) -> float:
        return self._pattern(weight).count / weight.numel()

    def _pattern(self, weight: nn.Parameter) -> Pattern:
        key = (weight, weight.stride())
        if key not in self._patterns:
            active = self._active.get(weight)
            positions = np.arange(weight.numel()) if active is None else active()
            self._patterns[key] = Pattern(tuple(weight.shape), weight.stride(), positions)
        return self._patterns[key]


class _Gradient:
    """A dense gradient that is used again and again: to fill a new one with zeros would take longer than the rest.

    The user's ``p.grad`` shares its memory, and with it the count of changes in place.
    """

    def __init__(self, tensor: Tensor, pattern: Pattern):
        self._tensor, self.pattern = tensor, pattern
        self.version = tensor._version  # at which it is known to be zero outside the pattern

    def lend(self) -> Tensor:
        return self._tensor.detach()

    def is_free(self) -> bool:
        """Whether nobody else holds its memory, and nobody has written outside the pattern."""
        users = torch._C._storage_Use_Count(self._tensor.untyped_storage()._cdata)
        return users <= _OWN_USERS and self.version == self._tensor._version

    def is_same(self, gradient: Tensor) -> bool:
        return self._tensor.data_ptr() == gradient.data_ptr()  # alive as long as it is held here


_OWN_USERS = 2  # the tensor above and the storage object that is asked
