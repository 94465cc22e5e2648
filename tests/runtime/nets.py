"""Networks for tests of the engine: sparse, with batch-norm statistics that are not trivial; drawn or by name."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import nn

from cigl.runtime.compile.fusing import fuse
from cigl.runtime.compile.lowering import Untraceable, lower
from cigl.runtime.compile.tracing import copied
from cigl.runtime.engine import sparse_inference
from cigl.runtime.program import library
from cigl.runtime.program.packed import pack
from cigl.runtime.schedule import Schedule, fitting, survey


def sparse(model: nn.Module, sparsity: float, seed: int = 0) -> nn.Module:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight.mul_(torch.rand(module.weight.shape, generator=g) >= sparsity)
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.2, generator=g)
                module.running_var.uniform_(0.5, 1.5, generator=g)
                if module.affine:
                    module.weight.uniform_(0.5, 1.5, generator=g)
                    module.bias.normal_(0, 0.2, generator=g)
    return model.eval()


def network_of(model: nn.Module):
    network = lower(copied(model))
    fuse(network)
    if library.available():
        pack(network)
    return network


def forced(model: nn.Module, *inputs):
    """The output with everything sparse that can be; and the kinds of the units that are."""
    try:
        network = network_of(model)
    except Untraceable:
        return sparse_inference(model)(*inputs), []
    with torch.no_grad():
        facts = survey(network, inputs)
        units = fitting(network, facts)
        result = Schedule(network, facts, units, torch.get_num_threads())(inputs)
    return result, [type(network.units[number].operation).__name__ for number in sorted(units)]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """What the issue asks for: 1e-4 of the largest value."""
    return ours.shape == theirs.shape and bool((ours - theirs).abs().max() <= 1e-4 * theirs.abs().max() + 1e-30)


class Drawn(nn.Module):
    """A list of steps; each reads the value before it, some an earlier one, too."""

    def __init__(self, channels: int, steps: list, classes: int):
        super().__init__()
        self.steps, self.layers = [], nn.ModuleList()
        width = channels
        for kind, *rest in steps:
            layer = nn.Identity()
            if kind == "conv":
                out, kernel, stride, padding, bias = rest
                layer, width = nn.Conv2d(width, out, kernel, stride, padding, bias=bias), out
            elif kind == "residual":
                layer = nn.Conv2d(width, width, 3, 1, 1, bias=rest[0])
            elif kind == "depthwise":
                layer = nn.Conv2d(width, 2 * width, 3, *rest, groups=width)
                width *= 2
            elif kind == "excite":
                layer = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), rest[0])
            elif kind == "concat":
                layer, width = nn.Conv2d(width, 2, 1), width + 2
            elif kind == "act":
                layer = rest[0]
            elif kind == "norm":
                layer = nn.BatchNorm2d(width, affine=rest[0])
            elif kind == "max":
                layer = nn.MaxPool2d(3, rest[0], 1)
            elif kind == "average":
                layer = nn.AvgPool2d(2, 1, 1, count_include_pad=rest[0])
            self.steps.append(kind)
            self.layers.append(layer)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        before = x
        for kind, layer in zip(self.steps, self.layers, strict=True):
            if kind == "relu":
                x = F.relu(x)
            elif kind == "relu_":
                x = x.relu_()
            elif kind == "residual":
                x = layer(x) + x
            elif kind == "excite":
                x = x * layer(x)
            elif kind == "concat":
                x = torch.cat([layer(x), x], 1)
            elif kind == "twice":  # a sum of two branches that share their input
                x = x + before if x.shape == before.shape else torch.tanh(x)
            elif kind == "tanh":
                x = torch.tanh(x)
            else:
                x = layer(x)
            if kind == "remember":
                before = x
        return self.head(x.mean((2, 3)))


_STEPS = st.one_of(
    st.tuples(
        st.just("conv"), st.integers(1, 9), st.sampled_from([1, 2, 3, (1, 3)]), st.sampled_from([1, 2, (2, 1)]),
        st.sampled_from([0, 1, (1, 0), 2]), st.booleans(),
    ),
    st.tuples(st.sampled_from(["residual", "norm", "average"]), st.booleans()),
    st.tuples(st.just("max"), st.sampled_from([1, 2])),
    st.tuples(st.just("depthwise"), st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.sampled_from([1, 2])),
    st.tuples(st.just("excite"), st.sampled_from([nn.Sigmoid(), nn.Hardsigmoid()])),
    st.tuples(st.just("concat")),
    st.tuples(st.just("act"), st.sampled_from([nn.SiLU(), nn.GELU(), nn.Hardswish(), nn.ReLU6(inplace=True)])),
    st.tuples(st.sampled_from(["relu", "relu_", "tanh", "remember"])),
)  # fmt: skip


@st.composite
def drawn_nets(draw):
    """A sparse net and inputs that are large enough for it."""
    channels = draw(st.integers(1, 5))
    steps = draw(st.lists(_STEPS, min_size=1, max_size=7))
    torch.manual_seed(draw(st.integers(0, 1000)))
    net = sparse(Drawn(channels, steps, 3), draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])))
    images = draw(st.sampled_from([1, 2, 7, 8, 9, 17]))
    x = torch.randn(images, channels, draw(st.integers(5, 12)), draw(st.integers(5, 12)))
    return net, x


def dense_result(net, x):
    """What torch computes; a drawn net whose picture becomes smaller than a window is no example."""
    with torch.no_grad():
        try:
            return net(x.clone())
        except RuntimeError:
            assume(False)
