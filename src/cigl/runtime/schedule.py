"""A network on inputs of one shape: programs of sparse units, and torch for the others, in an order that works.

Units stand in stages; even stages are programs, odd ones torch. A unit goes into the first stage of its kind that is
not before anything it reads. So the sparse units of a stage can run as one program, and no stage waits for a later one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from cigl.runtime.compile import operations as op
from cigl.runtime.compile.network import Network, Unit
from cigl.runtime.program.program import Program
from cigl.runtime.program.steps import Shape, Value, fits, per_image


@dataclass
class Survey:
    """What a dense run shows about inputs of one shape."""

    shapes: dict[int, Shape]  # of the values
    constants: dict[int, Any]  # values that follow from the inputs' shapes alone, and the network's own
    sure: set[int]  # values whose shape follows from the inputs' shapes alone
    seconds: dict[int, float] = field(default_factory=dict)  # that each unit took


class OtherShape(Exception):
    """A value's shape depends on more than the inputs' shapes, and differs from the one that was planned for."""


def survey(network: Network, inputs: Sequence[Any], shapes_only: bool = False) -> Survey:
    """Run once in torch and take notes; ``shapes_only`` leaves out the arithmetic of linear layers."""
    found = Survey({}, dict(network.constants), {*network.inputs, *network.constants})
    for value, each in (*network.constants.items(), *zip(network.inputs, inputs, strict=True)):
        found.shapes[value] = _shape(each)
    by_shape: set[int] = set()
    for number, (unit, results, seconds) in enumerate(_walk(network, dict(network.constants), inputs, shapes_only)):
        found.seconds[number] = seconds
        found.shapes |= zip(unit.outputs, map(_shape, results), strict=True)
        if not found.sure.issuperset(unit.inputs):
            continue
        in_torch = unit.operation if isinstance(unit.operation, op.InTorch) else None
        if in_torch is None or in_torch.keeps_sure:
            found.sure.update(unit.outputs)
        asks = in_torch is not None and in_torch.of_shape
        if asks or (unit.inputs and by_shape.issuperset(unit.inputs) and not isinstance(results[0], Tensor)):
            by_shape.update(unit.outputs)
            found.sure.update(unit.outputs)
            found.constants |= zip(unit.outputs, results, strict=True)
    return found


def run_in_torch(network: Network, inputs: Sequence[Any]) -> Any:
    """Everything dense, with nothing planned."""
    values = dict(network.constants)
    for _ in _walk(network, values, inputs):
        pass
    return network.result(values)


def _walk(
    network: Network, values: dict[int, Any], inputs: Sequence[Any], shapes_only: bool = False
) -> Iterator[tuple[Unit, tuple[Any, ...], float]]:
    """Each unit, what it returns in torch, and the seconds it took; values are dropped after their last reader."""
    values |= zip(network.inputs, inputs, strict=True)
    kept = set(network.results())
    last = {value: number for number, unit in enumerate(network.units) for value in unit.inputs}
    for number, unit in enumerate(network.units):
        zeros = shapes_only and isinstance(unit.operation, op.Linear)
        call = _ZeroCall(number, unit) if zeros else _TorchCall(number, unit)
        results, seconds = call.timed(*(values[value] for value in unit.inputs))
        values |= zip(unit.outputs, results, strict=True)
        yield unit, tuple(results), seconds[number]
        for value in {*unit.inputs, *unit.outputs} - kept:
            if last.get(value, -1) <= number:
                del values[value]


def _shape(value: Any) -> Shape:
    known = isinstance(value, Tensor) and value.dtype == torch.float32 and value.device.type == "cpu"
    return tuple(value.shape) if known and value.dim() and value.numel() else None


def _results(operation: op.Operation, result: Any) -> tuple[Any, ...]:
    return result if operation.outputs == 2 else (result,)


def fitting(network: Network, facts: Survey) -> set[int]:
    """The units that the kernels can do for these shapes."""

    def possible(unit: Unit) -> bool:
        shapes = [facts.shapes[value] for value in unit.inputs if value not in facts.constants]
        output = facts.shapes[unit.outputs[0]]
        return bool(shapes) and None not in (*shapes, output) and fits(unit.operation, shapes, output)

    return {number for number, unit in enumerate(network.units) if possible(unit)}


class _Call(Protocol):
    """A part of a schedule: values in, values out."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def run(self, *inputs: Any) -> Sequence[Any]: ...
    def timed(self, *inputs: Any) -> tuple[Sequence[Any], dict[int, float]]: ...


