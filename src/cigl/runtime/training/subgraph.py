"""A subgraph of a network as one function of autograd's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, singledispatch
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cigl.common.errors import CiglError
from cigl.runtime.network import operations as op
from cigl.runtime.network.units import Unit
from cigl.runtime.program.steps import Shape, per_image
from cigl.runtime.training.nodes import (
    Conv,
    Flatten,
    Mean,
    Node,
    Pool,
    Sum,
    Term,
    Value,
    flattened,
    fuse,
    window,
)
from cigl.runtime.training.program import TrainingProgram
from cigl.runtime.training.verify import Check, Rounded
from cigl.runtime.training.weights import Patterns

Recorded = list[Node]


@singledispatch
def nodes_of(operation: op.Operation, inputs: Sequence[Value], module: Any, patterns: Patterns) -> Recorded:
    """The operation as nodes; the last one's value is its result, without nodes it is the input."""
    raise NotImplementedError(type(operation))


def is_known(operation: op.Operation) -> bool:
    """Whether there are nodes for it. (Batch norm in eval mode and grouped layers, known to inference, have none.)"""
    plain = not isinstance(operation, op.Weighted) or operation.plain
    return plain and nodes_of.dispatch(type(operation)) is not nodes_of.dispatch(object)


@nodes_of.register
def _(operation: op.Conv, inputs: Sequence[Value], module: Any, patterns: Patterns) -> Recorded:
    own, (x,) = patterns.of(module.weight, module.bias), inputs
    stride, padding = operation.stride, operation.padding
    out = window(x, own.pattern.outputs, own.pattern.kernel, stride, padding)
    return [Conv(x, out, own, stride, padding)]


@nodes_of.register
def _(operation: op.Linear, inputs: Sequence[Value], module: Any, patterns: Patterns) -> Recorded:
    own = patterns.of(module.weight, module.bias)
    return [Conv(inputs[0], Value((own.pattern.outputs,)), own)]


@nodes_of.register
def _(operation: op.BatchNorm, inputs: Sequence[Value], module: Any, patterns: Patterns) -> Recorded:
    return [Sum(Value(inputs[0].shape), Term(inputs[0], module))]


@nodes_of.register
def _(operation: op.Relu, inputs: Sequence[Value], module: Any, patterns: Patterns) -> Recorded:
    return [Sum(Value(inputs[0].shape), Term(inputs[0]), relu=True)]


@nodes_of.register
def _(operation: op.Add, inputs: Sequence[Value], module: Any, patterns: Patterns) -> Recorded:
    return [Sum(Value(inputs[0].shape), Term(inputs[0]), Term(inputs[1]))]


@nodes_of.register(op.MaxPool)
@nodes_of.register(op.AvgPool)
def _(operation: op.MaxPool | op.AvgPool, inputs: Sequence[Value], module: Any, patterns: Patterns) -> Recorded:
    (x,) = inputs
    places = (operation.kernel, operation.stride, operation.padding)
    counted = isinstance(operation, op.AvgPool) and operation.count_include_pad
    return [Pool(x, window(x, x.shape[0], *places), *places, isinstance(operation, op.MaxPool), counted)]


@nodes_of.register
def _(operation: op.Mean, inputs: Sequence[Value], module: Any, patterns: Patterns) -> Recorded:
    mean = Mean(inputs[0], Value((inputs[0].shape[0], 1, 1)))
    return [mean] if operation.keepdim else [mean, Flatten(mean.out, flattened(mean.out))]


@nodes_of.register
def _(operation: op.InTorch, inputs: Sequence[Value], module: Any, patterns: Patterns) -> Recorded:
    """The only calls of this kind that fit are those that flatten."""
    (x,) = inputs
    return [] if len(x.shape) == 1 else [Flatten(x, flattened(x))]


