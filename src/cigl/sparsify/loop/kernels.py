"""Sparse kernels for training, as this package sees them: one small interface, implemented above, in cigl.runtime."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from cigl.common.errors import CiglError, unknown
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.shards import is_sharded

KINDS = ("auto", "sparse", "masked")


class Kernels(Protocol):
    """Runs the forward and backward of training steps over the active weights alone."""

    sparse: set[nn.Parameter]  # the parameters that ran so
    reasons: dict[str, None]  # why others did not, a sentence each
    instructions: str  # the instruction set that they use, or nothing
    is_comparing: bool  # gradients that arrive now are not the user's: kernels are being compared with torch

    def on_forward(self) -> None:
        """A training forward of the whole model begins."""

    def topology_changed(self) -> None:
        """M is another one."""

    def on_gradient(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """The gradient of a micro-batch has arrived."""

    def made(self, parameter: nn.Parameter, gradient: Tensor) -> bool:
        """Whether the gradient came from these kernels and nothing was added to it: it is zero outside M."""

    def masked(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """The gradient is zero outside M now, whatever was written to it."""

    def hold_z(self, parameter: nn.Parameter, key: int, threshold: int) -> bool:
        """Take a step's Z upon themselves, if nothing but they is to read this weight.

        The parameter then holds M*W, and the switched-off weights still have no part in output, gradient and update.
        """

    def end_step(self) -> None: ...

    def begin_update(self, optimizer: Optimizer) -> None:
        """The optimizer is about to step; weights may be taken out of its sight, to be moved in ``end_update``."""

    def end_update(self, optimizer: Optimizer) -> None: ...

    def abandon_update(self) -> None:
        """The optimizer's step has failed."""

    def remove(self) -> None: ...


class NoKernels:
    """Every step runs on masked dense layers: there is nothing to do for anybody else."""

    def __init__(self) -> None:
        self.sparse: set[nn.Parameter] = set()
        self.reasons: dict[str, None] = {}
        self.instructions = ""
        self.is_comparing = False

    def made(self, parameter: nn.Parameter, gradient: Tensor) -> bool:
        return False

    def hold_z(self, parameter: nn.Parameter, key: int, threshold: int) -> bool:
        return False

    def on_forward(self) -> None: ...
    def topology_changed(self) -> None: ...
    def on_gradient(self, parameter: nn.Parameter, gradient: Tensor) -> None: ...
    def masked(self, parameter: nn.Parameter, gradient: Tensor) -> None: ...
    def end_step(self) -> None: ...
    def begin_update(self, optimizer: Optimizer) -> None: ...
    def end_update(self, optimizer: Optimizer) -> None: ...
    def abandon_update(self) -> None: ...
    def remove(self) -> None: ...


def check_kind(kind: object) -> None:
    if kind not in KINDS:
        raise unknown("kernels", kind, KINDS)


def check_possible(kind: str, model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Refuse "sparse" where nothing could run so."""
    reason = _unsupported_reason(model, parameters) if kind == "sparse" else ""
    if reason:
        raise CiglError(
            f"kernels='sparse' is not possible: {reason}; use kernels='auto' or kernels='masked'.",
            arguments=("kernels",),
        )


def make(
    kind: str,
    model: nn.Module,
    layers: Sequence[Layer],
    needs_dense: Callable[[], bool],
    needs_z: Callable[[Collection[nn.Parameter]], None],
    uncounted: Callable[[], AbstractContextManager[None]],
) -> Kernels:
    """The kernels of this kind.

    ``needs_dense`` says of the step under way whether the method needs its dense gradient. ``needs_z`` is called before
    torch reads weights whose Z the kernels hold. ``uncounted`` takes the hooks away that count calls in the first step.
    """
    if kind == "masked" or _unsupported_reason(model, [layer.parameter for layer in layers]):
        return NoKernels()
    active = {layer.parameter: partial(_active, layer) for layer in layers}
    made: Kernels = _implementation().TrainingKernels(
        model, active, needs_dense, needs_z, insist=kind == "sparse", uncounted=uncounted
    )
    return made


def _active(layer: Layer) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return layer.active().numpy().astype(np.uint32)


def _unsupported_reason(model: nn.Module, parameters: Sequence[nn.Parameter]) -> str:
    if any(is_sharded(parameter) for parameter in parameters):
        return "the parameters are sharded, and FSDP computes with gathered, dense ones"
    reason: str = _implementation().unsupported_reason(model, parameters)
    return reason


def _implementation() -> Any:
    """Imported here and only when asked for: this package knows nothing else of the runtime."""
    return importlib.import_module("cigl.runtime.training.kernels")
