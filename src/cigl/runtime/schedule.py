"""A network on inputs of one shape: programs of sparse units, and torch for the others, in an order that works.

Units stand in stages; even stages are programs, odd ones torch. A unit goes into the first stage of its kind that is
not before anything it reads. So the sparse units of a stage can run as one program, and no stage waits for a later one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Network, Unit
from cigl.runtime.program.emitting import fits
from cigl.runtime.program.executable import vectors
from cigl.runtime.program.program import Program
from cigl.runtime.program.steps import Shape, per_image

NARROW = 8  # pixels: rows of at most so many are run with images side by side, apart from wider ones


@dataclass
class Survey:
    """What a dense run shows about inputs of one shape."""

    shapes: dict[int, Shape]  # of the values
    constants: dict[int, Any]  # values that follow from the inputs' shapes alone, and the network's own
    sure: set[int]  # values whose shape follows from the inputs' shapes alone


class OtherShape(Exception):
    """A value's shape depends on more than the inputs' shapes, and differs from the one that was planned for."""


def survey(network: Network, inputs: Sequence[Any]) -> Survey:
    """Run once in torch and take notes; where no shape can depend on a value, without the arithmetic of the layers."""
    shapes_only = network.signature.sized or all(_keeps_sizes(unit.operation) for unit in network.units)
    found = Survey({}, dict(network.constants), {*network.inputs, *network.constants})
    for value, each in (*network.constants.items(), *zip(network.inputs, inputs, strict=True)):
        found.shapes[value] = _shape(each)
    by_shape: set[int] = set()
    for unit, results in _walk(network, dict(network.constants), inputs, shapes_only):
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


def _keeps_sizes(operation: op.Operation) -> bool:
    return not isinstance(operation, op.InTorch) or operation.keeps_sure or operation.of_shape


def run_in_torch(network: Network, inputs: Sequence[Any]) -> Any:
    """Everything dense, with nothing planned."""
    values = dict(network.constants)
    for _ in _walk(network, values, inputs):
        pass
    return network.result(values)


def _walk(
    network: Network, values: dict[int, Any], inputs: Sequence[Any], shapes_only: bool = False
) -> Iterator[tuple[Unit, tuple[Any, ...]]]:
    """Each unit and what it returns in torch; values are dropped after their last reader."""
    values |= zip(network.inputs, inputs, strict=True)
    kept = set(network.results())
    last = {value: number for number, unit in enumerate(network.units) for value in unit.inputs}
    for number, unit in enumerate(network.units):
        zeros = shapes_only and isinstance(unit.operation, op.Weighted)
        call = _ZeroCall(unit) if zeros else TorchCall(unit)
        results = call.run(*(values[value] for value in unit.inputs))
        values |= zip(unit.outputs, results, strict=True)
        yield unit, tuple(results)
        for value in {*unit.inputs, *unit.outputs} - kept:
            if last.get(value, -1) <= number:
                del values[value]


def _shape(value: Any) -> Shape:
    known = isinstance(value, Tensor) and value.dtype == torch.float32 and value.device.type == "cpu"
    return tuple(value.shape) if known and value.dim() and value.numel() else None


def fitting(network: Network, facts: Survey) -> set[int]:
    """The units that the kernels can do for these shapes."""

    def possible(unit: Unit) -> bool:
        shapes = [facts.shapes[value] for value in unit.inputs if value not in facts.constants]
        output = facts.shapes[unit.outputs[0]]
        return bool(shapes) and None not in (*shapes, output) and fits(unit.operation, shapes, output)

    return {number for number, unit in enumerate(network.units) if possible(unit)}


class TorchCall:
    """One unit. Keeps the dense weight alive, which is otherwise made again from its non-zeros."""

    def __init__(self, unit: Unit):
        self.operation = unit.operation
        self.inputs, self.outputs = unit.inputs, unit.outputs
        self.weight = unit.operation.weight.dense() if isinstance(unit.operation, op.Weighted) else None

    def run(self, *inputs: Any) -> Sequence[Any]:
        result = self.operation.dense(*inputs)
        return result if self.operation.outputs == 2 else (result,)


class _ZeroCall(TorchCall):
    """Zeros in the shape of a layer's results; what the layer doesn't take is for torch to refuse."""

    def __init__(self, unit: Unit):
        self.operation = unit.operation

    def run(self, *inputs: Any) -> Sequence[Any]:
        operation, x = self.operation, inputs[0]
        assert isinstance(operation, op.Weighted)
        alike = operation.weight.is_float32 and isinstance(x, Tensor) and x.dtype == torch.float32
        shape = operation.result_shape(tuple(x.shape)) if alike else None
        if shape is None or any(not isinstance(each, Tensor) or each.shape != shape for each in inputs[1:]):
            return super().run(*inputs)
        return [x.new_zeros(shape) for _ in range(operation.outputs)]


class ProgramCall:
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
        self._read = set(values.values())
        for unit in units.values():
            arguments = (values[value] for value in unit.inputs if value not in facts.constants)
            values |= zip(unit.outputs, self.program.record(unit.operation, *arguments), strict=True)
        for value in self.outputs:
            self.program.output(values[value])
        self.program.finish()

    def run(self, *inputs: Tensor) -> Sequence[Tensor]:
        if any(inputs[number].shape != shape for number, shape in self._unsure):
            raise OtherShape
        return _shaped(self.program.run(*_shaped(inputs, self._in_shapes)), self._out_shapes)

    def seconds(self, *inputs: Tensor) -> float:
        """What its kernels take, without the conversion of what they read and write."""
        taken, _ = self.program.times(*_shaped(inputs, self._in_shapes))
        return sum(seconds for value, seconds in taken.items() if value not in self._read)


def _shaped(tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...] | None]) -> list[Tensor]:
    return [each if shape is None else each.reshape(shape) for each, shape in zip(tensors, shapes, strict=True)]


class Schedule:
    """Ready to run, from several threads at once. ``sparse`` are the numbers of the units that go into programs."""

    def __init__(self, network: Network, facts: Survey, sparse: Collection[int], threads: int):
        self._network = network
        live = live_units(network, facts.constants)
        reads = Counter([value for unit in live.values() for value in unit.inputs] + network.results())
        self._calls: list[TorchCall | ProgramCall] = []
        for is_program, units in staged(live, sparse):
            if not is_program:
                self._calls += [TorchCall(unit) for unit in units.values()]
                continue
            for same_images in by_images(units, facts.shapes, facts.constants):
                for part in by_width(same_images, facts):
                    inside = Counter(value for unit in part.values() for value in unit.inputs)
                    written = {value for unit in part.values() for value in unit.outputs}
                    others = {value for value in written if reads[value] > inside[value]}
                    self._calls.append(ProgramCall(part, facts, others, threads))
        last = {value: n for n, call in enumerate(self._calls) for value in (*call.inputs, *call.outputs)}
        self._done: list[list[int]] = [[] for _ in self._calls]  # values that nobody reads after each call
        for value in last.keys() - facts.constants.keys() - set(network.results()):
            self._done[last[value]].append(value)
        outputs = (value for unit in network.units for value in unit.outputs)
        size = 1 + max((*outputs, *network.inputs, *network.constants))
        self._at_first = [facts.constants.get(value) for value in range(size)]

    @property
    def bytes(self) -> int:
        """What the programs own beside the weights."""
        return sum(call.program.bytes for call in self._calls if isinstance(call, ProgramCall))

    def __call__(self, inputs: Sequence[Any]) -> Any:
        values: list[Any] = self._at_first.copy()
        for value, each in zip(self._network.inputs, inputs, strict=True):
            values[value] = each
        for call, done in zip(self._calls, self._done, strict=True):
            results = call.run(*(values[value] for value in call.inputs))
            for value, each in zip(call.outputs, results, strict=True):
                values[value] = each
            for value in done:
                values[value] = None
        return self._network.result(values)


def live_units(network: Network, constants: Container[int]) -> dict[int, Unit]:
    """The units whose values are read, now that some values are constants."""
    read, kept = set(network.results()), {}
    for number, unit in reversed(list(enumerate(network.units))):
        if any(value in read and value not in constants for value in unit.outputs):
            kept[number] = unit
            read.update(unit.inputs)
    return dict(sorted(kept.items()))


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


def by_width(units: dict[int, Unit], facts: Survey) -> list[dict[int, Unit]]:
    """The last units apart from the rest, where they make rows narrower than a vector of pixels, so that a program of
    their own, which has images side by side, wastes nothing. It costs the conversion of what lies between."""

    def shapes(numbers: Iterable[int]) -> list[tuple[int, ...]]:
        values = {value for number in numbers for value in units[number].outputs}
        return [shape for value in values - facts.constants.keys() if (shape := facts.shapes[value])]

    order = list(units)
    wide = [place for place, number in enumerate(order) if any(len(s) == 4 and s[3] > NARROW for s in shapes([number]))]
    tail = order[wide[-1] + 1 :] if wide else []
    layers = [units[number] for number in tail if isinstance(units[number].operation, op.Weighted)]
    if sum(len(facts.shapes[layer.outputs[0]] or ()) == 4 for layer in layers) < 2:
        return [units]
    whole, last = ([per_image(shape) for shape in shapes(numbers)] for numbers in (order, tail))
    images = whole[0][0]
    pixels = [vectors(images, [shape for _, shape in part])[1].lanes == 1 for part in (whole, last)]
    if pixels != [True, False]:
        return [units]
    return [{n: unit for n, unit in units.items() if (n in tail) == late} for late in (False, True)]
