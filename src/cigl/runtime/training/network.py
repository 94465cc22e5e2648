"""A traced model on inputs of one shape: stretches on sparse kernels, torch for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, float32, nn

from cigl.runtime.compile import operations as op
from cigl.runtime.compile.network import Unit
from cigl.runtime.program.emitting import fits
from cigl.runtime.program.steps import Shape, per_image
from cigl.runtime.schedule import by_images, staged
from cigl.runtime.training.rule import is_worth
from cigl.runtime.training.stretch import Stretch, is_known, multiply_adds
from cigl.runtime.training.tracing import TracedModel, is_watched, live_value
from cigl.runtime.training.weights import Patterns

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class _TorchCall:
    """A unit as torch computes it, by the user's own module where it is one."""

    def __init__(self, unit: Unit, model: nn.Module):
        self.inputs, self.outputs = unit.inputs, unit.outputs
        module = None if unit.module is None else model.get_submodule(unit.module)
        if isinstance(unit.operation, op.InTorch):
            operation = unit.operation if module is None else replace(unit.operation, call=module)
            self._call: Any = operation.dense
        else:
            self._call = unit.operation.dense if module is None else module

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        return (self._call(*inputs),)


class StretchedModel:
    """Stands in for the model's forward."""

    def __init__(
        self,
        traced: TracedModel,
        model: nn.Module,
        inputs: Sequence[Tensor],
        patterns: Patterns,
        threads: int,
        insist: bool,
    ):
        self._network, self._model = traced.network, model
        shapes = traced.shapes(inputs)
        units = dict(enumerate(self._network.units))
        self._uses = Counter(model.get_submodule(u.module) for u in units.values() if u.module is not None)
        kernels = {number for number, unit in units.items() if self._fits(unit, shapes)}
        self._calls: list[_TorchCall | Stretch] = []
        for is_program, stage in staged(units, kernels, ordered=True):
            read = set(self._network.results())
            read.update(value for number, unit in units.items() if number not in stage for value in unit.inputs)
            for part in by_images(stage, shapes, self._network.constants) if is_program else [stage]:
                if is_program and self._is_worth(part, shapes, patterns, insist):
                    others = read | {value for n, unit in stage.items() if n not in part for value in unit.inputs}
                    self._calls.append(Stretch(part, shapes, others, model.get_submodule, patterns, threads))
                else:
                    self._calls += [_TorchCall(unit, model) for unit in part.values()]
        self.stretches = [call for call in self._calls if isinstance(call, Stretch)]
        self.alone = self._read_by_stretches_alone(units)

    def __call__(self, inputs: Sequence[Any]) -> Any:
        values: dict[int, Any] = {v: live_value(self._model, path) for v, path in self._network.paths.items()}
        values |= zip(self._network.inputs, inputs, strict=True)
        for call in self._calls:
            results = call(*(values[value] for value in call.inputs))
            values |= zip(call.outputs, results, strict=True)
        return op.filled(self._network.output, values)

    def _read_by_stretches_alone(self, units: dict[int, Unit]) -> frozenset[nn.Parameter]:
        """The weights of layers that only run in stretches."""
        inside = {id(unit) for stretch in self.stretches for unit in stretch.units}
        torch_reads = {id(live_value(self._model, path)) for path in self._network.paths.values()}
        weights: set[nn.Parameter] = set()
        for unit in units.values():
            if unit.module is None:
                continue
            module = self._model.get_submodule(unit.module)
            if id(unit) not in inside:
                torch_reads.update(id(parameter) for parameter in module.parameters())
            elif isinstance(unit.operation, op.Layer):
                weights.add(module.weight)  # type: ignore[arg-type]
        return frozenset(weight for weight in weights if id(weight) not in torch_reads)

    def _fits(self, unit: Unit, shapes: dict[int, Shape]) -> bool:
        """Whether the kernels can do it: on computed values alone, with plain parameters of the module's own."""
        inputs, output = [shapes[value] for value in unit.inputs], shapes[unit.outputs[0]]
        if not inputs or None in (*inputs, output) or set(unit.inputs) & self._network.constants.keys():
            return False
        if unit.module is not None:
            module = self._model.get_submodule(unit.module)
            # of a shared batch norm, torch moves the statistics in the order of the calls
            if not is_plain(module) or is_watched(module) or (self._uses[module] > 1 and isinstance(module, _NORMS)):
                return False
        return is_known(unit.operation) and fits(unit.operation, inputs, output)

    def _is_worth(self, units: dict[int, Unit], shapes: dict[int, Shape], patterns: Patterns, insist: bool) -> bool:
        dense = sparse = 0.0
        for unit in units.values():
            if isinstance(unit.operation, op.Layer) and unit.module is not None:
                work = multiply_adds(unit.operation, shapes[unit.outputs[0]])
                module = self._model.get_submodule(unit.module)
                dense, sparse = dense + work, sparse + work * patterns.density(module.weight)  # type: ignore[arg-type]
        shape = next(shapes[value] for unit in units.values() for value in unit.inputs)
        assert shape is not None
        pixels = any(isinstance(unit.operation, op.Conv) for unit in units.values())
        return bool(dense) and (insist or is_worth(dense, sparse, per_image(shape)[0], pixels))


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
    """Whether its elements fill a stretch of memory, in whatever order: a gradient has the same strides then."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() in (0, reach)
