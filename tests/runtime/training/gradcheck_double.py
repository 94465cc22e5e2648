"""torch.autograd.gradcheck of training programs, on a library whose floats are doubles: test_gradcheck.py builds it."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from cigl.runtime.program import library
from cigl.runtime.training import program
from cigl.runtime.training.assembly import Arrays
from cigl.runtime.training.nodes import Conv, Flatten, Mean, Pool, Sum, Term, Value, Weights, flattened, fuse, window
from cigl.runtime.training.patterns import Pattern
from cigl.runtime.training.program import TrainingProgram

library._FOLDER = Path(sys.argv[1])
Arrays.floats = lambda self, count: self.own(np.zeros(count))
program.FLOAT = torch.float64
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def weights(*shape: int, bias: bool, density: float = 0.6) -> Weights:
    mask = torch.rand(*shape) < density
    weight = nn.Parameter(torch.randn(*shape) * mask)
    positions = np.flatnonzero(mask.numpy())
    pattern = Pattern(tuple(weight.shape), weight.stride(), positions)
    return Weights(weight, nn.Parameter(torch.randn(shape[0])) if bias else None, pattern)


def norm(x: Value) -> Term:
    kind = nn.BatchNorm2d if len(x.shape) == 3 else nn.BatchNorm1d
    return Term(x, kind(x.shape[0], track_running_stats=False))


def conv(x: Value, w: Weights, stride=(1, 1), padding=(0, 0)) -> Conv:
    return Conv(x, window(x, w.pattern.outputs, w.pattern.kernel, stride, padding), w, stride, padding)


def residual() -> tuple[list, Value]:
    """Strides, paddings, norms on both sides of a sum, pooling of both kinds, and a head."""
    x = Value((2, 6, 5))
    first = conv(x, weights(3, 2, 3, 3, bias=True), padding=(1, 1))
    pooled = Pool(first.out, window(first.out, 3, (2, 2), (1, 1), (1, 1)), (2, 2), (1, 1), (1, 1), largest=True)
    left = conv(pooled.out, weights(4, 3, 3, 3, bias=False), (2, 2), (1, 1))
    right = conv(pooled.out, weights(4, 3, 1, 1, bias=False), (2, 2))
    both = Sum(Value(left.out.shape), norm(left.out), norm(right.out), relu=True)
    again = conv(both.out, weights(4, 4, 3, 3, bias=False), padding=(1, 1))
    total = Sum(Value(again.out.shape), Term(again.out), Term(both.out))
    averaged = Pool(total.out, window(total.out, 4, (2, 2), (2, 2), (0, 0)), (2, 2), (2, 2), (0, 0), largest=False)
    flat = Flatten(averaged.out, flattened(averaged.out))
    head = conv(flat.out, weights(3, flat.out.shape[0], bias=True))
    return [first, pooled, left, right, both, again, total, averaged, flat, head], x


def mean() -> tuple[list, Value]:
    x = Value((3, 4, 4))
    first = conv(x, weights(5, 3, 3, 3, bias=True), (1, 2), (2, 1))
    active = Sum(Value(first.out.shape), Term(first.out), relu=True)
    pooled = Mean(active.out, Value((5, 1, 1)))
    flat = Flatten(pooled.out, flattened(pooled.out))
    return [first, active, pooled, flat, conv(flat.out, weights(2, 5, bias=True))], x


def features() -> tuple[list, Value]:
    x = Value((7,))
    first = conv(x, weights(6, 7, bias=True))
    active = Sum(Value((6,)), norm(first.out), relu=True)
    return [first, active, conv(active.out, weights(4, 6, bias=True))], x


def check(nodes: list, x: Value, images: int) -> None:
    outputs = [nodes[-1].out]
    parameters: dict[nn.Parameter, None] = {}
    for node in nodes:
        if isinstance(node, Conv):
            parameters |= dict.fromkeys(p for p in (node.weights.weight, node.weights.bias) if p is not None)
        elif isinstance(node, Sum):
            parameters |= dict.fromkeys(p for term in node.terms if term.norm for p in term.norm.parameters())
    program = TrainingProgram(fuse(nodes, outputs), [x], outputs, images, threads=1)

    class Run(torch.autograd.Function):
        @staticmethod
        def forward(ctx, data: Tensor, *_: Tensor) -> Tensor:
            ctx.save_for_backward(data)
            return program.forward([data.contiguous()])[0][0]

        @staticmethod
        def backward(ctx, gradient: Tensor) -> tuple:
            program.forward([ctx.saved_tensors[0].contiguous()])  # gradcheck runs others in between
            found, (data,), _ = program.backward([gradient.contiguous()])
            return data, *(found[parameter] for parameter in parameters)

    data = torch.randn(images, *x.shape, requires_grad=True)
    assert torch.autograd.gradcheck(Run.apply, (data, *parameters), eps=1e-6, atol=1e-6, rtol=1e-4)


for make in (residual, mean, features):
    for images in (2, 9):
        check(*make(), images)
print("gradients are right in double")
