"""What the hooks report about the user's loop, as one step after another."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from cigl.sparsify.guards.agreement import Agreement
from cigl.sparsify.guards.checks import Checks
from cigl.sparsify.loop.context import Context
from cigl.sparsify.loop.mixed_modes import explain_backward
from cigl.sparsify.loop.step import Step
from cigl.sparsify.parameters.layer import Layer


def outside_of_transforms() -> AbstractContextManager[Any]:
    """Weights are written as they are, also where torch.func transforms the forward that is about to read them."""
    return temporarily_clear_interpreter_stack() if peek_interpreter_stack() is not None else nullcontext()


class Loop:
    """Makes a step at its first event, reports the loop's events to it, and drops it at its end.

    ``before_change`` is called before weights change, and returns what FSDP must then gather at once; ``moved`` when
    the optimizer has moved them, before M changes; ``ended`` when a step is over.
    """

    def __init__(
        self,
        context: Context,
        checks: Checks,
        agreement: Agreement,
        before_change: Callable[[], list[Any]],
        moved: Callable[[], None],
        ended: Callable[[], None],
    ):
        self.step: Step | None = None
        self._context, self._checks, self._agreement = context, checks, agreement
        self._before_change, self._moved, self._ended = before_change, moved, ended

    @property
    def has_begun(self) -> bool:
        """Whether a training forward of the step under way was seen."""
        return self.step is not None and self.step.has_begun

    def _current(self) -> Step:
        if self.step is None:
            self.step = Step(self._context)
        return self.step

    def on_forward(self, module: nn.Module) -> None:
        changes = self.step is None or self.step.changes_weights(module.training)
        gathered = self._before_change() if changes else []
        with outside_of_transforms():
            self._forward(module)
        for group in gathered:
            group.unshard()
            group.wait_for_unshard()

    def _forward(self, module: nn.Module) -> None:
        is_part = module is not self._context.model
        if not self.has_begun:
            moved = [layer.follow_parameter() for layer in self._context.layers]
            if any(moved):
                self._context.random_mask.mask_changed()
        if module.training:
            if not is_part:
                self._context.kernels.on_forward()
            if not self.has_begun:
                self._checks.run(self._context.step)
                self._context.invariant.restore(everywhere=self._context.table.updates(self._context.step + 1))
            else:
                self._current().dense_gradients.forget_discarded()
            self._current().forward(whole=not is_part)
            self._context.watch.forward()
            return
        if not self.has_begun:
            self._context.invariant.check_eval()
            if is_part and self._context.method.has_random_mask and torch.is_grad_enabled():
                explain_backward(module, self._context.layers, self)
        if self.step is not None:
            self.step.evaluate()

    def torch_reads(self, parameters: Collection[nn.Parameter]) -> None:
        """Weights whose Z was held by sparse kernels are about to be read by torch."""
        if self.step is None:
            return
        with outside_of_transforms():
            self.step.z.materialize_z([layer for layer in self._context.layers if layer.parameter in parameters])

    def on_dense_gradient(self, layer: Layer, gradient: Tensor) -> None:
        if not self._context.kernels.is_comparing:
            self._current().keep_gradient(layer, gradient)

    def on_gradient(self, layer: Layer) -> None:
        self._context.watch.gradient(layer)
        self._current().mask_gradient(layer)

    def on_step_begin(self) -> None:
        self._before_change()
        if not self.has_begun:  # no hook of ours was called, perhaps because the modules are others
            self._checks.parameters()
        self._agreement.compare(self._context.step + 1)
        self._current().begin_update()

    def on_step_end(self) -> None:
        step = self._current()
        step.end_update()
        for layer in self._context.layers:
            if layer.gradient_was_changed():  # by a hook that came after ours, so the optimizer saw no masked one
                layer.clear_inactive()
        self._context.watch.updated()
        self._moved()
        try:
            step.conclude()
        finally:  # a user's score may fail: the step is over all the same
            self._drop()
        self._context.watch.step_ended(self._context.step)
        self._context.readings.step_ended(self._context.step)
        self._ended()

    def on_load_begin(self) -> None:
        self.restore_weights()  # what is not among the loaded weights must be M*W

    def on_load_end(self) -> None:
        self._checks.weights_were_loaded()

    def restore_weights(self) -> None:
        """Whatever the moment, the parameters hold M*W, and the next training forward begins the step again."""
        if self.step is not None:
            self.step.abandon()
            self._drop()

    def _drop(self) -> None:
        self.step = None
        for layer in self._context.layers:
            layer.end_step()
        self._context.kernels.end_step()
        self._context.invariant.snapshot()
