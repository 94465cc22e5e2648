"""Do intervals cover, and is the floor what noise makes? Measured where the truth is known."""

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
    assert share["ece_15"] >= 0.85, share  # see intervals.calibration_interval


@pytest.mark.slow
@pytest.mark.parametrize("n", [1000, 5000])
@pytest.mark.parametrize("temperature", [1.0, 1.05, 1.15, 1.3, 2.0])
def test_coverage_of_the_calibration_error(n, temperature):
    share = covered(n, temperature, resamples=1000)
    print(f"n={n} temperature={temperature} ece={truth(temperature)['ece_15']:.4f} {share}")
    for name in ("nll", "brier", "accuracy", "gap"):
        assert 0.92 <= share[name] <= 0.98, share
    assert share["ece_15"] >= 0.85, share


@pytest.mark.parametrize(("n", "classes"), [(300, 2), (1000, 5), (4000, 20)])
def test_the_noise_floor_is_the_mean_of_a_calibrated_model(n, classes):
    """Labels drawn again and again from the model's own probabilities, measured by the report itself."""
    logits, _ = world(n, classes=classes)
    probabilities = logits.softmax(1)
    floors, seen = None, []
    random = np.random.default_rng(1)
    cumulative = probabilities.numpy().cumsum(1)
    for _ in range(300):
        labels = (cumulative < random.random((n, 1))).sum(1).clip(max=classes - 1)
        one = report(probabilities=probabilities, labels=labels, resamples=2)
        names = [name for name, e in one.metrics.items() if e.floor is not None]
        floors = {name: one.metrics[name].floor for name in names}
        seen.append([one.metrics[name] for name in names])
    for name, mean in zip(floors, np.mean(seen, axis=0), strict=True):
        assert floors[name] == pytest.approx(mean, rel=0.05), name
    assert {"ece_15", "ece_10", "ece_mass_15", "ece_classwise_15"} <= floors.keys()


@pytest.mark.parametrize(("n", "expected"), [(1000, 0.018), (10_000, 0.006)])
def test_the_issues_figures(n, expected):
    """A perfectly calibrated model with the confidences of a good one shows that much at 15 bins."""
    logits, labels = world(n, classes=10, scale=6.0)
    assert report(logits=logits, labels=labels, resamples=2).ece_15.floor == pytest.approx(expected, rel=0.35)
