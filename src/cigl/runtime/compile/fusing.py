"""Fewer, larger units: batch norm folded into weights; sums, activations and second norms done by the layer before.

All of it holds for every input shape: where a fused unit doesn't fit the kernels, torch computes the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from cigl.runtime.compile import operations as op
from cigl.runtime.compile.network import Network, Unit
from cigl.runtime.compile.pictures import as_pictures

Rule = Callable[[op.Operation, op.Operation, bool], op.Operation | None]


def fuse(network: Network) -> None:
    """Folding comes first, because it leaves nothing to do; a norm needs its activation before a layer takes both."""
    as_pictures(network)
    for rule in (_fold, _sum, _activate, _norm_behind):
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


def _fold(earlier: op.Operation, later: op.Operation, shared: bool) -> op.Operation | None:
    """Batch norm behind a layer, into its weight and bias."""
    if shared or not isinstance(later, op.Norm) or later.activation:
        return None
    if isinstance(earlier, op.Conv):
        return replace(earlier, weight=earlier.weight.folded(later.scale, later.shift))
    if isinstance(earlier, op.ConvTranspose):
        return earlier.folded(later.scale, later.shift)
    if isinstance(earlier, op.Linear) and later.scale.numel() == earlier.weight.shape[0]:
        return replace(earlier, weight=earlier.weight.folded(later.scale, later.shift), matrix=True)
    return None


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
    if earlier.activation or earlier.norm is not None:
        return None
    return replace(earlier, norm=(later.scale, later.shift), activation=later.activation, keep=shared)


_COMPUTES = op.Conv | op.ConvTranspose | op.Linear | op.Norm | op.Add | op.Multiply
