"""``sparse.ema(decay)``: an exponential moving average of the weights that follows M.

After each step, ``average = decay * average + (1 - decay) * W``, and the first time a copy: what
``torch.optim.swa_utils.AveragedModel`` computes with ``get_ema_multi_avg_fn(decay)``. A topology round changes what
there is to average. A weight that is dropped leaves the average at once. A grown one enters as every weight does at
the start of the average, with a copy of its own value, after the first step that has moved it: an average with the
zeros of the time when it did not exist would hold it back for about 1 / (1 - decay) steps. So every number of the
average is one over the steps in which that weight existed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cigl.common.errors import CiglError
from cigl.common.numbers import is_number, is_whole
from cigl.sparsify.loop.context import Context
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.results import finish
from cigl.sparsify.results.batch_norm import Forward
from cigl.sparsify.tensors.flat_indexing import keep_only
from cigl.sparsify.tensors.shards import local


class Ema:
    """An exponential moving average of the weights; ``sparse.ema(decay)`` makes it.

    The sparsifier updates it after each step and saves it with its own state. ``count`` is the number of steps that
    were averaged.
    """

    def __init__(self, context: Context, decay: float, use_buffers: bool):
        self.decay, self.use_buffers = decay, use_buffers
        self.count = 0  # steps that were averaged
        self.values: dict[str, Tensor] = {}  # in float32 at least
        self._context = context
        self._masks: dict[str, Tensor] = {}  # M at the last update
        self._versions: dict[str, tuple[Tensor, int]] = {}  # by which a change of M costs nothing to see

    def finalize(
        self, loader: Iterable[Any] | None = None, forward: Forward | None = None, whole: bool = False
    ) -> nn.Module:
        """A plain copy of the model with the averaged weights, as ``sparse.finalize`` returns one.

        With batch norm pass ``loader`` (training data), to re-estimate its statistics, or average them too
        (``use_buffers=True``).
        """
        if not self.count:
            raise CiglError("nothing was averaged yet: an EMA starts with the first step after sparse.ema(...).")
        return finish.finalize_ema(self._context, self.values, loader, forward, not self.use_buffers, whole)

    @torch.no_grad()
    def update(self) -> None:
        """After a step, before M changes; the parameters hold M*W."""
        for layer in self._context.layers:
            if self._has_changed(layer):
                self._follow(layer)
        for name, value in _current(self._context.model, self.use_buffers).items():
            wide = local(value).to(torch.promote_types(value.dtype, torch.float32))
            if (average := self.values.get(name)) is None or average.shape != wide.shape:
                self.values[name] = wide.clone()
                continue
            if average.device != wide.device:
                average = self.values[name] = average.to(wide.device)
            average.lerp_(wide, 1 - self.decay)
        self.count += 1

    def _has_changed(self, layer: Layer) -> bool:
        known, version = self._versions.get(layer.name, (None, 0))
        return known is not layer.bits or version != layer.bits._version

    def _follow(self, layer: Layer) -> None:
        """M may be another one than at the last update."""
        average, before = self.values.get(layer.name), self._masks.get(layer.name)
        if average is not None and before is not None:
            grown = layer.mask & ~before.to(layer.bits.device)
            average = self.values[layer.name] = average.to(layer.weight.device)
            average[grown] = layer.weight[grown].to(average.dtype)  # so that the mean with its value is its value
            keep_only(average, layer.bits)
        self._masks[layer.name], self._versions[layer.name] = layer.mask, (layer.bits, layer.bits._version)

    def shard(self, rows: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
        """The model was sharded: keep the local rows."""
        self.values, self._masks, self._versions = rows(self.values), rows(self._masks), {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "decay": self.decay,
            "use_buffers": self.use_buffers,
            "count": self.count,
            "values": {name: value.clone() for name, value in self.values.items()},
            "masks": {name: mask.clone() for name, mask in self._masks.items()},
        }

    @classmethod
    def read(cls, context: Context, state: Mapping[str, Any]) -> Ema:
        """A new average in a saved state, if it fits the model."""
        ema = cls(context, *_checked(state["decay"], state["use_buffers"]))
        if not is_whole(state["count"]) or state["count"] < 0:
            raise ValueError(f"{state['count']!r} steps were averaged")
        ema.count = int(state["count"])
        now = {name: local(value) for name, value in _current(context.model, ema.use_buffers).items()}
        if ema.count and now.keys() - state["values"].keys():
            raise ValueError(f"the EMA has no {min(now.keys() - state['values'].keys())}")
        for name, value in state["values"].items():
            wide = torch.promote_types(now[name].dtype, torch.float32)
            if value.shape != now[name].shape or value.dtype != wide:
                raise ValueError(f"the EMA of {name} is {value.dtype} of shape {tuple(value.shape)}")
            ema.values[name] = torch.empty_like(now[name], dtype=wide).copy_(value)
        for layer in context.layers if ema.count else []:
            mask = state["masks"][layer.name]
            if mask.dtype != torch.bool or mask.shape != layer.weight.shape:
                raise ValueError(f"the EMA's mask of {layer.name} is {mask.dtype} of shape {tuple(mask.shape)}")
            ema._masks[layer.name] = mask.to(layer.bits.device, copy=True)
        return ema


class Averages:
    """The EMAs of a sparsifier, by their decay."""

    def __init__(self, context: Context):
        self._context = context
        self._all: dict[float, Ema] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Ema]:
        return iter(self._all.values())

    def get(self, decay: float, use_buffers: bool) -> Ema:
        """The one with this decay; started, if there is none yet."""
        decay, use_buffers = _checked(decay, use_buffers)
        ema = self._all.setdefault(decay, Ema(self._context, decay, use_buffers))
        if ema.use_buffers != use_buffers:
            raise CiglError(f"the EMA with decay {decay} was started with use_buffers={ema.use_buffers}.")
        return ema

    def update(self) -> None:
        for ema in self._all.values():
            ema.update()

    def state(self) -> list[dict[str, Any]]:
        return [ema.state_dict() for ema in self._all.values()]

    def read(self, states: Iterable[Mapping[str, Any]]) -> dict[float, Ema]:
        """Checked, and not yet in force."""
        return {ema.decay: ema for ema in (Ema.read(self._context, state) for state in states)}

    def apply(self, saved: Mapping[float, Ema]) -> list[float]:
        """Take these states over, in the objects that the user may hold; returns the decays that were not saved."""
        missing = [decay for decay in self._all if decay not in saved]
        for decay, ema in saved.items():
            vars(self._all.setdefault(decay, ema)).update(vars(ema))
        for decay in missing:
            vars(self._all[decay]).update(vars(Ema(self._context, decay, self._all[decay].use_buffers)))
        return missing


def _checked(decay: Any, use_buffers: Any) -> tuple[float, bool]:
    if not is_number(decay) or not 0 <= decay < 1:
        raise CiglError(f"decay is {decay!r}: give a number from 0 to below 1 (0.999 remembers about 1000 steps).")
    if not isinstance(use_buffers, bool):
        raise CiglError(f"use_buffers is {use_buffers!r}: give True or False.")
    return float(decay), use_buffers


def _current(model: nn.Module, use_buffers: bool) -> dict[str, Tensor]:
    """What is averaged: parameters and, if asked for, buffers. Counts and codes (whole numbers) are not averaged."""
    tensors = dict(model.named_parameters()) | (dict(model.named_buffers()) if use_buffers else {})
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() or tensor.is_complex()}
