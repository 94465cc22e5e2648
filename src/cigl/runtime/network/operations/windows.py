"""Norms over rows and channels, softmax, pooling and means."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from cigl.runtime.network.operations.base import Operation, Pair


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
