"""A layer's weight, held once in the smaller of two forms: dense, or packed as the kernels want it.

The other form is made when a layer is to run in it. What a packed form looks like is up to the kernels.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

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


Packed = TypeVar("Packed", bound=PackedForm)


class Weight:
    """The weight [out, in, ...] and bias of a convolution or a linear layer; nobody may change these tensors."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.shape = tuple(weight.shape)
        self.is_float32 = all(each is None or each.dtype == torch.float32 for each in (weight, bias))
        self.bias = None if bias is None else bias.detach()
        self._held: Tensor | PackedForm = weight.detach().contiguous()
        self._in_use: WeakValueDictionary[type, Any] = WeakValueDictionary()  # other forms, while a schedule has them

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_in_use"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _in_use=WeakValueDictionary())

    @cached_property
    def nonzeros(self) -> int:
        return int((self.dense() != 0).sum())  # three times as fast as count_nonzero

    @property
    def density(self) -> float:
        return self.nonzeros / max(1, math.prod(self.shape))

    @property
    def forms(self) -> list[Tensor | PackedForm]:
        """What is held now, in one form or in both, and the bias."""
        return [self._held, *self._in_use.values(), *([] if self.bias is None else [self.bias])]

    @property
    def bytes(self) -> int:
        return sum(form.nbytes if isinstance(form, Tensor) else form.bytes for form in self.forms)

    def folded(self, scale: Tensor, shift: Tensor) -> Weight:
        """With a batch norm behind it: scale * (W x + b) + shift."""
        dense = self.dense()
        bias = shift if self.bias is None else torch.addcmul(shift, scale, self.bias)
        return Weight(dense * scale.view(-1, *[1] * (dense.dim() - 1)), bias)

    def shrink(self, form: type[Packed]) -> None:
        """Keep the packed form alone, where it is the smaller one."""
        if isinstance(self._held, Tensor) and self._held.numel() and self.density <= _HALF:
            self._held = form(self._held, self.bias)

    def dense(self) -> Tensor:
        if isinstance(self._held, Tensor):
            return self._held
        found: Tensor | None = self._in_use.get(Tensor)
        if found is None:
            found = self._in_use[Tensor] = self._held.unpack().view(self.shape)
        return found

    def packed(self, form: type[Packed]) -> Packed:
        """The weight in this form: the one that is held, or a new one."""
        if isinstance(self._held, form):
            return self._held
        found: Packed | None = self._in_use.get(form)
        if found is None:
            found = self._in_use[form] = form(self.dense(), self.bias)
        return found
