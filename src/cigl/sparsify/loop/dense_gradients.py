"""The dense gradients of a step whose method needs them: for the growth of M, beside the masked ones in p.grad."""

from __future__ import annotations

import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.sparsify.loop.context import Context
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.flat_indexing import finite
from cigl.sparsify.tensors.shards import all_reduce_rows, is_sharded


class DenseGradients:
    """Kept in ``layer.gradient``: summed over micro-batches, averaged over processes, in the scale of p.grad."""

    def __init__(self, context: Context, step: int):
        self._context, self._step = context, step
        self._is_wanted = context.method.wants_gradient(context.table, step)
        self._is_averaged = False  # over the processes
        # In a layer that stays dense, nothing can grow.
        self._layers = [layer for layer in context.layers if self._is_wanted and layer.target < layer.size]
        self._finite: dict[Layer, Tensor] = {}

    @property
    def are_kept(self) -> bool:
        return any(layer.gradient is not None for layer in self._layers)

    def keep(self, layer: Layer, incoming: Tensor) -> None:
        """A micro-batch's, before it is accumulated."""
        if layer in self._layers:
            layer.keep_gradient(incoming)
            self._is_averaged = False

    def keep_reduced(self, layer: Layer) -> None:
        """The same of a sharded layer, whose p.grad is complete and not masked yet."""
        if layer in self._layers and is_sharded(layer.parameter):
            layer.keep_reduced_gradient()

    def forget_discarded(self) -> None:
        """Before a training forward: gradients that the user has thrown away are none of this step's."""
        for layer in self._layers:
            if layer.part.group is not None:
                layer.forget_discarded_gradient()

    def show_overflow(self, layer: Layer, refuse: bool) -> None:
        """When p.grad is masked: an overflow outside the mask is shown to a GradScaler, or refused at once, where
        there is no later moment to refuse it (``refuse``)."""
        if layer.gradient is not None:
            self._finite[layer] = layer.show_overflow()
            if refuse:
                self.check_finite()

    def average(self) -> None:
        """Under DDP, each process has kept its own gradient. A layer that one of them didn't use counts 0."""
        if not self._context.processes.is_distributed or self._is_averaged or not self._is_wanted:
            return
        for layer in self._layers:
            if layer.gradient is None:
                layer.gradient = torch.zeros_like(layer.weight)
            self._context.processes.average(layer.gradient)
            self._finite[layer] = finite(layer.gradient)
        self._is_averaged = True

    def check_finite(self) -> None:
        """Before the update: none may have NaN or Inf, on whichever process."""
        if not self._layers:
            return
        fine = torch.ones((), dtype=torch.bool, device=self._layers[0].bits.device)
        flags = torch.stack([~self._finite.get(layer, fine) for layer in self._layers]).long()[:, None]
        overflow = all_reduce_rows([layer.part for layer in self._layers], flags)
        self._context.readings.ask(overflow, self._refuse)
        if self._context.table.updates(self._step):
            self._context.readings.read()

    def _refuse(self, overflow: list[int]) -> None:
        if any(overflow):
            layer = next(layer for layer, found in zip(self._layers, overflow, strict=True) if found)
            raise CiglError(
                f"the dense gradient of {layer.name} has NaN or Inf in step {self._step}, so its topology can't be "
                "updated; nothing was changed. Look for a diverging loss (lower the learning rate, clip gradients)."
            )

    def rescale(self) -> None:
        """As p.grad was applied: without a GradScaler's factor, and clipped."""
        mine = torch.stack([layer.gradient_sums() for layer in self._layers])
        for layer, sums in zip(self._layers, all_reduce_rows([x.part for x in self._layers], mine), strict=True):
            layer.rescale_gradient(sums)
