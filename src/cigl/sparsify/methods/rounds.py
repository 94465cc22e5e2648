"""A topology round over all layers: the method's scores in, a new M out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from cigl.common.errors import CiglError
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.methods.schedule import Timetable
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.flat_indexing import as_scores
from cigl.sparsify.tensors.shards import all_reduce_rows, local_counts
from cigl.sparsify.tensors.topology import Proposal, new_masks

_VARIANCES = ("exp_avg_sq", "square_avg")
Ask = Callable[[Tensor, Callable[[list[int]], None]], None]


def update_topology(layers: Sequence[Layer], method: Method, table: Timetable, step: int, ask: Ask) -> None:
    """Drop and grow, decided in all layers before anything changes.

    ``ask`` is how the host learns of a score that is NaN: where it does only later, all masks have stayed.
    """
    proposals: dict[Layer, Proposal] = {}
    counts = local_counts([(layer.part, layer.bits, layer.count) for layer in layers])
    for layer, count in zip(layers, counts, strict=True):
        keep, grow = method.budget(layer, layer.count, table, step)
        grow_score = method.grow_score(layer, step) if grow else None
        if grow and (grow_score is None or not layer.parameter.requires_grad):
            continue  # no gradient reached this layer in this step
        old = layer.active(count)
        keep_scores = as_scores(method.keep_score(layer, old, step))
        grow_scores = None if grow_score is None else as_scores(layer.writable(grow_score))
        proposals[layer] = Proposal(layer.bits.numel(), old, keep_scores, grow_scores, keep, grow, layer.part)
    if not proposals:
        return
    parts = [layer.part for layer in proposals]
    has_nan = all_reduce_rows(parts, torch.stack([p.has_nan() for p in proposals.values()]).long()[:, None]).any()
    ask(has_nan, _refuse)
    decided = dict(zip(proposals, new_masks(list(proposals.values())), strict=True))
    if not has_nan.is_cpu:  # it is not known yet
        decided = {layer: torch.where(has_nan, layer.mask.reshape(-1), new) for layer, new in decided.items()}
    changed = {layer: layer.change_mask(new) for layer, new in decided.items()}
    first = all_reduce_rows(parts, torch.stack([first for _, first in changed.values()])[:, None])
    for (layer, proposal), (new,) in zip(proposals.items(), first, strict=True):
        kept = min(proposal.keep, layer.count)
        layer.count = kept + min(proposal.grow, layer.size - kept)
        layer.explored_count = layer.explored_count + new
        layer.is_dense = layer.count == layer.size
    if method.start_variance == "mean":
        _start_variances({layer: grown for layer, (grown, _) in changed.items()})


def _refuse(has_nan: list[int]) -> None:
    if any(has_nan):
        raise CiglError("the method's score is NaN: a topology round needs numbers.")


def count_weights(layers: Sequence[Layer]) -> None:
    """Active and explored weights over all processes, after M was set as a whole."""
    mine = torch.stack([torch.stack([layer.mask.sum(), layer.explored.sum()]) for layer in layers])
    counted = all_reduce_rows([layer.part for layer in layers], mine)
    for layer, count, (_, explored) in zip(layers, counted[:, 0].tolist(), counted, strict=True):
        layer.count, layer.explored_count = count, explored
        layer.is_dense = count == layer.size


def _start_variances(grown: Mapping[Layer, Tensor]) -> None:
    """Adam's second moment of grown weights: the mean of the others', which alone are not zero so far."""
    for layer, where in grown.items():
        states = [state for state in layer.states() if state.name in _VARIANCES and state.of_zero == 0]
        mine = torch.stack([where.sum().double(), *(state.tensor.sum().double() for state in states)])
        ((number, *totals),) = all_reduce_rows([layer.part], mine[None])
        for state, total in zip(states, totals, strict=True):
            mean = total / (layer.count - number).clamp_min(1)
            state.tensor.copy_(torch.where(where, mean.to(state.tensor.dtype), state.tensor))
