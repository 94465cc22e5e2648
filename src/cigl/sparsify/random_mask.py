"""Z: which of the active weights a step switches off, drawn over all layers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cigl.sparsify.layer import Layer
from cigl.sparsify.random_numbers import LARGEST, Positions, key, mix


class RandomMask:
    """Draws Z, and keeps the active positions of all layers from one draw to the next."""

    def __init__(self, layers: Sequence[Layer], share: float, seed: int):
        self.share = share
        self._layers, self._seed = layers, seed
        self._draw: Draw | None = None

    def draw(self, stream: str, number: int) -> list[Tensor]:
        """The positions that a Z switches off in each layer."""
        if self._draw is None:
            self._draw = Draw(self.active())
        off, counts = self._draw.off(self.share, self._seed, stream, number)
        parts = torch.from_numpy(off).split(counts)
        if all(layer.bits.is_cpu for layer in self._layers):
            return list(parts)
        return [part.to(layer.bits.device) for layer, part in zip(self._layers, parts, strict=True)]

    def law(self, layer: Layer, stream: str, number: int) -> tuple[int, int]:
        """The key of a layer's random numbers, and the threshold below which they switch a weight off."""
        return key(self._seed, stream, number, layer.name), _threshold(self.share)

    def active(self) -> dict[str, Positions]:
        """The active positions of each layer: known where Z is drawn in every step, else found in M."""
        return self._draw.parts() if self._draw else {layer.name: layer.active() for layer in self._layers}

    def mask_changed(self, active: Mapping[str, Positions] | None = None) -> None:
        """M is another one, with these ``active`` positions if they are known."""
        self._draw = Draw(active) if active is not None and self.share else None


class Draw:
    """Z over the active weights of all layers, one Bernoulli(share) switch-off each, in one pass."""

    def __init__(self, active: Mapping[str, Positions]):
        self.names = list(active)
        self.positions: Positions = np.concatenate(list(active.values()))
        ends = np.cumsum([len(part) for part in active.values()])
        self.bounds = [0, *(int(end) for end in ends)]

    def parts(self) -> dict[str, Positions]:
        """The active positions of each layer."""
        return dict(zip(self.names, np.split(self.positions, self.bounds[1:-1]), strict=True))

    def off(self, share: float, seed: int, stream: str, step: int) -> tuple[npt.NDArray[np.int64], list[int]]:
        """The positions that Z switches off, in order, layer after layer, and how many in each layer."""
        spans = [
            (start, end, key(seed, stream, step, name))
            for start, end, name in zip(self.bounds, self.bounds[1:], self.names, strict=False)
        ]
        ranks = np.flatnonzero(mix(self.positions, spans) < np.uint32(_threshold(share)))
        counts = np.diff(np.searchsorted(ranks, self.bounds)).tolist()
        return self.positions[ranks].astype(np.int64), counts


def _threshold(share: float) -> int:
    return int(np.uint32(share * LARGEST))
