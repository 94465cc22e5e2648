"""A topology round over all layers: the method's scores in, a new M out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cigl.sparsify import topology
from cigl.sparsify.elements import as_scores
from cigl.sparsify.layer import Layer
from cigl.sparsify.methods import Method
from cigl.sparsify.random_numbers import Positions
from cigl.sparsify.schedule import Timetable
from cigl.sparsify.topology import Change


def update_topology(
    layers: Sequence[Layer],
    active: Mapping[str, Positions],
    method: Method,
    table: Timetable,
    step: int,
) -> dict[str, Positions]:
    """Drop and grow, decided in all layers before anything changes; returns the positions that are active now."""
    changes: dict[str, Change] = {}
    for layer in layers:
        old = active[layer.name]
        keep, grow = method.budget(layer, old.size, table, step)
        grow_score = method.grow_score(layer, step) if grow else None
        if grow and (grow_score is None or not layer.parameter.requires_grad):
            continue  # no gradient reached this layer in this step
        keep_scores = as_scores(method.keep_score(layer, layer.positions(old), step))
        grow_scores = None if grow_score is None else as_scores(layer.writable(grow_score))
        changes[layer.name] = topology.change(old, keep_scores, grow_scores, keep, grow)
    for layer in layers:
        if layer.name in changes:
            layer.change_mask(changes[layer.name], method.start_variance)
    return {**active, **{name: change.active for name, change in changes.items()}}
