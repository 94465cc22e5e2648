"""Sparse layers inside of modules that torch runs: where a model, or a part of it, can't be traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cigl.runtime.dense import has_many_zeros

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
_LEAVES = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder, nn.TransformerDecoderLayer,
           nn.Transformer, nn.MultiheadAttention)  # which read their layers' weights without calling them  # fmt: skip


class SparseForward:
    """Stands in for a layer's forward; what is no plain tensor goes to the layer itself."""

    def __init__(self, layer: nn.Module, engine: Callable[[Tensor], Any]):
        self.layer, self.engine = layer, engine

    def __call__(self, input: Any) -> Any:
        plain = isinstance(input, Tensor) and input.dtype == torch.float32 and input.layout == torch.strided
        if plain and input.device.type == "cpu":
            return self.engine(input)
        return type(self.layer).forward(self.layer, input)


def replace_layers(
    module: nn.Module, path: str, make: Callable[[nn.Module, Any], Any], plans: Mapping[str, Any]
) -> dict[str, Any]:
    """Give every layer with many zeros an engine of its own, and return those by the layers' paths."""
    engines: dict[str, Any] = {}
    hidden = [child for each in module.modules() if isinstance(each, _LEAVES) for child in each.modules()]
    for name, layer in module.named_modules():
        if type(layer) not in _LAYERS or any(layer is each for each in hidden):
            continue
        plain = not (layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer))
        if plain and has_many_zeros(layer.weight):
            full = ".".join(part for part in (path, name) if part)
            engine = make(layer, plans.get(full))
            if engine is not None:
                engines[full] = engine
                layer.forward = SparseForward(layer, engine)
    return engines
