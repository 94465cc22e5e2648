"""The two networks that the cost of sparse training is measured on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp() -> nn.Module:
    """784-1000-1000-10."""
    return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))


class Block(nn.Module):
    """The pre-activation block of Zagoruyko & Komodakis 2016."""

    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inside), nn.BatchNorm2d(outside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.shortcut = None if inside == outside else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(y)
        return skip + self.conv2(torch.relu(self.bn2(self.conv1(y))))


def wrn_22_2(classes: int = 10) -> nn.Module:
    """Wide ResNet 22-2 for 32x32 images, the paper's smaller network."""
    widths, blocks = [16, 32, 64, 128], []
    for group in range(3):
        for number in range(3):
            inside = widths[group] if number == 0 else widths[group + 1]
            blocks.append(Block(inside, widths[group + 1], 2 if number == 0 and group else 1))
    head = [nn.BatchNorm2d(128), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), *blocks, *head)
