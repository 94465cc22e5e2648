"""Operations as steps: for which shapes there are kernels, and which steps compute the same as torch.

In a program a value is a number of images, each (channels, height, width) if torch has four dimensions, else
(features,). A new operation of the kernels is a ``Kind``, and a ``fits`` and an ``emit`` for its type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import singledispatch
from typing import Any

import numpy as np
from torch import Tensor

from cigl.errors import CiglError
from cigl.runtime.compile import operations as op
from cigl.runtime.compile.operations import Pair
from cigl.runtime.program.packed import Packed

Floats = np.ndarray[Any, np.dtype[np.float32]]
Shape = tuple[int, ...] | None  # of a float32 tensor with values; None for anything else, which no kernel takes


class Kind(IntEnum):
    """The kernels, in the order of the lists at the end of conv.h, plain.h, training.h, gradients.h and channels.h."""

    CONV = 0
    LOAD = 1
    STORE = 2
    DOT = 3
    ELEMENTWISE = 4
    SPLIT = 5
    MAX_POOL = 6
    AVG_POOL = 7
    MEAN = 8
    FLATTEN = 9
    AFFINE = 10
    STATISTICS = 11
    MASK = 12
    NORM = 13
    NORM_GRADIENT = 14
    SUM_BLOCKS = 15
    WEIGHT_GRADIENT = 16
    MERGE = 17
    MAX_POOL_GRADIENT = 18
    AVG_POOL_GRADIENT = 19
    MEAN_GRADIENT = 20
    UNFLATTEN = 21
    SCATTER = 22
    LAYER_NORM = 23
    SOFTMAX = 24
    SHUFFLE = 25


@dataclass(eq=False, frozen=True)
class Value:
    """What a step computes, per image: (channels, height, width) or (features,)."""

    shape: tuple[int, ...]


@dataclass
class Step:
    """One call of a kernel; what its fields mean is said in kernels/program.h."""

    kind: Kind
    x: Value
    out: Value
    add: Value | None = None
    gate: Value | None = None
    parts: tuple[Value, ...] = ()  # that `out` consists of; copied, unless they lie there already
    normed: Value | None = None
    keep: bool = True  # whether `out` is written; a convolution with a norm may write `normed` alone
    packed: Packed | None = None
    scale: Floats | None = None
    shift: Floats | None = None
    eps: float = 0.0
    activation: str = ""
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    count_padding: bool = False

    def reads(self) -> tuple[Value, ...]:
        others = (each for each in (self.add, self.gate) if each is not None)
        return (*(self.parts or (self.x,)), *others)

    def writes(self) -> tuple[Value, ...]:
        return (self.out,) * self.keep + (() if self.normed is None else (self.normed,))


def per_image(shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """How a program sees a tensor: the number of images and the shape of each.

    >>> per_image((2, 3, 8, 8)), per_image((2, 5, 7))
    ((2, (3, 8, 8)), (10, (7,)))
    """
    return (shape[0], shape[1:]) if len(shape) == 4 else (math.prod(shape[:-1]), shape[-1:])


@singledispatch
def fits(operation: op.Operation, inputs: Sequence[Shape], output: Shape) -> bool:
    """Whether the kernels compute just what torch does, for tensors of these shapes."""
    return False


@singledispatch
def emit(operation: op.Operation, *inputs: Value) -> list[Step]:
    """The steps of an operation that fits. Its results are what the last one writes; without steps, its input."""
    raise CiglError(f"there is no kernel for {type(operation).__name__}: run it dense.")


@fits.register
def _(operation: op.Conv, inputs: Sequence[Shape], output: Shape) -> bool:
    return _is_image(inputs[0]) and list(inputs[1:]) == [output] * operation.add


@emit.register
def _(operation: op.Conv, x: Value, *others: Value) -> list[Step]:
    packed = operation.weight.packed(Packed)
    stride, padding, dilation = operation.stride, operation.padding, operation.dilation
    kernel = tuple(dilation[i] * (packed.kernel[i] - 1) + 1 for i in (0, 1))
    out = Value((packed.outputs, *_window(x, (kernel[0], kernel[1]), stride, padding)))
    if packed.inputs * operation.groups != x.shape[0] or packed.outputs % operation.groups:
        raise CiglError(f"a convolution of {packed.inputs * operation.groups} channels can't take {x.shape}.")
    step = Step(Kind.CONV, x, out, _added(out, others, operation.add), packed=packed, activation=operation.activation)
    step.stride, step.padding, step.dilation, step.groups = stride, padding, dilation, operation.groups
    if operation.norm is not None:
        step.normed, step.keep = Value(out.shape), operation.keep
        step.scale, step.shift = _per_channel(out, *operation.norm)
    return [step]


@fits.register
def _(operation: op.ConvTranspose, inputs: Sequence[Shape], output: Shape) -> bool:
    return _is_image(inputs[0])


@emit.register
def _(operation: op.ConvTranspose, x: Value) -> list[Step]:
    """Each pixel's part of the result as channels, which are then put in their places."""
    weight, (a, b) = operation.weight, operation.stride
    [step] = emit(op.Conv(weight, padding=operation.padding, activation=operation.activation), x)
    channels, height, width = step.out.shape
    above, below, left, right = operation.crop
    out = Value((channels // (a * b), height * a - above - below, width * b - left - right))
    return [step, Step(Kind.SHUFFLE, step.out, out, stride=(a, b), padding=(above, left))]


@fits.register
def _(operation: op.BatchNorm, inputs: Sequence[Shape], output: Shape) -> bool:
    x = inputs[0]
    return x is not None and len(x) in (2, 4) and math.prod(x) > x[1]  # of one value there are no statistics


@fits.register
def _(operation: op.Linear, inputs: Sequence[Shape], output: Shape) -> bool:
    return inputs[0] is not None and len(inputs[0]) != 4 and list(inputs[1:]) == [output] * operation.add


@emit.register
def _(operation: op.Linear, x: Value, *others: Value) -> list[Step]:
    packed = operation.weight.packed(Packed)
    if len(x.shape) != 1 or packed.kernel != (1, 1) or packed.inputs != x.shape[0]:
        raise CiglError(f"a linear layer of {packed.inputs} features can't take {x.shape}.")
    out = Value((packed.outputs,))
    add = _added(out, others, operation.add)
    return [Step(Kind.DOT, x, out, add, packed=packed, activation=operation.activation)]


@fits.register
def _(operation: op.Norm, inputs: Sequence[Shape], output: Shape) -> bool:
    return inputs[0] is not None and len(inputs[0]) in (2, 4)


@emit.register
def _(operation: op.Norm, x: Value) -> list[Step]:
    scale, shift = _per_channel(x, operation.scale, operation.shift)
    return [Step(Kind.ELEMENTWISE, x, Value(x.shape), scale=scale, shift=shift, activation=operation.activation)]


@fits.register
def _(operation: op.Activation, inputs: Sequence[Shape], output: Shape) -> bool:
    return bool(inputs[0])


@emit.register
def _(operation: op.Activation, x: Value) -> list[Step]:
    return [Step(Kind.ELEMENTWISE, x, Value(x.shape), activation=operation.name)]


@fits.register
def _(operation: op.Add, inputs: Sequence[Shape], output: Shape) -> bool:
    return len(inputs) == 2 and bool(inputs[0]) and inputs[0] == inputs[1]


@emit.register
def _(operation: op.Add, a: Value, b: Value) -> list[Step]:
    if a.shape != b.shape:
        raise CiglError(f"{a.shape} and {b.shape} can't be added: only equal shapes can.")
    return [Step(Kind.ELEMENTWISE, a, Value(a.shape), b, activation=operation.activation)]


@fits.register
def _(operation: op.Multiply, inputs: Sequence[Shape], output: Shape) -> bool:
    if len(inputs) != 2 + operation.add or output is None or list(inputs[2:]) != [output] * operation.add:
        return False
    other = inputs[0] if inputs[1] == output else inputs[1]
    return output in inputs[:2] and (other == output or (len(output) == 4 and other == (*output[:2], 1, 1)))


@emit.register
def _(operation: op.Multiply, a: Value, b: Value, *others: Value) -> list[Step]:
    x, gate = (b, a) if math.prod(a.shape) < math.prod(b.shape) else (a, b)
    if gate.shape not in (x.shape, (*x.shape[:1], 1, 1)):
        raise CiglError(f"{a.shape} and {b.shape} can't be multiplied: only equal shapes, or by one per channel.")
    out = Value(x.shape)
    step = Step(Kind.ELEMENTWISE, x, out, _added(out, others, operation.add), gate, activation=operation.activation)
    return [step]


@fits.register
def _(operation: op.Concat, inputs: Sequence[Shape], output: Shape) -> bool:
    if output is None or len(inputs) != operation.count:
        return False
    return operation.dim % len(output) == (1 if len(output) == 4 else len(output) - 1)


@emit.register
def _(operation: op.Concat, *inputs: Value) -> list[Step]:
    if len({value.shape[1:] for value in inputs}) != 1:
        raise CiglError(f"{[value.shape for value in inputs]} can't be put side by side: their pictures differ.")
    out = Value((sum(value.shape[0] for value in inputs), *inputs[0].shape[1:]))
    return [Step(Kind.ELEMENTWISE, inputs[0], out, parts=inputs)]


@fits.register
def _(operation: op.LayerNorm, inputs: Sequence[Shape], output: Shape) -> bool:
    x = inputs[0]
    return x is not None and (len(x) == 4) == isinstance(operation, op.ChannelNorm)


@emit.register
def _(operation: op.LayerNorm, x: Value) -> list[Step]:
    if x.shape[0] != operation.features:
        raise CiglError(f"a layer norm of {operation.features} features can't take {x.shape}.")
    step = Step(Kind.LAYER_NORM, x, Value(x.shape), eps=operation.eps)
    step.scale, step.shift = (None if each is None else _floats(each) for each in (operation.weight, operation.bias))
    return [step]


@fits.register
def _(operation: op.Softmax, inputs: Sequence[Shape], output: Shape) -> bool:
    x = inputs[0]
    return x is not None and operation.dim % len(x) == (1 if len(x) == 4 else len(x) - 1)


@emit.register
def _(operation: op.Softmax, x: Value) -> list[Step]:
    return [Step(Kind.SOFTMAX, x, Value(x.shape))]


@fits.register
def _(operation: op.MaxPool | op.AvgPool, inputs: Sequence[Shape], output: Shape) -> bool:
    return _is_image(inputs[0])


@emit.register
def _(operation: op.MaxPool, x: Value) -> list[Step]:
    return [_pool(Kind.MAX_POOL, operation, x, count_padding=False)]


@emit.register
def _(operation: op.AvgPool, x: Value) -> list[Step]:
    return [_pool(Kind.AVG_POOL, operation, x, count_padding=operation.count_include_pad)]


@fits.register
def _(operation: op.Mean, inputs: Sequence[Shape], output: Shape) -> bool:
    return _is_image(inputs[0]) and {dim % 4 for dim in operation.dims} == {2, 3}


@emit.register
def _(operation: op.Mean, x: Value) -> list[Step]:
    _need_image(x)
    mean = Step(Kind.MEAN, x, Value((x.shape[0], 1, 1)))
    return [mean] if operation.keepdim else [mean, *_flatten(mean.out)]


@fits.register
def _(operation: op.InTorch, inputs: Sequence[Shape], output: Shape) -> bool:
    x = inputs[0] if len(inputs) == 1 else None
    return operation.reshapes and x is not None and len(x) in (2, 4) and output == (x[0], math.prod(x[1:]))


@emit.register
def _(operation: op.InTorch, x: Value) -> list[Step]:
    return _flatten(x)


def _flatten(x: Value) -> list[Step]:
    """All features of an image in one row, in torch's order."""
    return [] if len(x.shape) == 1 else [Step(Kind.FLATTEN, x, Value((math.prod(x.shape),)))]


def _pool(kind: Kind, pool: op.MaxPool | op.AvgPool, x: Value, count_padding: bool) -> Step:
    kernel, stride, padding = pool.kernel, pool.stride, pool.padding
    out = Value((x.shape[0], *_window(x, kernel, stride, padding)))
    if any(2 * padding[i] > kernel[i] for i in (0, 1)):
        raise CiglError(f"a pooling's padding {padding} must be at most half of its kernel {kernel}.")
    return Step(kind, x, out, kernel=kernel, stride=stride, padding=padding, count_padding=count_padding)


def _is_image(shape: Shape) -> bool:
    return shape is not None and len(shape) == 4


def _need_image(x: Value) -> None:
    if len(x.shape) != 3:
        raise CiglError(f"this operation needs (channels, height, width), not {x.shape}.")


def _window(x: Value, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    """The output's height and width."""
    _need_image(x)
    if min(kernel) < 1 or min(stride) < 1 or min(padding) < 0:
        raise CiglError(f"no window has kernel {kernel}, stride {stride} and padding {padding}.")
    height, width = ((x.shape[i + 1] + 2 * padding[i] - kernel[i]) // stride[i] + 1 for i in (0, 1))
    if height < 1 or width < 1:
        raise CiglError(f"a window of {kernel} with padding {padding} does not fit into {x.shape}.")
    return height, width


def _per_channel(x: Value, scale: Tensor, shift: Tensor) -> tuple[Floats, Floats]:
    if scale.shape != (x.shape[0],) or shift.shape != (x.shape[0],):
        raise CiglError(f"scale and shift must have one value for each of {x.shape[0]} channels.")
    return _floats(scale), _floats(shift)


def _floats(tensor: Tensor) -> Floats:
    return tensor.detach().float().cpu().numpy().copy()


def _added(out: Value, others: Sequence[Value], add: bool) -> Value | None:
    """The other input of an operation that adds one."""
    if [other.shape for other in others] != [out.shape] * add:
        shapes = [other.shape for other in others]
        raise CiglError(f"what is added must have the shape {out.shape} of the result, not {shapes}.")
    return others[0] if others else None
