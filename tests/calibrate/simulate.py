"""A world whose calibration is known: predictions are softmax(logits), labels are drawn from softmax(logits / T)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cigl.calibrate.measures.bins import bin_of, width_edges


def world(
    n: int, temperature: float = 1.0, classes: int = 5, seed: int = 0, scale: float = 2.0
) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, classes, generator=g, dtype=torch.float64)
    return logits, (logits / temperature).softmax(1).multinomial(1, generator=g).squeeze(1)


def truth(temperature: float = 1.0, classes: int = 5, scale: float = 2.0, n: int = 1_000_000) -> dict[str, float]:
    """The expectations over labels, for very many logits."""
    g = torch.Generator().manual_seed(12345)
    logits = scale * torch.randn(n, classes, generator=g, dtype=torch.float64)
    p, q = logits.softmax(1), (logits / temperature).softmax(1)
    confidence, predicted = p.max(1)
    right = q.gather(1, predicted[:, None]).squeeze(1)
    gaps = np.bincount(bin_of(confidence, width_edges(15)).numpy(), (confidence - right).numpy(), 15)
    return {
        "accuracy": float(right.mean()),
        "nll": float(-(q * p.log()).sum(1).mean()),
        "brier": float((p.square().sum(1) + 1 - 2 * (p * q).sum(1)).mean()),
        "gap": float((confidence - right).mean()),
        "ece_15": float(np.abs(gaps).sum() / n),
    }
