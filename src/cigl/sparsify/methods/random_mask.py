"""Z: which of the active weights a step switches off, drawn over all layers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.methods.schedule import Timetable
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.random_numbers import LARGEST, Positions, key, mix
from cigl.sparsify.tensors.shards import Part

_STRONGEST = 0.75  # the share that a strength above 1 may switch off


class RandomMask:
    """Draws Z at each layer's rate, and keeps the active positions of all layers from one draw to the next.

    ``strength`` is a factor of the rates, where a controller sets one.
    """

    def __init__(
        self, layers: Sequence[Layer], method: Method, table: Timetable, seed: int, strength: float | None = None
    ):
        self._layers, self._method, self._table, self._seed = layers, method, table, seed
        self.strength = strength
        self._draw: Draw | None = None

    def rates(self, step: int) -> list[float]:
        """The share of each layer's active weights that the Z of a step switches off."""
        if not self._method.has_random_mask:
            return [0.0] * len(self._layers)
        rates = [self._method.mask_rate(layer, layer.count, self._table, step) for layer in self._layers]
        for layer, rate in zip(self._layers, rates, strict=True):
            if not 0 <= rate < 1:
                raise CiglError(
                    f"mask_rate of method {self._method.name!r} is {rate!r} for {layer.name} in step {step}: it must "
                    "be a share in [0, 1)."
                )
        return [scaled(rate, self.strength) for rate in rates]

    def draw(self, stream: str, number: int, rates: Sequence[float]) -> list[Tensor]:
        """The positions that a Z switches off in each layer, at these ``rates``."""
        off, counts = self._drawn().off(rates, self._seed, stream, number)
        parts = torch.from_numpy(off).split(counts)
        if all(layer.bits.is_cpu for layer in self._layers):
            return list(parts)
        return [part.to(layer.bits.device) for layer, part in zip(self._layers, parts, strict=True)]

    def hash_key_and_threshold(self, layer: Layer, stream: str, number: int, rate: float) -> tuple[int, int]:
        """The key of a layer's random numbers, and the threshold below which they switch a weight off."""
        return key(self._seed, stream, number, layer.name), _threshold(rate)

    def active(self) -> dict[str, Positions]:
        """The active positions of each layer: known where Z is drawn in every step, else found in M."""
        return self._draw.parts() if self._draw else {layer.name: layer.active() for layer in self._layers}

    def mask_changed(self, active: Mapping[str, Positions] | None = None) -> None:
        """M is another one, with these ``active`` positions if they are known."""
        if active is None or not self._method.has_random_mask:
            self._draw = None
        else:
            self._draw = Draw(active, [layer.part for layer in self._layers])

    def _drawn(self) -> Draw:
        if self._draw is None:
            self._draw = Draw(self.active(), [layer.part for layer in self._layers])
        return self._draw


class Draw:
    """Z over the active weights of all layers, a Bernoulli switch-off each at its layer's rate, in one pass."""

    def __init__(self, active: Mapping[str, Positions], parts: Sequence[Part] = ()):
        self.names = list(active)
        self.positions: Positions = np.concatenate(list(active.values()))
        self.to_global = self.positions
        if any(part.start for part in parts):  # local rows of sharded weights
            pairs = zip(parts, active.values(), strict=True)
            self.to_global = np.concatenate([part.to_global(positions) for part, positions in pairs])
        self.counts = [len(part) for part in active.values()]
        self.bounds = [0, *(int(end) for end in np.cumsum(self.counts))]

    def parts(self) -> dict[str, Positions]:
        """The active positions of each layer."""
        return dict(zip(self.names, np.split(self.positions, self.bounds[1:-1]), strict=True))

    def off(self, rates: Sequence[float], seed: int, stream: str, step: int) -> tuple[npt.NDArray[np.int64], list[int]]:
        """The positions that Z switches off, in order, layer after layer, and how many in each layer."""
        spans = [
            (start, end, key(seed, stream, step, name))
            for start, end, name in zip(self.bounds, self.bounds[1:], self.names, strict=False)
        ]
        numbers = mix(self.to_global, spans)
        is_off = np.empty(numbers.shape, bool)
        for (start, end, _), rate in zip(spans, rates, strict=True):
            np.less(numbers[start:end], np.uint32(_threshold(rate)), out=is_off[start:end])
        ranks = np.flatnonzero(is_off)
        counts = np.diff(np.searchsorted(ranks, self.bounds)).tolist()
        return self.positions[ranks].astype(np.int64), counts


def scaled(rate: float, strength: float | None) -> float:
    return rate if strength is None else min(_STRONGEST, rate * strength)


def _threshold(rate: float) -> int:
    return int(np.uint32(rate * LARGEST))
