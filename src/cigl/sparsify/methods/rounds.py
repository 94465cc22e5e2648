"""A topology round over all layers: the method's scores in, a new M out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.methods.schedule import Timetable
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.flat_indexing import as_scores, fill
from cigl.sparsify.tensors.random_numbers import Positions
from cigl.sparsify.tensors.shards import all_reduce_rows
from cigl.sparsify.tensors.topology import Change, Proposal, changes

_VARIANCES = ("exp_avg_sq", "square_avg")


def update_topology(
    layers: Sequence[Layer],
    active: Mapping[str, Positions],
    method: Method,
    table: Timetable,
    step: int,
) -> dict[str, Positions]:
    """Drop and grow, decided in all layers before anything changes; returns the positions that are active now."""
    proposals: dict[Layer, Proposal] = {}
    for layer in layers:
        old = active[layer.name]
        keep, grow = method.budget(layer, layer.count, table, step)
        grow_score = method.grow_score(layer, step) if grow else None
        if grow and (grow_score is None or not layer.parameter.requires_grad):
            continue  # no gradient reached this layer in this step
        keep_scores = as_scores(method.keep_score(layer, layer.positions(old), step))
        grow_scores = None if grow_score is None else as_scores(layer.writable(grow_score))
        proposals[layer] = Proposal(old, keep_scores, grow_scores, keep, grow, layer.part)
    decided = dict(zip(proposals, changes(list(proposals.values())), strict=True))
    new = [layer.change_mask(change) for layer, change in decided.items()]
    parts = [layer.part for layer in decided]
    counted = all_reduce_rows(
        parts, [[c.active.size, explored] for c, explored in zip(decided.values(), new, strict=True)]
    )
    for layer, (count, explored) in zip(decided, counted, strict=True):
        layer.count, layer.explored_count = int(count), layer.explored_count + int(explored)
    if method.start_variance == "mean":
        _start_variances(decided)
    return {**active, **{layer.name: change.active for layer, change in decided.items()}}


def count_weights(layers: Sequence[Layer]) -> None:
    """Active and explored weights over all processes, after M was set as a whole."""
    parts = [layer.part for layer in layers]
    counted = all_reduce_rows(parts, [[int(layer.mask.sum()), int(layer.explored.sum())] for layer in layers])
    for layer, (count, explored) in zip(layers, counted, strict=True):
        layer.count, layer.explored_count = int(count), int(explored)


def _start_variances(decided: Mapping[Layer, Change]) -> None:
    """Adam's second moment of grown weights: the mean of the others', which alone are not zero so far."""
    for layer, change in decided.items():
        states = [state for state in layer.states() if state.name in _VARIANCES and state.of_zero == 0]
        totals = [float(state.tensor.sum()) for state in states]
        ((grown, *totals),) = all_reduce_rows([layer.part], [[change.grown.size, *totals]])
        for state, total in zip(states, totals, strict=True):
            fill(state.tensor, layer.positions(change.grown), total / max(1, layer.count - int(grown)))
