"""Random networks in training: on sparse kernels, and the same step in float64 torch to compare with."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from cigl.runtime.program import library
from cigl.runtime.training.kernels import TrainingKernels

ISAS = [name for name in library.ISAS if library.available() and library.lanes(name)]
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


class SameDropout(nn.Module):
    """Draws the same numbers in float64 as in float32."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return x * F.dropout(torch.ones(x.shape), self.p, self.training).to(x.dtype)


def thin(model: nn.Module, density: float, seed: int = 0) -> dict[nn.Parameter, Tensor]:
    """Zero weights, some whole rows among them; returns the masks."""
    generator = torch.Generator().manual_seed(seed)
    masks = {}
    for module in model.modules():
        if isinstance(module, LAYERS) and module.weight not in masks:
            mask = torch.rand(module.weight.shape, generator=generator) < density
            if 0 < density < 1:
                mask[torch.rand(len(mask), generator=generator) < 0.1] = False
            module.weight.data.mul_(mask)
            masks[module.weight] = mask
    return masks


def on_kernels(model: nn.Module, masks: dict[nn.Parameter, Tensor], insist: bool = True) -> TrainingKernels:
    def active(mask: Tensor):
        return lambda: np.flatnonzero(mask.contiguous().numpy()).astype(np.uint32)

    return TrainingKernels(model, {p: active(mask) for p, mask in masks.items()}, lambda: False, lambda _: None, insist)


@contextmanager
def settings_of(isa: str = "", threads: int = 1):
    with pytest.MonkeyPatch.context() as patch:
        if isa:
            patch.setenv("CIGL_ISA", isa)
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(1)


@contextmanager
def without_onednn():
    """Its convolutions crash on some of these shapes (torch 2.13). (torch.backends.mkldnn.flags warns of GPUs.)"""
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


