"""What the hooks report about the user's loop, as one step after another."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import Tensor, nn

from cigl.errors import CiglWarning
from cigl.sparsify.checks import Checks
from cigl.sparsify.kernels import Kernels
from cigl.sparsify.layer import Layer
from cigl.sparsify.processes import Processes
from cigl.sparsify.random_mask import RandomMask
from cigl.sparsify.step import Step

if TYPE_CHECKING:
    from cigl.sparsify.sparsifier import Sparsifier


class Loop:
    """Makes a step at its first event, reports the loop's events to it, and drops it at its end."""

    def __init__(self, sparse: Sparsifier, random_mask: RandomMask, checks: Checks, kernels: Kernels | None):
        self.step: Step | None = None
        self._sparse, self._random_mask, self._checks, self._kernels = sparse, random_mask, checks, kernels
        self._processes = Processes(sparse.layers)

    def _current(self) -> Step:
        if self.step is None:
            self.step = Step(self._sparse, self._random_mask, self._processes, self._kernels)
        return self.step

    def on_forward(self, training: bool, whole: bool) -> None:
        if training:
            if self.step is None or not self.step.has_begun:
                self._checks.run(self._sparse.step)
            self._current().forward(whole)
        elif self.step is not None:
            self.step.evaluate()

    def torch_reads(self, parameters: Collection[nn.Parameter]) -> None:
        """Weights whose Z was held by sparse kernels are about to be read by torch."""
        if self.step is not None:
            self.step.put_in_force(layer for layer in self._sparse.layers if layer.parameter in parameters)

    def on_dense_gradient(self, layer: Layer, gradient: Tensor) -> None:
        self._current().keep_gradient(layer, gradient)

    def on_gradient(self, layer: Layer) -> None:
        self._current().mask_gradient(layer)

    def on_step_begin(self) -> None:
        self._current().begin_update()

    def on_step_end(self) -> None:
        step = self._current()
        step.end_update()
        try:
            step.conclude()
        finally:  # a user's score may fail: the step is over all the same
            self._drop()
        announced = self._sparse.table.steps
        if step.number == announced + 1:
            message = (
                f"training continues past the {announced} steps announced to cigl.attach: no more topology "
                "rounds, and the average continues."
            )
            warnings.warn(message, CiglWarning, stacklevel=2)

    def on_load_begin(self) -> None:
        self.restore_weights()  # what is not among the loaded weights must be M*W

    def on_load_end(self) -> None:
        self._checks.weights_were_loaded()

    def restore_weights(self) -> None:
        """Whatever the moment, the parameters hold M*W, and the next training forward begins the step anew."""
        if self.step is not None:
            self.step.abandon()
            self._drop()

    def _drop(self) -> None:
        self.step = None
        for layer in self._sparse.layers:
            layer.end_step()
        if self._kernels is not None:
            self._kernels.end_step()
