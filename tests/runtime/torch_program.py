"""The interface of ``cigl.runtime.program.program`` in plain torch: what the engine records, without any kernel."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F


class Value:
    def __init__(self, shape):
        self.shape = tuple(shape)


FUNCTIONS = {
    "": lambda x: x,
    "relu": torch.relu,
    "relu6": lambda x: x.clamp(0, 6),
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x * x.sigmoid(),
    "hardsigmoid": lambda x: (x + 3).clamp(0, 6) / 6,
    "hardswish": lambda x: x * (x + 3).clamp(0, 6) / 6,
    "tanh": torch.tanh,
    "mish": lambda x: x * F.softplus(x).tanh(),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
}


def _activated(operation, y):
    return [FUNCTIONS[operation.activation](y)]


def _plus(operation, y, others):
    assert len(others) == operation.add
    for other in others:
        assert other.shape == y.shape
        y = y + other
    return y


def _per_channel(x, scale, shift):
    size = (-1, *[1] * (x.dim() - 2))
    return x * scale.view(size) + shift.view(size)


# Each operation as a function of its inputs, written apart from the operations' own `dense`.


def conv(operation, x, *others):
    places = operation.stride, operation.padding, operation.dilation, operation.groups
    y = _plus(operation, F.conv2d(x, operation.weight.dense(), operation.weight.bias, *places), others)
    if operation.norm is None:
        return _activated(operation, y)
    normed = _activated(operation, _per_channel(y, *operation.norm))
    return [y, *normed] if operation.keep else normed


def linear(operation, x, *others):
    assert x.dim() == 2
    return _activated(operation, _plus(operation, F.linear(x, operation.weight.dense(), operation.weight.bias), others))


def norm(operation, x):
    return _activated(operation, _per_channel(x, operation.scale, operation.shift))


def activation(operation, x):
    return [FUNCTIONS[operation.name](x)]


def add(operation, a, b):
    assert a.shape == b.shape
    return _activated(operation, a + b)


def multiply(operation, a, b, *others):
    return _activated(operation, _plus(operation, a * b, others))


def concat(operation, *inputs):
    assert len(inputs) == operation.count
    return [torch.cat(inputs, 1)]


def layernorm(operation, x):
    apart = x - x.mean(1, keepdim=True)
    y = apart / (apart.square().mean(1, keepdim=True) + operation.eps).sqrt()
    size = (-1, *[1] * (x.dim() - 2))
    y = y if operation.weight is None else y * operation.weight.view(size)
    return [y if operation.bias is None else y + operation.bias.view(size)]


def softmax(operation, x):
    return [x.softmax(1)]


def maxpool(operation, x):
    return [F.max_pool2d(x, operation.kernel, operation.stride, operation.padding)]


def avgpool(operation, x):
    window = operation.kernel, operation.stride, operation.padding
    return [F.avg_pool2d(x, *window, False, operation.count_include_pad)]


def mean(operation, x):
    return [x.mean((2, 3), keepdim=operation.keepdim)]


def intorch(operation, x):
    assert operation.reshapes
    return [x.flatten(1)]


OPERATIONS = {
    each.__name__: each
    for each in (
        conv, linear, norm, activation, add, multiply, concat, layernorm, softmax, maxpool, avgpool, mean, intorch
    )
} | {"relu": activation, "channelnorm": layernorm}  # fmt: skip


class Program:
    """Every operation is recorded with the values that it reads; ``run`` computes them in order."""

    def __init__(self, images, threads):
        self.images, self.threads, self.bytes = images, threads, 0
        self.inputs, self.steps, self.outputs, self.finished = [], [], [], False

    def input(self, *shape):
        self.inputs.append(Value(shape))
        return self.inputs[-1]

    def record(self, operation, *inputs):
        assert not self.finished
        function = OPERATIONS[type(operation).__name__.lower()]
        sample = function(operation, *(torch.zeros(1, *value.shape) for value in inputs))
        made = tuple(Value(each.shape[1:]) for each in sample)
        self.steps.append((made, operation, function, inputs))
        return made

    def output(self, x):
        self.outputs.append(x)

    def finish(self):
        assert self.outputs
        self.finished = True

    def run(self, *inputs):
        return self._run(inputs)[0]

    def times(self, *inputs):
        return self._run(inputs)[1], [0.0] * len(self.outputs)

    def _run(self, inputs):
        assert self.finished
        for value, tensor in zip(self.inputs, inputs, strict=True):
            assert tensor.dtype == torch.float32
            assert tensor.shape == (self.images, *value.shape)
        values, seconds = dict(zip(self.inputs, inputs, strict=True)), {}
        for made, operation, function, read in self.steps:
            start = time.perf_counter()
            results = function(operation, *(values[value] for value in read))
            seconds[made[-1]] = time.perf_counter() - start
            for value, result in zip(made, results, strict=True):
                assert result.shape == (self.images, *value.shape)
                values[value] = result
        return [values[value].clone() for value in self.outputs], seconds


def install(monkeypatch):
    """Let the engine use this module instead of the compiled kernels."""
    from cigl.runtime import assignment, schedule
    from cigl.runtime.program import library

    monkeypatch.setattr(library, "available", lambda: True)
    monkeypatch.setattr(library, "isa", lambda: "torch")
    for module in (assignment, schedule):
        monkeypatch.setattr(module, "Program", Program)
