"""How a model is called on what a loader yields: the one thing that sparsify and calibrate both need to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def device_of(model: nn.Module) -> torch.device:
    """Where its first parameter is."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def default_forward(model: nn.Module, batch: Any) -> Any:
    """Call the model on a batch as loaders usually yield it: (inputs, ...), a mapping, or the inputs."""
    device = device_of(model)

    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    if isinstance(batch, Mapping):
        return model(**{name: move(value) for name, value in batch.items()})
    return model(move(batch[0] if isinstance(batch, (tuple, list)) else batch))
