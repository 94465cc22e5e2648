"""What is shared by everything that works on one sparse training: made once, and handed down."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cigl.common.errors import CiglWarning
from cigl.sparsify.guards.checks import check_modules
from cigl.sparsify.guards.mask_invariant import MaskInvariant
from cigl.sparsify.guards.processes import Processes
from cigl.sparsify.guards.readings import Readings
from cigl.sparsify.guards.watch import Watch
from cigl.sparsify.loop.detached import DetachedSparsifier
from cigl.sparsify.loop.kernels import Kernels, NoKernels
from cigl.sparsify.methods.averaging import Collection
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.methods.controller import Controller
from cigl.sparsify.methods.random_mask import RandomMask
from cigl.sparsify.methods.schedule import Timetable
from cigl.sparsify.optimizers.state import OptimizerState
from cigl.sparsify.parameters.layer import Layer

_OBSERVED_BY = 0.4  # of training; else it is said that nothing was


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
    controller: Controller | None = field(init=False)
    random_mask: RandomMask = field(init=False)
    processes: Processes = field(init=False)
    readings: Readings = field(default_factory=Readings)
    invariant: MaskInvariant = field(init=False)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        method, table = self.method, self.table
        self.collection = method.collection()
        self.controller = method.controller()
        strength = None if self.controller is None else self.controller.strength
        self.random_mask = RandomMask(self.layers, method, table, int(self.settings["seed"]), strength)
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

    @property
    def mask_rate(self) -> float:
        """The same over all active weights."""
        counts = [layer.count for layer in self.layers]
        return sum(rate * n for rate, n in zip(self.mask_rates.values(), counts, strict=True)) / max(1, sum(counts))

    def begin_epoch(self, step: int) -> None:
        """Before the first step of an epoch: the strength of Z follows what was observed in the last one.

        Every process comes by, observations or not, and all have the mean of what they have seen.
        """
        controller, done = self.controller, step - 1
        if controller is None or not done or done % self.table.steps_per_epoch:
            return
        controller.pending = self.processes.mean(controller.pending)
        controller.conclude(step, may_grow=done < (self.table.average_from or 1.0) * self.table.steps)
        self.random_mask.strength = controller.strength
        expected = _OBSERVED_BY * self.table.steps
        if not controller.history and done >= expected > done - self.table.steps_per_epoch:
            message = (
                f"{self.method.name} has seen no held-out examples, so it trains without a random mask, as RigL with "
                "averaged weights: pass validation=loader to cigl.attach, or call sparse.observe(logits, labels)."
            )
            warnings.warn(message, CiglWarning, stacklevel=2)

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
