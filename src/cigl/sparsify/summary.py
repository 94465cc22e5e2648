"""A look at the sparse network: per layer and in all, with FLOPs against dense.

FLOPs are counted as in RigL's appendix H: a layer costs its active weights times the places at which they
are used; a training step is one forward and two backward passes of that, and a step whose dense gradient
is needed pays one dense pass more. Z shortens the training passes. Elementwise work is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torch import nn

from cigl.common.notebook import paragraphs, table
from cigl.sparsify.flops import uses
from cigl.sparsify.loop.binding import Hook, OpaqueHook
from cigl.sparsify.loop.context import Context
from cigl.sparsify.methods.catalogue import Method
from cigl.sparsify.methods.schedule import Timetable
from cigl.sparsify.parameters.layer import Layer
from cigl.sparsify.tensors.shards import sums


class CallCounter:
    """At how many places each layer's weights are used, from the first forward of the model."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer]):
        self.places: dict[str, int] = {}
        self._model, self._layers = model, layers
        self._handles: list[Any] = []
        self._register()

    def _register(self) -> None:
        try:
            for layer in self._layers:
                for module in layer.selected.call_sites(self._model):
                    self._handles.append(module.register_forward_hook(Hook(_count(self.places, layer))))
            self._handles.append(self._model.register_forward_hook(OpaqueHook(self._finish)))
        except BaseException:  # all hooks, or none
            self.remove()
            raise

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

    @property
    def is_counting(self) -> bool:
        return bool(self._handles)

    def _finish(self, *_: Any) -> None:
        if self.places:  # a compiled forward shows nothing: wait for another one
            self.remove()

    def restore(self, places: dict[str, int]) -> None:
        """What an earlier process has counted."""
        if places:
            self.places.update(places)
            self.remove()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _count(places: dict[str, int], layer: Layer) -> Any:
    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if number := uses(layer, module, inputs, output):
            places[layer.name] = places.get(layer.name, 0) + number

    return hook


COUNTS = ("active", "non-zero")  # shown where they differ
HEAD = ("layer", "shape", "target", "density", *COUNTS, "explored", "dead rows", "cols", "FLOPs: infer", "train", "Z",
        "kernels")  # fmt: skip
MOMENTS = 8  # of a stretch of training, over which Z's rate is averaged


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

    def __str__(self) -> str:
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(_pad(cell, w, i < 2) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]
        rule = "-" * len(text[0])
        return "\n".join([self.title, text[0], rule, *text[1:-1], rule, text[-1], *self._remarks()])

    def _repr_html_(self) -> str:
        head, *rows = self._lines()
        return paragraphs(self.title) + table(head, rows, texts=2) + paragraphs(*self._remarks())

    def _lines(self) -> list[tuple[str, ...]]:
        """The cells of the head, of each layer and of the total; columns that say nothing are left out."""
        hidden = {"Z"} if self.total.mask_rate is None else set()
        hidden |= set(COUNTS) if all(row.active == row.nonzeros for row in self.rows) else set()
        hidden |= set() if any(row.kernels == "sparse" for row in self.rows) else {"kernels"}
        lines = [HEAD, *map(_cells, (*self.rows, self.total))]
        return [tuple(cell for cell, name in zip(line, HEAD, strict=True) if name not in hidden) for line in lines]

    def _remarks(self) -> list[str]:
        notes = [f"not everything runs on sparse kernels: {note}" for note in self.notes]
        return notes + ([self.optimizer] if self.optimizer else [])


def _pad(cell: str, width: int, left: bool) -> str:
    return cell.ljust(width) if left else cell.rjust(width)


def _cells(row: Row) -> tuple[str, ...]:
    shape = "x".join(map(str, row.shape))
    target, density, explored = (f"{share:.4f}" for share in (row.target, row.density, row.explored))
    dead = (str(row.dead_rows), str(row.dead_columns))
    flops = (_times(row.inference_flops), _times(row.training_flops))
    rate = "" if row.mask_rate is None else f"{row.mask_rate:.4f}"
    counts = (f"{row.active:,}", f"{row.nonzeros:,}")
    return row.layer, shape, target, density, *counts, explored, *dead, *flops, rate, row.kernels


