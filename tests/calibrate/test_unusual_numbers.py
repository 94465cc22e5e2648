"""Kinds of tensors and sizes of numbers that are rare, and must be right or refused in a sentence."""

import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

import cigl
from cigl import CiglError
from cigl.calibrate import Streaming, fit_temperature, regression_report, report

LABELS = torch.arange(50) % 3


def logits(scale=1.0, dtype=torch.float64):
    return (torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scale).to(dtype)


def stream(**given):
    one = Streaming(3)
    one.update(**given)
    return one.compute()


USES = {"report": report, "stream": stream, "temperature": fit_temperature}


# Bins


def test_the_number_of_bins_is_bounded():
    for make in (lambda n: report(logits=logits(), labels=LABELS, bins=n), lambda n: Streaming(3, bins=n)):
        with pytest.raises(CiglError, match=r"^bins is 1,000,000: give at most 1,000, usually 15; with few samples"):
            make(10**6)
    assert Streaming(3, bins=1000).bins == 1000


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory")
def test_the_most_bins_take_little_memory():
    program = """
import torch
from cigl.calibrate import report
z = torch.randn(50, 300)
r = report(logits=z, labels=z.argmax(1), bins=1000, resamples=1000)
assert r.bins == 1000 and len(r.table) == 1000
"""
    gigabytes = 4  # of addresses; all draws at once would take five
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30)),
    )
    assert result.returncode == 0, result.stderr[-500:]


def test_draws_in_blocks_are_the_same_numbers(monkeypatch):
    whole = report(logits=logits(), labels=LABELS, resamples=50)
    monkeypatch.setattr("cigl.calibrate.measures.metrics._CELLS", 200)
    parts = report(logits=logits(), labels=LABELS, resamples=50)
    np.testing.assert_allclose(parts.draws["ece_classwise_15"], whole.draws["ece_classwise_15"], rtol=1e-12)


# Kinds


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            lambda: logits().to(torch.float8_e4m3fn),
            r"^logits are float8_e4m3fn, which torch does not compute with: pass logits",
        ),
        (lambda: logits().to(torch.float8_e5m2), r"^logits are float8_e5m2"),
        (lambda: logits().to_sparse(), r"^logits are a sparse_coo tensor: pass a dense one, logits\.to_dense\(\)\.$"),
        (lambda: logits().to_sparse_csr(), r"^logits are a sparse_csr tensor"),
        (lambda: logits().to("meta"), r"^logits are on the meta device, which holds no numbers"),
        (lambda: torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)]), r"^logits are a nested tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
def test_logits_that_hold_no_plain_numbers(use, given, message):
    with pytest.raises(CiglError, match=message):
        USES[use](logits=given(), labels=LABELS)


def test_labels_and_probabilities_too():
    with pytest.raises(CiglError, match=r"^labels are on the meta device"):
        report(logits=logits(), labels=LABELS.to("meta"))
    with pytest.raises(CiglError, match=r"^labels are a sparse_coo tensor"):
        report(logits=logits(), labels=LABELS.to_sparse())
    with pytest.raises(CiglError, match=r"^probabilities are float8_e4m3fn"):
        report(probabilities=logits().softmax(1).to(torch.float8_e4m3fn), labels=LABELS)
    with pytest.raises(CiglError, match=r"^variances are a sparse_coo tensor"):
        regression_report(mean=torch.ones(3), variance=torch.ones(3).to_sparse(), targets=torch.ones(3))


def test_a_model_that_returns_such_logits():
    with pytest.raises(CiglError, match=r"^logits are on the meta device"):
        cigl.evaluate(torch.nn.Linear(4, 3, device="meta"), [(torch.zeros(5, 4, device="meta"), torch.zeros(5).long())])


# Masked arrays


