"""Which units of a network run sparse: the assignment that takes the least time in total.

Every unit is timed dense and sparse, by itself, and only one of those that are alike. Where the two meet, a tensor has
to be converted from torch's layout into the kernels' or back; that is timed once per shape of tensor. The sum of all
these is least for a minimum cut of the graph, which is found exactly. But a unit by itself finds its inputs in the
cache, and pays for no change between torch and the kernels. So where running everything sparse, or everything dense,
is estimated to take nearly as little, the whole network is timed each way.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cigl.runtime.cut import Cut
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network, Unit
from cigl.runtime.program.program import Program
from cigl.runtime.program.steps import per_image
from cigl.runtime.schedule import ProgramCall, Schedule, Survey, TorchCall, fitting, live_units

# The least of a few runs counts. No more than so many seconds are spent on repeating them, shared among the units that
# differ; each runs at least once in torch and twice on the kernels, whose memory is new in the first run.
REPEATS, BUDGET = 5, 1.0
_CONVERSION = 0.02  # seconds for repeating a conversion
_NEARLY = 1.2  # times the least estimate
_FINE = time.get_clock_info("thread_time").resolution <= 1e-6


@dataclass
class Assignment:
    """The units that run sparse, and the measurements that decided it (seconds per unit)."""

    sparse: set[int]
    dense_seconds: dict[int, float] = field(default_factory=dict)
    sparse_seconds: dict[int, float] = field(default_factory=dict)


def assign(
    network: Network,
    facts: Survey,
    inputs: Sequence[Any],
    threads: int,
    progress: Callable[[], None] = lambda: None,
) -> Assignment:
    """``progress`` is called between measurements."""
    possible = fitting(network, facts)
    if not any(isinstance(network.units[number].operation, op.Weighted) for number in possible):
        return Assignment(set())  # without weights there is nothing to gain
    live = live_units(network, facts.constants)
    alike: dict[Any, list[int]] = defaultdict(list)
    for number in live:
        if number in possible:
            alike[_alike(network, facts, number)].append(number)
    dense: dict[int, float] = {}
    sparse: dict[int, float] = {}
    for numbers in alike.values():
        times = _times(network.units[numbers[0]], facts, threads, BUDGET / len(alike))
        dense |= dict.fromkeys(numbers, times[0])
        sparse |= dict.fromkeys(numbers, times[1])
        progress()
    chosen = _cheapest(network, facts, {number: dense.get(number, 0.0) for number in live}, sparse, threads)
    chosen = _fastest(network, facts, inputs, _rivals(chosen, dense, sparse), threads)
    return Assignment(chosen, dense, sparse)


def _rivals(chosen: set[int], dense: Mapping[int, float], sparse: Mapping[int, float]) -> list[set[int]]:
    """What may be faster as a whole: the cheapest cut; all or no units sparse, if that is estimated to be close."""

    def estimate(units: set[int]) -> float:
        return sum(sparse[number] if number in units else dense[number] for number in sparse)

    simple = [units for units in (set(sparse), set[int]()) if units != chosen]
    return [chosen, *(units for units in simple if estimate(units) <= _NEARLY * estimate(chosen))]


def _fastest(
    network: Network, facts: Survey, inputs: Sequence[Any], rivals: Sequence[set[int]], threads: int
) -> set[int]:
    """The least of a few runs of the whole network counts, taken in turns."""
    if len(rivals) == 1:
        return rivals[0]
    schedules = [Schedule(network, facts, units, threads) for units in rivals]
    least = [math.inf] * len(rivals)

    began = time.perf_counter()
    for turn in range(1 + REPEATS):  # the first is not counted: memory is new then
        if turn > 1 and time.perf_counter() - began > BUDGET:
            break
        times = [_undisturbed(partial(_seconds, each, inputs), threads) for each in schedules]
        if turn:
            least = [min(pair) for pair in zip(least, times, strict=True)]
    return rivals[least.index(min(least))]


def _alike(network: Network, facts: Survey, number: int) -> Any:
    """What a unit's time depends on: a network's repeated layers are timed once."""
    unit = network.units[number]
    operation = unit.operation
    settings = {
        name: tuple(value.shape) if isinstance(value, Tensor) else value
        for name, value in vars(operation).items()
        if name not in ("weight", "norm")
    }
    shapes = tuple(facts.shapes[value] for value in (*unit.inputs, *unit.outputs))
    weight = (operation.weight.shape, round(operation.weight.density, 2)) if isinstance(operation, op.Weighted) else ()
    return type(operation), repr(settings), shapes, weight


def _times(unit: Unit, facts: Survey, threads: int, most: float) -> tuple[float, float]:
    """Seconds of a unit in torch and on the kernels."""
    values = dict(facts.constants)
    for value in unit.inputs:
        if value not in values and (shape := facts.shapes[value]):
            values[value] = torch.linspace(-1, 1, math.prod(shape)).view(shape)
    in_torch, kernels = TorchCall(unit), ProgramCall({0: unit}, facts, set(unit.outputs), threads)
    dense = partial(_seconds, in_torch.run, *(values[value] for value in unit.inputs))
    sparse = partial(kernels.seconds, *(values[value] for value in kernels.inputs))
    sparse()
    return _least(dense, most / 2, threads), _least(sparse, most / 2, threads)


def _seconds(call: Callable[..., Any], *inputs: Any) -> float:
    start = time.perf_counter()
    call(*inputs)
    return time.perf_counter() - start


def _least(measure: Callable[[], float], most: float, threads: int) -> float:
    """Of a few runs, as far as they take no more than ``most`` seconds."""
    start, best = time.perf_counter(), _undisturbed(measure, threads)
    for _ in range(1, REPEATS):
        if time.perf_counter() - start > most:
            break
        best = min(best, _undisturbed(measure, threads))
    return best


def _undisturbed(measure: Callable[[], float], threads: int) -> float:
    """Without the time in which another process had the core. (Known for a single thread alone, as others may wait.)"""
    start, started = time.perf_counter(), time.thread_time()
    seconds = measure()
    if threads > 1 or not _FINE:
        return seconds
    return seconds * min(1.0, (time.thread_time() - started) / max(time.perf_counter() - start, 1e-9))


def _cheapest(
    network: Network, facts: Survey, dense: dict[int, float], sparse: dict[int, float], threads: int
) -> set[int]:
    """Units that aren't on torch's side of the cheapest cut; what comes from and goes to the caller is torch's."""
    conversions: dict[tuple[int, ...], float] = {}
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
        if shape not in conversions:
            conversions[shape] = _conversion(shape, threads)
        seconds = conversions[shape]
        cut.edge(wrote, ("in", value), seconds)
        cut.edge(("out", value), wrote, seconds)
        for reader in readers[value]:
            cut.edge(("in", value), reader, math.inf)
            cut.edge(reader, ("out", value), math.inf)
    return set(sparse) - cut.min_cut("torch", "kernels")


def _conversion(shape: tuple[int, ...], threads: int) -> float:
    """What it takes to convert a tensor of this shape from one layout into the other."""
    images, each = per_image(shape)
    program = Program(images, threads)
    program.output(program.input(*each))
    program.finish()
    tensor = torch.zeros(images, *each)
    program.run(tensor)
    return _least(partial(_seconds, program.run, tensor), _CONVERSION, threads) / 2
