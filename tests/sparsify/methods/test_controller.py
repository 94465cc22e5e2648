"""The strength of Z follows over-confidence: when it grows, when it shrinks, what it ignores and refuses."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cigl
from cigl.common.text import confidence
from cigl.sparsify.methods.controller import Controller, Rule

RULE = Rule(gain=4.0, tolerance=0.02, patience=0, most=2.5)


def examples(gap, count=2000, accuracy=0.7, classes=10):
    """Logits with this difference between confidence and accuracy."""
    p = accuracy + gap
    right = torch.arange(count) < round(accuracy * count)
    logits = torch.zeros(count, classes, dtype=torch.float64)
    logits[:, 1] = math.log(p / (1 - p) * (classes - 1))
    return logits, right.long()


def seen(*gaps, rule=RULE, count=2000):
    controller = Controller(rule)
    for number, gap in enumerate(gaps):
        controller.observe(*examples(gap, count))
        controller.conclude(100 * number + 1)
    return controller


def test_the_strength_grows_by_what_exceeds_the_tolerance():
    assert seen(0.10).strength == pytest.approx(4 * (0.10 - 0.02))
    assert seen(0.10, 0.06).strength == pytest.approx(4 * (0.08 + (0.08 - 0.02)))  # the gaps are smoothed
    assert seen(0.10).history[0][:2] == (1, pytest.approx(0.10))


@pytest.mark.parametrize("gaps", [(0.019,), (-0.2,), (-0.1, 0.05, 0.06), (0.0, 0.0, 0.0)])
def test_it_stays_0_within_the_tolerance_and_below(gaps):
    assert seen(*gaps).strength == 0


def test_what_may_be_noise_does_not_count():
    assert seen(0.05, count=40).strength == 0
    assert seen(0.05, count=4000).strength > 0
    assert seen(0.28, count=1).strength == 0


def test_nothing_grows_before_its_time():
    patient = Rule(gain=4.0, tolerance=0.02, patience=3, most=2.5)
    assert [seen(*[0.1] * n, rule=patient).strength > 0 for n in (1, 2, 3, 4)] == [False, False, False, True]


def test_it_shrinks_when_the_network_becomes_under_confident():
    before = seen(0.2, 0.2).strength
    assert seen(0.2, 0.2, -0.25).strength == pytest.approx(before - 4 * 0.025)
    assert seen(0.2, 0.2, -0.18, 0.01).strength == seen(0.2, 0.2, -0.18).strength == before  # inside the band it stays


def test_late_in_training_it_may_only_shrink():
    controller = seen(0.2)
    for gap, falls in ((0.2, False), (-0.5, True)):
        before = controller.strength
        controller.observe(*examples(gap))
        controller.conclude(1000, may_grow=False)
        assert (controller.strength < before) is falls


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-0.55, 0.29), max_size=40))
def test_it_stays_between_0_and_its_largest(gaps):
    controller = seen(*gaps, count=50)
    assert all(0 <= each.strength <= 2.5 for each in controller.history)
    for one, next_ in zip(controller.history, controller.history[1:], strict=False):
        assert abs(next_.strength - one.strength) <= 4.0 * 0.55 + 1e-9


def test_batches_of_an_epoch_are_one_observation():
    together, apart = Controller(RULE), Controller(RULE)
    logits, labels = examples(0.1)
    together.observe(logits, labels)
    for part, theirs in zip(logits.split(300), labels.split(300), strict=True):
        apart.observe(part, theirs)
    assert apart.gap == pytest.approx(together.gap)
    for each in (together, apart):
        each.conclude(11)
        each.conclude(21)  # nothing new
    assert apart.strength == pytest.approx(together.strength)
    assert len(apart.history) == 1


@pytest.mark.parametrize(
    ("logits", "labels", "words"),
    [
        (torch.full((2, 3), math.nan), torch.zeros(2, dtype=torch.long), "NaN or infinity"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "labels run from 0 to 3"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "no samples"),
        (torch.zeros(2, 4), torch.zeros(2, dtype=torch.long), "4 classes, and those before had 3"),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.long), "one class number per row"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence_and_changes_nothing(logits, labels, words):
    controller = Controller(RULE)
    controller.observe(torch.zeros(5, 3), torch.zeros(5, dtype=torch.long))
    before = controller.state_dict()
    with pytest.raises(cigl.CiglError, match=words):
        controller.observe(logits, labels)
    assert controller.state_dict() == before


def test_a_state_is_loaded_as_it_was_or_not_at_all():
    controller = seen(0.1, 0.2, -0.1)
    controller.observe(*examples(0.1))
    state = controller.state_dict()
    assert Controller(RULE).loaded(state) == controller
    for wrong in ({"strength": 3.0}, {"mean": math.nan}, {"pending": [1.0]}, {"history": [[1, "a", 0.0, 0.0]]}):
        with pytest.raises(ValueError, match=r".+"):
            Controller(RULE).loaded(state | wrong)


@pytest.mark.parametrize("name", ["gain", "tolerance", "patience", "most"])
def test_constants_are_options_that_are_checked(name):
    with pytest.raises(cigl.CiglError, match=f"{name} is -1"):
        cigl.method("cigl-auto", **{name: -1})


def test_words():
    assert confidence(0.3, 0.004) == "mask 30 %, as confident as accurate"
    assert confidence(0.0, 0.012) == "mask 0 %, over-confident by 1 point"
