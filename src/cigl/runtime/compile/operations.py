"""The operations of a network, each as torch computes it.

What the kernels make of them is said in program/steps.py; an operation that isn't known there runs in torch.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.node import map_aggregate

from cigl.runtime.compile.weights import Weight

Pair = tuple[int, int]


@dataclass(frozen=True)
class Hole:
    """Where in a traced call's arguments an input goes."""

    number: int


def filled(arguments: Any, inputs: Sequence[Any] | Mapping[int, Any]) -> Any:
    """Nested arguments with the inputs in their holes.

    >>> filled(((Hole(1), Hole(0)), 7), ("a", "b"))
    (('b', 'a'), 7)
    """
    if isinstance(arguments, Hole):
        return inputs[arguments.number]
    return map_aggregate(arguments, lambda leaf: inputs[leaf.number] if isinstance(leaf, Hole) else leaf)


@dataclass(frozen=True)
class Method:
    """A tensor's method as a function."""

    name: str

    def __call__(self, x: Any, *arguments: Any, **keywords: Any) -> Any:
        return getattr(x, self.name)(*arguments, **keywords)


class Operation:
    """What a unit of a network does to its inputs."""

    outputs = 1

    def dense(self, *inputs: Any) -> Any:
        """As torch computes it."""
        raise NotImplementedError


class Identity(Operation):
    """What does nothing in eval mode; never part of a network."""


@dataclass(frozen=True)
class Layer(Operation):
    """An operation with a weight."""

    weight: Weight

    @property
    def plain(self) -> bool:
        """Whether every output sees all inputs, side by side: neither in groups nor dilated."""
        return True


def _rectified(x: Tensor, relu: bool) -> Tensor:
    """In place: only for tensors that were made just before."""
    return x.relu_() if relu else x


def _plus(x: Tensor, other: Any) -> Tensor:
    alike = isinstance(other, Tensor) and x.shape == other.shape and x.dtype == other.dtype
    return x.add_(other) if alike else x + other


def _normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(x, torch.zeros_like(scale), torch.ones_like(scale), scale, shift, eps=0.0)


@dataclass(frozen=True)
class Conv(Layer):
    """relu(conv + bias + other input). With a norm, relu(scale * sum + shift); the sum, too, where it is kept."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    add: bool = False
    relu: bool = False
    norm: tuple[Tensor, Tensor] | None = None
    keep: bool = False

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return 2 if self.keep else 1

    def dense(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        weight = self.weight.dense()
        y = F.conv2d(inputs[0], weight, self.weight.bias, self.stride, self.padding, self.dilation, self.groups)
        if self.add:
            y = _plus(y, inputs[1])
        if self.norm is None:
            return _rectified(y, self.relu)
        normed = _normed(y, *self.norm).relu_()
        return (y, normed) if self.keep else normed

    @property
    def plain(self) -> bool:
        return self.groups == 1 and self.dilation == (1, 1)


@dataclass(frozen=True)
class Linear(Layer):
    """relu(W x + b), over the last dimension."""

    relu: bool = False
    matrix: bool = False  # a batch norm was folded in, which is right for (rows, features) only

    def dense(self, x: Tensor) -> Tensor:
        if self.matrix and x.dim() != 2:
            raise RuntimeError(f"a linear layer whose batch norm was folded takes (rows, features), not {x.dim()} dims")
        return _rectified(F.linear(x, self.weight.dense(), self.weight.bias), self.relu)


@dataclass(frozen=True)
class Norm(Operation):
    """A batch norm in eval mode that could not be folded: scale * x + shift per channel."""

    scale: Tensor
    shift: Tensor
    relu: bool = False

    def dense(self, x: Tensor) -> Tensor:
        return _rectified(_normed(x, self.scale, self.shift), self.relu)


class BatchNorm(Operation):
    """A batch norm in training: its statistics are the batch's. Known to training programs alone."""


@dataclass(frozen=True)
class Relu(Operation):
    def dense(self, x: Tensor) -> Tensor:
        return F.relu(x)


@dataclass(frozen=True)
class Add(Operation):
    relu: bool = False

    def dense(self, a: Any, b: Any) -> Any:
        total = a + b  # of anything torch or python can add: `+` is traced before its operands are known
        return _rectified(total, self.relu) if self.relu else total


@dataclass(frozen=True)
class MaxPool(Operation):
    kernel: Pair
    stride: Pair
    padding: Pair

    def dense(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel, self.stride, self.padding)


@dataclass(frozen=True)
class AvgPool(Operation):
    kernel: Pair
    stride: Pair
    padding: Pair
    count_include_pad: bool

    def dense(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.kernel, self.stride, self.padding, count_include_pad=self.count_include_pad)


@dataclass(frozen=True)
class Mean(Operation):
    """The mean of each channel over the picture; (N, C, 1, 1), or (N, C) if the dimensions are not kept."""

    dims: Pair = (-2, -1)
    keepdim: bool = True

    def dense(self, x: Tensor) -> Tensor:
        return x.mean(self.dims, keepdim=self.keepdim)


@dataclass(frozen=True)
class InTorch(Operation):
    """Any other call that was traced: the arguments with the inputs put in where a Hole stands."""

    call: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    copies: bool = False  # it changes its first input in place, or whatever a user's module may change: of a copy
    reshapes: bool = False  # a view, reshape or flatten: in a program, if each image becomes one row
    of_shape: bool = False  # it looks at a tensor's shape and not at its values

    @property
    def keeps_sure(self) -> bool:
        """Whether the result's shape follows from the inputs' shapes, as far as we know."""
        return self.reshapes or type(self.call).__module__.startswith("torch.nn.modules")

    def dense(self, *inputs: Any) -> Any:
        if self.copies:
            inputs = tuple(each.clone() if isinstance(each, Tensor) else each for each in inputs)
        result = self.call(*filled(self.arguments, inputs), **filled(self.keywords, inputs))
        return inputs[0] if self.call is operator.setitem else result
