"""ResNet-18 and ResNet-50 (He et al. 2016, https://arxiv.org/abs/1512.03385), for small and for large images.

Where a bottleneck halves the image, its 3x3 convolution does it ("v1.5"), as in every current implementation.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cigl.models.initialise import he

SMALL = 64  # up to this many pixels a 7x7 stem with pooling would leave nothing to look at


def _conv(inside: int, outside: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inside, outside, size, stride, size // 2, bias=False), nn.BatchNorm2d(outside)]


class Block(nn.Module):
    """A residual branch, a shortcut, and a ReLU over their sum."""

    def __init__(self, branch: Sequence[nn.Module], inside: int, outside: int, stride: int):
        super().__init__()
        self.branch = nn.Sequential(*branch)
        same = inside == outside and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv(inside, outside, 1, stride))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.branch(x) + self.shortcut(x))
        return y


def basic(inside: int, width: int, stride: int) -> Block:
    """Two 3x3 convolutions."""
    branch = [*_conv(inside, width, 3, stride), nn.ReLU(), *_conv(width, width, 3)]
    return Block(branch, inside, width, stride)


def bottleneck(inside: int, width: int, stride: int) -> Block:
    """1x1 down, 3x3, 1x1 up to four times the width."""
    branch = [
        *(*_conv(inside, width, 1), nn.ReLU()),
        *(*_conv(width, width, 3, stride), nn.ReLU()),
        *_conv(width, 4 * width, 1),
    ]
    return Block(branch, inside, 4 * width, stride)


_DEPTHS = {18: (basic, 1, (2, 2, 2, 2)), 50: (bottleneck, 4, (3, 4, 6, 3))}


def resnet(depth: int, shape: Sequence[int], classes: int) -> nn.Module:
    """The CIFAR form (3x3 stem, no pooling) for images up to 64 pixels, else the ImageNet form.

    >>> sum(p.numel() for p in resnet(18, (3, 32, 32), classes=10).parameters())
    11173962
    """
    block, expansion, counts = _DEPTHS[depth]
    if max(shape[1:]) <= SMALL:
        layers = [*_conv(shape[0], 64, 3), nn.ReLU()]
    else:
        layers = [*_conv(shape[0], 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, count in enumerate(counts):
        width = 64 * 2**stage
        for number in range(count):
            layers.append(block(inside, width, 2 if stage and not number else 1))
            inside = expansion * width
    return he(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)))


def torchvision_names(model: nn.Module) -> dict[str, str]:
    """The places of layers as torchvision and timm name them, and as they are named here; none of other networks.

    >>> names = torchvision_names(resnet(18, (3, 224, 224), classes=10))
    >>> names["layer2.0.downsample.0"], names["fc"]
    ('6.shortcut.0', '14')
    """
    if not isinstance(model, nn.Sequential) or not any(isinstance(each, Block) for each in model):
        return {}
    names = {"conv1": "0", "bn1": "1", "fc": str(len(model) - 1)}
    stage = number = 0
    for index, block in enumerate(model):
        if isinstance(block, Block):
            first = stage == 0 or (isinstance(block.shortcut, nn.Sequential) and block.shortcut[0].stride == (2, 2))
            stage, number = (stage + 1, 0) if first else (stage, number + 1)
            place = f"layer{stage}.{number}"
            for k, at in enumerate(range(0, len(block.branch), 3), 1):  # convolution, batch norm, ReLU
                names |= {f"{place}.conv{k}": f"{index}.branch.{at}", f"{place}.bn{k}": f"{index}.branch.{at + 1}"}
            names |= {f"{place}.downsample.{k}": f"{index}.shortcut.{k}" for k in (0, 1)}
    return names
