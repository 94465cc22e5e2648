"""Optimizers and learning rates. A schedule is a pure function of the step: there is nothing to save of it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cigl.train.config import Config


def build_optimizer(config: Config, model: nn.Module) -> Optimizer:
    parameters: list[Any] = list(model.parameters())
    fused = parameters[0].device.type in ("cpu", "cuda")  # one pass over the weights in place of five
    if not config.decay_biases:  # and the scales of normalization layers: all that has one dimension
        vectors = [p for p in parameters if p.dim() == 1]
        parameters = [{"params": [p for p in parameters if p.dim() != 1]}, {"params": vectors, "weight_decay": 0.0}]
    if config.optimizer == "sgd":
        nesterov = config.nesterov and config.momentum > 0
        return torch.optim.SGD(
            parameters, config.lr, config.momentum, weight_decay=config.weight_decay, nesterov=nesterov, fused=fused
        )
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, config.lr, weight_decay=config.weight_decay, fused=fused)


def lr_factor(config: Config, steps_per_epoch: int) -> Callable[[int], float]:
    """The share of ``lr`` for the update after ``step`` updates."""
    total = config.epochs * steps_per_epoch
    warmup = config.warmup_epochs * steps_per_epoch

    def factor(step: int) -> float:
        if step < warmup:
            return min(1.0, (step + 1) / warmup)
        if config.schedule == "piecewise":
            return float(config.gamma ** bisect_right(config.milestones, step / total))
        if config.schedule == "cosine":
            progress = (step - warmup) / max(1.0, total - warmup)
            return config.lr_end + (1 - config.lr_end) / 2 * (1 + math.cos(math.pi * progress))
        return 1.0

    return factor
