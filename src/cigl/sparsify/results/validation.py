"""Held-out examples of a training: what a user observes, and a loader that is evaluated after each epoch.

Whatever is evaluated here is a copy: the model's mode, its batch-norm statistics, Z and torch's generator stay as they
are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sized
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cigl.calibrate.corrections.ensemble import logits_of
from cigl.calibrate.reports.evaluation import forward as forward_of
from cigl.calibrate.reports.evaluation import labels_of
from cigl.common.errors import CiglError, CiglWarning
from cigl.sparsify.loop.context import Context
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.methods.controller import Controller
from cigl.sparsify.results import finish
from cigl.sparsify.results.batch_norm import Forward

IGNORED = -100  # the label that torch's losses leave out


def check_validation(method: Method, loader: Iterable[Any] | None) -> None:
    """Before anything is attached."""
    if loader is None:
        return
    if method.controller() is None:
        raise _unused(method)
    if isinstance(loader, Iterator):
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
        """At the end of an epoch."""
        if self._loader is not None and not self._context.step % self._context.table.steps_per_epoch:
            self.evaluate(self._loader)

    def evaluate(self, loader: Iterable[Any], forward: Forward | None = None) -> None:
        """All examples, or none: what is wrong with them must not end a training of days, and is said."""
        controller = self._controller()
        seen, model = replace(controller), finish.preview(self._context)
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():  # a loader draws from it
                for batch in loader:
                    logits, labels = logits_of((forward or forward_of)(model, batch)), labels_of(batch)
                    if logits.ndim > 2:  # a label for each token
                        logits, labels = logits.flatten(0, -2), labels.flatten().to(logits.device)
                        logits, labels = logits[labels != IGNORED], labels[labels != IGNORED]
                    seen.observe(logits, labels)
            if seen.pending == controller.pending:
                raise CiglError("there are none.")
        except CiglError as error:
            message = (
                f"the held-out examples could not be used after step {self._context.step}, so the random mask stays as "
                f"it was: {error}"
            )
            warnings.warn(message, CiglWarning, stacklevel=2)
            return
        controller.pending, controller.classes = seen.pending, seen.classes

    def observe(self, logits: Tensor, labels: Tensor) -> None:
        self._controller().observe(logits, labels)

    def _controller(self) -> Controller:
        if self._context.controller is None:
            raise _unused(self._context.method)
        return self._context.controller


def _unused(method: Method) -> CiglError:
    return CiglError(
        f"method {method.name!r} makes no use of held-out examples, so validation would change nothing; 'cigl-auto' "
        "does.",
        arguments=("validation",),
    )
