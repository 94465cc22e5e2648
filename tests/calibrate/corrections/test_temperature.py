import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import world
from torch import nn

from cigl import CiglError
from cigl.calibrate import Temperature, TemperatureScaled, fit_temperature, report, split_and_scale


@pytest.mark.parametrize("scale", [0.01, 1, 100])
@pytest.mark.parametrize("n", [8, 1000])
def test_scaled_logits_scale_the_temperature(n, scale):
    logits, labels = world(n, 1.7, seed=2)
    one = fit_temperature(logits=logits, labels=labels)
    assert not one.clamped
    scaled = fit_temperature(logits=scale * logits, labels=labels)
    assert scaled.value == pytest.approx(scale * one.value, rel=1e-4)
    assert scaled.nll_after == pytest.approx(one.nll_after, abs=1e-9)


def test_the_fitted_temperature_is_that_of_the_world():
    logits, labels = world(50_000, 2.0)
    assert fit_temperature(logits=logits, labels=labels).value == pytest.approx(2.0, rel=0.03)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.01, 1.0, 100.0]), st.integers(2, 6), st.integers(2, 40))
def test_no_neighbour_is_better(seed, scale, classes, n):
    logits, labels = world(n, 1.5, classes, seed=seed)
    t = fit_temperature(logits=scale * logits, labels=labels)
    assert t.value > 0
    if t.clamped:
        return

    def nll(value: float) -> float:
        return float(nn.functional.cross_entropy(scale * logits / value, labels))

    assert t.nll_after == pytest.approx(nll(t.value))
    assert t.nll_after <= min(nll(t.value * 1.001), nll(t.value / 1.001), nll(1.0)) + 1e-12


@pytest.mark.parametrize("scale", [0.01, 1, 100])
@pytest.mark.parametrize("n", [1, 3, 200])
def test_where_every_label_is_right_it_is_clamped(n, scale):
    logits, _ = world(n)
    t = fit_temperature(logits=scale * logits, labels=logits.argmax(1))
    assert t.clamped
    assert 0 < t.value < 0.01 * scale
    assert np.isfinite(t.nll_after)
    assert t.nll_after <= t.nll_before


def test_labels_worse_than_chance_are_clamped_hot():
    logits, _ = world(100)
    t = fit_temperature(logits=logits, labels=logits.argmin(1))
    assert t.clamped
    assert t.value > 100
    assert t.nll_after == pytest.approx(np.log(5), abs=0.01)


def test_equal_logits():
    t = fit_temperature(logits=torch.zeros(4, 3), labels=[0, 1, 2, 0])
    assert t == Temperature(1.0, True, t.nll_before, t.nll_before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype):
    logits, labels = world(500, 1.5)
    exact = fit_temperature(logits=logits.to(dtype).double(), labels=labels).value
    assert fit_temperature(logits=logits.to(dtype), labels=labels).value == exact


def test_the_module():
    model = nn.Sequential(nn.Linear(4, 3))
    scaled = TemperatureScaled(model, Temperature(2.0, False, 1.0, 0.9))
    x = torch.randn(5, 4)
    assert torch.equal(scaled(x), model(x) / 2)
    assert scaled.half()(x.half()).dtype == torch.float16
    other = TemperatureScaled(nn.Sequential(nn.Linear(4, 3)), 1.0)
    other.load_state_dict(scaled.state_dict())
    assert other.temperature == 2
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(CiglError, match="positive and finite"):
            TemperatureScaled(model, bad)


def test_never_scored_on_what_it_was_fitted_on():
    logits, labels = world(1000, 3.0)
    held_out = split_and_scale(logits=logits, labels=labels, share=0.3)
    assert (held_out.fitted_on, held_out.before.n, held_out.after.n) == (300, 700, 700)
    assert held_out.after.nll < held_out.before.nll
    assert held_out.after.accuracy == held_out.before.accuracy
    assert "fitted on 300 samples, scored on 700 others" in str(held_out)
    # the scored samples alone, in their order, make the report
    chosen = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[300:].sort().values
    assert held_out.before == report(logits=logits[chosen], labels=labels[chosen])
    with pytest.raises(CiglError, match="leaves one part empty"):
        split_and_scale(logits=logits, labels=labels, share=1.0)


def test_bad_input():
    with pytest.raises(CiglError, match="NaN or infinity"):
        fit_temperature(logits=[[float("nan"), 0.0]], labels=[0])
    with pytest.raises(CiglError, match="no samples"):
        fit_temperature(logits=np.zeros((0, 2)), labels=np.zeros(0, int))
    with pytest.raises(CiglError, match=r"fitted on logits.*p\.log"):
        fit_temperature(logits=None, labels=[0])
    with pytest.raises(CiglError, match="a label's logit is -inf"):
        fit_temperature(logits=[[0.0, -float("inf")]], labels=[1])


@pytest.mark.parametrize("mask", [-1e4, -65504.0, -1e9, -float("inf")])
def test_a_masked_class_changes_nothing(mask):
    logits, labels = world(1000, 1.7)
    expected = fit_temperature(logits=logits, labels=labels)
    masked = torch.cat([logits, torch.full((1000, 2), mask, dtype=torch.float64)], 1)
    shown = fit_temperature(logits=masked, labels=labels)
    assert shown.value == pytest.approx(expected.value, rel=1e-6)
    assert not shown.clamped
    assert shown.nll_after == pytest.approx(expected.nll_after)


def test_a_wild_row_changes_nothing():
    logits, labels = world(1000, 1.7)
    expected = fit_temperature(logits=logits[1:], labels=labels[1:])
    logits[0] *= 1e6
    labels[0] = logits[0].argmax()
    shown = fit_temperature(logits=logits, labels=labels)
    assert shown.value == pytest.approx(expected.value, rel=1e-3)
    assert shown.nll_after <= shown.nll_before
    assert not shown.clamped


def test_clamped_is_decided_exactly():
    """Ties with the label count as right; one label that is a hair behind makes a finite temperature best."""
    assert fit_temperature(logits=[[1.0, 1.0, 0.0], [3.0, 0.0, 0.0]], labels=[0, 0]).clamped
    t = fit_temperature(logits=np.array([[1.0, 1.0 + 1e-12]] + [[1.0, 0.0]] * 9), labels=[0] * 10)
    assert not t.clamped
    assert t.nll_after <= t.nll_before
    for scale in (1e-6, 1e6):
        logits, _ = world(50)
        for labels in (logits.argmax(1), logits.argmin(1)):
            t = fit_temperature(logits=scale * logits, labels=labels)
            assert t.clamped
            assert t.nll_after <= t.nll_before


def test_small_temperatures_in_half_precision():
    model = TemperatureScaled(nn.Identity(), 1e-6)
    assert torch.isfinite(model(torch.tensor([[1e-4, 0.0]]).half())).all()
    with pytest.raises(CiglError, match="in float32"):
        TemperatureScaled(nn.Identity(), 1e-50)


def test_a_share_that_is_none():
    logits, labels = world(20)
    for share in (float("nan"), 0, 1.5, -1):
        with pytest.raises(CiglError, match="leaves one part empty"):
            split_and_scale(logits=logits, labels=labels, share=share)
