"""Pictures that a model holds in other shapes: kernels have (images, channels, height, width) only.

1-D convolutions work on (images, channels, length), a picture of height 1. ConvNeXts and others turn their pictures to
(images, height, width, channels) for linear layers and layer norms, and back. Here such subgraphs become operations on
the pictures themselves: a linear layer is a convolution with a kernel of 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network, Unit
from cigl.runtime.network.weights import Weight

_LINE = (op.InTorch(torch.unsqueeze, (op.Hole(0), -2), {}), op.InTorch(torch.squeeze, (op.Hole(0), -2), {}))
_LAST = (
    op.InTorch(torch.permute, (op.Hole(0), (0, 3, 1, 2)), {}),
    op.InTorch(torch.permute, (op.Hole(0), (0, 2, 3, 1)), {}),
)  # of a picture: how it is made from what the model holds, and the way back
Form = tuple[op.InTorch, op.InTorch]


def as_pictures(network: Network) -> None:
    _Pictures(network)


class _Pictures:
    def __init__(self, network: Network):
        self._network = network
        self._pictures: dict[int, tuple[int, Form]] = {}  # of the values that are held in another form
        self._same: dict[int, int] = {}  # values that turned out to be a picture
        self._made: dict[Any, op.Operation | None] = {}  # one for all calls of a module, and for all uses of a constant
        numbers = (value for unit in network.units for value in (*unit.inputs, *unit.outputs))
        self._next = 1 + max((*numbers, *network.inputs, *network.constants, *network.results()), default=-1)
        self._units: list[Unit] = []
        for unit in network.units:
            self._walk(replace(unit, inputs=tuple(self._same.get(value, value) for value in unit.inputs)))
        network.units = self._units
        network.output = map_aggregate(network.output, self._renamed)
        network.prune()

    def _renamed(self, leaf: Any) -> Any:
        return op.Hole(self._same.get(leaf.number, leaf.number)) if isinstance(leaf, op.Hole) else leaf

    def _walk(self, unit: Unit) -> None:
        operation, value = unit.operation, unit.inputs[0] if unit.inputs else -1
        turned = _turned(operation)
        picture, form = self._pictures.get(value, (-1, None))
        if turned == (0, 3, 1, 2) and form is _LAST:
            self._same[unit.outputs[0]] = picture
        elif isinstance(operation, op.OnLine):
            if form is not _LINE:
                picture = self._new()
                self._units.append(Unit(f"{unit.name} (line)", _LINE[0], (value,), (picture,)))
            self._on_pictures(unit, operation.operation, (picture,), _LINE)
        elif (found := self._translated(unit)) is not None:
            self._on_pictures(unit, *found)
        else:
            self._units.append(unit)
            if turned == (0, 2, 3, 1):
                self._pictures[unit.outputs[0]] = (value, _LAST)

    def _on_pictures(self, unit: Unit, operation: op.Operation, inputs: tuple[int, ...], form: Form) -> None:
        """The operation on pictures; who reads the value as the model holds it, makes it from the picture."""
        picture = self._new()
        self._pictures[unit.outputs[0]] = (picture, form)
        self._units.append(replace(unit, operation=operation, inputs=inputs, outputs=(picture,)))
        self._units.append(Unit(f"{unit.name} (back)", form[1], (picture,), unit.outputs))

    def _translated(self, unit: Unit) -> tuple[op.Operation, tuple[int, ...], Form] | None:
        """The same operation on the pictures of its inputs, if they have any."""
        constants = [value for value in unit.inputs if value in self._network.constants]
        found = [self._pictures[value] for value in unit.inputs if value in self._pictures]
        forms = {id(form) for _, form in found}
        if not found or len(forms) != 1 or len(found) + len(constants) != len(unit.inputs):
            return None
        form = found[0][1]
        key = (type(unit.operation) if constants else id(unit.operation), id(form), *constants)
        if key not in self._made:
            read = [self._network.constants[value] for value in constants]
            self._made[key] = _for_pictures(unit.operation, form, read)
        operation = self._made[key]
        return None if operation is None else (operation, tuple(picture for picture, _ in found), form)

    def _new(self) -> int:
        self._next += 1
        return self._next - 1


def _turned(operation: op.Operation) -> tuple[int, ...] | None:
    """The order of dimensions that a call of permute asks for."""
    if not isinstance(operation, op.InTorch) or operation.call not in (torch.permute, op.TensorMethod("permute")):
        return None
    dims = [each for each in (*operation.arguments, *operation.keywords.values()) if not isinstance(each, op.Hole)]
    dims = list(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    return tuple(dim % 4 for dim in dims) if len(dims) == 4 and all(type(dim) is int for dim in dims) else None


def _for_pictures(operation: op.Operation, form: Form, constants: list[Tensor]) -> op.Operation | None:
    if constants:
        return _with_constant(operation, constants) if form is _LAST else None
    if isinstance(operation, op.Activation | op.Add | op.Multiply):
        return operation
    if isinstance(operation, op.Concat):
        channels = (1, -2) if form is _LINE else (3, -1)
        return replace(operation, dim=1) if operation.dim in channels else None
    if form is _LINE:
        flattens = isinstance(operation, op.InTorch) and operation.call is torch.flatten
        flattens = flattens and operation.arguments == (op.Hole(0), 1) and not operation.keywords  # type: ignore
        return operation if isinstance(operation, op.Norm) or flattens else None
    if isinstance(operation, op.Linear) and not operation.matrix:
        weight = operation.weight
        return op.Conv(Weight(weight.dense()[:, :, None, None], weight.bias))
    if isinstance(operation, op.LayerNorm):
        return op.ChannelNorm(operation.features, operation.weight, operation.bias, operation.eps)
    return None


def _with_constant(operation: op.Operation, constants: list[Tensor]) -> op.Operation | None:
    """A product or sum with one number per channel."""
    constant = constants[0]
    if (
        len(constants) != 1
        or not isinstance(constant, Tensor)
        or constant.dim() != 1
        or not constant.is_floating_point()
    ):
        return None
    if isinstance(operation, op.Multiply):
        return op.Norm(constant.detach(), torch.zeros_like(constant))
    return op.Norm(torch.ones_like(constant), constant.detach()) if isinstance(operation, op.Add) else None
