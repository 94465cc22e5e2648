"""One training step t of Algorithm 1 as an object: made at its first event, dropped at its end.

In the order in which a user's loop comes by:

    forward()        the first training forward puts Z_t in force: what it switches off is set aside
    evaluate()       an eval forward in between computes with M*W; the next training forward has the same Z_t
    keep_gradient()  during backward: a micro-batch's dense gradient, where the method needs it
    mask_gradient()  p.grad is complete, and is masked by M*Z_t
    begin_update()   before the optimizer's step: nothing may be missing or not finite
    end_update()     after it: weights and optimizer state that Z_t had switched off are as they were
    conclude()       a snapshot where one is due; then M changes where a round is due

The same in plain numpy, written from the paper alone: tests/sparsify/test_algorithm.py.
"""

from __future__ import annotations

import warnings
from enum import Enum

import torch
from torch import Tensor

from cigl.common.errors import CiglError, CiglWarning
from cigl.sparsify.loop.context import Context
from cigl.sparsify.loop.dense_gradients import DenseGradients
from cigl.sparsify.loop.z_in_force import ZInForce
from cigl.sparsify.methods.rounds import update_topology
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.flat_indexing import keep_only
from cigl.sparsify.tensors.shards import local


class Phase(Enum):
    """What a step has come to."""

    NEW = "nothing but perhaps optimizer.step(closure) has begun"
    NO_FORWARD = "gradients arrived, but no training forward was seen"
    AWAITING_GRADIENTS = "Z is in force; the backward of a training forward is due"
    READY = "Z is in force; no backward is due"
    SUSPENDED = "Z is in force; the parameters hold M*W for an eval forward"


class Update(Enum):
    """Whether optimizer.step() is running. Its closure goes through the phases inside it."""

    NOT_YET = "the user's loop computes gradients"
    RUNNING = "inside optimizer.step()"
    CLOSURE = "inside optimizer.step(closure), which computes gradients itself"