class Subgraph:
    """Units that run as one program; ``wanted`` are the values that others read."""

    def __init__(
        self,
        units: Mapping[int, Unit],
        shapes: Mapping[int, Shape],
        wanted: set[int],
        modules: Callable[[str], nn.Module],
        patterns: Patterns,
        threads: int,
    ):
        written = {value for unit in units.values() for value in unit.outputs}
        read = {value: None for unit in units.values() for value in unit.inputs}
        self.inputs = tuple(value for value in read if value not in written)
        self.outputs = tuple(sorted(written & wanted))
        self.in_shapes, self.out_shapes = ([_known(shapes, v) for v in vs] for vs in (self.inputs, self.outputs))
        self.units, self._modules, self.patterns, self._threads = list(units.values()), modules, patterns, threads
        self.parameters = self._parameters()
        self._version = patterns.version
        self._free: dict[tuple[bool, ...], list[TrainingProgram]] = {}
        self._reached: dict[tuple[bool, ...], set[Any]] = {}
        self.check: Check | None = None  # compares with torch while it is set

    def _parameters(self) -> list[nn.Parameter]:
        found: dict[nn.Parameter, None] = {}
        for unit in self.units:
            if unit.module is not None:
                found |= dict.fromkeys(self._modules(unit.module).parameters(recurse=False))
        return list(found)

    def run(self, inputs: Sequence[Tensor], parameters: Sequence[Tensor] = ()) -> tuple[Tensor, ...] | None:
        """The outputs; None if they are not what torch computes.

        Args:
            inputs: Of the subgraph.
            parameters: What gets the gradients of ``self.parameters``: these, or others that share their memory.
        """
        for x, shape in zip(inputs, self.in_shapes, strict=True):
            if tuple(x.shape) != shape or x.dtype != torch.float32 or not x.is_cpu:
                raise CiglError(
                    f"sparse kernels were prepared for a float32 tensor of shape {shape}, but got {x.dtype} of shape "
                    f"{tuple(x.shape)} (does a hook change it?): attach with kernels='masked'.",
                    arguments=("kernels",),
                )
        check, statistics = self.check, [] if self.check is None else self.statistics()
        result: Any = _Run.apply(self, check, len(inputs), *inputs, *(parameters or self.parameters))  # type: ignore[no-untyped-call]
        outputs = result if isinstance(result, tuple) else (result,)
        if check is not None and not check.outputs_agree(self, outputs, inputs):
            for tensor, value in statistics:
                tensor.copy_(value)
            return None
        return tuple(each.view(shape) for each, shape in zip(outputs, self.out_shapes, strict=True))

    def statistics(self) -> list[tuple[Tensor, Tensor]]:
        """The buffers that a forward moves, and copies of them."""
        modules = [self._modules(unit.module) for unit in self.units if unit.module is not None]
        return [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)]

    def in_torch(
        self, inputs: Sequence[Tensor], parameters: Sequence[Tensor] = (), rounded: Rounded | None = None
    ) -> tuple[Tensor, ...]:
        """The same in torch, as a function of these parameters. Running statistics stay as they are."""
        values: dict[int, Tensor] = dict(zip(self.inputs, inputs, strict=True))
        given = dict(zip(self.parameters, parameters or self.parameters, strict=True))
        for unit in self.units:
            arguments = [values[value] for value in unit.inputs]
            module: Any = None if unit.module is None else self._modules(unit.module)
            own: Any = () if module is None else (given.get(module.weight), given.get(module.bias))
            if isinstance(unit.operation, op.Conv):
                result = F.conv2d(arguments[0], own[0], own[1], unit.operation.stride, unit.operation.padding)
            elif isinstance(unit.operation, op.Linear):
                result = F.linear(arguments[0], *own)
            elif isinstance(unit.operation, op.BatchNorm):
                result = F.batch_norm(arguments[0], None, None, own[0], own[1], True, 0.0, module.eps)
            else:
                result = unit.operation.dense(*arguments)
            values[unit.outputs[0]] = result if rounded is None else rounded(result)
        return tuple(values[value] for value in self.outputs)

    def borrow(self, wanted: tuple[bool, ...]) -> TrainingProgram:
        """A program that nobody else uses; ``wanted`` says which inputs need a gradient."""
        free = self._free.setdefault(wanted, [])
        return free.pop() if free else self._program(wanted)

    def give_back(self, wanted: tuple[bool, ...], program: TrainingProgram) -> None:
        free = self._free.setdefault(wanted, [])
        if not free:  # more than one at a time is rare, and each holds a batch's activations
            free.append(program)

    def empty_gradient(self, weight: nn.Parameter) -> Tensor:
        """Zero outside the pattern, unless that is another one by now."""
        same = self._version == self.patterns.version
        return self.patterns.gradient(weight) if same else torch.zeros_like(weight)

    def reached(self, given: tuple[bool, ...]) -> set[Any]:
        """The values and parameters that have a part in the outputs which gradients are given for."""
        if given not in self._reached:
            found: set[Any] = {value for value, is_given in zip(self.outputs, given, strict=True) if is_given}
            for unit in reversed(self.units):
                if unit.outputs[0] in found:
                    found.update(unit.inputs)
                    found.update(() if unit.module is None else self._modules(unit.module).parameters(recurse=False))
            self._reached[given] = found
        return self._reached[given]

    def release(self) -> None:
        """Programs that are not in use are gone, also where a graph that somebody keeps leads here."""
        self._free.clear()

    def _program(self, wanted: tuple[bool, ...]) -> TrainingProgram:
        values: dict[int, Value] = {}
        images = per_image(self.in_shapes[0])[0]
        for number, shape, wants in zip(self.inputs, self.in_shapes, wanted, strict=True):
            values[number] = Value(per_image(shape)[1], needs_gradient=wants)
        inputs = list(values.values())
        nodes: list[Node] = []
        for unit in self.units:
            module = None if unit.module is None else self._modules(unit.module)
            recorded = nodes_of(unit.operation, [values[value] for value in unit.inputs], module, self.patterns)
            nodes += recorded
            values[unit.outputs[0]] = recorded[-1].out if recorded else values[unit.inputs[0]]
        outputs = [values[value] for value in self.outputs]
        return TrainingProgram(fuse(nodes, outputs), inputs, outputs, images, self._threads)


def _known(shapes: Mapping[int, Shape], value: int) -> tuple[int, ...]:
    shape = shapes[value]
    assert shape is not None
    return shape


