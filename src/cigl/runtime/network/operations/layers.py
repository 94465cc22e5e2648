"""Layers: operations with a weight, and what is fused into them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from cigl.runtime.network.operations.base import Operation, Pair
from cigl.runtime.network.operations.elementwise import activated, normed, plus
from cigl.runtime.network.weights import Weight


def multiply_adds(weights: int, channels: int, output: Sequence[int]) -> int:
    """Of a layer with so many weights (or non-zeros) for so many channels, which it uses at each place of its output.

    >>> multiply_adds(10 * 20, 10, output=(64, 10, 8, 8)) == 64 * 8 * 8 * 200
    True
    """
    return weights * math.prod(output) // channels


@dataclass(frozen=True)
class Weighted(Operation):
    """An operation with a weight."""

    weight: Weight

    @property
    def plain(self) -> bool:
        """Whether every output sees all inputs, side by side: neither in groups nor dilated."""
        return True

    def result_shape(self, x: tuple[int, ...]) -> tuple[int, ...] | None:
        """Of what ``dense`` makes of an input of this shape; None if it takes no such input."""
        raise NotImplementedError


@dataclass(frozen=True)
class Conv(Weighted):
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
            y = plus(y, inputs[1])
        if self.norm is None:
            return activated(y, self.activation)
        last = activated(normed(y, *self.norm), self.activation)
        return (y, last) if self.keep else last

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
class ConvTranspose(Weighted):
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
        return activated(y[..., above : height * a - below, left : width * b - right].contiguous(), self.activation)


@dataclass(frozen=True)
class Linear(Weighted):
    """f(W x + b + other input), over the last dimension."""

    add: bool = False
    activation: str = ""
    matrix: bool = False  # a batch norm was folded in, which is right for (rows, features) only

    def dense(self, x: Tensor, *others: Any) -> Tensor:
        if self.matrix and x.dim() != 2:
            raise RuntimeError(f"a linear layer whose batch norm was folded takes (rows, features), not {x.dim()} dims")
        y = F.linear(x, self.weight.dense(), self.weight.bias)
        for other in others:
            y = plus(y, other)
        return activated(y, self.activation)

    def result_shape(self, x: tuple[int, ...]) -> tuple[int, ...] | None:
        outputs, inputs = self.weight.shape
        return None if not x or x[-1] != inputs or (self.matrix and len(x) != 2) else (*x[:-1], outputs)
