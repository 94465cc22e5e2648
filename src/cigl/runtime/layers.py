"""Sparse layers inside of modules that torch runs: where a model, or a part of it, can't be traced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cigl.runtime.compile import operations as op
from cigl.runtime.compile.network import Network
from cigl.runtime.dense import has_many_zeros

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
_LEAVES = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder, nn.TransformerDecoderLayer,
           nn.Transformer, nn.MultiheadAttention)  # which read their layers' weights without calling them  # fmt: skip

_TIED = 4  # layers with one weight


class SparseForward:
    """Stands in for a layer's forward; what is no plain tensor goes to the layer itself."""

    def __init__(self, layer: nn.Module, engine: Callable[[Tensor], Any]):
        self.layer, self.engine = layer, engine

    def __call__(self, input: Any) -> Any:
        plain = isinstance(input, Tensor) and input.dtype == torch.float32 and input.layout == torch.strided
        if plain and input.device.type == "cpu":
            return self.engine(input)
        return type(self.layer).forward(self.layer, input)


def modules_in_torch(network: Network) -> dict[str, nn.Module]:
    """The modules that torch runs, each with its first name."""
    found: dict[nn.Module, str] = {}
    for unit in network.units:
        if isinstance(unit.operation, op.InTorch) and isinstance(unit.operation.call, nn.Module):
            found.setdefault(unit.operation.call, unit.name)
    return {name: module for module, name in found.items()}


def replace_layers(
    modules: Mapping[str, nn.Module], make: Callable[[nn.Module, Any], Any], plans: Mapping[str, Any]
) -> dict[str, Any]:
    """Give every layer with many zeros an engine of its own, and return those by the layers' paths.

    Of layers with a common weight only a few do, because each holds it in its own form.
    """
    engines: dict[str, Any] = {}
    weights: Counter[int] = Counter()
    for path, module in modules.items():
        hidden = {child for each in module.modules() if isinstance(each, _LEAVES) for child in each.modules()}
        for name, layer in module.named_modules():
            if type(layer) not in _LAYERS or layer in hidden:
                continue
            weights[layer.weight.data_ptr()] += 1
            plain = not (layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer))
            if plain and weights[layer.weight.data_ptr()] <= _TIED and has_many_zeros(layer.weight):
                full = ".".join(part for part in (path, name) if part)
                engine = make(layer, plans.get(full))
                if engine is not None:
                    engines[full] = engine
                    layer.forward = SparseForward(layer, engine)
    return engines