def test_masked_entries_are_refused():
    z, own = logits().numpy(), LABELS.numpy()
    masked = np.ma.masked_array(z, np.zeros_like(z, dtype=bool))
    expected = report(logits=z, labels=own, resamples=5)
    assert report(logits=masked, labels=np.ma.masked_array(own), resamples=5) == expected  # nothing is masked
    masked[3, 1] = np.ma.masked
    for use in USES.values():
        with pytest.raises(CiglError, match=r"^1 entry of the logits is masked: leave out those samples, or fill them"):
            use(logits=masked, labels=own)
        with pytest.raises(CiglError, match=r"^2 entries of the labels are masked"):
            use(logits=z, labels=np.ma.masked_array(own, np.arange(50) < 2))
    with pytest.raises(CiglError, match=r"^1 entry of the logits"):
        report(logits=list(masked), labels=own)
    with pytest.raises(CiglError, match=r"^1 entry of the means"):
        regression_report(mean=masked[:, 1], variance=np.ones(50), targets=np.ones(50))


# Huge numbers


@pytest.mark.parametrize("scale", [1e150, 1e300, 1e307])
def test_huge_logits_have_a_finite_nll(scale):
    """At this scale the NLL is how far the label's logit is below the largest: it grows in proportion."""
    z = logits()
    gap = (z.amax(1) - z[torch.arange(50), LABELS]).numpy()
    r = report(logits=z * scale, labels=LABELS)
    assert np.isfinite(r.samples.nll).all()
    assert float(r.nll) == pytest.approx(gap.mean() * scale, rel=1e-12)
    assert r.nll.low < r.nll < r.nll.high < np.inf
    assert r.nll.low / scale == pytest.approx(report(logits=z * 1e10, labels=LABELS).nll.low / 1e10, rel=1e-8)
    assert "e+" in str(r)
    assert max(map(len, str(r).splitlines())) < 120


def test_nlls_beyond_float64_are_said():
    z = torch.tensor([[0.0, 0.0], [1e308, -1e308]], dtype=torch.float64)
    for use in (report, lambda **given: Streaming(2).update(**given)):
        with pytest.raises(
            CiglError, match="logits of row 1 are so far apart that the NLL is beyond what float64 holds"
        ):
            use(logits=z, labels=[0, 1])
    assert report(logits=z, labels=[0, 0], resamples=5).nll == pytest.approx(np.log(2) / 2)
    far_rows = torch.tensor([[1.5e308, 1.4e308], [-1.5e308, -1.4e308]], dtype=torch.float64)  # but no row is far apart
    assert report(logits=far_rows, labels=[1, 0], resamples=5).nll == pytest.approx(1e307)


def test_streams_of_huge_logits():
    sums = stream(logits=logits(1e300), labels=LABELS)
    assert sums["nll"] == pytest.approx(float(report(logits=logits(1e300), labels=LABELS, resamples=5).nll))
    single = torch.tensor([[3e38, -3e38]], dtype=torch.float32)  # 6e38 is beyond float32
    one = Streaming(2)
    one.update(logits=single, labels=[1])
    assert one.compute()["nll"] == pytest.approx(6e38, rel=1e-6)
    with pytest.raises(CiglError, match="sum of the NLL is beyond what float64 holds"):
        stream(logits=logits(1e307).repeat(50, 1), labels=LABELS.repeat(50))


@pytest.mark.parametrize("scale", [1e150, 1e300, 1e307])
def test_temperatures_of_huge_logits(scale):
    scale = 2.0 ** round(np.log2(scale))
    labels = torch.where(torch.arange(50) % 5 > 0, logits().argmax(1), LABELS)  # mostly right
    plain, huge = (fit_temperature(logits=logits(each), labels=labels) for each in (1.0, scale))
    assert not plain.clamped
    assert not huge.clamped
    assert huge.value / scale == pytest.approx(plain.value, rel=1e-6)
    assert huge.nll_after == pytest.approx(plain.nll_after)
    assert np.isfinite(huge.nll_before)
    hottest = fit_temperature(logits=logits(scale), labels=LABELS)  # worse than chance
    assert hottest.clamped
    assert np.isfinite([hottest.value, hottest.nll_before, hottest.nll_after]).all()
