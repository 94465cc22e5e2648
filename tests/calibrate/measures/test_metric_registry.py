"""A metric is known in one place."""

import re

import numpy as np
import pytest
import torch

from cigl import CiglError
from cigl.calibrate import Report, Streaming, report
from cigl.calibrate.measures.metrics import Measure
from cigl.calibrate.registry import METRICS, MeanOf, Metric, OverBins, OverSamples, family, metric, register
from cigl.calibrate.reports.comparison import compare


@pytest.fixture
def _as_it_was():
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)


def predictions(scale, seed=0, n=200):
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 4, generator=random) * 2
    labels = torch.where(torch.rand(n, generator=random) < 0.7, logits.argmax(1), 0)
    return {"logits": logits * scale, "labels": labels}


def test_what_a_report_lists_is_what_is_registered():
    listed = list(report(**predictions(1)).metrics)
    assert listed == [
        "accuracy", "nll", "brier", "gap", "ece_15", "ece_10", "ece_mass_15", "ece_classwise_15", "mce_15",
        "l2_debiased_15", "aurc",
    ]  # fmt: skip
    assert {metric(name).name for name in listed} == set(listed)


def test_a_family_is_one_entry():
    assert (metric("ece_10").title, metric("ece_10").bins, metric("ece_10").name) == ("ECE", 10, "ece_10")
    assert metric("ece_mass_15") is METRICS["ece_mass_15"]
    assert family(metric("l2_debiased_20")) == "l2_debiased"
    assert metric("mce_7").floor == "drawn"
    for name in ("ece", "ece_", "ece_x", "accuracy_15", "acuracy"):
        with pytest.raises(CiglError, match=f"unknown metric '{name}'"):
            metric(name)


def test_what_studies_show():
    shown = {name: each for name, each in METRICS.items() if each.in_studies}
    assert list(shown) == ["accuracy", "nll", "brier", "gap", "ece_15"]
    assert not metric("ece_10").in_studies
    accuracy = shown["accuracy"]
    assert (accuracy.unit, accuracy.scale, accuracy.decimals, accuracy.better) == ("%", 100, 2, "higher")
    assert {name: each.better for name, each in METRICS.items() if each.better != "lower"} == {
        "accuracy": "higher", "top5": "higher", "gap": "zero",
    }  # fmt: skip


@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize("wrong", [lambda given: given.probabilities, lambda given: given.samples.nll + np.inf])
def test_a_column_that_is_none(wrong):
    register(Metric("wrong", "Wrong", MeanOf(wrong)))
    with pytest.raises(CiglError, match="metric 'wrong' must be computed as one finite number per sample"):
        report(**predictions(1))


def entropy(given):
    p = given.probabilities
    return -(p * np.log(np.maximum(p, 1e-300))).sum(1)


@pytest.mark.usefixtures("_as_it_was")
def test_a_new_metric_is_everywhere_at_once(tmp_path):
    before = report(**predictions(1))
    register(Metric("entropy", "Entropy", MeanOf(entropy), unit="nats", decimals=3, in_studies=True))
    sharp, flat = report(**predictions(1)), report(**predictions(0.5))
    p = predictions(1)["logits"].double().softmax(1)
    assert sharp.entropy == pytest.approx(float(-(p * p.log()).sum(1).mean()), abs=1e-12)
    assert sharp.entropy.low < sharp.entropy < sharp.entropy.high
    assert sharp.entropy.floor is None
    assert {name: float(e) for name, e in sharp.metrics.items() if name != "entropy"} == pytest.approx(before.metrics)
    assert re.search(rf"^entropy +{sharp.entropy:.4f} ", str(sharp), re.MULTILINE)
    assert "entropy" in dir(sharp)
    difference = compare(sharp, flat)
    assert difference["entropy"].better == "a"
    assert "\nentropy " in str(difference)
    sharp.to_json(tmp_path / "r.json")
    again = Report.from_json(tmp_path / "r.json")
    assert again == sharp
    assert again.entropy.high == sharp.entropy.high
    stream = Streaming(4)
    stream.update(**predictions(1))
    assert "entropy" not in stream.compute()  # which keeps no such sum


@pytest.mark.usefixtures("_as_it_was")
def test_a_new_error_over_bins_has_a_floor_and_streams():
    def root_mean_square(bins):
        share = np.maximum(bins.counts, 1)
        return np.sqrt((bins.counts * (bins.gaps / share) ** 2).sum(-1) / bins.n)

    ece = METRICS["ece_15"]
    register(Metric("rmsce_15", "RMSCE", OverBins(root_mean_square), bins=15, interval=ece.interval, biased=True,
                    floor="drawn", streamed=root_mean_square))  # fmt: skip
    given = predictions(3, n=1000)
    found = report(**given, bins=10)
    assert "rmsce_10" in found.metrics
    assert "rmsce_15" not in found.metrics
    assert found.rmsce >= found.ece  # by Jensen's inequality
    assert 0 < found.rmsce.floor < found.rmsce
    assert found.rmsce.low > 0
    stream = Streaming(4, bins=10)
    stream.update(**given)
    assert stream.compute()["rmsce_10"] == pytest.approx(float(found.rmsce), abs=1e-6)


@pytest.mark.usefixtures("_as_it_was")
def test_a_new_metric_over_all_samples():
    class Spread(Measure):
        """The weighted standard deviation of confidence."""

        def __init__(self, given, bins):
            self.confidence = given.samples.confidence

        def __call__(self, weights):
            n = weights.exact.sum(1)
            mean = weights.exact @ self.confidence / n
            return np.sqrt(np.maximum(weights.exact @ self.confidence**2 / n - mean**2, 0))

    register(Metric("spread", "Spread of confidence", OverSamples(Spread), better="zero"))
    found = report(**predictions(1))
    assert found.spread == pytest.approx(found.samples.confidence.std(), abs=1e-9)
    assert compare(found, report(**predictions(0.1)))["spread"].better == ""


@pytest.mark.usefixtures("_as_it_was")
def test_names_that_are_taken_or_can_be_no_attribute():
    for name, message in (("nll", "already"), ("ece_15", "already"), ("my metric", "can't name a metric")):
        with pytest.raises(CiglError, match=message):
            register(Metric(name, "", MeanOf(entropy), bins=15 if name == "ece_15" else None))
