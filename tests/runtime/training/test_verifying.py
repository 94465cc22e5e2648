"""Kernels, or captures, that compute something else than torch are found while they run, named once and not used."""

import os
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training_nets import ISAS

import cigl
from cigl.runtime.training import verify
from cigl.runtime.training.program import TrainingProgram

pytestmark = pytest.mark.skipif(not ISAS, reason="no kernels")

METHOD = cigl.method("cigl", random_mask=0.1, update_every=5)


def perceptron():
    return nn.Sequential(
        nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)
    )


def branching():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = perceptron()

        def forward(self, x):
            return self.body(x) if x.sum() < 1e9 else x

    return Net()


def losses(build, kernels, steps=12, each_step=lambda step: None):
    """Of each step, with what was said."""
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", cigl.CiglWarning)
        times = {"epochs": 5, "steps_per_epoch": 20}
        sparse = cigl.attach(model, optimizer, METHOD, sparsity=0.6, kernels=kernels, **times)
        found, generator = [], torch.Generator().manual_seed(0)
        for step in range(steps):
            each_step(step)
            x = torch.randn(16, 12, generator=generator)
            loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found, [str(each.message) for each in caught if "differ" in str(each.message)], sparse


def broken(of, what):
    """The result of a program's ``forward`` or ``backward``, changed."""

    def method(self, *args, **kwargs):
        result = of(self, *args, **kwargs)
        what(result)
        return result

    return method


def scale_output(result):
    result[0][0].mul_(1.05)


def scale_gradient(result):
    gradients = [each for each in result[0].values() if each.dim() == 2]
    gradients[0].mul_(1.1)


@pytest.mark.parametrize("build", [perceptron, branching])
@pytest.mark.parametrize(("name", "what"), [("forward", scale_output), ("backward", scale_gradient)])
def test_a_broken_kernel_is_found_before_the_weights_move(monkeypatch, build, name, what):
    expected, _, _ = losses(build, "masked")
    monkeypatch.setattr(TrainingProgram, name, broken(getattr(TrainingProgram, name), what))
    found, said, sparse = losses(build, "sparse")
    assert found == pytest.approx(expected, rel=1e-5)
    assert said
    assert len(set(said)) == len(said)
    assert all("on sparse kernels differ from torch's by" in each for each in said)
    assert all(each.rstrip(".") in str(sparse.summary()) for each in said)


def test_a_kernel_that_breaks_later_is_found_in_a_topology_round(monkeypatch):
    forward = TrainingProgram.forward

    def each_step(step):
        if step == 7:
            monkeypatch.setattr(TrainingProgram, "forward", broken(forward, scale_output))

    monkeypatch.setattr(verify, "SHARE", 1.0)
    found, said, _ = losses(perceptron, "sparse", each_step=each_step)
    expected, _, _ = losses(perceptron, "masked")
    assert found[:7] == pytest.approx(expected[:7], rel=1e-5)
    assert len(said) >= 1


def test_what_dynamo_does_not_guard_is_found_in_a_topology_round(monkeypatch):
    """It takes an environment variable for a constant."""

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = perceptron()

        def forward(self, x):
            return self.body(x) * float(os.getenv("CIGL_TEST_SCALE"))

    monkeypatch.setattr(verify, "SHARE", 1.0)

    def each_step(step):
        monkeypatch.setenv("CIGL_TEST_SCALE", "2" if step > 6 else "1")

    _, said, sparse = losses(Reads, "sparse", each_step=each_step)
    assert len(said) == 1
    assert "outputs of the model" in said[0]
    assert "run one by one" in said[0]
    assert sparse._context.kernels.sparse


@pytest.mark.parametrize("build", [perceptron, branching])
def test_a_step_that_can_not_be_compared_is_not_used(monkeypatch, build):
    def fails(*_):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(verify.Replay, "difference", fails)
    expected, _, _ = losses(build, "masked")
    found, _, sparse = losses(build, "sparse")
    assert found == pytest.approx(expected, rel=1e-5)
    is_said = "can't be compared with torch (ZeroDivisionError('on purpose')), so its layers run" in str(
        sparse.summary()
    )
    assert is_said is (build is perceptron)  # parts are compared by another net


def test_rounding_that_a_network_magnifies_is_no_difference():
    """Units without inputs: behind batch norm they are next to the zero of a ReLU."""
    for seed in range(20):
        torch.manual_seed(seed)
        model = perceptron()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with warnings.catch_warnings():
            warnings.simplefilter("error", cigl.CiglWarning)
            warnings.filterwarnings("ignore", message=".*snapshot")
            sparse = cigl.attach(
                model, optimizer, "static", sparsity=0.97, epochs=5, steps_per_epoch=20, kernels="sparse"
            )
            for _ in range(3):
                loss = F.cross_entropy(model(torch.randn(8, 12)), torch.arange(8) % 4)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        assert sparse._context.kernels.sparse
        assert not sparse._context.kernels.reasons


def test_differences_are_told_from_rounding():
    exact = [torch.tensor([1.0, 2.0]), torch.tensor([0.5])]
    unchanged = lambda rounded: [rounded(each) for each in exact]  # noqa: E731
    assert verify.beyond_rounding([each * 1.0001 for each in exact], exact, 1e-3, unchanged) == 0
    assert verify.beyond_rounding([exact[0] * 1.01, exact[1]], exact, 1e-3, unchanged) == pytest.approx(0.01, rel=1e-3)
    sensitive = lambda rounded: [exact[0] + 1e4 * (rounded(exact[0]) - exact[0]), exact[1]]  # noqa: E731
    assert verify.beyond_rounding([exact[0] * 1.01, exact[1]], exact, 1e-3, sensitive) == 0
    assert verify.beyond_rounding([exact[0], exact[1] * 1.01], exact, 1e-3, sensitive) > 0
    assert verify.beyond_rounding([None, exact[1]], exact, 1e-3, unchanged) == pytest.approx(1)
    assert verify.beyond_rounding([exact[0][:1], exact[1]], exact, 1e-3, unchanged) == float("inf")