@dataclass
class Taken:
    """What one step leaves: output, gradients of inputs and parameters, and buffers."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)

    def difference(self, other: Taken) -> tuple[float, str]:
        """The largest difference, relative to the largest entry of the tensor, and where.

        A gradient of rounding errors alone, such as that of a bias before a batch norm, counts relative to the others.
        """
        assert self.tensors.keys() == other.tensors.keys()
        worst = (0.0, "")
        largest = max((float(each.abs().max()) for each in other.tensors.values() if each.numel()), default=0.0)
        for name, mine in self.tensors.items():
            theirs = other.tensors[name]
            assert mine.shape == theirs.shape, name
            own = float(theirs.abs().max()) if theirs.numel() else 0.0
            size = max(own, other.sizes.get(name, 0.0), 1e-2 * largest, 1e-30)
            apart = float((mine.double() - theirs.double()).abs().max()) / size if mine.numel() else 0.0
            worst = max(worst, (apart if apart == apart else float("inf"), name))
        return worst

    def equals(self, other: Taken) -> bool:
        return all(torch.equal(mine, other.tensors[name]) for name, mine in self.tensors.items())


@without_onednn()
def step(model: nn.Module, *inputs: Tensor, seed: int = 0, masks: dict[str, Tensor] | None = None) -> Taken:
    """Forward and backward with a fixed, uneven loss."""
    torch.manual_seed(seed)
    inputs = tuple(
        x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad) for x in inputs
    )
    model.zero_grad()
    outputs = model(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(7)
    loss = sum((out * torch.randn(out.shape, generator=generator).to(out.dtype)).sum() for out in outputs)
    if loss.requires_grad:
        loss.backward()
    taken = {f"output {n}": out.detach() for n, out in enumerate(outputs)}
    taken |= {f"input {n}": x.grad for n, x in enumerate(inputs) if x.grad is not None}
    sizes = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            gradient = torch.zeros_like(p) if p.grad is None else p.grad.detach()
            sizes[name] = float(gradient.abs().max()) if gradient.numel() else 0.0
            taken[name] = gradient * masks[name] if masks and name in masks else gradient
    # a bias before a batch norm has a gradient of rounding errors alone: the largest of its layer says how large
    largest = max(sizes.values(), default=0.0)
    sizes = {name: max(size, 1e-2 * largest) for name, size in sizes.items()}
    taken |= {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    return Taken(taken, sizes)


def doubled(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


class Drawn(nn.Module):
    """Steps that each read the value before them, some also one that was remembered."""

    def __init__(self, channels: int, steps: list, size: int, classes: int, head: str):
        super().__init__()
        self.steps, self.layers, self.second, self.head_kind = [], nn.ModuleList(), nn.ModuleList(), head
        width, shared = channels, {}
        for kind, *rest in steps:
            layer, second = nn.Identity(), nn.Identity()
            if kind == "conv":
                out, kernel, stride, padding, bias = rest
                layer, width = nn.Conv2d(width, out, kernel, stride, padding, bias=bias), out
            elif kind in ("grouped", "dilated"):
                options = {"groups": width} if kind == "grouped" else {"dilation": 2}
                layer = nn.Conv2d(width, width, 3, 1, 2, **options)
            elif kind == "shared":
                layer = shared.setdefault(width, nn.Conv2d(width, width, 3, 1, 1, bias=False))
            elif kind in ("norm", "norm of evaluation"):
                affine, momentum, track = rest
                layer = nn.BatchNorm2d(width, affine=affine, momentum=momentum, track_running_stats=track)
            elif kind in ("skip", "conv + conv", "norm + norm", "norm + x"):
                layer = nn.Conv2d(width, width, 3, 1, 1, bias=rest[0])
                second = nn.Conv2d(width, width, 1, bias=rest[0])
                if kind == "norm + norm":
                    layer, second = (
                        nn.Sequential(layer, nn.BatchNorm2d(width)),
                        nn.Sequential(second, nn.BatchNorm2d(width)),
                    )
                elif kind == "norm + x":
                    layer = nn.Sequential(layer, nn.BatchNorm2d(width))
            elif kind == "max":
                layer = nn.MaxPool2d(*rest)
            elif kind == "average":
                layer = nn.AvgPool2d(3, rest[0], 1, count_include_pad=rest[1])
            elif kind == "dropout":
                layer = SameDropout(0.3)
            self.steps.append(kind)
            self.layers.append(layer)
            self.second.append(second)
        self.width = width
        self.classes = classes
        self.head: nn.Module = nn.Identity()

    def finish(self, x: Tensor) -> None:
        """The head for inputs like x."""
        with torch.no_grad():
            shape = self.body(x).shape
        self.head = nn.Linear(shape[1:].numel() if self.head_kind == "flatten" else shape[1], self.classes)

    def train(self, mode: bool = True) -> Drawn:
        super().train(mode)
        for kind, layer in zip(self.steps, self.layers, strict=True):
            if kind == "norm of evaluation":
                layer.eval()
        return self

    def body(self, x: Tensor) -> Tensor:
        before = x
        for kind, layer, second in zip(self.steps, self.layers, self.second, strict=True):
            if kind == "relu":
                x = F.relu(x)
            elif kind in ("skip", "norm + x"):
                x = layer(x) + x
            elif kind in ("conv + conv", "norm + norm"):
                x = layer(x) + second(x)
            elif kind == "twice":
                x = x + x
            elif kind == "remember":
                before = x
            elif kind == "recall":
                x = before + x if before.shape == x.shape else x
            elif kind == "tanh":
                x = torch.tanh(x)
            else:
                x = layer(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.head(x.flatten(1) if self.head_kind == "flatten" else x.mean((2, 3)))


_momenta = st.sampled_from([0.1, None])
_STEPS = st.one_of(
    st.tuples(
        st.just("conv"), st.integers(1, 9), st.sampled_from([1, 2, 3, 5, (1, 3), (4, 2)]),
        st.sampled_from([1, 2, 3, (2, 1), (1, 3)]), st.sampled_from([0, 1, 2, (1, 0)]), st.booleans(),
    ),
    st.tuples(st.sampled_from(["norm", "norm", "norm of evaluation"]), st.booleans(), _momenta, st.booleans()),
    st.tuples(st.sampled_from(["skip", "conv + conv", "norm + norm", "norm + x"]), st.booleans()),
    st.tuples(st.just("max"), st.sampled_from([2, 3]), st.sampled_from([1, 2, 3]), st.sampled_from([0, 1])),
    st.tuples(st.just("average"), st.sampled_from([1, 2]), st.booleans()),
    st.tuples(st.sampled_from(["relu", "relu", "twice", "remember", "recall"])),
    st.tuples(st.sampled_from(["tanh", "dropout", "grouped", "dilated", "shared"])),
)  # fmt: skip


@st.composite
def drawn_nets(draw):
    """A model in training mode, its masks and an input."""
    channels, images = draw(st.integers(1, 5)), draw(st.integers(1, 20))
    steps = draw(st.lists(_STEPS, min_size=1, max_size=7))
    height, width = draw(st.integers(5, 12)), draw(st.integers(5, 12))
    torch.manual_seed(draw(st.integers(0, 1000)))
    model = Drawn(channels, steps, height, 3, draw(st.sampled_from(["mean", "flatten"])))
    x = torch.randn(images, channels, height, width)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.affine:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    model.train()
    try:
        model.finish(x)
    except (RuntimeError, ValueError):  # a window that doesn't fit, or statistics of one value
        return None
    masks = thin(model, draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])))
    if draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    if draw(st.booleans()):
        model.to(memory_format=torch.channels_last)
    frozen = draw(st.sets(st.integers(0, 12), max_size=3))
    for number, p in enumerate(model.parameters()):
        if number in frozen:
            p.requires_grad_(False)
    return model, masks, x.requires_grad_(draw(st.booleans()))
