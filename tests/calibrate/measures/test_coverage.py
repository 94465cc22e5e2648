"""Do intervals cover, and is the floor what noise makes? Measured where the truth is known."""

import sys

import numpy as np
import pytest
from simulate import truth, world

from cigl.calibrate import report

DRAWS = 500


def covered(n: int, temperature: float, draws: int = DRAWS, resamples: int = 300) -> dict[str, float]:
    true = truth(temperature)
    inside = dict.fromkeys(true, 0)
    for seed in range(draws):
        logits, labels = world(n, temperature, seed=seed)
        shown = report(logits=logits, labels=labels, resamples=resamples)
        for name, value in true.items():
            inside[name] += shown.metrics[name].low <= value <= shown.metrics[name].high
    return {name: count / draws for name, count in inside.items()}


def test_intervals_cover():
    share = covered(n=500, temperature=1.3)
    for name in ("nll", "brier", "accuracy", "gap"):
        assert 0.92 <= share[name] <= 0.98, share
    assert 0.92 <= share["ece_15"] <= 0.98, share  # see intervals.calibration_interval


@pytest.mark.slow
@pytest.mark.parametrize("n", [1000, 5000])
@pytest.mark.parametrize("temperature", [1.0, 1.05, 1.15, 1.3, 2.0])
def test_coverage_of_the_calibration_error(n, temperature):
    share = covered(n, temperature, resamples=1000)
    print(f"n={n} temperature={temperature} ece={truth(temperature)['ece_15']:.4f} {share}")
    for name in ("nll", "brier", "accuracy", "gap"):
        assert 0.92 <= share[name] <= 0.98, share
    assert 0.92 <= share["ece_15"] <= 0.99, share


@pytest.mark.parametrize(("n", "classes"), [(300, 2), (1000, 5), (3000, 20)])
def test_the_noise_floor_is_the_mean_of_a_calibrated_model(n, classes, monkeypatch):
    """Labels drawn again and again from the model's own probabilities, measured by the report itself."""
    logits, labels = world(n, classes=classes)
    probabilities = logits.softmax(1)
    shown = report(probabilities=probabilities, labels=labels, resamples=2)
    floors = {name: e.floor for name, e in shown.metrics.items() if e.floor is not None}
    assert {"ece_15", "ece_10", "ece_mass_15", "ece_classwise_15"} <= floors.keys()
    monkeypatch.setattr(sys.modules["cigl.calibrate.reports.classification"], "NULL_DRAWS", 2)  # not needed again
    random = np.random.default_rng(1)
    cumulative = probabilities.numpy().cumsum(1)
    seen = []
    for _ in range(400):
        drawn = (cumulative < random.random((n, 1))).sum(1).clip(max=classes - 1)
        one = report(probabilities=probabilities, labels=drawn, resamples=2)
        seen.append([one.metrics[name] for name in floors])
    for (name, floor), mean in zip(floors.items(), np.mean(seen, axis=0), strict=True):
        # the maximum is made by bins of one or two samples, and varies most
        assert floor == pytest.approx(mean, rel=0.1 if name.startswith("mce") else 0.05), name


@pytest.mark.parametrize(("n", "expected"), [(1000, 0.018), (10_000, 0.006)])
def test_what_a_perfectly_calibrated_model_of_92_percent_shows(n, expected):
    logits, labels = world(n, classes=10, scale=14.0)
    assert report(logits=logits, labels=labels, resamples=2).ece_15.floor == pytest.approx(expected, abs=0.001)


@pytest.mark.parametrize("confident", [20, 200])
def test_the_floor_of_a_confident_model(confident):
    random = np.random.default_rng(confident)
    top = random.beta(confident, 1, 1000)
    p = np.column_stack([top, *[(1 - top) / 4] * 4])
    floor = report(probabilities=p, labels=np.zeros(1000, int), resamples=2).ece_15.floor
    edges = np.searchsorted(np.arange(1, 15) / 15, top)
    members = np.eye(15)[edges]
    seen = [np.abs((top - (random.random((500, 1000)) < top)) @ members).sum(1).mean() / 1000 for _ in range(20)]
    assert floor == pytest.approx(np.mean(seen), rel=0.03)


def test_the_classwise_interval_covers():
    z, _ = world(200_000, seed=10_000)
    q, p = z.softmax(1).numpy(), (z / 0.8).softmax(1).numpy()
    cells = np.searchsorted(np.arange(1, 15) / 15, p) + 15 * np.arange(5)
    true = np.abs(np.bincount(cells.ravel(), (p - q).ravel())).sum() / len(z) / 5
    inside, draws = 0, 60
    for seed in range(draws):
        logits, labels = world(400, seed=seed)
        e = report(logits=logits / 0.8, labels=labels, resamples=100).ece_classwise
        inside += e.low <= true <= e.high
    assert inside / draws >= 0.9
