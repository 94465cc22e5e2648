"""Weights with many zeros that run dense all the same: where, and why. Nothing of the kind happens in silence."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cigl.runtime.compile import operations as op
from cigl.runtime.compile.network import Network, Unit
from cigl.runtime.schedule import Survey

MANY = 0.5  # share of zeros from which on a weight is meant to be sparse
_LEAST = 256  # elements; nobody prunes smaller ones
_LOOKUPS = (nn.Embedding, nn.EmbeddingBag, F.embedding, torch.embedding)  # which read rows and multiply nothing
_EXAMPLES = "pass example_inputs, with which torch.export looks into it"


def has_many_zeros(weight: Any) -> bool:
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.dim() < 2 or weight.numel() < _LEAST:
        return False
    return int((weight != 0).sum()) <= (1 - MANY) * weight.numel()


def in_torch(network: Network, replaced: Collection[str]) -> list[str]:
    """A sentence for each reason why torch computes with such weights. ``replaced`` have kernels of their own."""
    reasons: dict[str, list[str]] = {}
    for unit in network.units:
        if isinstance(unit.operation, op.InTorch):
            for path, reason in _weights(network, unit, unit.operation, replaced):
                reasons.setdefault(reason, []).append(path)
    return [_sentence(paths, reason) for reason, paths in reasons.items()]


def _weights(network: Network, unit: Unit, call: op.InTorch, replaced: Collection[str]) -> Iterator[tuple[str, str]]:
    if call.call in _LOOKUPS or isinstance(call.call, _LOOKUPS[:2]):
        return
    if isinstance(call.call, nn.Module):
        kind = type(call.call).__name__
        for name, parameter in call.call.named_parameters():
            path = f"{unit.name}.{name}"
            if path not in replaced and has_many_zeros(parameter):
                yield path, f"there is no sparse kernel for a {kind}, or it has hooks; {_EXAMPLES}"
    else:
        name = getattr(call.call, "__name__", None) or getattr(call.call, "name", None) or str(call.call)
        for value in unit.inputs:
            if has_many_zeros(network.constants.get(value)):
                yield network.paths[value], f"there is no sparse kernel for {name}"


def without_kernel(network: Network, facts: Survey, possible: Collection[int]) -> dict[str, str]:
    """Layers that the kernels can't compute for inputs like these: a sentence for each name."""
    found = {}
    for number, unit in enumerate(network.units):
        if isinstance(unit.operation, op.Layer) and number not in possible:
            weight = unit.operation.weight
            if weight.density <= 1 - MANY and weight.nonzeros >= 0 and _numel(weight.shape) >= _LEAST:
                found[unit.name] = (
                    f"{unit.name} has {1 - weight.density:.0%} zeros and runs dense: there is no sparse kernel for "
                    f"{_described(unit.operation)} on inputs of shape {facts.shapes[unit.inputs[0]]}."
                )
    return found


def _numel(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _described(layer: op.Layer) -> str:
    """Its settings that matter to the kernels."""
    settings = [
        f"{name} {getattr(layer, name)}" for name in ("groups", "dilation") if getattr(layer, name, 1) not in (1, (1, 1))
    ]
    return " with ".join([f"a {type(layer).__name__}", *settings[:1]]) + "".join(f", {each}" for each in settings[1:])


def _sentence(paths: list[str], reason: str) -> str:
    names = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    return f"{names}: weights with many zeros run dense, because {reason}."