class Step:
    """Algorithm 1 from one forward to the end of one update. ``number`` is t, counted from 1.

        Z_t   ~ Bernoulli(1 - p_t), for each active weight
        W_t   = W_{t-1} - alpha_t M * Z_t * grad L(M * Z_t * W_{t-1}), by the rule of the user's optimizer
        W_avg = the mean of M * Z_t * W_t over the steps t whose snapshot is due
        M     = the largest |W_t| of M, and the largest |grad L| outside of them, where a round is due

    This is Algorithm 1 with its M line moved to the end of the iteration, because a user's loop has one backward per
    step.
    """

    def __init__(self, context: Context):
        self.number = context.step + 1
        self.phase = Phase.NEW
        self.update = Update.NOT_YET
        self.z = ZInForce(context, self.number)
        self.dense_gradients = DenseGradients(context, self.number)
        self._context, self._layers = context, context.layers

    @property
    def has_begun(self) -> bool:
        """Whether a training forward was seen, so that Z is in force."""
        return self.phase not in (Phase.NEW, Phase.NO_FORWARD)

    # Forward

    def changes_weights(self, training: bool) -> bool:
        """Whether a forward would put another Z in force, or take it away."""
        return not self.has_begun or (self.phase is Phase.SUSPENDED) is training

    def forward(self, whole: bool) -> None:
        """Before a training forward: M*Z*W. Gradient accumulation keeps the Z of the first.

        ``whole``: it is the model's own, not that of one of its parts.
        """
        if not whole:
            self.z.materialize_z(self._layers)
        if not self.has_begun:
            self._context.processes.find()
            self._context.begin_epoch(self.number)
            self.z.draw(in_kernels=whole and self.update is Update.NOT_YET)
        elif self.phase is Phase.SUSPENDED:
            self.z.resume()
        self.phase = Phase.AWAITING_GRADIENTS if torch.is_grad_enabled() else Phase.READY

    def evaluate(self) -> None:
        """Before an eval forward: M*W."""
        if not self.z.switches_off or not self.has_begun or self.phase is Phase.SUSPENDED:
            return
        if self.phase is Phase.AWAITING_GRADIENTS:
            message = (
                "the model runs in eval mode after a training forward whose backward has not come yet: such a "
                "backward would fail, because it needs the weights as they were."
            )
            warnings.warn(message, CiglWarning, stacklevel=2)
        self.z.suspend()
        self.phase = Phase.SUSPENDED

    # Backward

    def keep_gradient(self, layer: Layer, incoming: Tensor) -> None:
        self.dense_gradients.keep(layer, incoming)

    def mask_gradient(self, layer: Layer) -> None:
        """A layer's p.grad is complete: mask it by M*Z, so that clipping and logging see the right norm."""
        if self.phase is Phase.SUSPENDED:
            raise CiglError(
                "the model ran in eval mode between a training forward and its backward, which changed the "
                "weights that this backward needs: evaluate after backward() or before the training forward."
            )
        self.phase = Phase.READY if self.has_begun else Phase.NO_FORWARD
        if self.update is not Update.NOT_YET:
            self.update = Update.CLOSURE
            self._check_forward()
            self.z.materialize_z(self._layers)
        if layer.parameter.grad is not None:
            self._context.kernels.on_gradient(layer.parameter, layer.parameter.grad)
        self.dense_gradients.keep_reduced(layer)
        self.z.mask_gradient(layer)
        self.dense_gradients.show_overflow(layer, refuse=self.update is Update.CLOSURE)

    # Update

    def begin_update(self) -> None:
        """Before the optimizer's step, which some error may still prevent with nothing changed."""
        self._check_forward()
        self.dense_gradients.average()
        self.dense_gradients.check_finite()
        for layer in self._layers:
            if layer.gradient_was_changed():
                self.z.mask_gradient(layer)
        self._context.kernels.begin_update(self._context.optimizer)
        self.z.begin_update()
        self._context.states.observe(self._layers)
        self.update = Update.RUNNING

    def end_update(self) -> None:
        """The weights have moved: the step counts, and what Z had switched off is as it was."""
        context = self._context
        context.kernels.end_update(context.optimizer)
        self.dense_gradients.average()
        context.states.decide()
        if not context.states.keeps_zeros or self.update is Update.CLOSURE:
            for layer in self._layers:
                layer.clear_inactive()
        self.z.end()
        context.step = self.number

    def conclude(self) -> None:
        """Take a snapshot, then update M, each where it is due."""
        context, t = self._context, self.number
        if context.collection is not None and context.table.snapshots(t):
            context.collection.add(self._snapshot())
        updates = context.table.updates(t)
        if not updates and not self.dense_gradients.are_kept:
            return
        if self.dense_gradients.are_kept:
            self.dense_gradients.rescale()
        for layer in self._layers:
            context.method.observe(layer, context.table, t)
        if updates:
            update_topology(self._layers, context.method, context.table, t, context.readings.ask)
            context.random_mask.mask_changed()
            context.kernels.topology_changed()

    def abandon(self) -> None:
        """At any moment before the update: the parameters hold M*W again."""
        self._context.kernels.abandon_update()
        self.z.suspend()

    # Parts

    def _snapshot(self) -> dict[str, Tensor]:
        """M*Z*W (or M*pW) of the selected parameters and the others as they are."""
        method, model = self._context.method, self._context.model
        values = {name: local(p) for name, p in model.named_parameters()}
        for layer, rate in zip(self._layers, self._context.random_mask.rates(self.number), strict=True):
            weight = layer.weight.clone()
            if method.average_of == "p*W":
                weight *= 1 - rate
            else:
                keep_only(weight, layer.kept)
            values[layer.name] = weight
        if method.keep_snapshots:
            values |= dict(model.named_buffers())
        return values

    def _check_forward(self) -> None:
        if self._context.method.has_random_mask and self.phase is Phase.NO_FORWARD:
            raise CiglError(
                "gradients arrived, but no training forward of the model was seen, so the random mask never "
                "acted: call model.train() before training, call the attached model itself, and compile it as a "
                "whole, not only a part of it."
            )
