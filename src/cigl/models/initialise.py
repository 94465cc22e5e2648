"""Where training starts: He et al. 2015 for convolutions, torch's own for the rest."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def he(model: Model) -> Model:
    """Normal convolution weights whose variance keeps that of the gradients, 2 / fan-out; batch norm at 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
    return model
