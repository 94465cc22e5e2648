"""The operations of a network, each as torch computes it.

What the kernels make of them is said in program/steps; an operation that isn't known there runs in torch.
"""

from cigl.runtime.network.operations.base import Hole, Identity, InTorch, OnLine, Operation, Pair, TensorMethod, filled
from cigl.runtime.network.operations.elementwise import (
    ACTIVATIONS,
    Activation,
    Add,
    BatchNorm,
    Concat,
    Multiply,
    Norm,
    Relu,
)
from cigl.runtime.network.operations.layers import Conv, ConvTranspose, Linear, Weighted, multiply_adds
from cigl.runtime.network.operations.windows import AvgPool, ChannelNorm, LayerNorm, MaxPool, Mean, Softmax

__all__ = [
    "ACTIVATIONS", "Activation", "Add", "AvgPool", "BatchNorm", "ChannelNorm", "Concat", "Conv", "ConvTranspose",
    "Hole", "Identity", "InTorch", "LayerNorm", "Linear", "MaxPool", "Mean", "Multiply", "Norm", "OnLine", "Operation",
    "Pair", "Relu", "Softmax", "TensorMethod", "Weighted", "filled", "multiply_adds",
]  # fmt: skip
