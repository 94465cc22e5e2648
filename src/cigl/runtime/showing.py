"""What ``print`` shows of an engine: its layers, their zeros, and what runs sparse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cigl.common.text import count, percent
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network
from cigl.runtime.program import library

Entry = Mapping[str, Any] | None  # of a plan: what runs for the inputs that were seen last


class LayerRow(NamedTuple):
    """A layer's weight, and what an entry says of it."""

    name: str
    shape: tuple[int, ...]
    nonzeros: int
    measured: Mapping[str, Any]

    @property
    def cells(self) -> tuple[str, ...]:
        times = (self.measured.get(name) for name in ("sparse_ms", "dense_ms"))
        zeros = percent(1 - self.nonzeros / max(1, math.prod(self.shape)), 1)
        runs = self.measured.get("runs", "decided by the first call")
        return (self.name, _by(self.shape), zeros, runs, *("" if each is None else f"{each:.3g}" for each in times))


def rows(network: Network, entry: Entry) -> list[LayerRow]:
    units = {} if entry is None else {row["unit"]: row for row in entry["units"]}
    layers = {unit.name: unit.operation.weight for unit in network.units if isinstance(unit.operation, op.Weighted)}
    return [LayerRow(name, each.shape, each.nonzeros, units.get(name, {})) for name, each in layers.items()]


def table(layers: list[LayerRow], entry: Entry, notes: Iterable[str]) -> str:
    """A line for each layer, below one for all of them."""
    weights, nonzeros = sum(math.prod(each.shape) for each in layers), sum(each.nonzeros for each in layers)
    parts = [count(len(layers), "layer")]
    parts += [f"{percent(1 - nonzeros / weights, 1)} of {weights:,} weights are zero"] if weights else []
    parts += [f"{library.isa()} kernels" if library.available() else "no sparse kernels"]
    parts += ["inputs of " + ", ".join(map(_by, entry["inputs"]))] if entry is not None else []
    cells = [("layer", "weight", "zeros", "runs", "sparse ms", "dense ms"), *(each.cells for each in layers)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells if layers]
    return "\n".join([f"SparseInference: {', '.join(parts)}", *lines, *notes])


def _by(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes))
