"""Calibration while training: mixup and label smoothing, two of the paper's baselines (section 5.3).

Both turn class numbers into rows of probabilities, which ``torch.nn.functional.cross_entropy`` takes as they are.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cigl.common.errors import CiglError


def smooth_labels(labels: Tensor, classes: int, smoothing: float = 0.1) -> Tensor:
    """Label smoothing (Szegedy et al. 2016): one-hot rows mixed with the uniform row.

    Args:
        labels: Class numbers of shape (samples,).
        classes: How many there are.
        smoothing: The share of the uniform row, from 0 to below 1.

    >>> import torch
    >>> from cigl.calibrate import smooth_labels
    >>> smooth_labels(torch.tensor([0]), classes=4, smoothing=0.2)
    tensor([[0.8500, 0.0500, 0.0500, 0.0500]])
    """
    if not 0 <= smoothing < 1:
        raise CiglError(f"smoothing is {smoothing}: it is the share of the uniform row, from 0 to below 1.")
    if labels.is_floating_point() or labels.ndim != 1:
        raise CiglError(
            f"labels must be class numbers of shape (samples,), not {labels.dtype} of {tuple(labels.shape)}."
        )
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise CiglError(
            f"labels run from {int(labels.min())} to {int(labels.max())}, but there are {classes} classes, "
            "numbered from 0."
        )
    return F.one_hot(labels.long(), classes).float() * (1 - smoothing) + smoothing / classes


def mixup(
    inputs: Tensor,
    labels: Tensor,
    classes: int,
    *,
    alpha: float = 0.2,
    smoothing: float = 0.0,
    generator: np.random.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Mixup (Zhang et al. 2018): each input and its label row mixed with another, by one draw of Beta(alpha, alpha).

    Args:
        inputs: A batch of floating-point inputs.
        labels: Class numbers of shape (samples,).
        classes: How many there are.
        alpha: Of the Beta distribution; 0.2 is usual.
        smoothing: Smooth the labels first, as ``smooth_labels`` does.
        generator: Makes it repeatable (numpy's, because torch's Beta takes none).

    Returns:
        The mixed inputs, and rows of probabilities that ``torch.nn.functional.cross_entropy`` takes as targets.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from cigl.calibrate import mixup
    >>> x, target = mixup(torch.randn(8, 3), torch.arange(8) % 4, classes=4)
    >>> loss = F.cross_entropy(torch.zeros(8, 4), target)
    >>> x.shape, round(loss.item(), 4)
    (torch.Size([8, 3]), 1.3863)
    """
    if not 0 < alpha < math.inf:
        raise CiglError(f"alpha is {alpha}: the Beta distribution needs a positive, finite one (0.2 is usual).")
    if not inputs.is_floating_point() or inputs.shape[:1] != labels.shape[:1]:
        raise CiglError("inputs must be floating-point numbers (mix embeddings, not token numbers), one per label.")
    random = generator or np.random.default_rng(int(torch.randint(2**62, ())))
    share = float(random.beta(alpha, alpha))
    partner = torch.from_numpy(random.permutation(labels.shape[0])).to(labels.device)
    target = smooth_labels(labels, classes, smoothing)
    return torch.lerp(inputs[partner.to(inputs.device)], inputs, share), torch.lerp(target[partner], target, share)
