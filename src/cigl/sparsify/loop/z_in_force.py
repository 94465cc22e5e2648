"""The Z of a step while it is in force: in the parameters, or in sparse kernels that leave out what it switches off."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from cigl.sparsify.loop.context import Context
from cigl.sparsify.parameters.layer import Layer


class ZInForce:
    """From the first training forward of a step to the end of its update."""

    def __init__(self, context: Context, step: int):
        self._context, self._layers, self._step = context, context.layers, step
        self._rates: list[float] = []  # in each layer, once it is drawn

    @property
    def switches_off(self) -> bool:
        """Whether it acts at all."""
        return any(self._rates)

    def draw(self, in_kernels: bool) -> None:
        """Z_t. ``in_kernels``: these may take it upon themselves; in the parameters it acts where they don't."""
        random_mask = self._context.random_mask
        self._rates = random_mask.rates(self._step)
        if not self.switches_off:
            return
        if in_kernels:
            for layer, rate in zip(self._layers, self._rates, strict=True):
                hashed_by = random_mask.hash_key_and_threshold(layer, "z", self._step, rate)
                layer.held_z = self._context.kernels.hold_z(layer.parameter, *hashed_by)
        if all(layer.held_z is not None for layer in self._layers):
            return
        drawn = random_mask.draw("z", self._step, self._rates)
        zeros = torch.zeros(max(len(off) for off in drawn))
        for layer, off in zip(self._layers, drawn, strict=True):
            if layer.held_z is None:
                layer.apply_z(off, zeros[: len(off)].to(layer.weight))
        torch.clear_autocast_cache()  # it may hold casts of the weights before

    def put_in_parameters(self, layers: Iterable[Layer]) -> None:
        """Torch is about to read these layers' weights: a Z that only sparse kernels know acts in them, too."""
        for layer in layers:
            layer.materialize_z()

    def suspend(self) -> None:
        """The parameters hold M*W."""
        for layer in self._layers:
            layer.suspend()
        torch.clear_autocast_cache()

    def resume(self) -> None:
        """The parameters hold M*Z*W again."""
        for layer in self._layers:
            layer.resume()
        torch.clear_autocast_cache()

    def end(self) -> None:
        """After the update: what Z had switched off is as it was, weights and optimizer state."""
        for layer in self._layers:
            layer.restore()

    def mask_gradient(self, layer: Layer) -> None:
        """p.grad by M*Z, which the kernels may have done."""
        gradient, kernels = layer.parameter.grad, self._context.kernels
        assert gradient is not None
        layer.mask_gradient(from_kernels=kernels.made(layer.parameter, gradient))
        kernels.masked(layer.parameter, gradient)
