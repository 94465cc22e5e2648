"""The operations of a network: what torch computes, and the same as a step of a sparse program.

An operation fits a program when the kernels compute just what torch does for these shapes; otherwise torch runs it.
Inside a program a value is a number of images, each (channels, height, width) if torch has four dimensions, else
(features,).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.node import map_aggregate

from cigl.runtime.program import Program, Value
from cigl.runtime.weights import Weight

Shape = tuple[int, ...] | None  # of a float32 tensor with values; None for anything else, which no kernel takes
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


def per_image(shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """How a program sees a tensor: the number of images and the shape of each.

    >>> per_image((2, 3, 8, 8)), per_image((2, 5, 7))
    ((2, (3, 8, 8)), (10, (7,)))
    """
    return (shape[0], shape[1:]) if len(shape) == 4 else (math.prod(shape[:-1]), shape[-1:])


class Operation:
    """What a unit of a network does to its inputs."""

    outputs = 1

    def dense(self, *inputs: Any) -> Any:
        """As torch computes it."""
        raise NotImplementedError

    def fits(self, inputs: list[Shape], output: Shape) -> bool:
        """Whether the kernels can do it for these shapes."""
        return False

    def sparse(self, program: Program, *inputs: Value) -> tuple[Value, ...]:
        """The same as steps of a program."""
        raise NotImplementedError


class Same(Operation):
    """What does nothing in eval mode; never part of a network."""


def _rectified(x: Tensor, relu: bool) -> Tensor:
    """In place: only for tensors that were made just before."""
    return x.relu_() if relu else x


def _plus(x: Tensor, other: Any) -> Tensor:
    alike = isinstance(other, Tensor) and x.shape == other.shape and x.dtype == other.dtype
    return x.add_(other) if alike else x + other


def _normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(x, torch.zeros_like(scale), torch.ones_like(scale), scale, shift, eps=0.0)


@dataclass(frozen=True)
class Conv(Operation):
    """relu(conv + bias + other input). With a norm, relu(scale * sum + shift); the sum, too, where it is kept."""

    weight: Weight
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
        """Whether there are kernels for this kind of convolution."""
        return self.groups == 1 and self.dilation == (1, 1)

    def fits(self, inputs: list[Shape], output: Shape) -> bool:
        x = inputs[0]
        return self.plain and x is not None and len(x) == 4 and inputs[1:] == [output] * self.add

    def sparse(self, program: Program, *inputs: Value) -> tuple[Value, ...]:
        x, packed, other = inputs[0], self.weight.packed(), inputs[1] if self.add else None
        if self.norm is None:
            y = program.conv(x, packed, stride=self.stride, padding=self.padding, relu=self.relu, add=other)
            return (y,)
        both = program.conv_and_norm(
            x, packed, *self.norm, stride=self.stride, padding=self.padding, add=other, keep=self.keep
        )
        return both if self.keep else both[1:]


@dataclass(frozen=True)
class Linear(Operation):
    """relu(W x + b), over the last dimension."""

    weight: Weight
    relu: bool = False
    matrix: bool = False  # a batch norm was folded in, which is right for (rows, features) only

    def dense(self, x: Tensor) -> Tensor:
        if self.matrix and x.dim() != 2:
            raise RuntimeError(f"a linear layer whose batch norm was folded takes (rows, features), not {x.dim()} dims")
        return _rectified(F.linear(x, self.weight.dense(), self.weight.bias), self.relu)

    def fits(self, inputs: list[Shape], output: Shape) -> bool:
        return inputs[0] is not None and len(inputs[0]) != 4

    def sparse(self, program: Program, *inputs: Value) -> tuple[Value, ...]:
        return (program.linear(inputs[0], self.weight.packed(), relu=self.relu),)


@dataclass(frozen=True)
class Norm(Operation):
    """A batch norm in eval mode that could not be folded: scale * x + shift per channel."""

    scale: Tensor
    shift: Tensor
    relu: bool = False

    def dense(self, x: Tensor) -> Tensor:
        return _rectified(_normed(x, self.scale, self.shift), self.relu)

    def fits(self, inputs: list[Shape], output: Shape) -> bool:
        return inputs[0] is not None and len(inputs[0]) in (2, 4)

    def sparse(self, program: Program, *inputs: Value) -> tuple[Value, ...]:
        return (program.norm(inputs[0], self.scale, self.shift, relu=self.relu),)


@dataclass(frozen=True)
class Relu(Operation):
    def dense(self, x: Tensor) -> Tensor:
        return F.relu(x)

    def fits(self, inputs: list[Shape], output: Shape) -> bool:
        return bool(inputs[0])

    def sparse(self, program: Program, *inputs: Value) -> tuple[Value, ...]:
        return (program.relu(inputs[0]),)


@dataclass(frozen=True)
class Add(Operation):
    relu: bool = False

    def dense(self, a: Any, b: Any) -> Any:
        total = a + b  # of anything torch or python can add: `+` is traced before its operands are known
        return _rectified(total, self.relu) if self.relu else total

    def fits(self, inputs: list[Shape], output: Shape) -> bool:
        return len(inputs) == 2 and bool(inputs[0]) and inputs[0] == inputs[1]

    def sparse(self, program: Program, *inputs: Value) -> tuple[Value, ...]:
        return (program.add(inputs[0], inputs[1], relu=self.relu),)


@dataclass(frozen=True)
class MaxPool(Operation):
    kernel: Pair
    stride: Pair
    padding: Pair

    def dense(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel, self.stride, self.padding)

    def fits(self, inputs: list[Shape], output: Shape) -> bool:
        return inputs[0] is not None and len(inputs[0]) == 4

    def sparse(self, program: Program, *inputs: Value) -> tuple[Value, ...]:
        return (program.max_pool(inputs[0], self.kernel, self.stride, self.padding),)


@dataclass(frozen=True)
class AvgPool(Operation):
    kernel: Pair
    stride: Pair
    padding: Pair
    count_include_pad: bool

    def dense(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.kernel, self.stride, self.padding, count_include_pad=self.count_include_pad)

    def fits(self, inputs: list[Shape], output: Shape) -> bool:
        return inputs[0] is not None and len(inputs[0]) == 4

    def sparse(self, program: Program, *inputs: Value) -> tuple[Value, ...]:
        return (program.avg_pool(inputs[0], self.kernel, self.stride, self.padding, self.count_include_pad),)


@dataclass(frozen=True)
class Mean(Operation):
    """The mean of each channel over the picture; (N, C, 1, 1), or (N, C) if the dimensions are not kept."""

    dims: Pair = (-2, -1)
    keepdim: bool = True

    def dense(self, x: Tensor) -> Tensor:
        return x.mean(self.dims, keepdim=self.keepdim)

    def fits(self, inputs: list[Shape], output: Shape) -> bool:
        x = inputs[0]
        return x is not None and len(x) == 4 and {d % 4 for d in self.dims} == {2, 3}

    def sparse(self, program: Program, *inputs: Value) -> tuple[Value, ...]:
        mean = program.mean(inputs[0])
        return (mean if self.keepdim else program.flatten(mean),)


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

    def fits(self, inputs: list[Shape], output: Shape) -> bool:
        x = inputs[0] if len(inputs) == 1 else None
        return self.reshapes and x is not None and len(x) in (2, 4) and output == (x[0], math.prod(x[1:]))

    def sparse(self, program: Program, *inputs: Value) -> tuple[Value, ...]:
        return (program.flatten(inputs[0]),)
