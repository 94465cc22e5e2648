"""Our numbers against other people's code."""

import calibration as verified  # the code of Kumar, Liang & Ma 2019
import netcal.metrics
import numpy as np
import pytest
import relplot
import torch
from scipy import stats
from simulate import world
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, top_k_accuracy_score
from torchmetrics.functional.classification import multiclass_calibration_error

from cigl.calibrate import Report, fit_temperature, report
from cigl.calibrate.measures.intervals import beta_quantile, clopper_pearson

CASES = [(2, 1.0), (5, 1.5), (10, 0.6), (100, 2.0)]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-classes")
def case(request: pytest.FixtureRequest) -> tuple[Report, np.ndarray, np.ndarray]:
    classes, temperature = request.param
    logits, labels = world(3000, temperature, classes)
    return report(logits=logits, labels=labels, resamples=20), logits.softmax(1).numpy(), labels.numpy()


def test_scikit_learn(case):
    ours, p, labels = case
    assert ours.accuracy == pytest.approx(accuracy_score(labels, p.argmax(1)), abs=1e-12)
    assert ours.nll == pytest.approx(log_loss(labels, p, labels=range(p.shape[1])), abs=1e-10)
    theirs = brier_score_loss(labels, p, labels=list(range(p.shape[1])), scale_by_half=False)
    assert ours.brier == pytest.approx(theirs, abs=1e-10)
    if p.shape[1] > 5:
        assert ours.top5 == pytest.approx(top_k_accuracy_score(labels, p, k=5, labels=range(p.shape[1])), abs=1e-12)
    else:
        assert "top5" not in ours.metrics


@pytest.mark.parametrize("bins", [10, 15])
def test_netcal(case, bins):
    ours, p, labels = case
    given = (p.max(1), (p.argmax(1) == labels).astype(int))
    assert getattr(ours, f"ece_{bins}") == pytest.approx(netcal.metrics.ECE(bins).measure(*given), abs=1e-10)
    if bins == 15:
        assert ours.mce_15 == pytest.approx(netcal.metrics.MCE(bins).measure(*given), abs=1e-10)
        mass = netcal.metrics.ECE(bins, equal_intervals=False).measure(*given)
        assert ours.ece_mass_15 == pytest.approx(mass, abs=1e-10)


def test_netcal_classwise(case):
    ours, p, labels = case
    each = [netcal.metrics.ECE(15).measure(p[:, c], (labels == c).astype(int)) for c in range(p.shape[1])]
    assert ours.ece_classwise == pytest.approx(np.mean(each), abs=1e-10)


def test_torchmetrics(case):
    ours, p, labels = case
    keep = p.max(1) < 1  # where confidence is 1.0, torchmetrics adds a bin
    assert keep.all()
    for norm, name in (("l1", "ece_15"), ("max", "mce_15")):
        theirs = multiclass_calibration_error(torch.tensor(p), torch.tensor(labels), p.shape[1], 15, norm)
        assert getattr(ours, name) == pytest.approx(float(theirs), abs=1e-6)  # it sums in float32


def test_verified_calibration(case):
    ours, p, labels = case
    theirs = verified.lower_bound_scaling_ce(
        p, labels, p=2, debias=True, num_bins=15, binning_scheme=verified.get_equal_prob_bins, mode="top-label"
    )
    assert ours.l2_debiased == pytest.approx(theirs, abs=1e-8)
    assert ours.ece_15 == pytest.approx(verified.get_ece(p, labels, num_bins=15), abs=1e-10)


def test_relplot(case):
    ours, p, labels = case
    theirs = relplot.smECE(*relplot.multiclass_logits_to_confidences(p, labels, probs=True))
    assert ours.smooth_ece() == pytest.approx(theirs, abs=1e-12)


def test_risk_coverage_by_definition(case):
    ours, p, labels = case
    wrong = (p.argmax(1) != labels)[np.argsort(-p.max(1))]
    risk = np.cumsum(wrong) / np.arange(1, len(wrong) + 1)
    assert ours.aurc == pytest.approx(risk.mean(), abs=1e-12)


def test_clopper_pearson_against_scipy():
    counts = np.array([1, 1, 2, 10, 10, 10, 100, 1000, 10_000, 1_000_000, 1_000_000])
    hits = np.array([0, 1, 1, 0, 3, 10, 99, 1, 5000, 3, 700_000])
    low, high = clopper_pearson(hits, counts)
    for k, n, a, b in zip(hits, counts, low, high, strict=True):
        exact = stats.binomtest(int(k), int(n)).proportion_ci(0.95, "exact")
        assert (a, b) == pytest.approx((exact.low, exact.high), abs=1e-9)
    assert [float(end[0]) for end in clopper_pearson(np.array([0]), np.array([0]))] == [0, 1]


def test_beta_quantile_against_scipy():
    a, b = (side.ravel() for side in np.meshgrid([1.0, 2.0, 17.0, 500.0, 1e5], [1.0, 3.0, 40.0, 2e4]))
    for q in (0.001, 0.025, 0.5, 0.975):
        assert beta_quantile(np.array(q), a, b) == pytest.approx(stats.beta.ppf(q, a, b), rel=1e-7, abs=1e-12)


def test_temperature_against_scipy():
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    logits, labels = world(500, 2.5, 4)

    def nll(t: float) -> float:
        return -log_softmax(logits.numpy() / t, axis=1)[np.arange(500), labels.numpy()].mean()

    best = minimize_scalar(nll, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-9}).x
    assert fit_temperature(logits=logits, labels=labels).value == pytest.approx(best, rel=1e-5)
