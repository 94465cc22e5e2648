"""Single elements of tensors, by position: a row-major index into the flattened tensor, whatever its memory layout."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cigl.sparsify.tensors.topk import Scores

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def elements(tensor: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """A flat view of the tensor's memory, and where in it the row-major ``positions`` lie.

    ``take`` and ``put_`` would do this too, at half the speed, and ``put_`` not deterministically.
    """
    if tensor.is_contiguous():
        return tensor.view(-1), positions
    place, rest = torch.zeros_like(positions), positions
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        place, rest = place + rest % size * stride, rest // size
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()), place


def read(tensor: Tensor, positions: Tensor) -> Tensor:
    flat, place = elements(tensor, positions)
    return flat.index_select(0, place)


def write(tensor: Tensor, positions: Tensor, values: Tensor) -> None:
    flat, place = elements(tensor, positions)
    if values.dtype != flat.dtype:
        values = values.to(flat.dtype)
    flat.scatter_(0, place, values)


def fill(tensor: Tensor, positions: Tensor, value: float) -> None:
    write(tensor, positions, torch.full(positions.shape, value, dtype=tensor.dtype, device=tensor.device))


def keep_only(tensor: Tensor, bits: Tensor) -> None:
    """Set everything to zero, in place, where ``bits`` (int8, -1 or 0) is 0.

    It selects by a bitwise "and" with all ones or all zeros, because 0 * inf is NaN; on the CPU this takes
    a third of the time of ``torch.where`` or ``masked_fill_``, and the int8 is widened on the way.
    """
    tensor.view(_INTEGER[tensor.element_size()]).bitwise_and_(bits)


def is_finite(tensor: Tensor) -> bool:
    return not tensor.numel() or all(math.isfinite(extreme.item()) for extreme in torch.aminmax(tensor))


def as_scores(scores: Tensor) -> Scores:
    """Row-major float32 numbers on the CPU, as selection.py takes them."""
    flat: Scores = scores.detach().to("cpu", torch.float32).reshape(-1).numpy()
    return flat
