"""Fewer, larger units: batch norm folded into weights; sums, activations and second norms done by the layer before.

All of it holds for every input shape: where a fused unit doesn't fit the kernels, torch computes the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from cigl.runtime.compile.pictures import as_pictures
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network, Unit
from cigl.runtime.network.weights import Weight

Rule = Callable[[op.Operation, op.Operation, bool], op.Operation | None]


def fuse(network: Network) -> None:
    """Folding comes first, because it leaves nothing to do; a norm needs its activation before a layer takes both."""
    as_pictures(network)
    for rule in (_Fold(), _sum, _activate, _norm_behind):
        _apply(network, rule)


def _apply(network: Network, rule: Rule) -> None:
    """Join each unit with the writer of one of its inputs, wherever the rule knows how."""
    readers = Counter(network.results())
    for unit in network.units:
        readers.update(unit.inputs)
    units: dict[int, Unit] = {}
    writer: dict[int, int] = {}
    for place, later in enumerate(network.units):
        for value in reversed(later.inputs):
            earlier = units.get(writer.get(value, -1))
            operation = earlier and rule(earlier.operation, later.operation, readers[value] > 1)
            if earlier and operation:
                others = tuple(other for other in later.inputs if other != value)
                if network.constants.keys() & set(others):  # the kernels add what is computed alone
                    break
                kept = earlier.outputs if operation.outputs == 2 else ()
                later = Unit(earlier.name, operation, earlier.inputs + others, kept + later.outputs)
                del units[writer[value]]
                if not others:  # the earlier place does, and other readers of the value may stand in between
                    place = writer[value]
                break
        units[place] = later
        writer |= dict.fromkeys(later.outputs, place)
    network.units = [units[place] for place in sorted(units)]


class _Fold:
    """Batch norm behind a layer, into its weight and bias. A weight of several layers is folded with one norm only,
    so that there is at most one copy of it."""

    def __init__(self) -> None:
        self._folded: dict[Weight, tuple[op.Norm, Weight]] = {}

    def __call__(self, earlier: op.Operation, later: op.Operation, shared: bool) -> op.Operation | None:
        if shared or not isinstance(later, op.Norm) or later.activation or not isinstance(earlier, op.Weighted):
            return None
        repeats = math.prod(earlier.stride) if isinstance(earlier, op.ConvTranspose) else 1
        if later.scale.numel() * repeats != earlier.weight.shape[0]:
            return None
        if earlier.weight not in self._folded:
            scale, shift = (each.repeat_interleave(repeats) for each in (later.scale, later.shift))
            self._folded[earlier.weight] = (later, earlier.weight.folded(scale, shift))
        norm, weight = self._folded[earlier.weight]
        if norm is not later:
            return None
        matrix = {"matrix": True} if isinstance(earlier, op.Linear) else {}
        return replace(earlier, weight=weight, **matrix)


def _sum(earlier: op.Operation, later: op.Operation, shared: bool) -> op.Operation | None:
    """A sum of which a layer or a product is one term."""
    fits = isinstance(later, op.Add) and isinstance(earlier, op.Conv | op.Linear | op.Multiply) and not shared
    return replace(earlier, add=True) if fits and not earlier.add else None  # type: ignore


def _activate(earlier: op.Operation, later: op.Operation, shared: bool) -> op.Operation | None:
    """A function of each element, behind anything that computes."""
    if shared or not isinstance(later, op.Activation) or not isinstance(earlier, _COMPUTES) or earlier.activation:
        return None
    return replace(earlier, activation=later.name)


def _norm_behind(earlier: op.Operation, later: op.Operation, shared: bool) -> op.Operation | None:
    """f(norm(x)) behind a convolution whose result others read too, or that already adds (pre-activation nets)."""
    if not (isinstance(earlier, op.Conv) and isinstance(later, op.Norm)):
        return None
    if earlier.activation or earlier.norm is not None or later.scale.numel() != earlier.weight.shape[0]:
        return None
    return replace(earlier, norm=(later.scale, later.shift), activation=later.activation, keep=shared)


_COMPUTES = op.Conv | op.ConvTranspose | op.Linear | op.Norm | op.Add | op.Multiply
