"""Single elements of tensors, by position: a row-major index into the flattened tensor, whatever its memory layout."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def places_of(tensor: Tensor, positions: Tensor) -> Tensor:
    """Where in the tensor's memory the row-major ``positions`` lie."""
    if tensor.is_contiguous():
        return positions
    place, rest = torch.zeros_like(positions), positions
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        place, rest = place + rest % size * stride, rest // size
    return place


def in_memory(tensor: Tensor, like: Tensor) -> tuple[Tensor, bool]:
    """The elements in the order that those of ``like`` have in memory, as a flat tensor; whether that is a copy."""
    is_same = tensor.stride() == like.stride() or (tensor.is_contiguous() and like.is_contiguous())
    held = tensor if is_same else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
    return held.as_strided((held.numel(),), (1,), held.storage_offset()), not is_same


def read(tensor: Tensor, positions: Tensor) -> Tensor:
    """``take`` would do this too, at half the speed."""
    return in_memory(tensor, tensor)[0].index_select(0, places_of(tensor, positions))


def write(tensor: Tensor, positions: Tensor, values: Tensor) -> None:
    """``put_`` would do this too, at half the speed and not deterministically."""
    in_memory(tensor, tensor)[0].scatter_(0, places_of(tensor, positions), values.to(tensor.dtype))


def keep_only(tensor: Tensor, bits: Tensor) -> None:
    """Set everything to zero, in place, where ``bits`` (int8, -1 or 0) is 0.

    It selects by a bitwise "and" with all ones or all zeros, because 0 * inf is NaN; on the CPU this takes
    a third of the time of ``torch.where`` or ``masked_fill_``, and the int8 is widened on the way.
    """
    tensor.view(_INTEGER[tensor.element_size()]).bitwise_and_(bits)


def masked(tensor: Tensor, bits: Tensor) -> Tensor:
    """A new tensor with zeros where ``bits`` is 0."""
    kind = _INTEGER[tensor.element_size()]
    return (tensor.view(kind) & bits.to(kind)).view(tensor.dtype)


def merged(tensor: Tensor, bits: Tensor, other: Tensor) -> Tensor:
    """The tensor where ``bits`` (-1 or 0) is not 0, else the other: a third of the time of ``torch.where``."""
    kind = _INTEGER[tensor.element_size()]
    other = other.view(kind)
    return (tensor.view(kind) ^ other).bitwise_and_(bits.to(kind)).bitwise_xor_(other).view(tensor.dtype)


def finite(tensor: Tensor) -> Tensor:
    """Whether all elements are finite, as a bool on the tensor's device."""
    if not tensor.numel():
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    return torch.stack(torch.aminmax(tensor)).isfinite().all()


def as_scores(scores: Tensor) -> Tensor:
    """Row-major float32 numbers, as topk.py takes them."""
    return scores.detach().to(torch.float32).reshape(-1)
