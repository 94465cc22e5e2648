"""A look at the sparse network: per layer and in all, with FLOPs against dense.

FLOPs are counted as in RigL's appendix H: a layer costs its active weights times the places at which they
are used; a training step is one forward and two backward passes of that, and a step whose dense gradient
is needed pays one dense pass more. Z shortens the training passes. Elementwise work is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import nn

from cigl.common.notebook import paragraphs, table
from cigl.common.text import confidence, percent
from cigl.sparsify.flops import uses
from cigl.sparsify.loop.binding import Hook, OpaqueHook
from cigl.sparsify.loop.context import Context
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.methods.random_mask import scaled
from cigl.sparsify.methods.schedule import Timetable
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.shards import all_reduce_rows


class CallCounter:
    """At how many places each layer's weights are used, from the first forward of the model."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer]):
        self.places: dict[str, int] = {}
        self._model, self._layers = model, layers
        self._handles = ExitStack()
        self._register()

    def _register(self) -> None:
        self.is_counting = True
        with ExitStack() as handles:  # all hooks, or none
            for layer in self._layers:
                for module in layer.selected.call_sites(self._model):
                    handles.callback(module.register_forward_hook(Hook(partial(self._count, layer))).remove)
            handles.callback(self._model.register_forward_hook(OpaqueHook(self._finish)).remove)
            self._handles = handles.pop_all()

    def _count(self, layer: Layer, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if number := uses(layer, module, inputs, output):
            self.places[layer.name] = self.places.get(layer.name, 0) + number

    def _finish(self, *_: Any) -> None:
        if self.places:  # a compiled forward shows nothing: wait for another one
            self.remove()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Without its hooks, for a look at the model as it will be."""
        counting = self.is_counting
        self.remove()
        try:
            yield
        finally:
            if counting:
                self._register()

    def restore(self, places: dict[str, int]) -> None:
        """What an earlier process has counted."""
        if places:
            self.places.update(places)
            self.remove()

    def remove(self) -> None:
        self.is_counting = False
        self._handles.close()


MOMENTS = 8  # of the steps between two rounds, over which Z's rate is averaged


@dataclass(frozen=True)
class Row:
    """One layer, or all of them together."""

    layer: str
    shape: tuple[int, ...]
    target: float
    density: float
    explored: float
    dead_rows: int  # output units without a weight, whichever dimension of the weight they are
    dead_columns: int  # input units
    inference_flops: float | None  # against dense
    training_flops: float | None
    kernels: str = "masked"  # what its training steps run on
    mask_rate: float | None = None  # the share of its active weights that Z switched off in the last step
    active: int = 0  # positions, the ones of M
    nonzeros: int = 0  # weights there that are not zero: fewer, where a weight has not moved since it grew


@dataclass(frozen=True)
class Summary:
    """What ``sparse.summary()`` returns: a row per layer and one for the ``total``. ``str()`` gives a table.

    >>> import torch, cigl
    >>> model = torch.nn.Linear(100, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> sparse = cigl.attach(model, optimizer, "rigl", sparsity=0.9, epochs=2, steps_per_epoch=200)
    >>> sparse.summary().total.density
    0.1
    """

    title: str
    rows: tuple[Row, ...]
    total: Row
    notes: tuple[str, ...] = ()  # why layers run masked that could run sparse
    optimizer: str = ""  # what its states were found to be, where it is not one of torch's
    instructions: str = ""  # the instruction set that sparse kernels use
    random_mask: str = ""  # what Z follows, or may cost

    def __str__(self) -> str:
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        sides = ["<", "<", *">" * (len(widths) - 2)]
        head, *text = ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(ln, sides, widths, strict=True)) for ln in lines]
        rule = "-" * len(head)
        return "\n".join([self.title, head, rule, *text[:-1], rule, text[-1], *self._remarks()])

    def _repr_html_(self) -> str:
        head, *rows = self._lines()
        return paragraphs(self.title) + table(head, rows, texts=2) + paragraphs(*self._remarks())

    def _lines(self) -> list[list[str]]:
        """The cells of the head, of each layer and of the total; columns that say nothing are left out."""
        hidden = {"Z"} if self.total.mask_rate is None else set()
        hidden |= {"active", "non-zero"} if all(row.active == row.nonzeros for row in self.rows) else set()
        hidden |= set() if any(row.kernels == "sparse" for row in self.rows) else {"kernels"}
        head = [name for name in _cells(self.total) if name not in hidden]
        return [head, *([cells[name] for name in head] for cells in map(_cells, (*self.rows, self.total)))]

    def _remarks(self) -> list[str]:
        notes = [f"sparse kernels: {self.instructions}"] if "sparse" in {row.kernels for row in self.rows} else []
        notes += [f"not everything runs on sparse kernels: {note}" for note in self.notes]
        return notes + [text for text in (self.optimizer, self.random_mask) if text]


def _cells(row: Row) -> dict[str, str]:
    """By the column's name."""
    return {
        "layer": row.layer,
        "shape": "x".join(map(str, row.shape)),
        "target": f"{row.target:.4f}",
        "density": f"{row.density:.4f}",
        "active": f"{row.active:,}",
        "non-zero": f"{row.nonzeros:,}",
        "explored": f"{row.explored:.4f}",
        "dead rows": str(row.dead_rows),
        "cols": str(row.dead_columns),
        "FLOPs: infer": _times(row.inference_flops),
        "train": _times(row.training_flops),
        "Z": "" if row.mask_rate is None else f"{row.mask_rate:.4f}",
        "kernels": row.kernels,
    }


def _times(value: float | None) -> str:
    return "not counted yet" if value is None else f"{value:.4f}x"


def summarize(context: Context, places: Mapping[str, int]) -> Summary:
    """``places`` as a ``CallCounter`` has counted them."""
    layers = context.layers
    parts = segments(context.method, context.table)
    rates = context.mask_rates if context.method.has_random_mask else {}
    mine = torch.stack([layer.nonzeros() for layer in layers])[:, None]
    nonzeros = all_reduce_rows([layer.part for layer in layers], mine)[:, 0].tolist()
    rows = []
    for layer, nonzero, explored in zip(layers, nonzeros, context.explored_counts, strict=True):
        fan_in, fan_out = layer.fans()
        row = Row(
            layer=layer.name,
            shape=tuple(layer.shape),
            target=layer.target / layer.size,
            density=layer.count / layer.size,
            explored=explored / layer.size,
            dead_rows=int((fan_in == 0).sum()),
            dead_columns=int((fan_out == 0).sum()),
            inference_flops=layer.count / layer.size,
            training_flops=training_flops(layer, context.method, context.table, parts, context.random_mask.strength),
            kernels="sparse" if layer.parameter in context.kernels.sparse else "masked",
            mask_rate=rates.get(layer.name),
            active=layer.count,
            nonzeros=nonzero,
        )
        rows.append(row)
    size, active = (sum(column) for column in zip(*((x.size, x.count) for x in layers), strict=True))
    costs = [places.get(layer.name, 0) * layer.size for layer in layers]
    total = Row(
        layer="total",
        shape=(size,),
        target=sum(layer.target for layer in layers) / size,
        density=context.density,
        explored=context.explored,
        dead_rows=sum(row.dead_rows for row in rows),
        dead_columns=sum(row.dead_columns for row in rows),
        inference_flops=_mean([row.inference_flops for row in rows], costs),
        training_flops=_mean([row.training_flops for row in rows], costs),
        kernels=f"{sum(row.kernels == 'sparse' for row in rows)} of {len(rows)} sparse",
        mask_rate=_mean([row.mask_rate for row in rows], [row.active for row in rows]) if rates else None,
        active=active,
        nonzeros=sum(row.nonzeros for row in rows),
    )
    title = f"{context.method.name}: step {context.step} of {context.table.steps}"
    optimizer, notes = context.states.describe(layers), tuple(context.kernels.reasons)
    return Summary(title, tuple(rows), total, notes, optimizer, context.kernels.instructions, _random_mask(context))


def _random_mask(context: Context) -> str:
    controller, rate = context.controller, context.method.random_mask
    if controller is not None:
        if controller.gap is None:
            return "no held-out examples were seen yet: without any there is no random mask, only averaged weights."
        return f"on the held-out examples: {confidence(context.mask_rate, controller.gap)}."
    if isinstance(rate, float) and rate and context.method.average_from is not None:
        return (
            f"{percent(rate, 0)} of the weights are switched off in every step: in short training, or where a network "
            "is not over-confident, that may cost several points of accuracy (cigl-auto measures it)."
        )
    return ""


def _mean(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    """None where nothing has a weight."""
    pairs = zip(values, weights, strict=True)
    return sum((value or 0.0) * weight for value, weight in pairs) / sum(weights) if sum(weights) else None


Segment = tuple[int, int, int]  # steps, how many of them need the dense gradient, the last step


def segments(method: Method, table: Timetable) -> list[Segment]:
    """Training cut at the topology rounds."""
    parts, before = [], 0
    for end in dict.fromkeys([*table.update_steps, table.steps]):
        dense = sum(method.wants_gradient(table, t) for t in range(before + 1, end + 1))
        parts.append((end - before, dense, end))
        before = end
    return parts


def training_flops(
    layer: Layer, method: Method, table: Timetable, parts: list[Segment], strength: float | None = None
) -> float:
    """Of the whole training, against dense: 3 f_S per step, 2 f_S + f_D where the dense gradient is needed.

    A ``strength`` of Z is taken to be that of the whole training.
    """
    active = layer.size if method.starts_dense else layer.target
    cost = 0.0
    for steps, dense_steps, end in parts:
        moments = [end - steps + math.ceil(steps * (i + 0.5) / MOMENTS) for i in range(MOMENTS)]
        rate = fmean(scaled(method.mask_rate(layer, active, table, moment), strength) for moment in moments)
        density = active / layer.size * (1 - rate)
        cost += steps * 3 * density + dense_steps * (1 - density)
        if table.updates(end):
            active = sum(method.budget(layer, active, table, end))
    return cost / (3 * table.steps)
