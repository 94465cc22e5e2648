"""Z: which of the active weights a step switches off."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cigl.common.errors import CiglError
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.methods.schedule import Timetable
from cigl.sparsify.parameters.active import ActiveWeights
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.random_numbers import key, threshold

_STRONGEST = 0.75  # the share that a strength above 1 may switch off


class RandomMask:
    """Draws Z at each layer's rate, and knows the active weights from one draw to the next.

    ``strength`` is a factor of the rates, where a controller sets one.
    """

    def __init__(
        self, layers: Sequence[Layer], method: Method, table: Timetable, seed: int, strength: float | None = None
    ):
        self._layers, self._method, self._table, self._seed = layers, method, table, seed
        self.strength = strength
        self._active: list[ActiveWeights] | None = None

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

    @property
    def active(self) -> list[ActiveWeights]:
        """The active weights of all layers, in their order."""
        if self._active is None:
            self._active = ActiveWeights.of(self._layers)
        return self._active

    def mask_changed(self) -> None:
        """M is another one, or the parameters are elsewhere."""
        self._active = None

    def draw(self, active: ActiveWeights, stream: str, number: int, rates: Sequence[float]) -> Tensor:
        """Which active weights a Z leaves, as bits; ``rates`` are those of all layers."""
        mine = dict(zip(self._layers, rates, strict=True))
        return active.draw(self._seed, stream, number, [mine[layer] for layer in active.layers])

    def hash_key_and_threshold(self, layer: Layer, stream: str, number: int, rate: float) -> tuple[int, int]:
        """The key of a layer's random numbers, and the threshold below which they switch a weight off."""
        return key(self._seed, stream, number, layer.name), threshold(rate)


def scaled(rate: float, strength: float | None) -> float:
    return rate if strength is None else min(_STRONGEST, rate * strength)
