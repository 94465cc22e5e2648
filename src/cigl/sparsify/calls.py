"""At how many places each layer's weights are used, which its FLOPs go by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.rnn import PackedSequence

from cigl.sparsify.binding import Hook, OpaqueHook
from cigl.sparsify.layer import Layer


class CallCounter:
    """At how many places each layer's weights are used, from the first forward of the model."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer]):
        self.places: dict[str, int] = {}
        self._handles: list[Any] = []
        for layer in layers:
            for module in layer.selected.call_sites(model):
                self._handles.append(module.register_forward_hook(Hook(_count(self.places, layer))))
        self._handles.append(model.register_forward_hook(OpaqueHook(self._finish)))

    @property
    def is_counting(self) -> bool:
        return bool(self._handles)

    def _finish(self, *_: Any) -> None:
        if self.places:  # a compiled forward shows nothing: wait for another one
            self.remove()

    def restore(self, places: dict[str, int]) -> None:
        """What an earlier process has counted."""
        if places:
            self.places.update(places)
            self.remove()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _count(places: dict[str, int], layer: Layer) -> Any:
    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        used = _uses(module, layer, inputs, output)
        if used:
            places[layer.name] = places.get(layer.name, 0) + used

    return hook


def _uses(module: nn.Module, layer: Layer, inputs: tuple[Any, ...], output: Any) -> int:
    """Of each weight, in one call; 0 where it is not known, or where nothing is multiplied (an embedding)."""
    if isinstance(module, nn.MultiheadAttention):
        return int(output[0].numel() // module.embed_dim)
    if isinstance(module, nn.RNNBase):
        x = inputs[0].data if isinstance(inputs[0], PackedSequence) else inputs[0]
        return int(x.numel() // module.input_size)
    if isinstance(module, _ConvTransposeNd):
        return int(inputs[0].numel() // module.in_channels)
    layout, shape = layer.selected.layout, layer.shape
    if layout.batched:  # experts: each token goes to a few of them, given by the second argument
        routed = inputs[1] if len(inputs) > 1 else None
        return math.ceil(routed.numel() / shape[0]) if isinstance(routed, Tensor) else 0
    if isinstance(module, nn.RNNCellBase):
        return int(inputs[0].numel() // module.input_size)
    if isinstance(module, (nn.Linear, _ConvNd, nn.Bilinear)) or layout.inputs_first:
        return int(output.numel() // shape[1 if layout.inputs_first else 0])
    return 0
