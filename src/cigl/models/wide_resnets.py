"""Wide ResNets (Zagoruyko & Komodakis 2016, https://arxiv.org/abs/1605.07146): the paper's WRN-22-2."""

from __future__ import annotations

from torch import Tensor, nn

from cigl.common.errors import CiglError
from cigl.models.initialise import he


class Block(nn.Module):
    """Batch norm and ReLU stand before each convolution; where the width changes, the shortcut sees them too."""

    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.bn1, self.relu1 = nn.BatchNorm2d(inside), nn.ReLU()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn2, self.relu2 = nn.BatchNorm2d(outside), nn.ReLU()
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if inside != outside or stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(y)
        out: Tensor = self.conv2(self.relu2(self.bn2(self.conv1(y)))) + skip
        return out


def wide_resnet(depth: int, width: int, channels: int, classes: int, half: bool = False) -> nn.Module:
    """Three groups of (depth - 4) / 6 blocks, 16, 32 and 64 times ``width`` channels wide.

    ``half`` averages 2x2 pixels first.

    >>> sum(p.numel() for p in wide_resnet(16, 4, channels=3, classes=10).parameters())
    2748890
    """
    blocks_each, rest = divmod(depth - 4, 6)
    if rest or blocks_each < 1 or width < 1:
        near = 6 * max(1, round((depth - 4) / 6)) + 4
        raise CiglError(
            f"wrn-{depth}-{width} can't be built: the depth must be 6n + 4 (10, 16, 22, 28, ...) and the width at "
            f"least 1; the nearest is wrn-{near}-{max(1, width)}."
        )
    layers: list[nn.Module] = [nn.AvgPool2d(2)] if half else []
    layers.append(nn.Conv2d(channels, 16, 3, 1, 1, bias=False))
    inside = 16
    for group, outside in enumerate((16 * width, 32 * width, 64 * width)):
        for number in range(blocks_each):
            layers.append(Block(inside, outside, 2 if group and not number else 1))
            inside = outside
    head = [nn.BatchNorm2d(inside), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)]
    return he(nn.Sequential(*layers, *head))
