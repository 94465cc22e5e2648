"""Batch-norm statistics for weights that were not trained with them (averages, tickets, weight dropout)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cigl.common.batches import default_forward
from cigl.common.errors import CiglError

Forward = Callable[[nn.Module, Any], Any]


def running_norms(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


@torch.no_grad()
def reestimate_batch_norm(model: nn.Module, loader: Iterable[Any], forward: Forward | None = None) -> None:
    """Replace the running statistics by the mean of the batch statistics over ``loader``.

    Only the batch-norm modules are put into training mode, so dropout and the like stay off.

    Args:
        model: The model; it is changed in place. Without batch norm nothing happens.
        loader: Batches of training data.
        forward: ``forward(model, batch)`` runs one batch, where the usual forms of a batch don't fit.

    >>> import torch, cigl
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    >>> cigl.reestimate_batch_norm(model, [(torch.randn(32, 4), torch.zeros(32))] * 10)
    >>> int(model[1].num_batches_tracked)
    10
    """
    norms = running_norms(model)
    if not norms:
        return
    modes = {module: module.training for module in model.modules()}
    momenta = [norm.momentum for norm in norms]
    old = _statistics(norms)
    used = 0
    model.eval()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a cumulative mean instead of a moving one
            norm.train()
        done = 0
        for batch in loader:
            done += _one_batch(model, batch, forward or default_forward, norms)
        used = done
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
        if not used:
            _restore(norms, old)
    if not used:
        raise CiglError(
            "the loader yielded no batch that batch norm can be estimated from: pass a loader over training "
            "data with batches of two and more (a generator that has been used up yields nothing)."
        )


def _one_batch(model: nn.Module, batch: Any, forward: Forward, norms: list[_BatchNorm]) -> int:
    before = _statistics(norms)
    try:
        forward(model, batch)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        _restore(norms, before)  # a last batch of one sample: as if not seen
        return 0
    return 1


def _statistics(norms: list[_BatchNorm]) -> list[list[Tensor]]:
    return [[buffer.clone() for buffer in norm.buffers()] for norm in norms]


def _restore(norms: list[_BatchNorm], statistics: list[list[Tensor]]) -> None:
    for norm, values in zip(norms, statistics, strict=True):
        for buffer, value in zip(norm.buffers(), values, strict=True):
            buffer.copy_(value)
