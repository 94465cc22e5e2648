"""Images for the test table of cigl-auto that neither a search nor a table before it has used.

Used were: the training images up to number 20,000 of Fashion-MNIST and 15,000 of CIFAR-10 (results, fresh.py), those
from 20,000 to 28,000 (search.py, to learn from; seeds 100 to 103), those from 30,000 to 50,000 (validation of both
searches, tests of fresh.py), and the official test images. Images to learn from are those of fresh.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import cigl.data
from cigl.data import Source

CIFAR10 = [*range(15_000, 20_000), *range(28_000, 30_000)]


def fashion_mnist() -> Source:
    return _unused("fashion-mnist", range(50_000, 60_000))


def cifar10() -> Source:
    return _unused("cifar10", CIFAR10)


def _unused(name: str, test: Iterable[int]) -> Source:
    source = cigl.data.open(name)
    train = source.train.take(range(10_000, 10_000 + (5_000 if name == "cifar10" else 10_000)))
    return replace(source, name=f"{name}, unused images", train=train, test=source.train.take(list(test)))
