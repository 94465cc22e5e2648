"""Operations as steps: for which shapes there are kernels, and which steps compute the same as torch.

A new operation of the kernels is a ``Kind`` (steps.py), and a ``fits`` and an ``emit`` for its type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch

from torch import Tensor

from cigl.common.errors import CiglError
from cigl.runtime.network import operations as op
from cigl.runtime.network.operations import Pair
from cigl.runtime.program.packed import Packed
from cigl.runtime.program.steps import Floats, Kind, Shape, Step, Value


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


@fits.register(op.MaxPool)  # Python 3.10 reads no union from the annotation
@fits.register(op.AvgPool)
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
