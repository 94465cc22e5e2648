"""What is shared by everything that works on one sparse training: made once, and handed down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cigl.sparsify.guards.checks import check_modules
from cigl.sparsify.guards.mask_invariant import MaskInvariant
from cigl.sparsify.guards.processes import Processes
from cigl.sparsify.guards.readings import Readings
from cigl.sparsify.guards.watch import Watch
from cigl.sparsify.loop.detached import DetachedSparsifier
from cigl.sparsify.loop.kernels import Kernels, NoKernels
from cigl.sparsify.methods.averaging import Collection
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.methods.random_mask import RandomMask
from cigl.sparsify.methods.schedule import Timetable
from cigl.sparsify.optimizers.state import OptimizerState
from cigl.sparsify.parameters.layer import Layer


@dataclass(eq=False)
class Context:
    """A model that is trained sparse by a method, and how far it has come."""

    model: nn.Module
    layers: list[Layer]
    states: OptimizerState
    method: Method
    table: Timetable
    settings: Mapping[str, Any]  # of cigl.attach, that a resumed run must share
    kind: str  # of kernels, as they were asked for
    kernels: Kernels = field(default_factory=NoKernels)
    step: int = 0  # optimizer steps that were applied
    is_detached: bool = False
    collection: Collection | None = field(init=False)
    random_mask: RandomMask = field(init=False)
    processes: Processes = field(init=False)
    readings: Readings = field(default_factory=Readings)
    invariant: MaskInvariant = field(init=False)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        method, table = self.method, self.table
        self.collection = method.collection()
        self.random_mask = RandomMask(self.layers, method, table, int(self.settings["seed"]))
        self.processes = Processes(self.layers, method.has_random_mask or bool(table.update_steps))
        self.invariant = MaskInvariant(self.layers, self.readings)
        self.watch = Watch(self.model, self.layers, table, self.readings)

    @property
    def optimizer(self) -> Optimizer:
        """The one that steps, inside whatever wrappers."""
        return self.states.optimizer

    @property
    def density(self) -> float:
        """Active weights over all selected weights."""
        return sum(layer.count for layer in self.layers) / sum(layer.size for layer in self.layers)

    @property
    def explored_counts(self) -> list[int]:
        """How many weights of each layer were ever active."""
        counts: list[int] = torch.stack([layer.explored_count for layer in self.layers]).tolist()
        return counts

    @property
    def explored(self) -> float:
        """The share of weights that were ever active."""
        return sum(self.explored_counts) / sum(layer.size for layer in self.layers)

    @property
    def mask_rates(self) -> dict[str, float]:
        """The share of each layer's active weights that Z switched off in the last step: parameter name to number."""
        rates = self.random_mask.rates(self.step)
        return {layer.name: rate for layer, rate in zip(self.layers, rates, strict=True)}

    def needs_dense_step(self) -> bool:
        """Whether torch must compute the step under way: for its dense gradient, or as the first, to count calls."""
        return self.step == 0 or self.method.wants_gradient(self.table, self.step + 1)

    def check_modules(self) -> None:
        if not self.is_detached:  # later, the model may change
            check_modules(self.model, self.layers)

    # Copies: what belongs to one model, a copy of the model goes without

    def __deepcopy__(self, memo: dict[int, Any]) -> DetachedSparsifier:
        return DetachedSparsifier()

    def __reduce__(self) -> tuple[type[DetachedSparsifier], tuple[()]]:
        return DetachedSparsifier, ()
