import json

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from cigl import CiglError
from cigl.calibrate import evaluate_regression, precision, regression_report, weight_decay


def test_against_scipy():
    g = torch.Generator().manual_seed(0)
    mean, variance = torch.randn(500, generator=g), 0.5 + torch.rand(500, generator=g)
    targets = mean + 1.3 * torch.randn(500, generator=g)
    r = regression_report(mean=mean, variance=variance, targets=targets)
    normal = stats.norm(mean.double(), variance.double().sqrt())
    assert r.nll == pytest.approx(-normal.logpdf(targets.double()).mean(), abs=1e-9)
    assert r.rmse == pytest.approx(float((mean - targets).square().mean().sqrt()), rel=1e-6)
    for level, share in r.coverage.items():
        low, high = normal.interval(level)
        assert share == pytest.approx(((targets.numpy() >= low) & (targets.numpy() <= high)).mean())
    for level, share in r.curve:
        assert share == pytest.approx((normal.cdf(targets.double()) <= level).mean())
    json.dumps(r.to_dict(), allow_nan=False)
    assert "coverage of 95 %" in str(r)


def test_calibrated_predictions_cover_as_they_say():
    g = torch.Generator().manual_seed(1)
    deviation = 0.1 + torch.rand(20_000, 2, generator=g)
    r = regression_report(
        mean=torch.zeros(20_000, 2),
        variance=deviation.square(),
        targets=deviation * torch.randn(20_000, 2, generator=g),
    )
    for level, share in r.coverage.items():
        assert share.low - 0.005 < level < share.high + 0.005
    assert r.calibration_error < 0.01
    narrow = regression_report(
        mean=torch.zeros(500), variance=torch.full((500,), 0.25), targets=torch.randn(500, generator=g)
    )
    assert narrow.coverage[0.9] < 0.8


def test_members_mean_and_spread():
    members = [nn.Linear(3, 1) for _ in range(7)]
    x, y = torch.randn(50, 3), torch.randn(50)  # targets without the last dimension
    r = evaluate_regression(members, [(x[:20], y[:20]), (x[20:], y[20:])], noise_precision=4.0)
    outputs = torch.stack([member(x).detach().squeeze(1) for member in members]).double()
    expected = regression_report(mean=outputs.mean(0), variance=outputs.var(0, correction=0) + 0.25, targets=y)
    assert r.nll == pytest.approx(expected.nll)
    assert r.coverage == expected.coverage


def test_weight_decay_and_precision_are_inverse():
    decay = weight_decay(precision=3.0, keep_probability=0.8, samples=500)
    assert decay == pytest.approx(2 * 0.8 / (2 * 3.0 * 500))  # torch's is twice lambda = p / (2 tau N)
    assert precision(decay, 0.8, 500) == pytest.approx(3.0)


def test_weight_decay_finds_the_posterior_mode():
    """A linear model with prior N(0, 1), noise precision tau and p = 1: SGD with that decay ends at the exact mean."""
    g = torch.Generator().manual_seed(0)
    tau, n = 2.0, 40
    x = torch.randn(n, 3, generator=g, dtype=torch.float64)
    y = (
        x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
        + torch.randn(n, generator=g, dtype=torch.float64) / tau**0.5
    )
    exact = torch.linalg.solve(tau * x.T @ x + torch.eye(3, dtype=torch.float64), tau * x.T @ y)
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.3, weight_decay=weight_decay(tau, 1.0, n))
    for _ in range(500):
        optimizer.zero_grad()
        ((y - x @ w).square().sum() / (2 * n)).backward()
        optimizer.step()
    assert torch.allclose(w.detach(), exact, atol=1e-8)


def test_weight_decay_of_a_masked_weight_is_p():
    """KL(q || prior) of a weight kept with probability p has p/2 u^2 (the appendix's Proposition): E |Z u|^2 / 2."""
    p, u, n, tau = 0.7, 1.3, 10, 5.0
    z = np.random.default_rng(0).random(1_000_000) < p
    per_sample = np.mean((z * u) ** 2) / 2 / (tau * n)
    assert per_sample == pytest.approx(weight_decay(tau, p, n) / 2 * u**2, rel=0.01)


def test_refusals():
    one = torch.ones(3)
    for call, message in [
        (lambda: regression_report(mean=one, variance=one, targets=torch.ones(2)), "must have one shape"),
        (lambda: regression_report(mean=one, variance=0 * one, targets=one), "variances positive"),
        (lambda: regression_report(mean=one, variance=one, targets=one * torch.nan), "must be finite"),
        (lambda: regression_report(mean=one[:0], variance=one[:0], targets=one[:0]), "at least one sample"),
        (lambda: weight_decay(0.0, 0.5, 10), "precision is 0.0"),
        (lambda: weight_decay(1.0, 1.5, 10), "at most 1"),
        (lambda: evaluate_regression([], [], noise_precision=1.0), "at least one model"),
        (lambda: evaluate_regression([nn.Linear(1, 1)], [], noise_precision=1.0), "no batch"),
        (lambda: evaluate_regression([nn.Linear(1, 1)], [], noise_precision=0.0), "noise_precision is 0.0"),
    ]:
        with pytest.raises(CiglError, match=message):
            call()


def test_shapes_members_and_resamples_are_checked():
    x, model = torch.randn(16, 4), nn.Linear(4, 2)
    with pytest.raises(CiglError, match=r"outputs are \(16, 2\) and the targets \(2, 16\)"):
        evaluate_regression([model], [(x, torch.randn(2, 16))], noise_precision=1.0)
    with pytest.raises(CiglError, match="at least one model"):
        evaluate_regression((m for m in []), [(x, x)], noise_precision=1.0)
    assert evaluate_regression((nn.Linear(4, 1) for _ in range(2)), [(x, x[:, 0])], noise_precision=1.0).n == 16
    for bad in (0, 1.5, True):
        with pytest.raises(CiglError, match="resamples is"):
            regression_report(mean=[0.0], variance=[1.0], targets=[0.0], resamples=bad)
