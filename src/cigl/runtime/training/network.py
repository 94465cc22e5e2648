"""A captured graph on inputs of one kind: subgraphs on sparse kernels, torch for the rest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, float32, nn

from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Unit
from cigl.runtime.program.emitting import fits
from cigl.runtime.program.steps import per_image
from cigl.runtime.schedule import by_images, staged
from cigl.runtime.training.capture.graphs import LoweredGraph
from cigl.runtime.training.rule import is_worth
from cigl.runtime.training.subgraph import Subgraph, is_known
from cigl.runtime.training.weights import Patterns

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class _TorchCall:
    """A unit as torch computes it."""

    def __init__(self, unit: Unit):
        self.inputs, self.outputs, self._call = unit.inputs, unit.outputs, unit.operation.dense

    def __call__(self, values: dict[int, Any]) -> None:
        values[self.outputs[0]] = self._call(*(values[value] for value in self.inputs))


class _KernelCall:
    """A subgraph, with the inputs of the graph that are its parameters."""

    def __init__(self, subgraph: Subgraph, parameters: Sequence[int], in_torch: Sequence[_TorchCall]):
        self.subgraph, self._parameters, self._in_torch = subgraph, parameters, in_torch

    def __call__(self, values: dict[int, Any]) -> None:
        inputs = [values[value] for value in self.subgraph.inputs]
        results = self.subgraph.run(inputs, [values[value] for value in self._parameters])
        if results is None:  # they were not what torch computes
            for call in self._in_torch:
                call(values)
        else:
            values |= zip(self.subgraph.outputs, results, strict=True)


class PartitionedModel:
    """Stands in for a graph. ``allowed`` says of a weight whether kernels may compute with it."""

    def __init__(
        self,
        lowered: LoweredGraph,
        kind: tuple[Any, ...],
        patterns: Patterns,
        threads: int,
        insist: bool,
        allowed: Callable[[nn.Parameter], bool],
    ):
        self._lowered, self._network, self._allowed = lowered, lowered.network, allowed
        self.kind = kind  # of a graph and its inputs
        self._patterns, self._threads, self._insist = patterns, threads, insist
        units = dict(enumerate(self._network.units))
        self._uses = Counter(lowered.layers[unit.module] for unit in units.values() if unit.module is not None)
        self._values = {id(tensor): value for value, tensor in lowered.tensors.items()}
        early = {number: unit for number, unit in units.items() if _effect(unit) == "any time"}
        self._calls: list[_TorchCall | _KernelCall] = [_TorchCall(unit) for unit in early.values()]
        for part in _between_effects({n: unit for n, unit in units.items() if n not in early}):
            self._calls += self._assigned(part, units)
        self.subgraphs = [call.subgraph for call in self._calls if isinstance(call, _KernelCall)]
        self.alone = self._read_by_subgraphs_alone()

    def __call__(self, args: Sequence[Any]) -> Any:
        values: dict[int, Any] = dict(self._network.constants)
        values |= zip(self._network.inputs, args, strict=True)
        for call in self._calls:
            call(values)
        return op.filled(self._network.output, values)

    def _assigned(self, part: dict[int, Unit], units: dict[int, Unit]) -> Iterator[_TorchCall | _KernelCall]:
        """The calls of units between two effects."""
        kernels = {number for number, unit in part.items() if self._fits(unit)}
        for is_program, stage in staged(part, kernels, ordered=True):
            read = set(self._network.results())
            read.update(value for number, unit in units.items() if number not in stage for value in unit.inputs)
            shapes = self._lowered.shapes
            for chosen in by_images(stage, shapes, self._network.constants) if is_program else [stage]:
                in_torch = [_TorchCall(self._lowered.in_torch.get(u.outputs[0], u)) for u in chosen.values()]
                if is_program and self._is_worth(chosen):
                    others = read | {value for n, unit in stage.items() if n not in chosen for value in unit.inputs}
                    layer = self._lowered.layers.__getitem__
                    subgraph = Subgraph(chosen, shapes, others, layer, self._patterns, self._threads)
                    yield _KernelCall(subgraph, [self._values[id(p)] for p in subgraph.parameters], in_torch)
                else:
                    yield from in_torch

    def _read_by_subgraphs_alone(self) -> frozenset[nn.Parameter]:
        """The weights of layers that only run in subgraphs."""
        torch_reads = {value for call in self._calls if isinstance(call, _TorchCall) for value in call.inputs}
        torch_reads.update(self._network.results())
        layers = [
            self._lowered.layers[unit.module]
            for subgraph in self.subgraphs
            for unit in subgraph.units
            if unit.module is not None and isinstance(unit.operation, op.Weighted)
        ]
        weights: list[nn.Parameter] = [layer.weight for layer in layers]  # type: ignore[misc]
        return frozenset(weight for weight in weights if self._values[id(weight)] not in torch_reads)

    def _fits(self, unit: Unit) -> bool:
        """Whether the kernels can do it: on computed values alone, with plain parameters."""
        shapes = self._lowered.shapes
        inputs, output = [shapes[value] for value in unit.inputs], shapes[unit.outputs[0]]
        own = self._network.constants.keys() | self._lowered.tensors.keys()
        if not inputs or None in (*inputs, output) or set(unit.inputs) & own:
            return False
        if unit.module is not None:
            module = self._lowered.layers[unit.module]
            # of a shared batch norm, torch moves the statistics in the order of the calls
            if not is_plain(module) or (self._uses[module] > 1 and isinstance(module, _NORMS)):
                return False
            if isinstance(unit.operation, op.Weighted) and not self._allowed(module.weight):  # type: ignore[arg-type]
                return False
        return is_known(unit.operation) and fits(unit.operation, inputs, output)

    def _is_worth(self, units: dict[int, Unit]) -> bool:
        shapes = self._lowered.shapes
        dense = sparse = 0.0
        for unit in units.values():
            if isinstance(unit.operation, op.Weighted) and unit.module is not None:
                size = unit.operation.weight.shape
                work = op.multiply_adds(math.prod(size), size[0], shapes[unit.outputs[0]] or (0,))
                weight: Any = self._lowered.layers[unit.module].weight
                dense, sparse = dense + work, sparse + work * self._patterns.density(weight)
        shape = next(shapes[value] for unit in units.values() for value in unit.inputs)
        assert shape is not None
        pixels = any(isinstance(unit.operation, op.Conv) for unit in units.values())
        return bool(dense) and (self._insist or is_worth(dense, sparse, per_image(shape)[0], pixels))


def _effect(unit: Unit) -> str:
    return unit.operation.effect if isinstance(unit.operation, op.InTorch) else ""


def _between_effects(units: dict[int, Unit]) -> list[dict[int, Unit]]:
    """The units in parts that run one after the other; an effect is a part of its own."""
    parts: list[dict[int, Unit]] = [{}]
    for number, unit in units.items():
        if _effect(unit):
            parts += [{number: unit}, {}]
        else:
            parts[-1][number] = unit
    return [part for part in parts if part]


def is_plain(module: nn.Module) -> bool:
    """Whether the module's tensors are as kernels read them: float32 on the CPU, dense, without parametrizations."""
    if hasattr(module, "parametrizations"):
        return False
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return all(
        type(t.data) is Tensor
        and t.device.type == "cpu"
        and (t.dtype == float32 or not t.is_floating_point())
        and _is_dense(t)
        for t in tensors
    )


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill a piece of memory, in whatever order: a gradient has the same strides then."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() in (0, reach)
