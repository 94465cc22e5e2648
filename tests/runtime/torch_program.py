"""The interface of ``cigl.runtime.program`` in plain torch: what the engine asks for, computed without any kernel."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F


class Packed:
    def __init__(self, weight, bias):
        self.weight, self.bias = weight.clone(), None if bias is None else bias.clone()
        self.bytes = 8 * int(torch.count_nonzero(weight))

    def unpack(self):
        return self.weight.clone()


class Value:
    def __init__(self, shape):
        self.shape = tuple(shape)


class Program:
    """Every operation is recorded as a function of earlier values; ``run`` calls them in order."""

    def __init__(self, images, threads):
        self.images, self.threads, self.bytes = images, threads, 0
        self.inputs, self.steps, self.outputs, self.finished = [], [], [], False

    def input(self, *shape):
        self.inputs.append(Value(shape))
        return self.inputs[-1]

    def _record(self, made, function, *read):
        assert not self.finished
        self.steps.append((made, function, read))
        return made[-1]

    def _conv_shape(self, x, packed, stride, padding):
        sample = F.conv2d(torch.zeros(1, *x.shape), packed.weight, None, stride, padding)
        return sample.shape[1:]

    def conv(self, x, packed, *, stride=(1, 1), padding=(0, 0), relu=False, add=None):
        out = Value(self._conv_shape(x, packed, stride, padding))
        assert add is None or add.shape == out.shape

        def run(x, *others):
            y = F.conv2d(x, packed.weight, packed.bias, stride, padding) + sum(others)
            return [y.relu() if relu else y]

        return self._record([out], run, x, *([] if add is None else [add]))

    def conv_and_norm(self, x, packed, scale, shift, *, stride, padding, add=None, keep=True):
        shape = self._conv_shape(x, packed, stride, padding)
        assert add is None or add.shape == tuple(shape)

        def run(x, *others):
            y = F.conv2d(x, packed.weight, packed.bias, stride, padding) + sum(others)
            return [y, (y * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)).relu()]

        made = [Value(shape), Value(shape)]
        self._record(made, run, x, *([] if add is None else [add]))
        return tuple(made)

    def linear(self, x, packed, *, relu=False):
        assert len(x.shape) == 1

        def run(x):
            y = F.linear(x, packed.weight, packed.bias)
            return [y.relu() if relu else y]

        return self._record([Value(packed.weight.shape[:1])], run, x)

    def norm(self, x, scale, shift, *, relu=False):
        def run(x):
            y = x * scale.view(-1, *[1] * (x.dim() - 2)) + shift.view(-1, *[1] * (x.dim() - 2))
            return [y.relu() if relu else y]

        return self._record([Value(x.shape)], run, x)

    def add(self, a, b, *, relu=False):
        assert a.shape == b.shape
        return self._record([Value(a.shape)], lambda a, b: [(a + b).relu() if relu else a + b], a, b)

    def relu(self, x):
        return self._record([Value(x.shape)], lambda x: [x.relu()], x)

    def max_pool(self, x, kernel, stride, padding):
        shape = F.max_pool2d(torch.zeros(1, *x.shape), kernel, stride, padding).shape[1:]
        return self._record([Value(shape)], lambda x: [F.max_pool2d(x, kernel, stride, padding)], x)

    def avg_pool(self, x, kernel, stride, padding, count_include_pad=True):
        def run(x):
            return [F.avg_pool2d(x, kernel, stride, padding, False, count_include_pad)]

        return self._record([Value(run(torch.zeros(1, *x.shape))[0].shape[1:])], run, x)

    def mean(self, x):
        return self._record([Value((x.shape[0], 1, 1))], lambda x: [x.mean((2, 3), keepdim=True)], x)

    def flatten(self, x):
        return self._record([Value((torch.Size(x.shape).numel(),))], lambda x: [x.flatten(1)], x)

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
        for made, function, read in self.steps:
            start = time.perf_counter()
            results = function(*(values[value] for value in read))
            seconds[made[-1]] = time.perf_counter() - start
            for value, result in zip(made, results, strict=True):
                assert result.shape == (self.images, *value.shape)
                values[value] = result
        return [values[value].clone() for value in self.outputs], seconds


def install(monkeypatch):
    """Let the engine use this module instead of the compiled kernels."""
    from cigl.runtime import choice, library, schedule, weights

    monkeypatch.setattr(library, "available", lambda: True)
    monkeypatch.setattr(library, "isa", lambda: "torch")
    monkeypatch.setattr(weights, "Packed", Packed)
    for module in (choice, schedule):
        monkeypatch.setattr(module, "Program", Program)
