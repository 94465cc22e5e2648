"""At how many places a layer's weights are used, which its FLOPs go by."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.rnn import PackedSequence

from cigl.sparsify.parameters.geometry import of_transformers
from cigl.sparsify.parameters.layer import Layer


def uses(layer: Layer, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> int:
    """Of each weight, in one call of the module; 0 where nothing is multiplied (an embedding) or nothing is known."""
    kinds, outputs = of_transformers(module), layer.shape[0]
    if isinstance(module, nn.MultiheadAttention):
        return int(output[0].numel() // module.embed_dim)
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return _elements(inputs, 0) // int(module.input_size)
    if isinstance(module, _ConvTransposeNd):
        return _elements(inputs, 0) // module.in_channels
    if any(kind.endswith("Experts") for kind in kinds):  # the second argument gives each token a few experts
        return math.ceil(_elements(inputs, 1) / layer.shape[0])
    if "Conv1D" in kinds:
        outputs = layer.shape[1]
    elif not isinstance(module, (nn.Linear, _ConvNd, nn.Bilinear)):
        return 0
    return int(output.numel() // outputs)


def _elements(inputs: tuple[Any, ...], number: int) -> int:
    """Of an argument that was passed by position."""
    x = inputs[number] if len(inputs) > number else None
    x = x.data if isinstance(x, PackedSequence) else x
    return x.numel() if isinstance(x, Tensor) else 0
