"""Hand-computed cases for every edge of a bin."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cigl import CiglError
from cigl.calibrate import report
from cigl.calibrate.measures.bins import bin_of, mass_edges, width_edges
from cigl.calibrate.measures.samples import measure_rows


def binary(confidences, right, dtype=torch.float64):
    """Class 0 is predicted with each confidence (of at least 0.5); the label is 0 where it is right."""
    p = torch.tensor(confidences, dtype=dtype)
    labels = torch.tensor([0 if r else 1 for r in right])
    return report(probabilities=torch.stack([p, 1 - p], 1), labels=labels, bins=10, resamples=20)


def filled(r):
    return {k: row.count for k, row in enumerate(r.table) if row.count}


@pytest.mark.filterwarnings("ignore:.*probability 0")
def test_confidence_one_is_in_the_last_bin():
    r = binary([1.0, 1.0, 0.95], [True, False, True])
    assert filled(r) == {9: 3}
    assert r.ece == pytest.approx(2.95 / 3 - 2 / 3)
    assert r.mce == r.ece


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_confidence_on_an_edge_is_in_the_bin_below(dtype):
    for k in range(5, 10):
        assert filled(binary([k / 10], [True], dtype)) == {k - 1: 1}, k
    for k in range(1, 10):
        assert bin_of(torch.tensor([k / 10], dtype=dtype).double(), width_edges(10, dtype)).item() == k - 1
    several = torch.tensor([[0.3, 0.3, 0.2, 0.2]], dtype=dtype)
    assert filled(report(probabilities=several, labels=[0], bins=10, resamples=20)) == {2: 1}


def test_confidence_zero_is_in_the_first_bin():
    assert bin_of(torch.tensor([0.0, 1e-300, 0.1, 1.0], dtype=torch.float64), width_edges(10)).tolist() == [0, 0, 0, 9]


def test_one_sample():
    r = binary([0.7], [False])
    assert (r.n, r.accuracy, r.gap, r.ece) == (1, 0, pytest.approx(0.7), pytest.approx(0.7))
    assert r.nll == pytest.approx(-np.log(0.3))
    assert r.brier == pytest.approx(2 * 0.49)
    assert r.aurc == 1
    assert r.l2_debiased == 0  # a bin of one sample says nothing
    assert (r.nll.low, r.nll.high) == (r.nll, r.nll)
    assert "too few" in str(r)


def test_one_class_only_in_the_labels():
    r = report(probabilities=[[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], labels=[0, 0, 0], bins=10, resamples=20)
    assert r.accuracy == pytest.approx(2 / 3)
    # class 0: gaps -0.1, -0.2, -0.6; class 1: the same mirrored: 0.1, 0.2, 0.6, each in its own bin
    assert r.ece_classwise == pytest.approx(2 * 0.9 / 3 / 2)


def test_empty_bins_have_no_accuracy():
    r = binary([0.95, 0.55], [True, True])
    empty = [row for row in r.table if not row.count]
    assert len(empty) == 8
    assert all((row.confidence, row.accuracy, row.accuracy_low) == (None, None, None) for row in empty)
    assert r.ece == pytest.approx((0.05 + 0.45) / 2)
    assert r.mce == pytest.approx(0.45)


@pytest.mark.filterwarnings("ignore:.*probability 0")
def test_several_bins_by_hand():
    # (0.5, 0.6]: 0.55, 0.60 -> one of two right; (0.9, 1]: 0.92, 0.98, 1.0 -> two of three right
    r = binary([0.55, 0.60, 0.92, 0.98, 1.0], [True, False, True, True, False])
    assert r.ece == pytest.approx(2 / 5 * (0.575 - 0.5) + 3 / 5 * (2.9 / 3 - 2 / 3))
    assert r.mce == pytest.approx(0.3)
    square = 2 / 5 * (0.075**2 - 0.25 / 1) + 3 / 5 * (0.3**2 - (2 / 9) / 2)
    assert square < 0
    assert r.l2_debiased == 0
    assert r.gap == pytest.approx((0.55 + 0.6 + 0.92 + 0.98 + 1.0) / 5 - 3 / 5)
    # most confident first: wrong, right, right, wrong, right
    assert r.aurc == pytest.approx((1 + 1 / 2 + 1 / 3 + 2 / 4 + 2 / 5) / 5)


def test_ties_in_confidence_count_as_random_order():
    r = binary([0.8, 0.8], [True, False])
    assert r.aurc == pytest.approx(((1 + 1 / 2) / 2 + (0 + 1 / 2) / 2) / 2)
    swapped = binary([0.8, 0.8], [False, True])
    assert swapped.aurc == r.aurc


def test_ties_between_classes_go_to_the_first():
    p = torch.full((2, 8), 1 / 8)
    r = report(probabilities=p, labels=[0, 7], resamples=20)
    assert r.accuracy == 0.5
    assert r.top5 == 0.5  # classes 0 to 4


@pytest.mark.parametrize("classes", [2, 3, 100])
def test_the_first_of_the_largest_is_predicted(classes):
    g = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 4, (500, classes), generator=g).float()  # full of ties
    labels = torch.randint(0, classes, (500,), generator=g)
    rows, p = measure_rows(scores, labels, True)
    assert rows.correct.tolist() == (scores.numpy().argmax(1) == labels.numpy()).tolist()
    assert torch.equal(p, scores.softmax(1))


def test_mass_bins_keep_equal_confidences_together():
    assert mass_edges(np.array([0.5] * 7 + [0.9]), 4).tolist() == [0, 0.5, 0.5, 0.5, 1]
    assert mass_edges(np.array([0.5]), 3).tolist() == [0, 0.5, 0.5, 1]


confidences = arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1))


@given(confidences, st.integers(2, 40))
def test_mass_bins_without_ties_are_equal(values, bins):
    values = np.unique(values)
    edges = mass_edges(values, bins)
    counts = np.bincount(bin_of(torch.tensor(values), torch.tensor(edges)).numpy(), minlength=bins)
    assert counts.max() - counts.min() <= 1


@given(confidences, st.integers(2, 40))
def test_every_confidence_is_inside_its_bin(values, bins):
    edges = width_edges(bins)
    index = bin_of(torch.tensor(values), edges).numpy()
    assert np.all(values <= edges.numpy()[index + 1])
    assert np.all((values > edges.numpy()[index]) | (index == 0))


@st.composite
def predictions(draw):
    n, classes = draw(st.integers(1, 40)), draw(st.integers(2, 9))
    logits = draw(arrays(np.float64, (n, classes), elements=st.floats(-20, 20)))
    return torch.tensor(logits), torch.tensor(draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n)))


@settings(max_examples=60, deadline=None)
@given(predictions(), st.integers(2, 30), st.randoms(use_true_random=False))
def test_invariants(case, bins, random):
    logits, labels = case
    r = report(logits=logits, labels=labels, bins=bins, resamples=20)
    assert abs(r.gap) <= r.ece + 1e-12  # a triangle inequality
    assert r.ece <= r.mce + 1e-12 <= 1 + 1e-9
    assert 0 <= r.brier <= 2
    assert r.nll >= -1e-12
    assert sum(row.count for row in r.table) == r.n
    for name, e in r.metrics.items():
        assert np.isfinite([e, e.low, e.high]).all(), name
        if name.startswith(("ece", "mce", "l2")):
            assert 0 <= e.low <= e <= e.high, name
    order = list(range(r.n))
    random.shuffle(order)
    shuffled = report(logits=logits[order], labels=labels[order], bins=bins, resamples=20)
    for name, e in r.metrics.items():
        assert shuffled.metrics[name] == pytest.approx(e, abs=1e-6 if name.startswith("l2") else 1e-9), name  # a root
    moved = report(logits=logits + 5, labels=labels, bins=bins, resamples=20)
    assert moved.nll == pytest.approx(r.nll, abs=1e-9)


def test_inputs_of_many_kinds():
    logits, labels = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 3
    expected = report(logits=logits, labels=labels, resamples=5)
    turned = report(logits=logits[::-1].copy()[::-1], labels=labels[::-1].copy()[::-1], resamples=5)
    assert turned == expected
    assert report(logits=logits.astype(">f8"), labels=labels.astype(">i4"), bins=np.int64(15), resamples=5) == expected


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logits": [[0.0, -INF]], "labels": [1]}, "the label of row 0 has probability 0, because its logit is -inf"),
        ({"logits": [[0.0, 0.0], [NAN, 0.0]], "labels": [1, 0]}, "logits have NaN or infinity, first in row 1"),
        ({"logits": [[INF, 0.0]], "labels": [1]}, "logits have NaN or infinity, first in row 0"),
        (
            {"probabilities": [[NAN, 0.0]], "labels": [1]},
            r"row 0: look for a diverged model, or an overflow in half precision\.$",
        ),
        ({"logits": [[0.0, 1.0]], "labels": [[1]]}, r"take labels\.squeeze\(1\)"),
        ({"logits": [[0.0, 1.0]], "labels": [[0, 1]]}, r"take labels\.argmax\(1\)"),
        ({"logits": [[0.0, 1.0]], "labels": None}, "labels are NoneType that can't become a tensor"),
        ({"logits": [[0.0, 1.0]], "labels": ["a"]}, "labels are list that can't become a tensor"),
        ({"logits": [[0.0, 1.0], [0.0]], "labels": [0, 1]}, "logits are list that can't become a tensor"),
        ({"probabilities": [[0.5, 0.5]] * 4100 + [[1.0, 1.0]], "labels": [0] * 4101}, "row 4100 of the probabilities"),
    ],
)
def test_messages_say_what_is_wrong(given, message):
    with pytest.raises(CiglError, match=message):
        report(**given)


@pytest.mark.parametrize("n", [20, 200])
def test_an_error_never_exceeds_1(n):
    g = torch.Generator().manual_seed(0)
    logits = 9 * torch.randn(n, 3, generator=g)
    for labels in (logits.argmin(1), torch.randint(0, 3, (n,), generator=g)):
        for name, e in report(logits=logits, labels=labels, resamples=50).metrics.items():
            if name.startswith(("ece", "mce", "l2")):
                assert e <= e.high <= 1 + 1e-12, name
