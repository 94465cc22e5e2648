import numpy as np
import pytest
import torch
from simulate import world

import cigl
from cigl import CiglError
from cigl.calibrate import Report, report
from cigl.calibrate.measures.bins import bin_of, width_edges


@pytest.fixture(scope="module")
def pair():
    logits, labels = world(1500, 1.0)
    return report(logits=logits, labels=labels), report(logits=1.6 * logits, labels=labels)


def test_differences(pair):
    good, bad = pair
    compared = cigl.compare(good, bad)
    assert set(compared.differences) == set(good.metrics)
    for name, row in compared.differences.items():
        assert row.difference == pytest.approx(good.metrics[name] - bad.metrics[name])
        assert row.low <= row.high
        assert 0 <= row.wrong_sign <= 1
    assert compared["nll"].better == "a"
    assert compared["ece_15"].better == "a"
    assert compared["nll"].wrong_sign < 0.01
    assert compared["accuracy"].difference == 0
    assert compared["accuracy"].wrong_sign == 0.5
    assert compared["accuracy"].better == ""
    assert compared["gap"].better == ""
    back = cigl.compare(bad, good)
    assert back["nll"].better == "b"
    assert back["nll"].low == pytest.approx(-compared["nll"].high)
    assert len(str(compared).splitlines()) == 2 + len(good.metrics)
    assert compared.to_dict()["differences"]["nll"]["a"] == good.nll


def test_it_is_paired():
    """The difference of two scores on the same points varies less than the two scores do."""
    logits, labels = world(1000)
    a = report(logits=logits, labels=labels)
    b = report(logits=1.05 * logits, labels=labels)
    row = cigl.compare(a, b)["nll"]
    assert row.high - row.low < (a.nll.high - a.nll.low) / 5
    own = np.std(a.samples.nll - b.samples.nll) / np.sqrt(1000)  # of a mean of paired differences
    assert row.high - row.low == pytest.approx(2 * 1.96 * own, rel=0.1)


def test_after_loading(pair, tmp_path):
    expected = cigl.compare(*pair)
    for name, one in zip("ab", pair, strict=True):
        one.to_json(tmp_path / f"{name}.json")
    loaded = [Report.from_json(tmp_path / f"{name}.json") for name in "ab"]
    assert cigl.compare(*loaded) == expected


def test_the_interval_of_a_difference_covers():
    many, _ = world(500_000, seed=10_000)
    p = many.softmax(1)
    true = float((p * ((1.2 * many).log_softmax(1) - p.log())).sum(1).mean())  # a - b, in expectation over labels
    inside, draws = 0, 100
    for seed in range(draws):
        logits, labels = world(300, seed=seed)
        a = report(logits=logits, labels=labels, resamples=200)
        b = report(logits=1.2 * logits, labels=labels, resamples=200)
        row = cigl.compare(a, b)["nll"]
        inside += row.low <= true <= row.high
    assert 0.88 <= inside / draws <= 0.99


def test_refusals(pair):
    a, _ = pair
    logits, labels = world(1500, seed=1)
    with pytest.raises(CiglError, match=r"different test sets .* on the same loader, without shuffling"):
        cigl.compare(a, report(logits=logits, labels=labels))
    logits, labels = world(1500)
    with pytest.raises(CiglError, match="different test sets"):
        cigl.compare(a, report(logits=logits[:100], labels=labels[:100]))
    with pytest.raises(CiglError, match="1000 and 50 resamples"):
        cigl.compare(a, report(logits=logits, labels=labels, resamples=50))
    with pytest.raises(CiglError, match="two reports, not float"):
        cigl.compare(a, 1.0)


def test_reports_with_other_bins_share_what_they_share(pair):
    a, _ = pair
    logits, labels = world(1500)
    names = set(cigl.compare(a, report(logits=logits, labels=labels, bins=20)).differences)
    assert "ece_15" in names
    assert "ece_20" not in names
    assert "mce_20" not in names


def test_a_difference_never_contradicts_its_interval():
    """A calibrated model against one of constant confidence: the case where reflected draws did."""
    for seed in range(8):
        logits, labels = world(300, classes=10, seed=seed)
        a = report(logits=logits, labels=labels, resamples=100)
        p = torch.full((300, 10), (1 - 0.6) / 9, dtype=torch.float64)
        p[torch.arange(300), logits.argmax(1)] = 0.6
        for row in cigl.compare(a, report(probabilities=p, labels=labels, resamples=100)).differences.values():
            assert row.low <= row.difference <= row.high
            assert row.better == "" or row.low > 0 or row.high < 0
            assert row.better == "" or row.wrong_sign < 0.05


@pytest.mark.parametrize("temperatures", [(1.0, 0.7), (0.9, 1.1)])
def test_the_interval_of_a_calibration_difference_covers(temperatures):
    def true(temperature):  # labels of softmax(z), predictions of softmax(z / temperature)
        z, _ = world(200_000, seed=10_000)
        q, (confidence, predicted) = z.softmax(1), (z / temperature).softmax(1).max(1)
        right = q.gather(1, predicted[:, None]).squeeze(1)
        gaps = np.bincount(bin_of(confidence, width_edges(15)).numpy(), (confidence - right).numpy(), 15)
        return np.abs(gaps).sum() / len(z)

    one, two = temperatures
    expected, inside, draws = true(one) - true(two), 0, 60
    for seed in range(draws):
        logits, labels = world(400, seed=seed)
        a, b = (report(logits=logits / t, labels=labels, resamples=100) for t in temperatures)
        row = cigl.compare(a, b)["ece"]
        inside += row.low <= expected <= row.high
    assert inside / draws >= 0.87


def test_names_without_their_bins(pair):
    compared = cigl.compare(*pair)
    assert compared["ece"] == compared["ece_15"]
    with pytest.raises(CiglError, match="did you mean 'nll'"):
        _ = compared["nl"]
