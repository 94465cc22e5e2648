"""The operations of a network, each as torch computes it.

What the kernels make of them is said in program/steps.py; an operation that isn't known there runs in torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
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

    def result_shape(self, x: tuple[int, ...]) -> tuple[int, ...] | None:
        """Of what ``dense`` makes of an input of this shape; None if it takes no such input."""
        raise NotImplementedError


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


def _activated(x: Tensor, name: str) -> Tensor:
    """In place: only for tensors that were made just before."""
    return ACTIVATIONS[name](x, True) if name else x


def _plus(x: Tensor, other: Any) -> Tensor:
    alike = isinstance(other, Tensor) and x.shape == other.shape and x.dtype == other.dtype
    return x.add_(other) if alike else x + other


def _normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(x, torch.zeros_like(scale), torch.ones_like(scale), scale, shift, eps=0.0)


@dataclass(frozen=True)
class Conv(Layer):
    """f(conv + bias + other input). With a norm, f(scale * sum + shift); the sum, too, where it is kept."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    add: bool = False
    activation: str = ""
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
            return _activated(y, self.activation)
        normed = _activated(_normed(y, *self.norm), self.activation)
        return (y, normed) if self.keep else normed

    @property
    def plain(self) -> bool:
        return self.groups == 1 and self.dilation == (1, 1)

    def result_shape(self, x: tuple[int, ...]) -> tuple[int, ...] | None:
        outputs, inputs, *kernel = self.weight.shape
        if len(x) != 4 or x[1] != inputs * self.groups:
            return None
        sizes = [
            (x[i + 2] + 2 * self.padding[i] - self.dilation[i] * (kernel[i] - 1) - 1) // self.stride[i] + 1
            for i in (0, 1)
        ]
        return (x[0], outputs, *sizes) if min(sizes) > 0 else None


@dataclass(frozen=True)
class ConvTranspose(Layer):
    """f(transposed convolution + bias). The weight is that of the convolution which computes, at each pixel of the
    input, the ``stride`` by ``stride`` pixels of the output that begin there, all of them as channels."""

    stride: Pair = (1, 1)
    crop: tuple[int, int, int, int] = (0, 0, 0, 0)  # rows and columns less than that: above, below, left, right
    activation: str = ""

    @classmethod
    def made(
        cls, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, output_padding: Pair
    ) -> ConvTranspose:
        """From what nn.ConvTranspose2d has; a TypeError where nothing but the bias reaches a pixel, or where a stride
        that is much longer than the kernel would make a small weight huge."""
        inputs, outputs, *kernel = weight.shape
        taps = [-(-kernel[i] // stride[i]) for i in (0, 1)]
        size = inputs * outputs * taps[0] * stride[0] * taps[1] * stride[1]
        if size > max(4 * weight.numel(), 1 << 16):
            raise TypeError
        whole = F.pad(weight, (0, taps[1] * stride[1] - kernel[1], 0, taps[0] * stride[0] - kernel[0]))
        parts = whole.reshape(inputs, outputs, taps[0], stride[0], taps[1], stride[1])
        turned = parts.permute(1, 3, 5, 0, 2, 4).reshape(-1, inputs, *taps).flip(2, 3)
        ends = [taps[i] * stride[i] - kernel[i] + padding[i] - output_padding[i] for i in (0, 1)]
        if min(ends) < 0:
            raise TypeError
        repeated = None if bias is None else bias.repeat_interleave(stride[0] * stride[1])
        return cls(Weight(turned, repeated), stride, (padding[0], ends[0], padding[1], ends[1]))

    @property
    def padding(self) -> Pair:
        return self.weight.shape[2] - 1, self.weight.shape[3] - 1

    @property
    def plain(self) -> bool:
        return False

    def result_shape(self, x: tuple[int, ...]) -> tuple[int, ...] | None:
        outputs, inputs, *taps = self.weight.shape
        if len(x) != 4 or x[1] != inputs:
            return None
        sizes = [(x[i + 2] + taps[i] - 1) * self.stride[i] - self.crop[2 * i] - self.crop[2 * i + 1] for i in (0, 1)]
        return (x[0], outputs // (self.stride[0] * self.stride[1]), *sizes) if min(sizes) > 0 else None

    def dense(self, x: Tensor) -> Tensor:
        y = F.conv2d(x, self.weight.dense(), self.weight.bias, 1, self.padding)
        (a, b), (*images, channels, height, width) = self.stride, y.shape
        y = y.view(*images, channels // (a * b), a, b, height, width).movedim((-4, -3), (-3, -1))
        y = y.reshape(*images, channels // (a * b), height * a, width * b)
        above, below, left, right = self.crop
        return _activated(y[..., above : height * a - below, left : width * b - right].contiguous(), self.activation)


@dataclass(frozen=True)
class Linear(Layer):
    """f(W x + b + other input), over the last dimension."""

    add: bool = False
    activation: str = ""
    matrix: bool = False  # a batch norm was folded in, which is right for (rows, features) only

    def dense(self, x: Tensor, *others: Any) -> Tensor:
        if self.matrix and x.dim() != 2:
            raise RuntimeError(f"a linear layer whose batch norm was folded takes (rows, features), not {x.dim()} dims")
        y = F.linear(x, self.weight.dense(), self.weight.bias)
        for other in others:
            y = _plus(y, other)
        return _activated(y, self.activation)

    def result_shape(self, x: tuple[int, ...]) -> tuple[int, ...] | None:
        outputs, inputs = self.weight.shape
        return None if not x or x[-1] != inputs or (self.matrix and len(x) != 2) else (*x[:-1], outputs)


@dataclass(frozen=True)
class Norm(Operation):
    """A batch norm in eval mode that could not be folded: f(scale * x + shift) per channel."""

    scale: Tensor
    shift: Tensor
    activation: str = ""

    def dense(self, x: Tensor) -> Tensor:
        return _activated(_normed(x, self.scale, self.shift), self.activation)


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
        return _activated(total, self.activation) if self.activation else total


@dataclass(frozen=True)
class Multiply(Operation):
    """f(a * b + other input); of a picture and a number per channel, too (squeeze and excitation)."""

    add: bool = False
    activation: str = ""

    def dense(self, a: Any, b: Any, *others: Any) -> Any:
        y = a * b  # of anything, as above
        for other in others:
            y = _plus(y, other)
        return _activated(y, self.activation) if self.activation else y


@dataclass(frozen=True)
class Concat(Operation):
    """``count`` tensors, side by side in one dimension."""

    dim: int
    count: int

    def dense(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, self.dim)


@dataclass(frozen=True)
class LayerNorm(Operation):
    """Over the last dimension; a missing weight is one, a missing bias zero."""

    features: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def dense(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.features,), self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class ChannelNorm(LayerNorm):
    """A layer norm over the channels of each pixel."""

    def dense(self, x: Tensor) -> Tensor:
        return super().dense(x.movedim(1, -1)).movedim(-1, 1)


@dataclass(frozen=True)
class Softmax(Operation):
    dim: int

    def dense(self, x: Tensor) -> Tensor:
        return F.softmax(x, self.dim)


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
class OnLine(Operation):
    """An operation of one dimension: that of two, on pictures of height 1."""

    operation: Operation

    def dense(self, x: Tensor) -> Any:
        return self.operation.dense(x.unsqueeze(-2)).squeeze(-2)


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