def _times(value: float | None) -> str:
    return "not counted yet" if value is None else f"{value:.4f}x"


def summarize(context: Context, places: Mapping[str, int]) -> Summary:
    """``places`` as a ``CallCounter`` has counted them."""
    counted = bool(places)
    rows, dense, infer, train = [], 0.0, 0.0, 0.0
    parts = segments(context.method, context.table)
    rates = context.mask_rates if context.method.has_random_mask else {}
    nonzeros = sums([layer.part for layer in context.layers], [[layer.nonzeros()] for layer in context.layers])
    for layer, (nonzero,) in zip(context.layers, nonzeros, strict=True):
        density = layer.count / layer.size
        training = training_flops(layer, context.method, context.table, parts)
        fan_in, fan_out = layer.fans()
        row = Row(
            layer=layer.name,
            shape=tuple(layer.shape),
            target=layer.target / layer.size,
            density=density,
            explored=layer.explored_count / layer.size,
            dead_rows=int((fan_in == 0).sum()),
            dead_columns=int((fan_out == 0).sum()),
            inference_flops=density,
            training_flops=training,
            kernels="sparse" if layer.parameter in context.kernels.sparse else "masked",
            mask_rate=rates.get(layer.name),
            active=layer.count,
            nonzeros=int(nonzero),
        )
        rows.append(row)
        cost = places.get(layer.name, 0) * layer.size
        dense, infer, train = dense + cost, infer + cost * density, train + cost * training
    size = sum(layer.size for layer in context.layers)
    total = Row(
        layer="total",
        shape=(size,),
        target=sum(layer.target for layer in context.layers) / size,
        density=context.density,
        explored=context.explored,
        dead_rows=sum(row.dead_rows for row in rows),
        dead_columns=sum(row.dead_columns for row in rows),
        inference_flops=infer / dense if counted else None,
        training_flops=train / dense if counted else None,
        kernels=f"{sum(row.kernels == 'sparse' for row in rows)} of {len(rows)} sparse",
        mask_rate=_share_off(rows) if rates else None,
        active=sum(row.active for row in rows),
        nonzeros=sum(row.nonzeros for row in rows),
    )
    title = f"{context.method.name}: step {context.step} of {context.table.steps}"
    return Summary(title, tuple(rows), total, tuple(context.kernels.reasons), context.states.describe(context.layers))


def _share_off(rows: Sequence[Row]) -> float:
    """What Z switches off of all active weights."""
    active = [row.density * math.prod(row.shape) for row in rows]
    return sum(count * (row.mask_rate or 0.0) for count, row in zip(active, rows, strict=True)) / max(1.0, sum(active))


Segment = tuple[int, int, int]  # steps, how many of them need the dense gradient, the last step


def segments(method: Method, table: Timetable) -> list[Segment]:
    """Training cut at the topology rounds."""
    parts, before = [], 0
    for end in dict.fromkeys([*table.update_steps, table.steps]):
        dense = sum(method.wants_gradient(table, t) for t in range(before + 1, end + 1))
        parts.append((end - before, dense, end))
        before = end
    return parts


def training_flops(layer: Layer, method: Method, table: Timetable, parts: list[Segment]) -> float:
    """Of the whole training, against dense: 3 f_S per step, 2 f_S + f_D where the dense gradient is needed."""
    active = layer.size if method.starts_dense else layer.target
    cost = 0.0
    for steps, dense_steps, end in parts:
        moments = [end - steps + math.ceil(steps * (i + 0.5) / MOMENTS) for i in range(MOMENTS)]
        rate = fmean(method.mask_rate(layer, active, table, moment) for moment in moments)
        density = active / layer.size * (1 - rate)
        cost += steps * 3 * density + dense_steps * (1 - density)
        if table.updates(end):
            active = sum(method.budget(layer, active, table, end))
    return cost / (3 * table.steps)
