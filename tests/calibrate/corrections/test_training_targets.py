"""Mixup and label smoothing."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from cigl import CiglError
from cigl.calibrate import mixup, smooth_labels


def test_smoothing_is_torchs():
    logits, labels = torch.randn(20, 7), torch.arange(20) % 7
    ours = F.cross_entropy(logits, smooth_labels(labels, 7, 0.1))
    assert ours.item() == pytest.approx(F.cross_entropy(logits, labels, label_smoothing=0.1).item(), rel=1e-5)


def test_mixup_mixes_inputs_and_targets_alike():
    inputs, labels = torch.eye(6), torch.arange(6)
    mixed, target = mixup(inputs, labels, 6, alpha=1.0, generator=np.random.default_rng(3))
    assert torch.allclose(mixed, target)  # identity in, so both show the same weights
    assert torch.allclose(target.sum(1), torch.ones(6))
    again = mixup(inputs, labels, 6, alpha=1.0, generator=np.random.default_rng(3))
    assert torch.equal(again[0], mixed)
    share = np.random.default_rng(3).beta(1.0, 1.0)
    assert torch.isclose(target, torch.tensor(share, dtype=torch.float32)).any()


def test_mixup_of_one_and_with_smoothing():
    inputs, target = mixup(torch.ones(1, 3), torch.tensor([1]), 2, smoothing=0.2)
    assert torch.equal(inputs, torch.ones(1, 3))
    assert torch.allclose(target, torch.tensor([[0.1, 0.9]]))


def test_refusals():
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    for call, message in [
        (lambda: mixup(x, y, 2, alpha=0.0), "needs a positive, finite one"),
        (lambda: mixup(x.long(), y, 2), "not token numbers"),
        (lambda: mixup(x[:1], y, 2), "one per label"),
        (lambda: smooth_labels(y, 2, 1.0), "from 0 to below 1"),
        (lambda: smooth_labels(y, 1), "there are 1 classes"),
        (lambda: smooth_labels(x, 2), "class numbers"),
    ]:
        with pytest.raises(CiglError, match=message):
            call()


def test_alpha_is_finite():
    for alpha in (float("inf"), float("nan"), 0.0):
        with pytest.raises(CiglError, match="positive, finite one"):
            mixup(torch.zeros(2, 3), torch.tensor([0, 1]), 2, alpha=alpha)
