"""A network of units: operations on numbered values, each value written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from cigl.runtime.network import operations as op
from cigl.runtime.network.inputs import Signature


@dataclass(frozen=True)
class Unit:
    """One operation: reads and writes values by their number."""

    name: str
    operation: op.Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    module: str | None = None  # the path of the module that is called


@dataclass
class Network:
    """All units in an order in which they can run. ``output`` is nested as the model's, with a Hole for each value."""

    units: list[Unit] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)  # of the constants
    output: Any = None
    structure: Any = None  # torch's TreeSpec of what is returned, where the output is a flat list of its leaves
    signature: Signature = field(default_factory=lambda: Signature([], []))
    notes: list[str] = field(default_factory=list)  # what runs dense because it could not be traced

    def results(self) -> list[int]:
        """The values that ``output`` is made of."""
        found: list[int] = []
        map_aggregate(self.output, lambda leaf: found.append(leaf.number) if isinstance(leaf, op.Hole) else None)
        return found

    def result(self, values: Mapping[int, Any] | Sequence[Any]) -> Any:
        """What the model returns, from the values."""
        output = op.filled(self.output, values)
        return output if self.structure is None else pytree.tree_unflatten(output, self.structure)

    def prune(self) -> None:
        """Leave out the units whose values nobody reads."""
        read, kept = set(self.results()), []
        for unit in reversed(self.units):
            if read & set(unit.outputs) or (isinstance(unit.operation, op.InTorch) and unit.operation.effect):
                kept.append(unit)
                read.update(unit.inputs)
        self.units = kept[::-1]
