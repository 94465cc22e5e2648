"""One training step t of Algorithm 1 as an object: made at its first event, dropped at its end.

In the order in which a user's loop comes by:

    forward()        the first training forward puts Z_t in force: what it switches off is set aside
    evaluate()       an eval forward in between computes with M*W; the next training forward has the same Z_t
    keep_gradient()  during backward: a micro-batch's dense gradient, where the method needs it
    mask_gradient()  p.grad is complete, and is masked by M*Z_t
    begin_update()   before the optimizer's step: nothing may be missing or not finite
    end_update()     after it: weights and optimizer state that Z_t had switched off are as they were
    conclude()       a snapshot where one is due; then M changes where a round is due

This is Algorithm 1 with its M line moved to the end of the iteration, because a user's loop has one backward per step.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from enum import Enum

import torch
from torch import Tensor

from cigl.common.errors import CiglError, CiglWarning
from cigl.sparsify.loop.context import Context
from cigl.sparsify.methods.rounds import update_topology
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.flat_indexing import is_finite
from cigl.sparsify.tensors.shards import is_sharded, local, sums


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
    """Algorithm 1 from one forward to the end of one update. ``number`` is t, counted from 1."""

    def __init__(self, context: Context):
        self.number = context.step + 1
        self.phase = Phase.NEW
        self.update = Update.NOT_YET
        self._wants_gradient = context.method.wants_gradient(context.table, self.number)
        self._is_averaged = False  # the kept dense gradient, over the processes
        self._overflow: Layer | None = None  # has NaN or Inf in a dense gradient that is needed
        self._context, self._kernels = context, context.kernels
        self._layers, self._states, self._random_mask = context.layers, context.states, context.random_mask
        self._processes = context.processes
        self._parts = [layer.part for layer in context.layers]
        self._rates: list[float] = []  # of Z in each layer, once it is in force

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
            self.put_in_force(self._layers)
        if not self.has_begun:
            self._draw_z(in_kernels=whole and self.update is Update.NOT_YET)
        elif self.phase is Phase.SUSPENDED:
            for layer in self._layers:
                layer.resume()
            torch.clear_autocast_cache()
        self.phase = Phase.AWAITING_GRADIENTS if torch.is_grad_enabled() else Phase.READY

    def _draw_z(self, in_kernels: bool) -> None:
        for layer in self._layers:
            layer.follow_parameter()
        self._processes.find()
        self._rates = self._random_mask.rates(self.number)
        if not any(self._rates):
            return
        if in_kernels and self._kernels is not None:
            for layer, rate in zip(self._layers, self._rates, strict=True):
                law = self._random_mask.law(layer, "z", self.number, rate)
                layer.held_z = self._kernels.hold_z(layer.parameter, *law)
        if all(layer.held_z is not None for layer in self._layers):
            return
        drawn = self._random_mask.draw("z", self.number, self._rates)
        zeros = torch.zeros(max(len(off) for off in drawn))
        for layer, off in zip(self._layers, drawn, strict=True):
            if layer.held_z is None:
                layer.switch_off(off, zeros[: len(off)].to(layer.weight))
        torch.clear_autocast_cache()  # it may hold casts of the weights before

    def put_in_force(self, layers: Iterable[Layer]) -> None:
        """Torch is about to read these layers' weights: a Z that only sparse kernels know acts in them, too."""
        for layer in layers:
            layer.put_in_force()

    def evaluate(self) -> None:
        """Before an eval forward: M*W."""
        if not any(self._rates) or not self.has_begun or self.phase is Phase.SUSPENDED:
            return
        if self.phase is Phase.AWAITING_GRADIENTS:
            message = (
                "the model runs in eval mode after a training forward whose backward has not come yet: such a "
                "backward would fail, because it needs the weights as they were."
            )
            warnings.warn(message, CiglWarning, stacklevel=2)
        for layer in self._layers:
            layer.suspend()
        torch.clear_autocast_cache()
        self.phase = Phase.SUSPENDED

    # Backward

    def keep_gradient(self, layer: Layer, incoming: Tensor) -> None:
        """Keep a micro-batch's dense gradient, where this step needs it."""
        if self._needs_gradient(layer):
            layer.keep_gradient(incoming)
            self._is_averaged = False

    def _needs_gradient(self, layer: Layer) -> bool:
        """In a layer that stays dense, nothing can grow."""
        return self._wants_gradient and layer.target < layer.size

    def forget_discarded(self) -> None:
        """Before a training forward: gradients that the user has thrown away are none of this step's."""
        for layer in self._layers:
            if layer.part.group is not None and layer.gradient is not None and layer.gradient_was_discarded():
                layer.gradient = None

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
            self.put_in_force(self._layers)
        if self._kernels is not None and layer.parameter.grad is not None:
            self._kernels.on_gradient(layer.parameter, layer.parameter.grad)
        if self._needs_gradient(layer) and is_sharded(layer.parameter):
            layer.keep_reduced_gradient()
        self._mask(layer)
        if self._overflow is layer:
            self._overflow = None
        if layer.gradient is not None and not is_finite(layer.gradient):
            if self.update is Update.CLOSURE:  # there is no later moment to refuse
                raise self._not_finite(layer)
            self._overflow = layer
            layer.show_overflow()

    # Update

    def begin_update(self) -> None:
        """Before the optimizer's step, which some error may still prevent with nothing changed."""
        self._check_forward()
        self._average_gradients()
        if (layer := self._overflown()) is not None:
            raise self._not_finite(layer)
        for layer in self._layers:
            if layer.gradient_was_changed():
                self._mask(layer)
        if self._kernels is not None:
            self._kernels.begin_update(self._context.optimizer)
        self._states.observe(self._layers)
        self.update = Update.RUNNING

    def end_update(self) -> None:
        """The weights have moved: the step counts, and what Z had switched off is as it was."""
        if self._kernels is not None:
            self._kernels.end_update(self._context.optimizer)
        self._average_gradients()
        self._states.decide()
        if not self._states.keeps_zeros or self.update is Update.CLOSURE:
            for layer in self._layers:
                layer.clear_inactive()
        for layer in self._layers:
            layer.switch_on()
        self._context.step = self.number

    def conclude(self) -> None:
        """Take a snapshot, then update M, each where it is due."""
        context = self._context
        if context.collection is not None and context.table.snapshots(self.number):
            context.collection.add(self._snapshot())
        updates = context.table.updates(self.number)
        if not updates and all(layer.gradient is None for layer in self._layers):
            return
        active = self._random_mask.active()
        applied = sums(self._parts, [layer.gradient_sums(active[layer.name]) for layer in self._layers])
        for layer, (kept, used) in zip(self._layers, applied, strict=True):
            layer.rescale_gradient(kept, used)
            context.method.observe(layer, context.table, self.number)
        if updates:
            after = update_topology(self._layers, active, context.method, context.table, self.number)
            self._random_mask.mask_changed(after)
            if self._kernels is not None:
                self._kernels.topology_changed()

    def abandon(self) -> None:
        """At any moment before the update: the parameters hold M*W again."""
        if self._kernels is not None:
            self._kernels.abandon_update()
        for layer in self._layers:
            layer.suspend()

    # Parts

    def _mask(self, layer: Layer) -> None:
        gradient, kernels = layer.parameter.grad, self._kernels
        assert gradient is not None
        layer.mask_gradient(from_kernels=kernels is not None and kernels.made(layer.parameter, gradient))
        if kernels is not None:
            kernels.masked(layer.parameter, gradient)

    def _snapshot(self) -> dict[str, Tensor]:
        """M*Z*W (or M*pW) of the selected parameters and the others as they are."""
        method, model = self._context.method, self._context.model
        values = {name: local(p) for name, p in model.named_parameters()}
        for layer, rate in zip(self._layers, self._random_mask.rates(self.number), strict=True):
            weight = layer.weight.clone()
            if method.average_of == "p*W":
                weight *= 1 - rate
            else:
                layer.apply_z(weight)
            values[layer.name] = weight
        if method.keep_snapshots:
            values |= dict(model.named_buffers())
        return values

    def _average_gradients(self) -> None:
        """Under DDP, each process has kept its own gradient. A layer that one of them didn't use counts 0."""
        if not self._processes.are_several or self._is_averaged or not self._wants_gradient:
            return
        for layer in filter(self._needs_gradient, self._layers):
            if layer.gradient is None:
                layer.gradient = torch.zeros_like(layer.weight)
            self._processes.average(layer.gradient)
            if not is_finite(layer.gradient):
                self._overflow = layer
        self._is_averaged = True

    def _overflown(self) -> Layer | None:
        """A layer with NaN or Inf in a dense gradient that is needed, on whichever process."""
        if not self._wants_gradient:
            return self._overflow
        flags = sums(self._parts, [[layer is self._overflow] for layer in self._layers])
        return next((layer for layer, (flag,) in zip(self._layers, flags, strict=True) if flag), None)

    def _check_forward(self) -> None:
        if self._context.method.has_random_mask and self.phase is Phase.NO_FORWARD:
            raise CiglError(
                "gradients arrived, but no training forward of the model was seen, so the random mask never "
                "acted: call model.train() before training, call the attached model itself, and compile it as a "
                "whole, not only a part of it."
            )

    def _not_finite(self, layer: Layer) -> CiglError:
        return CiglError(
            f"the dense gradient of {layer.name} has NaN or Inf in step {self.number}, so its topology can't be "
            "updated; nothing was changed. Look for a diverging loss (lower the learning rate, clip gradients)."
        )