class _Loan:
    """A program in use; it goes back when its gradients are done, or when nobody can ask for them any more."""

    def __init__(self, subgraph: Subgraph, wanted: tuple[bool, ...]):
        self._subgraph, self._wanted = subgraph, wanted
        self.program: TrainingProgram | None = None  # also if making one fails
        self.program = subgraph.borrow(wanted)

    def end(self) -> None:
        program, self.program = self.program, None
        if program is not None:
            self._subgraph.give_back(self._wanted, program)

    __del__ = end


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, subgraph: Subgraph, check: Check | None, count: int, *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)  # None: no gradient arrives there, as behind detach()
        loan = _Loan(subgraph, tuple(ctx.needs_input_grad[_FIRST : _FIRST + count]))
        assert loan.program is not None
        outputs, _ = loan.program.forward([each.contiguous() for each in tensors[:count]])
        if any(ctx.needs_input_grad):
            ctx.loan, ctx.count, ctx.subgraph, ctx.check = loan, count, subgraph, check
            # For gradients that are differentiated again, or compared. What another operation has computed is not held
            # without need: torch would free it, and here it would lie in memory twice. Checkpoints count what is saved.
            saves = check is not None or subgraph.patterns.second_derivatives
            saves = saves or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
            inputs = [each if saves or each.is_leaf else None for each in tensors[:count]]
            ctx.save_for_backward(*inputs, *tensors[count:])
        else:
            loan.end()
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        program, subgraph, none = ctx.loan.program, ctx.subgraph, (None,) * _FIRST
        if torch.is_grad_enabled():  # create_graph=True
            return *none, *_differentiable(ctx, gradients)
        if program is None:
            raise CiglError("backward was called twice without retain_graph=True: the activations are gone.")
        saved = ctx.saved_tensors  # torch refuses here if a weight was changed since the forward
        reached = subgraph.reached(tuple(each is not None for each in gradients))
        given = [
            torch.zeros(shape) if each is None else each.contiguous()
            for each, shape in zip(gradients, subgraph.out_shapes, strict=True)
        ]
        found, inputs, _ = program.backward(
            given, lambda weight: subgraph.empty_gradient(weight) if weight in reached else torch.zeros_like(weight)
        )
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.loan.end()
        asked = ctx.needs_input_grad[_FIRST : _FIRST + ctx.count]
        rest = iter(inputs)
        shaped = [next(rest).view(s) if asks else None for asks, s in zip(asked, subgraph.in_shapes, strict=True)]
        shaped = [each if value in reached else None for value, each in zip(subgraph.inputs, shaped, strict=True)]
        own = [found.get(parameter) if parameter in reached else None for parameter in subgraph.parameters]
        result = [*shaped, *own]
        if ctx.check is not None:
            in_torch = partial(_in_torch, ctx, saved, gradients)
            if (others := ctx.check.torch_gradients(subgraph, result, in_torch)) is not None:
                return *none, *others
        return *none, *result


_FIRST = 3  # of the tensors among the arguments


def _in_torch(
    ctx: Any, saved: Sequence[Tensor], gradients: Sequence[Tensor | None], rounded: Rounded
) -> list[Tensor | None]:
    """The gradients as torch computes them, of copies in the same memory: hooks of the tensors are not called."""
    asked = ctx.needs_input_grad[_FIRST:]
    tensors = [each.detach().requires_grad_(asks) for each, asks in zip(saved, asked, strict=True)]
    with torch.enable_grad():
        outputs = ctx.subgraph.in_torch(tensors[: ctx.count], tensors[ctx.count :], rounded)
    results, given = _given(outputs, gradients)
    wanted = [each for each in tensors if each.requires_grad]
    found = iter(torch.autograd.grad(results, wanted, given, allow_unused=True))
    return [next(found) if each.requires_grad else None for each in tensors]


def _given(outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs that a gradient arrives at, and these gradients."""
    pairs = zip(outputs, gradients, strict=True)
    own = [(out, each.view(out.shape)) for out, each in pairs if each is not None and out.requires_grad]
    return [out for out, _ in own], [each for _, each in own]


def _differentiable(ctx: Any, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradients as a function of torch's, so that they can be differentiated in their turn."""
    tensors, asked = ctx.saved_tensors, ctx.needs_input_grad[_FIRST:]
    if any(each is None for each in tensors):
        raise CiglError(
            "create_graph=True asks for a second derivative, for the first time in this training: begin with it in the "
            "first step, or attach with kernels='masked'.",
            arguments=("kernels",),
        )
    wanted = [each for each, asks in zip(tensors, asked, strict=True) if asks]
    subgraph = ctx.subgraph
    own = [
        subgraph.patterns.under_z(parameter, each)
        for parameter, each in zip(subgraph.parameters, tensors[ctx.count :], strict=True)
    ]
    outputs = subgraph.in_torch(tensors[: ctx.count], own)
    results, given = _given(outputs, gradients)
    found = iter(torch.autograd.grad(results, wanted, given, create_graph=True, allow_unused=True))
    return [next(found) if asks else None for asks in asked]
