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
    """What a name looks like, what it means, and the call that makes it from the match."""

    pattern: re.Pattern[str]
    line: str
    images: bool  # needs (channels, height, width)
    make: Callable[[re.Match[str], int, Shape], nn.Module]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split("-") if part]


_NETWORKS: dict[str, _Network] = {
    "mlp": _Network(
        re.compile(r"mlp"),
        "hidden layers of 300 and 100 units (LeNet-300-100)",
        False,
        lambda match, classes, shape: mlp(shape, (300, 100), classes),
    ),
    "mlp-A-B-...": _Network(
        re.compile(r"mlp((?:-\d+)+)"),
        "hidden layers of A, B, ... units, e.g. mlp-512-512-256",
        False,
        lambda match, classes, shape: mlp(shape, _numbers(match[1]), classes),
    ),
    "convnet": _Network(
        re.compile(r"convnet"),
        "six small convolutions with batch norm, minutes on a CPU",
        True,
        lambda match, classes, shape: convnet(shape[0], classes),
    ),
    "wrn-D-K": _Network(
        re.compile(r"wrn-(\d+)-(\d+)"),
        "wide ResNet of depth D and width K, D = 6n + 4, e.g. wrn-22-2",
        True,
        lambda match, classes, shape: wide_resnet(int(match[1]), int(match[2]), shape[0], classes),
    ),
    "wrn-D-K-half": _Network(
        re.compile(r"wrn-(\d+)-(\d+)-half"),
        "the same on images averaged to half their size: a quarter of the work, for a CPU",
        True,
        lambda match, classes, shape: wide_resnet(int(match[1]), int(match[2]), shape[0], classes, half=True),
    ),
    "resnet18": _Network(
        re.compile(r"resnet18"),
        "ResNet-18; up to 64 pixels with a 3x3 stem and no pooling",
        True,
        lambda match, classes, shape: resnet(18, shape, classes),
    ),
    "resnet50": _Network(
        re.compile(r"resnet50"),
        "ResNet-50; up to 64 pixels with a 3x3 stem and no pooling",
        True,
        lambda match, classes, shape: resnet(50, shape, classes),
    ),
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
        if match := network.pattern.fullmatch(name):
            if network.images and len(shape) != 3:
                raise CiglError(
                    f"{name} needs images (channels, height, width), but the inputs are {tuple(shape)}: take mlp."
                )
            return network.make(match, classes, tuple(shape))
    raise unknown("model", name, names())
