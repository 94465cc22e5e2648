"""Gradients on sparse kernels are those of dense torch, from the same state, on random networks."""

import copy
from itertools import pairwise
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, currently_in_test_context, given, settings
from hypothesis import strategies as st
from torch import nn
from training_nets import ISAS, Taken, doubled, drawn_nets, on_kernels, settings_of, step, thin

from cigl.runtime.training import bands

pytestmark = pytest.mark.skipif(not ISAS, reason="no kernels")


def compare(model: nn.Module, masks, *inputs, isa="", threads=1, seed=0, least=1) -> Taken:
    """Torch in float64 and in float32, and kernels, from the same state."""
    names = {name: masks[p] for name, p in model.named_parameters() if p in masks}
    exact = step(
        doubled(model), *(x.detach().double().requires_grad_(x.requires_grad) for x in inputs), seed=seed, masks=names
    )
    single = step(copy.deepcopy(model), *inputs, seed=seed, masks=names)
    if currently_in_test_context():  # of hypothesis
        assume(single.difference(exact)[0] < 1e-5)  # else it is the case that is ill-conditioned
    with settings_of(isa, threads):
        kernels = on_kernels(model, masks)
        sparse = step(model, *inputs, seed=seed)
        in_torch = {
            name: mask for name, mask in names.items() if dict(model.named_parameters())[name] not in kernels.sparse
        }
        for name in in_torch.keys() & sparse.tensors.keys():  # those are masked later, by the sparsifier
            sparse.tensors[name] = sparse.tensors[name] * in_torch[name]
        assert sum(p in kernels.sparse for p in masks) >= least, kernels.reasons
        kernels.remove()
    apart, where = sparse.difference(exact)
    assert apart < 1e-4, (apart, where)
    return sparse


@settings(max_examples=100, deadline=None, derandomize=True)
@given(drawn_nets(), st.sampled_from(ISAS), st.integers(1, 2))
def test_gradients_are_those_of_torch(drawn, isa, threads):
    assume(drawn is not None)
    model, masks, x = drawn
    compare(model, masks, x, isa=isa, threads=threads)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(drawn_nets(), st.sampled_from(ISAS), st.integers(1, 2), st.sampled_from([1, 1 << 14]))
def test_bands_of_rows_have_the_gradients_of_torch(drawn, isa, threads, cache):
    assume(drawn is not None)
    model, masks, x = drawn
    with mock.patch.object(bands, "_CACHE", cache):
        compare(model, masks, x, isa=isa, threads=threads)


def features(draw) -> tuple[nn.Module, torch.Tensor]:
    """Linear layers with batch norm, on rows or on sequences."""
    widths = draw(st.lists(st.integers(1, 40), min_size=2, max_size=4))
    shape = draw(st.sampled_from([(1,), (5,), (8,), (13,), (20,), (70,), (2, 3), (3, 7), (2, 2, 3, 2)]))
    layers = []
    for before, after in pairwise(widths):
        layers.append(nn.Linear(before, after, bias=draw(st.booleans())))
        if len(shape) == 1 and shape[0] > 2 and draw(st.booleans()):
            layers.append(nn.BatchNorm1d(after, affine=draw(st.booleans())))
        layers.append(draw(st.sampled_from([nn.ReLU(), nn.Identity(), nn.GELU(), nn.ReLU(inplace=True)])))
    torch.manual_seed(draw(st.integers(0, 99)))
    return nn.Sequential(*layers), torch.randn(*shape, widths[0])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([0.0, 0.05, 0.5, 1.0]), st.booleans(), st.sampled_from(ISAS), st.integers(1, 2))
def test_linear_layers_have_the_gradients_of_torch(data, density, asked, isa, threads):
    model, x = features(data.draw)
    compare(model, thin(model, density), x.requires_grad_(asked), isa=isa, threads=threads)


