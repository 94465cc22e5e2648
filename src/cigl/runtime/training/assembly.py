"""Steps in passes, on memory of two kinds.

Batch norm needs sums over the whole batch, so steps are cut into passes: all blocks of images go through one pass
before any goes through the next, and between passes stand steps that run once per batch. What a pass needs of an
earlier one is *kept*, per block, until the gradients are done. What it makes for itself (a normalised and padded input,
a gradient on its way) lies in *scratch*, per thread, and is computed again when it is needed again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cigl.common.errors import CiglError
from cigl.runtime.network.operations import Pair
from cigl.runtime.program.interface import NormStruct, StepStruct, View
from cigl.runtime.program.layout import Layout
from cigl.runtime.program.memory import Arena, Place
from cigl.runtime.program.steps import Floats, Kind
from cigl.runtime.training.bands import Reach
from cigl.runtime.training.nodes import BatchNorm, Conv, Node, Sum, Term, Value, Weights
from cigl.runtime.training.patterns import Order

GROUPS = 8  # of blocks, summed apart: as many threads share the work, and the sums don't depend on their number
_BITS = {"in_": 1, "add": 2, "out": 4, "other": 8}
_NOWHERE = View(-1, 0, 0, 0, 0, 0)


@dataclass(eq=False)
class Held:
    """Memory that a value or a gradient takes, and how many still need it."""

    place: Place
    kept: bool
    users: int = 1


@dataclass(frozen=True)
class Outside:
    """A tensor of the caller, by its number."""

    number: int
    shape: tuple[int, ...]

    @property
    def view(self) -> View:
        return View(self.number, 0, 0, *(self.shape if len(self.shape) == 3 else (self.shape[0], 1, 1)))


class Arrays:
    """Numpy arrays that steps point to."""

    def __init__(self) -> None:
        self.owned: list[Any] = []

    def floats(self, count: int) -> Floats:
        array: Floats = self.own(np.zeros(count, np.float32))
        return array

    def own(self, array: Any) -> Any:
        self.owned.append(array)
        return array

    @property
    def bytes(self) -> int:
        return sum(each.nbytes for each in self.owned if isinstance(each, np.ndarray))


class NormState:
    """A batch norm's numbers of the current batch; what a user's module holds is pointed to before each run."""

    def __init__(self, module: BatchNorm, arrays: Arrays):
        self.module = module
        names = ("mean", "inverse", "scale", "shift", "by_gradient", "by_value", "by_one")
        self.numbers = {name: arrays.floats(module.num_features) for name in names}
        self.struct = arrays.own(NormStruct(eps=module.eps, **{n: a.ctypes.data for n, a in self.numbers.items()}))


class Assembly:
    """Collects the steps of a program; forward.py and backward.py say which."""

    def __init__(
        self, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], images: int, layout: Layout
    ):
        self.layout = layout
        self.blocks = -(-images // layout.block)
        self.groups = min(GROUPS, self.blocks)
        self.steps: list[StepStruct] = []
        self.arrays = Arrays()
        self.kept, self.scratch = Arena(layout), Arena(layout)
        self.made_by: dict[Value, Node] = {node.out: node for node in nodes}
        self.norms: dict[Term, NormState] = {}
        self.values: dict[Weights, Floats] = {}  # the active entries, gathered before each run
        self.reaches: dict[int, Reach] = {}
        self._layers: dict[Any, dict[str, Any]] = {}
        self.biases: list[tuple[int, Weights]] = []  # steps that point to a bias
        self.targets: list[tuple[int, Any]] = []  # steps that write the gradient of a weight or a bias
        self._ready: set[Hashable] = set()
        self._pending: list[tuple[Hashable, Kind, dict[str, Any]]] = []
        self._made: dict[tuple[Value, Pair], Held] = {}  # values in scratch, in this pass
        self._places = {value: self.kept.take(value.shape, (0, 0)) for value in (*inputs, *_kept(nodes, outputs))}

    # Steps

    def step(self, kind: Kind, **fields: Any) -> int:
        """Append a step; memory, tensors outside and arrays are given as they are. Returns its number."""
        if "reach" in fields:
            self.reaches[len(self.steps)] = fields.pop("reach")
        views = dict.fromkeys(("in_", "add", "out", "normed", "multiplier", "other"), _NOWHERE)
        struct = StepStruct(kind=kind, **views)
        for name, value in fields.items():
            if isinstance(value, Held):
                struct.kept |= _BITS[name] if value.kept else 0
                value = value.place.view
            elif isinstance(value, Outside):
                struct.outside |= _BITS[name]
                value = value.view
            elif isinstance(value, np.ndarray):
                value = self.arrays.own(value).ctypes.data
            setattr(struct, name, value)
        self.steps.append(struct)
        return len(self.steps) - 1

    def once_per_batch(self, result: Hashable, kind: Kind, **fields: Any) -> None:
        """A step that needs all blocks; it ends the pass, but not before somebody needs its ``result``."""
        self._pending.append((result, kind, {"per_batch": 1, **fields}))

    def is_ready(self, result: Hashable) -> bool:
        """Whether a step once per batch has been appended that has this result."""
        return result in self._ready

    def need(self, *results: Hashable) -> None:
        """Make sure of these results of steps once per batch."""
        if not self._ready.issuperset(results):
            self.end_pass()

    def end_pass(self) -> None:
        """All that waits for the whole batch; what lies in scratch is gone."""
        for held in self._made.values():
            self.scratch.give_back(held.place)
        self._made.clear()
        for result, kind, fields in self._pending:
            number = self.step(kind, **fields)
            self._ready.add(result)
            if kind in (Kind.SCATTER, Kind.SUM_BLOCKS):
                self.targets.append((number, result))
        self._pending.clear()

    # Values

    def place(self, value: Value) -> Held:
        """Of a kept value."""
        return Held(self._places[value], True)

    def room(self, value: Value) -> Held:
        """Where a node writes: where its value is kept, or in scratch if it only leaves the program."""
        if self.is_kept(value):
            return self.place(value)
        if (value, (0, 0)) not in self._made:
            self._made[value, (0, 0)] = self.take(value, kept=False)
        return self._made[value, (0, 0)]

    def take(self, value: Value, kept: bool, padding: Pair = (0, 0)) -> Held:
        return Held((self.kept if kept else self.scratch).take(value.shape, padding), kept)

    def release(self, held: Held) -> None:
        held.users -= 1
        if not held.users:
            (self.kept if held.kept else self.scratch).give_back(held.place)

    def is_kept(self, value: Value) -> bool:
        return value in self._places

    def read(self, value: Value, padding: Pair = (0, 0)) -> Held:
        """The value with zeros around it: where it is kept, or in scratch, made again if need be."""
        if self.is_kept(value) and padding == (0, 0):
            return self.place(value)
        node = self.made_by.get(value)
        if not self.is_kept(value) and isinstance(node, Sum):
            self.need(*(term for term in node.terms if term.norm))
        if (value, padding) not in self._made:
            held = self._made[value, padding] = self.take(value, False, padding)
            if self.is_kept(value):
                self.step(Kind.AFFINE, in_=self.place(value), out=held)
            else:
                assert isinstance(node, Sum)
                self.compute(node, held)
        return self._made[value, padding]

    def compute(self, node: Sum, out: Held) -> None:
        self.need(*(term for term in node.terms if term.norm))
        fields: dict[str, Any] = {"in_": self.place(node.a.value), "out": out, "activation": node.relu}
        if node.b is not None:
            fields["add"] = self.place(node.b.value)
        self.step(Kind.AFFINE, **fields, **self.applied(node))

    def applied(self, node: Sum) -> dict[str, Floats]:
        """The scales and shifts of a sum's norms."""
        fields: dict[str, Floats] = {}
        for term, scale, shift in zip(node.terms, ("scale", "scale2"), ("shift", "shift2"), strict=False):
            if term.norm is not None:
                numbers = self.norms[term].numbers
                fields |= {scale: numbers["scale"], shift: numbers["shift"]}
        return fields

    # Weights

    def weights(self, node: Conv, x: View) -> dict[str, Any]:
        """The pattern of a layer that reads x, without its values; the same on the way there and back."""
        key = (node.weights, node.padding, x.row, x.channel)
        if key not in self._layers:
            order, (y, x_) = node.weights.pattern.forward, node.padding
            self._layers[key] = self.pattern(order, order.ky - y, order.kx - x_, x)
        return self._layers[key]

    def pattern(self, order: Order, down: Any, right: Any, x: View) -> dict[str, Any]:
        """Where each entry reads, from the pixel it contributes to: so many rows down and pixels to the right."""
        offsets = order.channel.astype(np.int64) * x.channel + down.astype(np.int64) * x.row
        offsets += right.astype(np.int64) * self.layout.lanes
        if offsets.size and np.abs(offsets).max() >= 1 << 31:
            raise CiglError(
                "an activation is too large for the sparse kernels: attach with kernels='masked'.",
                arguments=("kernels",),
            )
        reach = (-int(down.min(initial=0)), int(down.max(initial=0)))
        return {"blocks": order.blocks, "rows": order.rows, "offsets": offsets.astype(np.int32), "reach": reach}

    def values_of(self, weights: Weights) -> Floats:
        if weights not in self.values:
            self.values[weights] = self.arrays.floats(weights.pattern.count)
        return self.values[weights]


def _kept(nodes: Sequence[Node], outputs: Sequence[Value]) -> list[Value]:
    """All but what leaves at once, and sums that no other sum reads: they are cheap to compute again."""
    read = {value for node in nodes for value in node.reads()}
    summed = {value for node in nodes if isinstance(node, Sum) for value in node.reads()}
    summed |= {node.add for node in nodes if isinstance(node, Conv) and node.add is not None}
    return [node.out for node in nodes if (node.out in summed if isinstance(node, Sum) else node.out in read)]


def address(struct: ctypes.Structure) -> int:
    return ctypes.addressof(struct)
