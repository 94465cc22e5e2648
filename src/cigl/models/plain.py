"""The two small networks: a multi-layer perceptron and a convolutional network for a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from cigl.common.errors import CiglError
from cigl.models.initialise import he


def mlp(shape: Sequence[int], widths: Sequence[int], classes: int) -> nn.Module:
    """Flatten, then hidden layers of ``widths`` with ReLU, then one output per class.

    With 784 inputs and widths (300, 100) it is the LeNet-300-100 of LeCun et al. 1998: 266,610 parameters.
    """
    if any(width < 1 for width in widths):
        raise CiglError(f"an mlp needs at least one unit in each layer, not {'-'.join(map(str, widths))}.")
    sizes = [math.prod(shape), *widths]
    layers: list[nn.Module] = [nn.Flatten()]
    for inside, outside in pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def convnet(channels: int, classes: int) -> nn.Module:
    """Three stages of two 3x3 convolutions (32, 64, 128 channels), halved after each, averaged at the end."""
    layers: list[nn.Module] = []
    inside = channels
    for width, stride in ((32, 1), (32, 2), (64, 1), (64, 2), (128, 1), (128, 2)):
        layers += [nn.Conv2d(inside, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        inside = width
    return he(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)))
