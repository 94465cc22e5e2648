"""A report in words and percent."""

import pytest
import torch

from cigl.calibrate.registry import METRICS
from cigl.calibrate.reports.classification import report


def two_classes(confidence, right, n=2000):
    """A model that is always as confident, and right in a share of cases."""
    hits = round(right * n)
    return report(probabilities=[[confidence, 1 - confidence]] * n, labels=[0] * hits + [1] * (n - hits), resamples=100)


def test_over_and_under_confidence():
    assert two_classes(0.9, 0.7).verdict == (
        "Right in 70.0 % of cases, 20.0 points over-confident. Calibration error (ECE) 20.0 %; a perfectly calibrated "
        "model would show 0.5 % here."
    )
    assert "Right in 95.0 % of cases, 25.0 points under-confident. " in two_classes(0.7, 0.95).verdict


def test_what_can_be_noise_is_not_called_an_error():
    assert "; no miscalibration found with 2,000 samples. " in two_classes(0.8, 0.805).verdict


def test_errors_that_cancel_are_named():
    probabilities = [[0.9, 0.1]] * 1000 + [[0.6, 0.4]] * 1000
    labels = [0] * 750 + [1] * 250 + [0] * 750 + [1] * 250  # 15 points too confident, and 15 points too little
    found = report(probabilities=probabilities, labels=labels, resamples=100)
    assert "over-confident on some inputs and under-confident on others" in found.verdict


def test_few_samples_are_not_judged():
    assert "12 samples are too few" in two_classes(0.75, 0.75, n=12).verdict


def test_shares_are_printed_in_percent_and_kept_as_fractions():
    found = two_classes(0.9, 0.7)
    rows = {line.split()[0]: line for line in str(found).splitlines()[4:]}
    assert rows["accuracy"].split()[1:3] == ["70.00", "%"]
    assert rows["ece_15"].count("%") == 4
    assert "%" not in rows["nll"]
    assert found.to_dict()["metrics"]["accuracy"]["value"] == pytest.approx(0.7)


def test_every_metric_is_explained():
    logits = torch.randn(100, 7, generator=torch.Generator().manual_seed(0))
    found = report(logits=logits, labels=logits.argmax(1), resamples=5)
    text = found.explain()
    for name in found.metrics:
        assert f"  {name} " in text
    assert all(each.about for each in METRICS.values())
    assert max(map(len, text.splitlines())) <= 80


def test_repr_is_one_line():
    text = repr(two_classes(0.9, 0.7))
    assert text.startswith("<Report on 2,000 samples, 2 classes: accuracy 70.00 %, nll ")
    assert "\n" not in text