class _TorchCall:
    """One unit. Keeps the dense weight alive, which is otherwise made again from its non-zeros."""

    def __init__(self, number: int, unit: Unit):
        self.number, self.operation = number, unit.operation
        self.inputs, self.outputs = unit.inputs, unit.outputs
        self.weight = unit.operation.weight.dense() if isinstance(unit.operation, op.Layer) else None

    def run(self, *inputs: Any) -> Sequence[Any]:
        return _results(self.operation, self.operation.dense(*inputs))

    def timed(self, *inputs: Any) -> tuple[Sequence[Any], dict[int, float]]:
        start = time.perf_counter()
        results = self.run(*inputs)
        return results, {self.number: time.perf_counter() - start}


class _ZeroCall(_TorchCall):
    """Zeros in the shape of a linear layer's results."""

    def __init__(self, number: int, unit: Unit):
        self.number, self.operation = number, unit.operation

    def run(self, *inputs: Any) -> Sequence[Any]:
        assert isinstance(self.operation, op.Linear)
        return (inputs[0].new_zeros(*inputs[0].shape[:-1], self.operation.weight.shape[0]),)


class _ProgramCall:
    """Units that the kernels run in one call. ``wanted`` are the values that others read."""

    def __init__(self, units: dict[int, Unit], facts: Survey, wanted: set[int], threads: int):
        written = {value for unit in units.values() for value in unit.outputs}
        read = {value: None for unit in units.values() for value in unit.inputs if value not in facts.constants}
        self.inputs = tuple(value for value in read if value not in written)
        self.outputs = tuple(sorted(written & wanted))
        shapes = {value: shape for value in (*self.inputs, *self.outputs) if (shape := facts.shapes[value])}
        seen = {value: per_image(shapes[value]) for value in self.inputs}
        self._unsure = [(n, shapes[value]) for n, value in enumerate(self.inputs) if value not in facts.sure]
        self.program = Program(seen[self.inputs[0]][0], threads)
        # None where torch's shape is the program's: a view costs microseconds
        self._in_shapes = [None if len(shapes[v]) in (2, 4) else (images, *each) for v, (images, each) in seen.items()]
        self._out_shapes = [None if len(shapes[v]) in (2, 4) else shapes[v] for v in self.outputs]
        values = {value: self.program.input(*shape) for value, (_, shape) in seen.items()}
        self._made: dict[int, tuple[Value, ...]] = {}
        for number, unit in units.items():
            arguments = (values[value] for value in unit.inputs if value not in facts.constants)
            self._made[number] = self.program.record(unit.operation, *arguments)
            values |= zip(unit.outputs, self._made[number], strict=True)
        for value in self.outputs:
            self.program.output(values[value])
        self.program.finish()

    def run(self, *inputs: Tensor) -> Sequence[Tensor]:
        if any(inputs[number].shape != shape for number, shape in self._unsure):
            raise OtherShape
        return _shaped(self.program.run(*_shaped(inputs, self._in_shapes)), self._out_shapes)

    def timed(self, *inputs: Tensor) -> tuple[Sequence[Tensor], dict[int, float]]:
        if any(inputs[number].shape != shape for number, shape in self._unsure):
            raise OtherShape
        results, taken, _ = self.program.timed(*_shaped(inputs, self._in_shapes))
        seconds = {number: sum(taken.get(value, 0.0) for value in made) for number, made in self._made.items()}
        return _shaped(results, self._out_shapes), seconds


