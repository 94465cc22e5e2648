"""Drop and grow: scores in, a mask out, on the device of the scores. Ties go to the lower position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cigl.sparsify.tensors.shards import WHOLE, Part
from cigl.sparsify.tensors.topk import Request, largest_of


@dataclass(frozen=True, eq=False)
class Proposal:
    """Keep the ``keep`` best of the active weights, then grow ``grow`` of all that are outside them.

    ``active`` are positions in the flattened (row-major) tensor of ``size`` elements. ``keep_scores`` has one score per
    active weight; ``grow_scores`` has one per position of the tensor and is overwritten. Where processes share a
    tensor, all but the two counts is the local part of it.
    """

    size: int
    active: Tensor
    keep_scores: Tensor
    grow_scores: Tensor | None
    keep: int
    grow: int
    part: Part = WHOLE

    def has_nan(self) -> Tensor:
        scores = [s for s in (self.keep_scores, self.grow_scores) if s is not None and len(s)]
        found = [each.max().isnan() for each in scores]
        return torch.stack(found).any() if found else torch.zeros((), dtype=torch.bool, device=self.active.device)


def new_masks(proposals: Sequence[Proposal]) -> list[Tensor]:
    """M after the round, flat. As in RigL, a weight that is dropped and grown again simply stays."""
    best = largest_of([Request(p.keep_scores, p.keep, p.part) for p in proposals])
    masks = [torch.zeros(p.size, dtype=torch.bool, device=p.active.device) for p in proposals]
    for mask, proposal, kept in zip(masks, proposals, best, strict=True):
        mask.scatter_(0, proposal.active, kept)
    growing = [(m, p, s) for m, p in zip(masks, proposals, strict=True) if (s := p.grow_scores) is not None and p.grow]
    requests = [Request(s.masked_fill_(m, -torch.inf), p.grow, p.part) for m, p, s in growing]
    for (mask, _, _), chosen in zip(growing, largest_of(requests), strict=True):
        mask |= chosen
    return masks
