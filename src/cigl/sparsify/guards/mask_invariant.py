"""Outside M every weight is zero, whoever writes to the weights between two steps.

Looking at every weight in every step would cost too much. So a step looks at the layers that were written to since the
last one (a tensor counts its writes). Because writes through ``.data`` are not counted, each of the first steps, and
later every eighth, also looks at a few rows of one layer in turn; a step that ends with a topology round looks at
everything, and so does every result. What was found on a GPU the host learns later (readings.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from cigl.common.errors import CiglWarning
from cigl.sparsify.guards.readings import Readings
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.flat_indexing import keep_only

_GLANCE = 4096  # weights that are looked at in any case
_FIRST, _EVERY = 16, 8  # in which steps
_WRITERS = "Lookahead, noise, an EMA or SWA copied into the model, weights averaged over processes"


def count_outside(weight: Tensor, bits: Tensor) -> Tensor:
    """How many non-zeros lie outside M."""
    return ((weight != 0) & (bits == 0)).sum()


class MaskInvariant:
    """Finds non-zeros outside M; in training they are set to zero, and the first time it is said."""

    def __init__(self, layers: Sequence[Layer], readings: Readings):
        self._layers, self._readings = layers, readings
        self._versions: list[int] = []
        self._step = self._turn = 0
        self._was_warned = self._was_evaluated = self._is_suspect = False
        self.snapshot()

    def snapshot(self) -> None:
        """The weights are as this package has left them."""
        self._versions = [layer.version for layer in self._layers]
        self._was_evaluated = False

    def restore(self, everywhere: bool) -> None:
        """Before a training step."""
        if self._was_warned:  # somebody writes, perhaps unseen: from now on every step masks all weights
            for layer in self._layers:
                keep_only(layer.weight, layer.bits)
            return
        self._step += 1
        if self._step <= _FIRST or self._step % _EVERY == 0:
            self._turn += 1
            self._glance(self._layers[self._turn % len(self._layers)])
        looked_at = self._layers if everywhere or self._is_suspect else self._written()
        self._is_suspect = False
        self._count(
            looked_at,
            f"the weights have {{}}: something other than the optimizer's step writes to them ({_WRITERS}). They were "
            "set to zero, and will be before each step; for an average that follows the mask use sparse.ema(decay).",
            restore=True,
        )

    def check_eval(self) -> None:
        """Before the first eval forward after a step: other weights may have been put in for it, and stay."""
        if not self._was_evaluated:
            self._was_evaluated = True
            self._turn += 1
            for layer in self._layers:
                self._glance(layer)
            self._count(
                self._layers if self._is_suspect else self._written(),
                f"the model is evaluated with {{}} ({_WRITERS}): these are the numbers of a denser network; "
                "sparse.ema(decay) is an average that follows the mask.",
            )
            self._is_suspect = False

    def check_result(self) -> None:
        """Before a result, which has its zeros outside M whatever the model holds."""
        self._count(
            self._layers,
            f"the model's weights have {{}}: something other than the optimizer's step wrote to them ({_WRITERS}). "
            "What is returned has zeros there; for an average that follows the mask use sparse.ema(decay).",
        )

    def _written(self) -> list[Layer]:
        pairs = zip(self._layers, self._versions, strict=True)
        return [layer for layer, version in pairs if layer.version != version]

    def _glance(self, layer: Layer) -> None:
        if layer.is_dense:
            return
        rows = max(1, _GLANCE * layer.shape[0] // layer.size)
        parts = max(1, -(-layer.weight.shape[0] // rows))
        start = self._turn // len(self._layers) % parts * rows
        outside = count_outside(layer.weight[start : start + rows], layer.bits[start : start + rows])
        self._readings.ask(outside, self._glanced)

    def _glanced(self, outside: list[int]) -> None:
        self._is_suspect |= any(outside)

    def _count(self, layers: Sequence[Layer], message: str, restore: bool = False) -> None:
        layers = [layer for layer in layers if not layer.is_dense]
        if not layers:
            return
        outside = torch.stack([count_outside(layer.weight, layer.bits) for layer in layers])
        if restore and not outside.is_cpu:  # without waiting for what was found
            for layer in layers:
                keep_only(layer.weight, layer.bits)
        self._readings.ask(outside, partial(self._counted, layers, message, restore))

    def _counted(self, layers: Sequence[Layer], message: str, restore: bool, outside: list[int]) -> None:
        found = {layer: count for layer, count in zip(layers, outside, strict=True) if count}
        if not found:
            return
        if restore:
            self._was_warned = True
            for layer in found:
                if layer.bits.is_cpu:
                    keep_only(layer.weight, layer.bits)
        layer, count = next(iter(found.items()))
        others = f" and of {len(found) - 1} more" if len(found) > 1 else ""
        non_zeros = "non-zero" if count == 1 else "non-zeros"
        text = f"{count} {non_zeros} outside the mask of {layer.name}{others}"
        warnings.warn(message.format(text), CiglWarning, stacklevel=4)
