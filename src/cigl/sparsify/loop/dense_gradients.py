"""The dense gradients of a step whose method needs them: for the growth of M, beside the masked ones in p.grad."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.sparsify.loop.context import Context
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.flat_indexing import is_finite
from cigl.sparsify.tensors.random_numbers import Positions
from cigl.sparsify.tensors.shards import all_reduce_rows, is_sharded


class DenseGradients:
    """Kept in ``layer.gradient``: summed over micro-batches, averaged over processes, in the scale of p.grad."""

    def __init__(self, context: Context, step: int):
        self._layers, self._processes, self._step = context.layers, context.processes, step
        self._are_wanted = context.method.wants_gradient(context.table, step)
        self._are_averaged = False  # over the processes
        self._overflow: Layer | None = None  # has NaN or Inf
        self._parts = [layer.part for layer in context.layers]

    @property
    def are_kept(self) -> bool:
        return any(layer.gradient is not None for layer in self._layers)

    def _is_wanted(self, layer: Layer) -> bool:
        """In a layer that stays dense, nothing can grow."""
        return self._are_wanted and layer.target < layer.size

    def keep(self, layer: Layer, incoming: Tensor) -> None:
        """A micro-batch's, before it is accumulated."""
        if self._is_wanted(layer):
            layer.keep_gradient(incoming)
            self._are_averaged = False

    def keep_reduced(self, layer: Layer) -> None:
        """The same of a sharded layer, whose p.grad is complete and not masked yet."""
        if self._is_wanted(layer) and is_sharded(layer.parameter):
            layer.keep_reduced_gradient()

    def forget_discarded(self) -> None:
        """Before a training forward: gradients that the user has thrown away are none of this step's."""
        for layer in self._layers:
            if layer.part.group is not None and layer.gradient is not None and layer.gradient_was_discarded():
                layer.gradient = None

    def notice_overflow(self, layer: Layer, refuse: bool) -> None:
        """When p.grad is masked: an overflow outside the mask is shown to a GradScaler, or refused at once, where
        there is no later moment to refuse it (``refuse``)."""
        if self._overflow is layer:
            self._overflow = None
        if layer.gradient is not None and not is_finite(layer.gradient):
            if refuse:
                raise self._not_finite(layer)
            self._overflow = layer
            layer.show_overflow()

    def average(self) -> None:
        """Under DDP, each process has kept its own gradient. A layer that one of them didn't use counts 0."""
        if not self._processes.is_distributed or self._are_averaged or not self._are_wanted:
            return
        for layer in filter(self._is_wanted, self._layers):
            if layer.gradient is None:
                layer.gradient = torch.zeros_like(layer.weight)
            self._processes.average(layer.gradient)
            if not is_finite(layer.gradient):
                self._overflow = layer
        self._are_averaged = True

    def check_finite(self) -> None:
        """Before the update: none may have NaN or Inf, on whichever process."""
        found = self._overflow
        if self._are_wanted:
            flags = all_reduce_rows(self._parts, [[layer is self._overflow] for layer in self._layers])
            found = next((layer for layer, (flag,) in zip(self._layers, flags, strict=True) if flag), None)
        if found is not None:
            raise self._not_finite(found)

    def rescale(self, active: Mapping[str, Positions]) -> None:
        """As p.grad was applied: without a GradScaler's factor, and clipped."""
        applied = all_reduce_rows(self._parts, [layer.gradient_sums(active[layer.name]) for layer in self._layers])
        for layer, (kept, used) in zip(self._layers, applied, strict=True):
            layer.rescale_gradient(kept, used)

    def _not_finite(self, layer: Layer) -> CiglError:
        return CiglError(
            f"the dense gradient of {layer.name} has NaN or Inf in step {self._step}, so its topology can't be "
            "updated; nothing was changed. Look for a diverging loss (lower the learning rate, clip gradients)."
        )