def _shaped(tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...] | None]) -> list[Tensor]:
    return [each if shape is None else each.reshape(shape) for each, shape in zip(tensors, shapes, strict=True)]


class Schedule:
    """Ready to run, from several threads at once. ``sparse`` are the numbers of the units that go into programs."""

    def __init__(self, network: Network, facts: Survey, sparse: Collection[int], threads: int):
        self._network, self._constants = network, facts.constants
        live = self._live()
        self._calls: list[_Call] = []
        for is_program, units in staged(live, sparse):
            if not is_program:
                self._calls += [_TorchCall(number, unit) for number, unit in units.items()]
                continue
            others = set(network.results())
            others.update(value for number, unit in live.items() if number not in units for value in unit.inputs)
            parts = by_images(units, facts.shapes, facts.constants)
            self._calls += [_ProgramCall(part, facts, others, threads) for part in parts]
        last = {value: call for call in self._calls for value in (*call.inputs, *call.outputs)}
        kept = {*network.results(), *facts.constants}
        self._done = [[value for value in last if last[value] is call and value not in kept] for call in self._calls]
        size = 1 + max((value for unit in network.units for value in unit.outputs), default=len(network.inputs))
        self._at_first = [facts.constants.get(value) for value in range(size)]

    def _live(self) -> dict[int, Unit]:
        """The units whose values are read, now that some values are constants."""
        read, kept = set(self._network.results()), {}
        for number, unit in reversed(list(enumerate(self._network.units))):
            if (read - self._constants.keys()) & set(unit.outputs):
                kept[number] = unit
                read.update(unit.inputs)
        return dict(sorted(kept.items()))

    @property
    def bytes(self) -> int:
        """What the programs own beside the weights."""
        return sum(call.program.bytes for call in self._calls if isinstance(call, _ProgramCall))

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self._run(inputs, None)

    def seconds(self, inputs: Sequence[Any]) -> dict[int, float]:
        """What each unit takes in one run."""
        taken: dict[int, float] = {}
        self._run(inputs, taken)
        return taken

    def _run(self, inputs: Sequence[Any], taken: dict[int, float] | None) -> Any:
        values = self._at_first.copy()
        for value, each in zip(self._network.inputs, inputs, strict=True):
            values[value] = each
        for call, done in zip(self._calls, self._done, strict=True):
            arguments = [values[value] for value in call.inputs]
            if taken is None:
                results = call.run(*arguments)
            else:
                results, seconds = call.timed(*arguments)
                taken |= seconds
            for value, each in zip(call.outputs, results, strict=True):
                values[value] = each
            for value in done:
                values[value] = None
        return self._network.result(values)


def staged(
    units: Mapping[int, Unit], sparse: Collection[int], ordered: bool = False
) -> list[tuple[bool, dict[int, Unit]]]:
    """The units in stages that can run one after the other, each with whether it is for programs.

    ``ordered`` keeps the order of those in torch, which random numbers and statistics depend on.
    """
    stage: dict[int, int] = {}
    latest = -1  # stage with a unit in torch
    stages: dict[int, dict[int, Unit]] = defaultdict(dict)
    for number, unit in units.items():
        before = max((stage.get(value, -1) for value in unit.inputs), default=-1)
        place = before + (before % 2 != (number not in sparse))
        if ordered and number not in sparse:
            place = latest = max(place, latest)
        stage |= dict.fromkeys(unit.outputs, place)
        stages[place][number] = unit
    return [(place % 2 == 0, stages[place]) for place in sorted(stages)]


def by_images(
    units: Mapping[int, Unit], shapes: Mapping[int, Shape], constants: Container[int]
) -> Iterable[dict[int, Unit]]:
    """A program is for one number of images; all values that a unit reads have the same."""
    parts: dict[int, dict[int, Unit]] = defaultdict(dict)
    for number, unit in units.items():
        shape = next(shapes[value] for value in unit.inputs if value not in constants)
        assert shape is not None
        parts[per_image(shape)[0]][number] = unit
    return parts.values()
