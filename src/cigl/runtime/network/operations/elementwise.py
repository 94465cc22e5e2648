"""Operations that compute each element by itself, and concatenation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cigl.runtime.network.operations.base import Operation

# Functions of each element by their names, which are the kernels', too. With True they may overwrite their argument.
ACTIVATIONS: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "sigmoid": lambda x, over: x.sigmoid_() if over else x.sigmoid(),
    "silu": F.silu,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "tanh": lambda x, over: x.tanh_() if over else x.tanh(),
    "mish": F.mish,
    "gelu": lambda x, over: F.gelu(x),
    "gelu_tanh": lambda x, over: F.gelu(x, approximate="tanh"),
}


def activated(x: Tensor, name: str) -> Tensor:
    """In place: only for tensors that were made just before."""
    return ACTIVATIONS[name](x, True) if name else x


def plus(x: Tensor, other: Any) -> Tensor:
    alike = isinstance(other, Tensor) and x.shape == other.shape and x.dtype == other.dtype
    return x.add_(other) if alike else x + other


def normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(x, torch.zeros_like(scale), torch.ones_like(scale), scale, shift, eps=0.0)


@dataclass(frozen=True)
class Norm(Operation):
    """A batch norm in eval mode that could not be folded: f(scale * x + shift) per channel."""

    scale: Tensor
    shift: Tensor
    activation: str = ""

    def dense(self, x: Tensor) -> Tensor:
        return activated(normed(x, self.scale, self.shift), self.activation)


class BatchNorm(Operation):
    """A batch norm in training: its statistics are the batch's. Known to training programs alone."""


@dataclass(frozen=True)
class Activation(Operation):
    """A function of each element, by its name."""

    name: str

    def dense(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.name](x, False)


@dataclass(frozen=True)
class Relu(Activation):
    """The one that training programs know, too."""

    name: str = "relu"


@dataclass(frozen=True)
class Add(Operation):
    activation: str = ""

    def dense(self, a: Any, b: Any) -> Any:
        total = a + b  # of anything torch or python can add: `+` is traced before its operands are known
        return activated(total, self.activation) if self.activation else total


@dataclass(frozen=True)
class Multiply(Operation):
    """f(a * b + other input); of a picture and a number per channel, too (squeeze and excitation)."""

    add: bool = False
    activation: str = ""

    def dense(self, a: Any, b: Any, *others: Any) -> Any:
        y = a * b  # of anything, as above
        for other in others:
            y = plus(y, other)
        return activated(y, self.activation) if self.activation else y


@dataclass(frozen=True)
class Concat(Operation):
    """``count`` tensors, side by side in one dimension."""

    dim: int
    count: int

    def dense(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, self.dim)
