"""The largest scores of a tensor: within a process, or over all the processes that hold a part of it.

All of it runs where the scores are, with no size that depends on them, so the host waits for nothing. Over processes,
the scores never travel. The smallest score that is still among the largest is found digit by digit, from the counts of
scores per digit, summed over the processes: eight times 16 numbers per tensor, for all tensors in one message. Of
several that are equal to it the lower positions win, for which one more number is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cigl.sparsify.tensors.shards import WHOLE, Part, all_reduce, sum_before

_DIGIT = 4  # bits


@dataclass(frozen=True, eq=False)
class Request:
    """The ``count`` largest of all processes' scores: flat, float32, in the order of their positions."""

    scores: Tensor
    count: int
    part: Part = WHOLE


def largest_of(requests: Sequence[Request]) -> list[Tensor]:
    """For each request, which of the local scores are among the largest: a bool each."""
    found = {r: largest(r.scores, r.count) for r in requests if r.part.group is None}
    for group in {id(r.part.group): r.part.group for r in requests if r.part.group is not None}.values():
        members = [r for r in requests if r.part.group is group]
        found |= zip(members, _over_processes(members), strict=True)
    return [found[request] for request in requests]


def largest(scores: Tensor, count: int) -> Tensor:
    """Where the ``count`` largest scores are; of equal ones the first.

    >>> largest(torch.tensor([1.0, 3.0, 2.0, 3.0, 3.0]), 2)
    tensor([False,  True, False,  True, False])
    """
    if count <= 0 or count >= len(scores):
        return torch.full_like(scores, count > 0, dtype=torch.bool)
    threshold = _kth_largest(scores, count)
    chosen = scores >= threshold
    if chosen.is_cpu and int(chosen.sum()) == count:
        return chosen
    above = scores > threshold
    return above | _first(chosen & ~above, count - above.sum())


def _kth_largest(scores: Tensor, count: int) -> Tensor:
    place = len(scores) - count
    if scores.is_cpu:  # a tenth of the time
        return torch.from_numpy(np.partition(scores.numpy(), place)[place : place + 1])
    return torch.kthvalue(scores, place + 1).values


def _first(ties: Tensor, wanted: Tensor) -> Tensor:
    return ties & (ties.cumsum(0, dtype=torch.int32) <= wanted)


def _over_processes(requests: Sequence[Request]) -> list[Tensor]:
    part = requests[0].part
    codes = [_codes(request.scores) for request in requests]
    # No other than the local largest can be among the largest of all. Ascending.
    ends = [_ascending(c, max(0, min(r.count, len(c)))) for c, r in zip(codes, requests, strict=True)]
    device = codes[0].device
    left = torch.tensor([max(0, request.count) for request in requests], device=device)  # wanted from the digits on
    threshold = torch.zeros_like(left)
    digits = torch.arange((1 << _DIGIT) + 1, device=device)
    for shift in range(32 - _DIGIT, -1, -_DIGIT):
        bounds = threshold[:, None] + (digits << shift)
        mine = torch.stack([torch.searchsorted(end, row).diff() for end, row in zip(ends, bounds, strict=True)])
        counts = all_reduce(part, mine).to(device)
        at_least = counts.flip(1).cumsum(1).flip(1)  # that begin with this digit or a larger one
        digit = ((at_least >= left[:, None]).sum(1) - 1).clamp_min(0)[:, None]
        left = left - (at_least - counts).gather(1, digit)[:, 0]
        threshold += digit[:, 0] << shift
    threshold = (threshold - (1 << 31)).to(torch.int32)
    ties = [c == t for c, t in zip(codes, threshold, strict=True)]
    mine = torch.stack([each.sum() for each in ties])
    wanted = left - sum_before(part, mine).to(device)
    pairs = zip(codes, threshold, ties, wanted, strict=True)
    return [(c > t) | _first(tie, w) for c, t, tie, w in pairs]


def _codes(scores: Tensor) -> Tensor:
    """int32 in the order of the scores."""
    bits = (scores + 0).view(torch.int32)  # -0 and 0 are equal
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _ascending(codes: Tensor, count: int) -> Tensor:
    """The largest, as numbers from 0 to 2^32."""
    return codes.topk(count).values.flip(0).to(torch.int64) + (1 << 31)
