"""The optimizer's step on the active weights alone gives what torch's step over all of them gives."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

import cigl
from cigl.runtime.program import library
from cigl.runtime.training import updates
from cigl.runtime.training.patterns import Pattern

pytestmark = pytest.mark.skipif(not library.available(), reason="no kernels")

OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.02),
    "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.02, fused=True),
    "maximize": lambda p: SGD(p, lr=0.1, momentum=0.5, maximize=True),
    "adam": lambda p: Adam(p, lr=0.01, weight_decay=0.02),
    "adam maximize": lambda p: Adam(p, lr=0.01, betas=(0.8, 0.95), maximize=True, foreach=True),
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
    "adamw, lr tensor": lambda p: AdamW(p, lr=torch.tensor(0.01)),
}


@pytest.mark.parametrize("strides", ["contiguous", "channels_last"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_are_those_of_torch(make, strides):
    mask = torch.rand(8, 6, 5, 5) < 0.02
    weight = torch.randn(8, 6, 5, 5) * mask
    if strides == "channels_last":
        weight = weight.contiguous(memory_format=torch.channels_last)
    ours, theirs = nn.Parameter(weight), nn.Parameter(copy.deepcopy(weight))
    one, two = make([ours]), make([theirs])
    pattern = Pattern(tuple(weight.shape), ours.stride(), np.flatnonzero(mask.contiguous().numpy()))
    active, hidden = updates.ActiveUpdates(), 0
    for _ in range(5):
        gradient = torch.empty_like(weight).copy_(torch.randn(8, 6, 5, 5) * mask)
        ours.grad, theirs.grad = gradient, gradient.clone()
        version = ours._version
        active.begin(one, [(ours, pattern)])
        is_hidden = ours.grad is None
        hidden += is_hidden
        one.step()
        active.end(one)
        two.step()
        assert ours.grad is gradient
        assert ours._version > version or not is_hidden  # torch's own fused steps leave it
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
        for name, state in two.state[theirs].items():
            torch.testing.assert_close(one.state[ours][name], state, rtol=1e-6, atol=1e-7)
    assert hidden >= 4  # torch makes the state in the first step


def test_strides_of_dimensions_of_one_say_nothing():
    """A checkpoint brings the momentum of a 1x1 convolution with others, and a resumed run must step as before."""
    mask = torch.rand(20, 50, 1, 1) < 0.1
    weight = (torch.randn(20, 50, 1, 1) * mask).as_strided((20, 50, 1, 1), (50, 1, 50, 50))
    parameter = nn.Parameter(weight)
    optimizer, active = SGD([parameter], lr=0.1, momentum=0.9), updates.ActiveUpdates()
    other = torch.zeros(1000).as_strided((20, 50, 1, 1), (50, 1, 1, 1))
    assert other.stride() != parameter.stride()
    optimizer.state[parameter]["momentum_buffer"] = other
    parameter.grad = torch.empty_like(weight).copy_(torch.randn(20, 50, 1, 1) * mask)
    active.begin(optimizer, [(parameter, Pattern((20, 50, 1, 1), parameter.stride(), np.flatnonzero(mask.numpy())))])
    assert active.has(parameter)


def test_not_where_it_would_be_seen():
    mask = torch.rand(20, 50) < 0.02
    parameter = nn.Parameter(torch.randn(20, 50) * mask)
    pattern = Pattern((20, 50), (50, 1), np.flatnonzero(mask.numpy()))
    optimizer, active = SGD([parameter], lr=0.1), updates.ActiveUpdates()
    for prepare in (
        lambda: [optimizer.register_step_pre_hook(lambda *_: None) for _ in range(2)],
        lambda: [optimizer.register_step_post_hook(lambda *_: None) for _ in range(2)],
    ):
        parameter.grad = torch.ones(20, 50) * mask
        handles = prepare()
        active.begin(optimizer, [(parameter, pattern)])
        assert parameter.grad is not None
        for handle in handles:
            handle.remove()
    active.begin(optimizer, [(parameter, pattern)])
    assert parameter.grad is None
    active.restore()  # a step that failed
    assert parameter.grad is not None


@pytest.mark.parametrize("method", ["cigl", "rigl"])
def test_training_is_that_of_masked_layers(method):
    def train(kernels):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(60, 80), nn.ReLU(), nn.Linear(80, 40), nn.ReLU(), nn.Linear(40, 5))
        optimizer = Adam(model.parameters(), lr=1e-3)
        sparse = cigl.attach(
            model, optimizer, method, sparsity=0.985, epochs=6, steps_per_epoch=10, update_every=15, kernels=kernels,
            distribution="uniform",
        )  # fmt: skip
        for _ in range(60):
            loss = model(torch.randn(16, 60)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert all(p.grad is not None for p in model.parameters())
            assert all(not layer.weight[~layer.mask].any() for layer in sparse.layers)
        return model, sparse

    (masked, one), (ours, two) = train("masked"), train("sparse")
    for name, mask in one.masks.items():
        assert torch.equal(mask, two.masks[name])
    for a, b in zip(masked.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
