"""Held-out examples of a training: what a user observes, and a loader that is evaluated after each epoch.

Whatever is evaluated here is a copy: the model's mode, its batch-norm statistics, Z and torch's generator stay as they
are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sized
from typing import Any

import torch
from torch import Tensor

from cigl.calibrate.reports.evaluation import predict
from cigl.common.errors import CiglError, CiglWarning
from cigl.sparsify.loop.context import Context
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.results import finish


def check_validation(method: Method, loader: Iterable[Any] | None) -> None:
    """Before anything is attached."""
    if loader is None:
        return
    if method.controller() is None:
        raise _unused(method)
    if iter(loader) is loader:
        raise CiglError(
            "validation can be read only once, and each epoch needs it: pass a list or a DataLoader.",
            arguments=("validation",),
        )
    if isinstance(loader, Sized) and not len(loader):
        raise CiglError("validation has no batches: give a loader of held-out examples.", arguments=("validation",))


class Validation:
    """Feeds the method's controller."""

    def __init__(self, context: Context, loader: Iterable[Any] | None):
        self._context, self._loader = context, loader

    def after_step(self) -> None:
        """At the end of an epoch; what is wrong with the examples must not end a training of days."""
        context = self._context
        if self._loader is None or context.step % context.table.steps_per_epoch:
            return
        try:
            with torch.random.fork_rng(devices=[]):  # a loader draws from it
                self.observe(*predict(finish.preview(context), self._loader))
        except CiglError as error:
            message = f"after step {context.step} the held-out examples could not be used: {error}"
            warnings.warn(message, CiglWarning, stacklevel=2)

    def observe(self, logits: Tensor, labels: Tensor) -> None:
        if self._context.controller is None:
            raise _unused(self._context.method)
        self._context.controller.observe(logits, labels)


def _unused(method: Method) -> CiglError:
    return CiglError(
        f"method {method.name!r} makes no use of held-out examples; 'cigl-auto' does.", arguments=("validation",)
    )
