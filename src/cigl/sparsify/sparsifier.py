"""Binds a method to a model and an optimizer, and runs Algorithm 1 as the user's loop goes by.

The order within one step t, as pinned in the design: the first training forward puts Z_t in force; the
gradient is masked by M*Z_t when it is complete; after the optimizer's step the weights and the optimizer
state that Z_t had switched off are as they were, a snapshot is taken where one is due, and then M moves
where a round is due.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop

from cigl.errors import CiglError, CiglWarning
from cigl.sparsify import checkpoint, finish, topology
from cigl.sparsify.batch_norm import Forward, running_norms
from cigl.sparsify.binding import Binding, active_ddp, mean_over_processes
from cigl.sparsify.layer import Layer, as_scores, is_finite, put
from cigl.sparsify.methods import Method
from cigl.sparsify.random_mask import Draw, Positions
from cigl.sparsify.schedule import CycleTimetable, Timetable
from cigl.sparsify.summary import CallCounter, Summary, summarize

# These leave a weight with zero value, gradient and state at exactly zero; others are masked again.
_ELEMENTWISE = {SGD, Adam, AdamW, NAdam, RAdam, RMSprop}


class Sparsifier:
    """What ``cigl.attach`` returns. The training loop drives it through hooks; this is for looking."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method,
        table: Timetable,
        layers: list[Layer],
        settings: Mapping[str, Any],
    ):
        self.model = model
        self.optimizer = optimizer
        self.method = method
        self.table = table
        self.layers = layers
        self.settings = dict(settings)
        self.seed = int(settings["seed"])
        self.step = 0
        self.collection = method.collection()
        self.share = method.random_mask or 0.0
        self.in_force = False  # between the first training forward of a step and the end of its step
        self._suspended = False  # an eval forward interrupted: parameters hold M*W, Z stays in force
        self._awaiting = False  # a training forward with a graph has not seen any gradient yet
        self._in_step = False  # inside optimizer.step()
        self._closure = False  # ... which computes gradients itself
        self.wants_incoming = method.wants_gradient(table, 1)  # this step's dense gradient
        self._gradients = False  # arrived in this step
        self._reduced = False  # ... and were averaged over the processes
        self._overflow: Layer | None = None  # has NaN or Inf in a dense gradient that is needed
        self._draw: Draw | None = None
        self._ddp: DistributedDataParallel | None = None
        self._expected: checkpoint.Fingerprints | None = None  # of the weights that belong to a loaded state
        self._loaded = False  # the user has loaded weights or optimizer state: to be checked
        self._detached = False
        self._elementwise = type(optimizer) in _ELEMENTWISE
        self.calls = CallCounter(model, layers)
        self._binding = Binding(model, optimizer, layers, self)

    # Looking

    @property
    def masks(self) -> dict[str, Tensor]:
        """M: parameter name to bool tensor."""
        return {layer.name: layer.mask for layer in self.layers}

    @property
    def random_masks(self) -> dict[str, Tensor] | None:
        """Z, False where a weight is switched off, while it is in force; else None."""
        if not self.in_force or not self.share:
            return None
        return {layer.name: layer.random_mask for layer in self.layers}

    @property
    def density(self) -> float:
        """Active weights over all selected weights."""
        return sum(int(layer.mask.sum()) for layer in self.layers) / sum(layer.size for layer in self.layers)

    @property
    def explored(self) -> float:
        """ITOP rate: the share of weights that were ever active."""
        return sum(int(layer.explored.sum()) for layer in self.layers) / sum(layer.size for layer in self.layers)

    def summary(self) -> Summary:
        """A table per layer and in all; print it."""
        return summarize(self)

    def learning_rate(self, before: Callable[[int], float] | None = None) -> Callable[[int], float]:
        """Sup-tickets' cycle as a function for ``LambdaLR`` stepped once per optimizer step.

        ``before`` is the user's own factor up to the first cycle (1 if not given).
        """
        if not isinstance(self.table, CycleTimetable):
            raise CiglError(f"method {self.method.name!r} has no learning-rate cycle; 'sup-tickets' has.")
        return self.table.learning_rate(before)

    # Results

    @property
    def needs_loader(self) -> bool:
        """Whether ``finalize`` must re-estimate batch-norm statistics, and so needs training data."""
        return finish.changes_weights(self) and bool(running_norms(self.model))

    def finalize(
        self, loader: Iterable[Any] | None = None, forward: Forward | None = None, average: bool = True
    ) -> nn.Module:
        """A plain copy of the model with the method's final weights; the attached model stays as it is.

        ``loader`` (training data) is needed where the model has batch norm and the returned weights are not
        those it was trained with; given for another method, the statistics are re-estimated all the same.
        ``forward(model, batch)`` runs one batch where the usual forms of a batch don't fit.
        ``average=False`` takes the current weights instead of the average.
        """
        self._verify()
        return finish.finalize(self, loader, forward, average)

    def members(self, n: int | None = None) -> list[nn.Module]:
        """Plain models whose predictions are to be averaged: snapshots, or ``n`` draws of Z."""
        self._verify()
        return finish.members(self, n)

    def sample_posterior(
        self, n: int = 1, loader: Iterable[Any] | None = None, forward: Forward | None = None, seed: int = 0
    ) -> list[nn.Module]:
        """``n`` models drawn from the Gaussian with the averaged first and second moment."""
        self._verify()
        return finish.sample_posterior(self, n, loader, forward, seed)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, as tensors and plain values; save it with the model and optimizer."""
        return checkpoint.save(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. The model's weights must be those of the same moment."""
        self._expected = checkpoint.load(self, state)
        self._loaded = True
        self._draw = None

    def detach(self) -> None:
        """Remove all hooks; the model keeps M*W."""
        self.take_back_z()
        self.calls.remove()
        self._binding.remove()
        self._detached = True

    # The loop, as the hooks report it

    def on_forward(self, training: bool) -> None:
        if not training:
            if self.in_force and self.share and not self._suspended:
                self._suspend()
            return
        if not self.in_force:
            self._verify()
            self._begin()
        elif self._suspended:
            for layer in self.layers:
                layer.resume()
            torch.clear_autocast_cache()
        self._suspended = False
        self._awaiting = torch.is_grad_enabled()

    def on_incoming(self, layer: Layer, gradient: Tensor) -> None:
        layer.keep_gradient(gradient)
        self._reduced = False

    def on_gradient(self, layer: Layer) -> None:
        if self._suspended:
            raise CiglError(
                "the model ran in eval mode between a training forward and its backward, which changed the "
                "weights that this backward needs: evaluate after backward() or before the training forward."
            )
        self._gradients, self._awaiting = True, False
        if self._in_step:
            self._closure = True
            self._check_forward()
        layer.mask_gradient()
        if self._overflow is layer:
            self._overflow = None
        if layer.gradient is not None and not is_finite(layer.gradient):
            if self._in_step:  # optimizer.step(closure): no later moment to refuse
                raise _not_finite(layer, self.step + 1)
            self._overflow = layer
            layer.spoil_gradient()

    def on_step_begin(self) -> None:
        self._check_forward()
        self._reduce_gradients()
        if self._overflow is not None:
            raise _not_finite(self._overflow, self.step + 1)
        for layer in self.layers:
            if layer.gradient_is_touched():
                layer.mask_gradient()
        self._in_step = True

    def on_step_end(self) -> None:
        self._in_step = False
        self._reduce_gradients()
        self.step += 1
        if self.step == self.table.steps + 1:
            warnings.warn(
                f"training goes on past the {self.table.steps} steps announced to cigl.attach: no more "
                "topology rounds, and the average goes on.", CiglWarning, stacklevel=2,
            )  # fmt: skip
        if not self._elementwise or self._closure:
            for layer in self.layers:
                layer.clear_inactive(self.optimizer)
        snapshot = self.collection is not None and self.table.snapshots(self.step)
        off = {layer.name: layer.off for layer in self.layers} if snapshot else {}
        if self.share:
            for layer in self.layers:
                layer.switch_on(self.optimizer)
        try:
            if snapshot and self.collection is not None:
                self.collection.add(self._snapshot(off))
            self._topology()
        finally:  # a user's score may fail: the step is over all the same
            self._end_of_step()

    def on_load_begin(self) -> None:
        self.take_back_z()  # what is not among the loaded weights must be M*W

    def on_load_end(self) -> None:
        self._loaded = True

    # The parts of a step

    def _begin(self) -> None:
        """The first training forward of a step: put Z in force."""
        for layer in self.layers:
            layer.follow()
        if self._ddp is None and (ddp := active_ddp()) is not None:
            checkpoint.check_same_masks(self, ddp)
            self._ddp = ddp
        self.in_force = True
        if not self.share:
            return
        drawn = self.draw("z", self.step + 1)
        zeros = torch.zeros(max(len(off) for off in drawn))
        for layer, off in zip(self.layers, drawn, strict=True):
            layer.switch_off(off, zeros[: len(off)].to(layer.weight), self.optimizer)
        torch.clear_autocast_cache()  # it may hold casts of the weights before

    def draw(self, stream: str, number: int) -> list[Tensor]:
        """The positions that a Z switches off in each layer."""
        if self._draw is None:
            self._draw = Draw({layer.name: layer.active() for layer in self.layers})
        off, counts = self._draw.off(self.share, self.seed, stream, number)
        parts = torch.from_numpy(off).split(counts)
        if all(layer.bits.is_cpu for layer in self.layers):
            return list(parts)
        return [part.to(layer.bits.device) for layer, part in zip(self.layers, parts, strict=True)]

    def _suspend(self) -> None:
        if self._awaiting:
            warnings.warn(
                "the model runs in eval mode after a training forward whose backward has not come yet: such a "
                "backward would fail, because it needs the weights as they were.", CiglWarning, stacklevel=2,
            )  # fmt: skip
        for layer in self.layers:
            layer.suspend()
        torch.clear_autocast_cache()
        self._suspended = True

    def _check_forward(self) -> None:
        if self.share and self._gradients and not self.in_force:
            raise CiglError(
                "gradients arrived, but no training forward of the model was seen, so the random mask never "
                "acted: call model.train() before training, call the attached model itself, and compile it as a "
                "whole, not only a part of it."
            )

    def take_back_z(self) -> None:
        """Whatever the moment, the parameters hold M*W, and the next training forward begins the step anew."""
        for layer in self.layers:
            layer.suspend()
        self._end_of_step()

    def _end_of_step(self) -> None:
        for layer in self.layers:
            layer.forget_off()
            layer.gradient = None
        self.wants_incoming = self.method.wants_gradient(self.table, self.step + 1)
        self.in_force = self._suspended = self._awaiting = self._closure = False
        self._gradients = self._reduced = False
        self._overflow = None

    def _reduce_gradients(self) -> None:
        """Under DDP, each process has kept its own gradient. A layer that one of them didn't use counts 0."""
        if self._ddp is None or self._reduced or not self.wants_incoming:
            return
        for layer in self.layers:
            if layer.gradient is None:
                layer.gradient = torch.zeros_like(layer.weight)
            mean_over_processes(layer.gradient, self._ddp)
            if not is_finite(layer.gradient):
                self._overflow = layer
        self._reduced = True

    def _snapshot(self, off: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """M*Z*W (or M*pW) of the selected parameters and the others as they are (Algorithm 1)."""
        expectation = self.method.average_of == "p*W"
        values = {name: p.detach() for name, p in self.model.named_parameters()}
        for layer in self.layers:
            weight = layer.weight.clone()
            switched = off[layer.name]
            if expectation:
                weight *= 1 - self.share
            elif switched is not None:
                put(weight, switched, 0)
            values[layer.name] = weight
        if self.method.keep_snapshots:
            values |= dict(self.model.named_buffers())
        return values

    def _topology(self) -> None:
        updates = self.table.updates(self.step)
        if not updates and all(layer.gradient is None for layer in self.layers):
            return
        active = self._active()
        for layer in self.layers:
            layer.rescale_gradient(active[layer.name])
            self.method.observe(layer, self.table, self.step)
        if updates:
            self._round(active)

    def _active(self) -> dict[str, Positions]:
        """The active positions of each layer (kept only where Z needs them in every step)."""
        return self._draw.parts() if self._draw else {layer.name: layer.active() for layer in self.layers}

    def _round(self, active: dict[str, Positions]) -> None:
        """Drop and grow, decided in all layers before anything changes."""
        changes = {}
        for layer in self.layers:
            old = active[layer.name]
            keep, grow = self.method.budget(layer, old.size, self.table, self.step)
            grow_score = self.method.grow_score(layer, self.step) if grow else None
            if grow and (grow_score is None or not layer.parameter.requires_grad):
                continue  # no gradient reached this layer in this step
            keep_scores = as_scores(self.method.keep_score(layer, layer.positions(old), self.step))
            grow_scores = None if grow_score is None else as_scores(layer.owned(grow_score))
            changes[layer.name] = topology.change(old, keep_scores, grow_scores, keep, grow)
        for layer in self.layers:
            if layer.name in changes:
                layer.apply(changes[layer.name], self.optimizer, self.method.start_variance)
                active[layer.name] = changes[layer.name].active
        if self.share:
            self._draw = Draw(active)

    def _verify(self) -> None:
        if self._detached:
            raise CiglError("this sparsifier was detached: finalize before detach(), or attach anew.")
        checkpoint.check_parameters(self)
        if self._expected is not None:
            checkpoint.check_fingerprints(self, self._expected)
            self._expected = None
        if self._loaded:
            checkpoint.check_zeros(self)
            self._loaded = False


def _not_finite(layer: Layer, step: int) -> CiglError:
    return CiglError(
        f"the dense gradient of {layer.name} has NaN or Inf in step {step}, so its topology can't be updated; "
        "nothing was changed. Look for a diverging loss (lower the learning rate, clip gradients)."
    )
