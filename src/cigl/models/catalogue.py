"""A network's name in, the network out. A new network is a new entry in ``_NETWORKS``; nothing else asks for names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from cigl.common.errors import CiglError, unknown
from cigl.models.factory import from_factory
from cigl.models.plain import convnet, mlp
from cigl.models.resnets import resnet
from cigl.models.wide_resnets import wide_resnet

Shape = tuple[int, ...]


class _Network(NamedTuple):
    """What a name looks like, what it means, and the call that makes it from the numbers in the name."""

    pattern: str
    line: str
    images: bool  # needs (channels, height, width)
    make: Callable[[list[int], int, Shape], nn.Module]


_SIZES = "up to 64 pixels with a 3x3 stem and no pooling"
_NETWORKS: dict[str, _Network] = {
    "mlp": _Network(
        r"mlp",
        "hidden layers of 300 and 100 units (LeNet-300-100)",
        False,
        lambda _, classes, shape: mlp(shape, (300, 100), classes),
    ),
    "mlp-A-B-...": _Network(
        r"mlp(-\d+)+",
        "hidden layers of A, B, ... units, e.g. mlp-512-512-256",
        False,
        lambda widths, classes, shape: mlp(shape, widths, classes),
    ),
    "convnet": _Network(
        r"convnet",
        "six small convolutions with batch norm, minutes on a CPU",
        True,
        lambda _, classes, shape: convnet(shape[0], classes),
    ),
    "wrn-D-K": _Network(
        r"wrn-\d+-\d+",
        "wide ResNet of depth D and width K, D = 6n + 4, e.g. wrn-22-2",
        True,
        lambda sizes, classes, shape: wide_resnet(sizes[0], sizes[1], shape[0], classes),
    ),
    "wrn-D-K-half": _Network(
        r"wrn-\d+-\d+-half",
        "the same on images averaged to half their size: a quarter of the work, for a CPU",
        True,
        lambda sizes, classes, shape: wide_resnet(sizes[0], sizes[1], shape[0], classes, half=True),
    ),
} | {
    f"resnet{depth}": _Network(
        rf"resnet{depth}",
        f"ResNet-{depth}; {_SIZES}",
        True,
        lambda depths, classes, shape: resnet(depths[0], shape, classes),
    )
    for depth in (18, 50)
}
_OWN = "package.module:factory"


def names() -> dict[str, str]:
    """The patterns of all names, each with one line about it.

    >>> from cigl.models import names
    >>> names()["wrn-D-K"]
    'wide ResNet of depth D and width K, D = 6n + 4, e.g. wrn-22-2'
    """
    return {name: network.line for name, network in _NETWORKS.items()} | {
        _OWN: "your own: a callable that takes (classes, shape), (classes) or nothing"
    }


def build(name: str, classes: int, shape: Shape) -> nn.Module:
    """The network called ``name`` for inputs of ``shape`` (without the batch) and ``classes`` outputs.

    Weights are drawn from torch's global generator, as in every PyTorch network: seed it before.

    >>> from cigl.models import build
    >>> build("mlp", classes=10, shape=(28, 28))[1]
    Linear(in_features=784, out_features=300, bias=True)
    """
    if classes < 1 or not shape or any(size < 1 for size in shape):
        raise CiglError(f"a network needs at least one class and a shape of positive sizes, not {classes} and {shape}.")
    if ":" in name:
        return from_factory(name, classes, tuple(shape))
    for network in _NETWORKS.values():
        if re.fullmatch(network.pattern, name):
            if network.images and len(shape) != 3:
                raise CiglError(
                    f"{name} needs images (channels, height, width), but the inputs are {tuple(shape)}: take mlp."
                )
            return network.make([int(each) for each in re.findall(r"\d+", name)], classes, tuple(shape))
    raise unknown("model", name, names())
