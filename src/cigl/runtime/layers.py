"""Sparse layers inside of modules that torch runs: where a model, or a part of it, can't be traced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cigl.runtime.dense import has_many_zeros
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network
from cigl.runtime.program import library
from cigl.runtime.recurrent import SparseRecurrent, takes

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


def without_engines(model: nn.Module) -> nn.Module:
    """The model with its layers as they were before ``replace_layers``."""
    for module in model.modules():
        if isinstance(vars(module).get("forward"), (SparseForward, SparseRecurrent)):
            del module.forward
    return model


def modules_in_torch(network: Network) -> dict[str, nn.Module]:
    """The modules that torch runs, each with its first name."""
    found: dict[nn.Module, str] = {}
    for unit in network.units:
        if isinstance(unit.operation, op.InTorch) and isinstance(unit.operation.call, nn.Module):
            found.setdefault(unit.operation.call, unit.name)
    return {name: module for module, name in found.items()}


class Replaced(NamedTuple):
    """Engines by the paths of their layers, and the weights that torch no longer computes with."""

    engines: dict[str, Any]
    weights: set[str]


def replace_layers(
    modules: Mapping[str, nn.Module], make: Callable[[nn.Module, Any], Any], plans: Mapping[str, Any]
) -> Replaced:
    """Give every layer with many zeros an engine of its own.

    Of layers with a common weight only a few do, because each holds it in its own form.
    """
    replaced = Replaced({}, set())
    weights: Counter[int] = Counter()

    def engine(layer: nn.Module, name: str, place: str = "") -> Any:
        path = f"{place}.{name}" if place else name
        found = make(layer, plans.get(path))
        if found is not None:
            replaced.engines[path] = found
        return found

    for path, module in modules.items():
        hidden = {child for each in module.modules() if isinstance(each, _LEAVES) for child in each.modules()}
        for name, layer in module.named_modules(prefix=path):
            if layer in hidden or layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
                continue
            if type(layer) in _LAYERS:
                weights[layer.weight.data_ptr()] += 1
                many = weights[layer.weight.data_ptr()] <= _TIED and has_many_zeros(layer.weight)
                if not many or (found := engine(layer, name)) is None:
                    continue
                layer.forward = SparseForward(layer, found)
            elif library.available() and takes(layer):
                # the linear layers of its inputs have engines by the names of their weights
                layer.forward = SparseRecurrent(layer, partial(engine, place=name))
            else:
                continue
            own = (each for each, _ in layer.named_parameters(prefix=name))
            replaced.weights.update(each for each in own if each.rpartition(".")[2].startswith("weight"))
    return replaced
