"""Weights with many zeros that run dense all the same: where, and why. Nothing of the kind happens in silence."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cigl.common.text import percent
from cigl.runtime import recurrent
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network
from cigl.runtime.schedule import Survey

MANY = 0.5  # share of zeros from which on a weight is meant to be sparse
_LEAST = 256  # elements; nobody prunes smaller ones
_LOOKUPS = (nn.Embedding, nn.EmbeddingBag, F.embedding, torch.embedding)  # which read rows and multiply nothing
_KNOWN_IF_EXPORTED = (nn.Linear, nn.Conv2d, nn.MultiheadAttention)
_WITHOUT_EXAMPLES = "LSTM and GRU run sparse only as modules: leave out example_inputs if torch.fx can trace the model"
_EXAMPLES = "pass example_inputs, with which torch.export looks into it"


def has_many_zeros(weight: Any) -> bool:
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.dim() < 2 or weight.numel() < _LEAST:
        return False
    return int((weight != 0).sum()) <= (1 - MANY) * weight.numel()


def in_torch(network: Network, replaced: Collection[str]) -> list[str]:
    """A sentence for each reason why torch computes with such weights. ``replaced`` have kernels of their own."""
    counted = _Counted()
    many_zeros = {value for value, constant in network.constants.items() if counted(constant)}
    modules: set[nn.Module] = set()
    found: dict[tuple[str, str], None] = {}  # a weight may be read again and again
    for unit in network.units:
        call = unit.operation.call if isinstance(unit.operation, op.InTorch) else None
        if isinstance(call, nn.Module):
            if call not in modules:
                found |= dict.fromkeys(of_module(call, unit.name, replaced, counted))
            modules.add(call)
        elif call is not None and call not in _LOOKUPS:
            name = getattr(call, "__name__", None) or getattr(call, "name", None) or str(call)
            reason = _WITHOUT_EXAMPLES if name in ("lstm", "gru") else f"there is no sparse kernel for {name}"
            found |= {(network.paths[value], reason): None for value in unit.inputs if value in many_zeros}
    return messages(found)


class _Counted:
    """``has_many_zeros``, of each tensor once, however many names it has."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}

    def __call__(self, weight: Any) -> bool:
        if not isinstance(weight, Tensor) or weight.dim() < 2:
            return False
        key = (weight.data_ptr(), weight.numel())
        if key not in self._known:
            self._known[key] = has_many_zeros(weight)
        return self._known[key]


def of_module(
    module: nn.Module, path: str, replaced: Collection[str], many_zeros: Callable[[Any], bool] = has_many_zeros
) -> Iterator[tuple[str, str]]:
    """The paths of such weights in a module that torch runs, each with the reason."""
    for name, parameter in module.named_parameters():
        full = f"{path}.{name}" if path else name
        owner = module.get_submodule(name.rpartition(".")[0])
        if full in replaced or isinstance(owner, _LOOKUPS[:2]) or not many_zeros(parameter):
            continue
        if isinstance(owner, _KNOWN_IF_EXPORTED):
            yield full, f"torch.fx can't look into a {type(module).__name__}: {_EXAMPLES}"
        else:
            yield full, _no_kernel(owner)


def _no_kernel(layer: nn.Module) -> str:
    if isinstance(layer, recurrent.LAYERS) and not layer.proj_size:
        return f"torch is faster for {type(layer).__name__} layers with fewer than {percent(recurrent.ZEROS, 0)} zeros"
    return f"there is no sparse kernel for {type(layer).__name__}"


def without_kernel(network: Network, facts: Survey, possible: Collection[int]) -> dict[str, str]:
    """Layers that the kernels can't compute for inputs like these: a sentence for each name."""
    found = {}
    for number, unit in enumerate(network.units):
        if isinstance(unit.operation, op.Weighted) and number not in possible:
            weight = unit.operation.weight
            known = facts.shapes[unit.inputs[0]] is not None and facts.shapes[unit.outputs[0]] is not None
            if known and math.prod(weight.shape) >= _LEAST and weight.density <= 1 - MANY:
                found[unit.name] = (
                    f"{unit.name} has {percent(1 - weight.density, 0)} zeros and runs dense: there is no sparse kernel "
                    f"for {_described(unit.operation)} on inputs of shape {facts.shapes[unit.inputs[0]]}."
                )
    return found


def _described(layer: op.Weighted) -> str:
    """Its settings that matter to the kernels."""
    settings = [
        f"{name} {getattr(layer, name)}"
        for name in ("groups", "dilation")
        if getattr(layer, name, 1) not in (1, (1, 1))
    ]
    return " with ".join([f"a {type(layer).__name__}", *settings[:1]]) + "".join(f", {each}" for each in settings[1:])


def messages(found: Iterable[tuple[str, str]]) -> list[str]:
    """One for each reason, with the first few of its weights."""
    reasons: dict[str, list[str]] = {}
    for path, reason in found:
        reasons.setdefault(reason, []).append(path)
    return [
        f"{', '.join(paths[:3])}{f' and {len(paths) - 3} more' if len(paths) > 3 else ''}: weights with many zeros run "
        f"dense, because {reason}."
        for reason, paths in reasons.items()
    ]
