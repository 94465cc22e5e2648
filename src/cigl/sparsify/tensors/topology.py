"""Drop and grow: scores in, positions out. Plain numpy, one implementation for every device.

Positions are indices into the flattened (row-major) tensor, of a sharded one into the rows that this process holds.
Ties go to the lower position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cigl.common.errors import CiglError
from cigl.sparsify.tensors.random_numbers import Positions
from cigl.sparsify.tensors.shards import WHOLE, Part, all_reduce_rows
from cigl.sparsify.tensors.topk import Ranks, Request, Scores, largest_of


class Change(NamedTuple):
    """A topology round: the active positions after it, and where the mask really changed."""

    active: Positions
    dropped: Positions
    grown: Positions


@dataclass(frozen=True, eq=False)
class Proposal:
    """Keep the ``keep`` best of the active weights, then grow ``grow`` of all that are outside them.

    ``keep_scores`` has one score per active weight; ``grow_scores`` has one per position of the tensor and is
    overwritten. Where processes share a tensor, all but the two counts is the local part of it.
    """

    active: Positions
    keep_scores: Scores
    grow_scores: Scores | None
    keep: int
    grow: int
    part: Part = WHOLE

    @property
    def has_nan(self) -> bool:
        scores = (s for s in (self.keep_scores, self.grow_scores) if s is not None and s.size)
        return any(bool(np.isnan(s.max())) for s in scores)


def changes(proposals: Sequence[Proposal]) -> list[Change]:
    """As in RigL, a weight that is dropped and grown again simply stays: it is in neither ``dropped`` nor ``grown``."""
    if any(flag for (flag,) in all_reduce_rows([p.part for p in proposals], [[p.has_nan] for p in proposals])):
        raise CiglError("the method's score is NaN: a topology round needs numbers.")
    best = largest_of([Request(p.keep_scores, p.keep, p.part) for p in proposals])
    growing = {place: p.grow_scores for place, p in enumerate(proposals) if p.grow_scores is not None and p.grow}
    for place, scores in growing.items():
        scores[proposals[place].active[best[place]]] = -np.inf
    requests = [Request(scores, proposals[place].grow, proposals[place].part) for place, scores in growing.items()]
    chosen = dict(zip(growing, largest_of(requests), strict=True))
    return [_change(p, best[place], chosen.get(place)) for place, p in enumerate(proposals)]


def _change(proposal: Proposal, best: Ranks, chosen: Ranks | None) -> Change:
    kept = np.zeros(proposal.active.size, bool)
    kept[best] = True
    stay, out = proposal.active[kept], proposal.active[~kept]
    if chosen is None or proposal.grow_scores is None:
        return Change(stay, out, np.empty(0, np.uint32))
    grown = chosen.astype(np.uint32)
    was_out = np.zeros(proposal.grow_scores.size, bool)
    was_out[out] = True
    again = was_out[grown]
    was_out[grown] = False
    after = np.concatenate([stay, grown])
    after.sort()
    return Change(after, out[was_out[out]], grown[~again])
