"""The active weights of several layers as one vector, so that one operation works on all of them.

On a GPU a launch takes as long as copying a million weights: there, layers are joined. On the CPU a launch costs
little, except in networks as small as 784-300-100-10, and each layer is read and written where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from itertools import accumulate

import torch
from torch import Tensor

from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.flat_indexing import in_memory, places_of
from cigl.sparsify.tensors.random_numbers import below, key, mix, signed, threshold
from cigl.sparsify.tensors.shards import local_counts

_JOINED = 1 << 25  # weights that are joined at most, which bounds the memory that a copy of them takes


class ActiveWeights:
    """Where the ones of M lie in some layers of one device and type; until M changes."""

    def __init__(self, layers: Sequence[Layer], counts: Sequence[int]):
        self.layers, self._counts = layers, counts
        weights = [layer.weight for layer in layers]
        self._starts = list(accumulate((weight.numel() for weight in weights), initial=0))
        self._bounds = list(accumulate(counts, initial=0))
        active = [layer.active(count) for layer, count in zip(layers, counts, strict=True)]
        places = [places_of(weight, each) for weight, each in zip(weights, active, strict=True)]
        is_row_major = all(a is b for a, b in zip(active, places, strict=True))
        self._positions = None if is_row_major else torch.cat(active).to(torch.int32)
        self._places = torch.cat([place + start for place, start in zip(places, self._starts, strict=False)])

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> list[ActiveWeights]:
        """All layers, those that follow each other joined where that is faster."""
        groups: list[list[tuple[Layer, int]]] = []
        for pair in zip(layers, local_counts([(layer.part, layer.bits, layer.count) for layer in layers]), strict=True):
            weight, others = pair[0].weight, [layer.weight for layer, _ in groups[-1]] if groups else []
            alike = all((other.device, other.dtype) == (weight.device, weight.dtype) for other in others)
            if others and alike and not weight.is_cpu and sum(other.numel() for other in others) < _JOINED:
                groups[-1].append(pair)
            else:
                groups.append([pair])
        return [cls(*zip(*group, strict=True)) for group in groups]

    def part(self, number: int) -> ActiveWeights:
        """One of the layers alone."""
        return self if len(self.layers) == 1 else ActiveWeights([self.layers[number]], [self._counts[number]])

    def narrowed(self, on: Tensor) -> tuple[ActiveWeights, Tensor]:
        """Without the weights that a random mask leaves, on the CPU: nobody waits there for how many are left."""
        if not on.is_cpu or len(self.layers) > 1:
            return self, on
        off = (on == 0).nonzero().view(-1)
        narrowed = copy(self)
        narrowed._places, narrowed._bounds = self._places[off], [0, len(off)]
        return narrowed, on[off]

    def span(self, number: int) -> slice:
        """Where a layer's active weights stand among all."""
        return slice(self._bounds[number], self._bounds[number + 1])

    # Z

    def draw(self, seed: int, stream: str, number: int, rates: Sequence[float]) -> Tensor:
        """Which weights a random mask leaves, a Bernoulli each at its layer's rate: int32, -1, or 0 where it is off."""
        keys = [key(seed, stream, number, layer.name) for layer in self.layers]
        shifts = [layer.part.start - start for layer, start in zip(self.layers, self._starts, strict=False)]
        if self._positions is not None:
            shifts = [layer.part.start for layer in self.layers]
        limits = [threshold(rate) for rate in rates]
        rows = [shifts, keys, [k >> 32 for k in keys], [limit - (1 << 31) for limit in limits]]
        shift, low, high, limit = self._spread([[signed(number) for number in row] for row in rows])
        positions = self._places.to(torch.int32) if self._positions is None else self._positions
        return below(mix(positions + shift, low, high), limit).to(torch.int32).sub_(1)

    def _spread(self, rows: list[list[int]]) -> list[int] | list[Tensor]:
        """Each row's number of a layer for all of its weights: as kernel arguments, so that nothing is copied."""
        if len(self.layers) == 1:
            return [number for (number,) in rows]
        device, count = self._places.device, len(self.layers)
        numbers = [number for row in [*rows, self._counts] for number in row]
        table = torch.zeros(len(numbers), dtype=torch.int32, device=device)
        torch._foreach_add_(list(table.split(1)), numbers)
        *each, counts = table.view(-1, count)
        spread = table.view(-1, count)[: len(each)].repeat_interleave(counts, dim=1, output_size=self._bounds[-1])
        return list(spread.unbind())

    def kept(self, on: Tensor) -> list[Tensor]:
        """M*Z of each layer: int8, -1 where a weight is active and not switched off, else 0."""
        flat = torch.zeros(self._starts[-1], dtype=torch.int8, device=on.device)
        flat.scatter_(0, self._places, on.to(torch.int8))
        return self._views(flat)

    # Reading and writing

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        """The active entries of tensors that have the layers' shapes."""
        return self._flat(tensors)[0].index_select(0, self._places)

    def write(self, tensors: Sequence[Tensor], new: Callable[[Tensor], Tensor]) -> Tensor:
        """Replace the active entries by what ``new`` makes of them; returns those of before."""
        flat, is_copy = self._flat(tensors)
        old = flat.index_select(0, self._places)
        flat.scatter_(0, self._places, new(old))
        if is_copy:
            torch._foreach_copy_(list(tensors), self._views(flat))
        return old

    def _flat(self, tensors: Sequence[Tensor]) -> tuple[Tensor, bool]:
        """The tensors one after the other, each in the memory order of its weight; whether that is a copy."""
        flats = [in_memory(tensor, layer.weight) for tensor, layer in zip(tensors, self.layers, strict=True)]
        if len(flats) > 1:
            return torch.cat([flat for flat, _ in flats]), True
        return flats[0]

    def _views(self, flat: Tensor) -> list[Tensor]:
        """Parts of a flat tensor in the shapes of the weights."""
        pairs = zip((layer.weight for layer in self.layers), self._starts, strict=False)
        return [flat.as_strided(weight.shape, weight.stride(), start) for weight, start in pairs]
