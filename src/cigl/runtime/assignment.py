"""Which units of a network run sparse: the assignment that takes the least time in total.

Every unit is timed dense and sparse. Where the two meet, a tensor has to be converted from torch's layout into the
kernels' or back; that is timed once per shape of tensor. The sum of all these is least for a minimum cut of the graph,
which is found exactly. Nothing else is tried.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cigl.runtime.compile import operations as op
from cigl.runtime.compile.network import Network
from cigl.runtime.cut import Cut
from cigl.runtime.program.program import Program
from cigl.runtime.program.steps import per_image
from cigl.runtime.schedule import Schedule, Survey, fitting

REPEATS, ENOUGH = 5, 0.5  # the least of a few runs counts, as far as they take no more than this many seconds


@dataclass
class Assignment:
    """The units that run sparse, and the measurements that decided it (seconds per unit)."""

    sparse: set[int]
    dense_seconds: dict[int, float] = field(default_factory=dict)
    sparse_seconds: dict[int, float] = field(default_factory=dict)


def assign(network: Network, facts: Survey, inputs: Sequence[Any], threads: int) -> Assignment:
    possible = fitting(network, facts)
    if not any(isinstance(network.units[number].operation, op.Layer) for number in possible):
        return Assignment(set())  # without weights there is nothing to gain
    programs = Schedule(network, facts, possible, threads)
    measured = _least(lambda: programs.seconds(inputs))
    dense, live = facts.seconds, measured.keys()
    if sum(dense.values()) < ENOUGH:  # else the run that showed the shapes has to do
        torch_alone = Schedule(network, facts, (), threads)
        dense = _least(lambda: torch_alone.seconds(inputs))
    dense = _shared(network, facts, {number: dense[number] for number in live})
    sparse = _shared(network, facts, {number: measured[number] for number in live if number in possible})
    return Assignment(_cheapest(network, facts, dense, sparse, threads), dense, sparse)


def _shared(network: Network, facts: Survey, seconds: dict[int, float]) -> dict[int, float]:
    """For units alike, the least that one of them took: a network's repeated layers are as good as repetitions."""
    least: dict[Any, float] = {}
    keys = {number: _alike(network, facts, number) for number in seconds}
    for number, key in keys.items():
        least[key] = min(seconds[number], least.get(key, math.inf))
    return {number: least[key] for number, key in keys.items()}


def _alike(network: Network, facts: Survey, number: int) -> Any:
    """What a unit's time depends on."""
    unit = network.units[number]
    operation = unit.operation
    values = (*unit.inputs, *unit.outputs)
    if any(facts.shapes[value] is None for value in values) or not isinstance(operation, op.Layer):
        return number
    settings = {name: each for name, each in vars(operation).items() if name not in ("weight", "norm")}
    shapes = tuple(facts.shapes[value] for value in values)
    return type(operation), repr(settings), shapes, operation.weight.shape, round(operation.weight.density, 2)


def _least(measure: Callable[[], dict[int, float]]) -> dict[int, float]:
    start, best = time.perf_counter(), measure()
    for done in range(1, REPEATS):
        if (time.perf_counter() - start) * (done + 1) / done > ENOUGH:
            break
        best = {number: min(seconds, best[number]) for number, seconds in measure().items()}
    return best


def _cheapest(
    network: Network, facts: Survey, dense: dict[int, float], sparse: dict[int, float], threads: int
) -> set[int]:
    """Units that aren't on torch's side of the cheapest cut; what comes from and goes to the caller is torch's."""
    conversion = _Conversion(threads)
    readers: dict[int, list[int | str]] = defaultdict(list)
    writer: dict[int, int | str] = dict.fromkeys(network.inputs, "torch")
    cut = Cut()
    for value in network.results():
        readers[value].append("torch")
    for number, seconds in dense.items():
        unit = network.units[number]
        cut.edge("torch", number, sparse.get(number, math.inf))
        cut.edge(number, "kernels", seconds)
        writer |= dict.fromkeys(unit.outputs, number)
        for value in unit.inputs:
            readers[value].append(number)
    for value, wrote in writer.items():
        shape = facts.shapes[value]
        if shape is None or value in facts.constants or not sparse.keys() & {wrote, *readers[value]}:
            continue
        seconds = conversion.seconds(shape)
        cut.edge(wrote, ("in", value), seconds)
        cut.edge(("out", value), wrote, seconds)
        for reader in readers[value]:
            cut.edge(("in", value), reader, math.inf)
            cut.edge(reader, ("out", value), math.inf)
    return set(sparse) - cut.side("torch", "kernels")


class _Conversion:
    """What it takes to convert a tensor between the two layouts, by its shape."""

    def __init__(self, threads: int):
        self._threads = threads
        self._known: dict[tuple[int, ...], float] = {}

    def seconds(self, shape: tuple[int, ...]) -> float:
        if shape not in self._known:
            images, each = per_image(shape)
            program = Program(images, self._threads)
            program.output(program.input(*each))
            program.finish()
            tensor = torch.zeros(images, *each)

            def there_and_back() -> dict[int, float]:
                start = time.perf_counter()
                program.run(tensor)
                return {0: time.perf_counter() - start}

            self._known[shape] = _least(there_and_back)[0] / 2
        return self._known[shape]