class Residual(nn.Module):
    """All that runs on kernels: strides, sums with norms on both sides, pooling, a shared layer, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.shared = nn.Conv2d(16, 16, 3, 1, 1)
        self.down, self.short = nn.Conv2d(16, 24, 3, 2, 1, bias=False), nn.Conv2d(16, 24, 1, 2)
        self.norms = nn.ModuleList([nn.BatchNorm2d(24), nn.BatchNorm2d(24)])
        self.last = nn.Linear(24, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = F.relu(self.shared(x) + x)
        x = self.shared(x) + x
        x = F.relu(self.norms[0](self.down(x)) + self.norms[1](self.short(x)))
        x = F.avg_pool2d(x, 2, 1, 1)
        return self.last(x.mean((2, 3)))


def perceptron() -> nn.Module:
    parts = [nn.Linear(50, 90), nn.BatchNorm1d(90), nn.ReLU(), nn.Linear(90, 70), nn.ReLU(), nn.Linear(70, 10)]
    return nn.Sequential(*parts)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("images", [2, 8, 19, 70])
@pytest.mark.parametrize("kind", ["convolutions", "convolutions in bands", "linear layers"])
def test_the_number_of_threads_does_not_change_a_bit(kind, images, isa, monkeypatch):
    in_bands = kind == "convolutions in bands"
    if in_bands:
        kind = "convolutions"
        monkeypatch.setattr(bands, "_CACHE", 1)
    model = Residual() if kind == "convolutions" else perceptron()
    x = torch.randn(images, 3, 13, 14) if kind == "convolutions" else torch.randn(images, 50)
    masks, start = thin(model, 0.2), copy.deepcopy(model.state_dict())
    results = []
    for threads in (1, 2, 3, 9):
        model.load_state_dict(start)
        with settings_of(isa, threads):
            kernels = on_kernels(model, masks)
            results.append(step(model, x.requires_grad_()))
            [network] = kernels._plans._plans.values()
            [subgraph] = network.subgraphs
            [[program]] = subgraph._free.values()
            assert any(step.banded for step in program._steps) == in_bands
            assert {p.data_ptr() for p in subgraph.parameters} == {p.data_ptr() for p in model.parameters()}
            kernels.remove()
    assert all(results[0].equals(other) for other in results[1:])


@pytest.mark.parametrize("isa", ISAS)
def test_a_program_gives_the_same_again_and_again(isa):
    model, x = Residual(), torch.randn(11, 3, 13, 14)
    masks = thin(model, 0.2)
    with settings_of(isa):
        on_kernels(model, masks)
        first = step(model, x)
        step(model, torch.randn(11, 3, 13, 14) * 100)
        again = step(model, x)
    gradients = [name for name, _ in model.named_parameters()]
    assert all(torch.equal(first.tensors[name], again.tensors[name]) for name in gradients)


def test_nan_and_infinity_arrive_where_torch_has_them():
    model, x = perceptron(), torch.randn(9, 50)
    masks = thin(model, 1.0)
    x[3, 7] = float("nan")
    on_kernels(model, masks)
    taken = step(model, x)
    assert taken.tensors["output 0"].isnan().all()  # the norm mixes all rows
    assert taken.tensors["0.weight"].isnan().any()


@pytest.mark.parametrize("count", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_pooling_windows_that_overlap_or_leave_gaps(count, threads):
    for kernel, stride, padding in ((2, 2, 0), (3, 1, 1), (3, 2, 1), (2, 3, 0), (5, 2, 2), ((3, 2), (1, 2), (1, 0))):
        largest, average = nn.MaxPool2d(kernel, stride, padding), nn.AvgPool2d(kernel, stride, padding, False, count)
        model = nn.Sequential(nn.Conv2d(3, 5, 3), largest, nn.Conv2d(5, 4, 1), average, nn.Flatten())
        x = torch.randn(9, 3, 13, 14, requires_grad=True)
        compare(model, thin(model, 0.5), x, threads=threads)


def test_ties_in_max_pooling_go_to_the_first_as_in_torch():
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    x = torch.randint(-2, 2, (9, 2, 8, 8)).float().requires_grad_()
    model[0].weight.data.sign_()
    model[0].bias.data.zero_()
    compare(model, thin(model, 1.0), x)


def test_several_inputs_and_outputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(12, 7), nn.Linear(9, 7), nn.Linear(7, 3)

        def forward(self, x, y):
            x = x.flatten(1)  # what it returns is also an input
            both = F.relu(self.a(x) + self.b(y))
            return x, both, self.c(both)

    for asks in ((False, False), (True, False), (False, True), (True, True)):
        model = Two()
        x, y = (torch.randn(10, n).requires_grad_(ask) for n, ask in zip((12, 9), asks, strict=True))
        compare(model, thin(model, 0.5), x, y, least=3)


@pytest.mark.parametrize("frozen", ["weights", "biases", "norms", "all but the last"])
def test_frozen_parameters(frozen):
    model = Residual()
    for name, p in model.named_parameters():
        kind = "norms" if "norm" in name else "weights" if name.endswith("weight") else "biases"
        p.requires_grad_(not (kind == frozen or (frozen == "all but the last" and "last" not in name)))
    masks = thin(model, 0.3)
    compare(model, masks, torch.randn(9, 3, 13, 14), least=5)
    compare(model, masks, torch.randn(9, 3, 13, 14, requires_grad=True), least=5)
