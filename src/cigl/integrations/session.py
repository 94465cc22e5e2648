"""One training inside a trainer: what the callbacks of all trainers have in common.

A trainer has loaded weights and optimizer state before its callbacks are called, and keeps the model it was given. So
attaching must be able to resume on loaded weights, and the final weights must be written into the trainer's own model.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cigl.common.errors import CiglError, unknown
from cigl.sparsify.attaching import attach
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.results.batch_norm import Forward
from cigl.sparsify.sparsifier import Sparsifier

_TRAINERS = {"model", "optimizer", "epochs", "validation"}  # the arguments of attach that the trainer knows
_SNAPSHOT_INTERVALS = 25  # of a training at least: the last fifth, which is averaged by default, then has five


class Session:
    """The options given to a callback, and the sparsifier while its trainer is training."""

    def __init__(self, method: str | Method, options: Mapping[str, Any]):
        allowed = inspect.signature(attach).parameters.keys() - _TRAINERS
        for name in options:
            if name in _TRAINERS:
                raise CiglError(f"leave {name} out: the trainer knows it.")
            if name not in allowed:
                raise unknown("option", name, allowed)
        self._options = {"method": method, **options}
        self.sparse: Sparsifier | None = None

    def begin(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        steps: int,
        steps_per_epoch: int,
        state: Mapping[str, Any] | None = None,
    ) -> Sparsifier:
        """Attach, and resume from ``state`` with the weights and the optimizer state that were loaded already.

        ``steps`` and ``steps_per_epoch`` are optimizer steps.
        """
        self.stop()  # what an interrupted training has left
        options = self._options
        if "steps_per_epoch" not in options:
            options = {**options, "steps_per_epoch": min(steps_per_epoch, max(1, steps // _SNAPSHOT_INTERVALS))}
        options = {**options, "epochs": steps / options["steps_per_epoch"]}
        if state is None:
            self.sparse = attach(model, optimizer, **options)
            return self.sparse
        # The non-zeros are at most as many as M has ones. So the largest weights are all of them, and attaching with
        # these zeroes none; the optimizer state of weights that are active and zero is put back.
        moments = copy.deepcopy(optimizer.state_dict())
        sparse = attach(model, optimizer, **{**options, "initial": "magnitude", "rescale": False})
        optimizer.load_state_dict(moments)
        try:
            sparse.load_state_dict(state)
        except CiglError:
            sparse.detach()
            raise
        self.sparse = sparse
        return sparse

    def finish(self, loader: Iterable[Any] | None = None, forward: Forward | None = None) -> None:
        """Write the final weights into the model itself, and detach.

        A training that ended before its first snapshot has nothing to average, and keeps its current weights.
        """
        sparse = self._current()
        average = sparse.collection is None or sparse.collection.count > 0
        final = sparse.finalize(loader if sparse.needs_loader else None, forward, average=average)
        self.stop()
        with torch.no_grad():
            for mine, its in zip(_tensors(sparse.model), _tensors(final), strict=True):
                mine.copy_(its)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for buffer in sparse.model.buffers():  # each process has seen its own part of the training data
                torch.distributed.broadcast(buffer, 0)

    def stop(self) -> None:
        """Detach, if attached: the model keeps its current weights."""
        if self.sparse is not None:
            self.sparse.detach()
            self.sparse = None

    def observe(self, loader: Iterable[Any] | None, forward: Forward | None = None) -> None:
        """The trainer's held-out examples, at the end of an epoch, where the method makes use of them."""
        if self.sparse is not None and self.sparse.controller is not None and loader is not None:
            self.sparse.validate(loader, forward)

    def numbers(self) -> dict[str, float]:
        """What to log: density, the share of weights that were ever active, and the drop fraction of a round now."""
        sparse = self._current()
        numbers = {"cigl/density": sparse.density, "cigl/explored": sparse.explored}
        if rounds := sparse.table.update_steps:
            over = sparse.step > rounds[-1]
            numbers["cigl/drop_fraction"] = 0.0 if over else sparse.table.fraction(sparse.step)
        if sparse.controller is not None:
            numbers |= {"cigl/mask_rate": sparse.mask_rate, "cigl/strength": sparse.controller.strength}
            if sparse.controller.gap is not None:
                numbers["cigl/gap"] = sparse.controller.gap
        return numbers

    def _current(self) -> Sparsifier:
        if self.sparse is None:
            raise CiglError("the callback has not been attached: it attaches when training begins.")
        return self.sparse


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
