"""A layer's weight, held once in the smaller of two forms: dense, or packed as the kernels want it.

The other form is made when a layer is to run in it. What a packed form looks like is up to the kernels.
"""

from __future__ import annotations

import math
import weakref
from functools import cached_property
from typing import Protocol, TypeVar

import torch
from torch import Tensor

_HALF = 0.5  # a packed non-zero is a value and its place: with fewer zeros than this the dense form is the smaller


class PackedForm(Protocol):
    """The non-zeros of a weight, with its bias."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None: ...

    def unpack(self) -> Tensor:
        """The weight as it was."""

    @property
    def bytes(self) -> int: ...


Form = TypeVar("Form")
Packed = TypeVar("Packed", bound=PackedForm)


def _alive(form: weakref.ref[Form] | None) -> Form | None:
    return None if form is None else form()


class Weight:
    """The weight [out, in, ...] and bias of a convolution or a linear layer; nobody may change these tensors."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.shape = tuple(weight.shape)
        self.is_float32 = all(each is None or each.dtype == torch.float32 for each in (weight, bias))
        self.bias = None if bias is None else bias.detach()
        self._dense: Tensor | None = weight.detach().contiguous()
        self._packed: PackedForm | None = None
        # the form that is not kept lives as long as a schedule uses it
        self._dense_for_now: weakref.ref[Tensor] | None = None
        self._packed_for_now: weakref.ref[PackedForm] | None = None

    def __getstate__(self) -> dict[str, object]:
        """What is held for good."""
        return {**vars(self), "_dense_for_now": None, "_packed_for_now": None}

    @cached_property
    def nonzeros(self) -> int:
        return int((self.dense() != 0).sum())  # three times as fast as count_nonzero

    @property
    def density(self) -> float:
        return self.nonzeros / max(1, math.prod(self.shape))

    @property
    def bytes(self) -> int:
        """What is held now, in one form or in both."""
        dense = self._dense if self._dense is not None else _alive(self._dense_for_now)
        packed = self._packed if self._packed is not None else _alive(self._packed_for_now)
        held = (0 if dense is None else dense.nbytes) + (0 if packed is None else packed.bytes)
        return held + (0 if self.bias is None else self.bias.nbytes)

    def folded(self, scale: Tensor, shift: Tensor) -> Weight:
        """With a batch norm behind it: scale * (W x + b) + shift."""
        dense = self.dense()
        bias = shift if self.bias is None else torch.addcmul(shift, scale, self.bias)
        return Weight(dense * scale.view(-1, *[1] * (dense.dim() - 1)), bias)

    def shrink(self, form: type[Packed]) -> None:
        """Keep the packed form alone, where it is the smaller one."""
        if self._dense is not None and self._dense.numel() and self.density <= _HALF:
            self._packed, self._dense = form(self._dense, self.bias), None

    def dense(self) -> Tensor:
        if self._dense is not None:
            return self._dense
        found = _alive(self._dense_for_now)
        if found is None:
            assert self._packed is not None
            found = self._packed.unpack().view(self.shape)
            self._dense_for_now = weakref.ref(found)
        return found

    def packed(self, form: type[Packed]) -> Packed:
        """The weight in this form: the one that is held, or a new one."""
        for held in (self._packed, _alive(self._packed_for_now)):
            if isinstance(held, form):
                return held
        made = form(self.dense(), self.bias)
        self._packed_for_now = weakref.ref(made)
        return made
